#!/usr/bin/env python3
"""Tell the owner what the guard did: by a command, a webhook and the host's own sendmail, all at once.

    guard_notify.py --config FILE --message FILE

guard.py starts it as a unit of its own, outside the guard's sandbox, and removes the message afterwards. The message is
a JSON object: {"event", "machine", "text", "time", "readings"}. The command gets the event as its argument and the text
of the mail on stdin; the webhook gets the object as the body of a POST. Both have 10 s, the webhook three tries. Exit
status: 0 all of them were told; 1 one was not, with a line for each on stderr and in the file MESSAGE.said. The address
of the webhook is in no line, because it may be a secret.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import subprocess
import sys
import time

LIMIT_S = 10
PAUSES_S = (0, 2, 5)
SENDMAILS = ("/usr/sbin/sendmail", "/usr/lib/sendmail")


def as_mail(message):
    """The text of the mail, which the command gets too: what happened, then the readings."""
    lines = [message["text"], "", "machine: %s" % message["machine"], "time: %s" % message["time"], ""]
    for name, value in message["readings"].items():
        lines.append("%s: %s" % (name, value))
    return "\n".join(lines) + "\n"


def by_program(argv, text):
    """Runs a program with the text as its stdin; returns what went wrong, or None."""
    try:
        done = subprocess.run(
            argv, input=text.encode(), timeout=LIMIT_S, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
        )
    except subprocess.TimeoutExpired:
        return "no end within %d s" % LIMIT_S
    except OSError as error:
        return error.strerror
    words = done.stderr.decode(errors="replace").split()
    return "exit status %d: %s" % (done.returncode, " ".join(words)[:200]) if done.returncode else None


def by_command(path, message):
    problem = by_program([path, message["event"]], as_mail(message))
    return problem and "command %s: %s" % (path, problem)


def by_mail(recipient, message):
    program = next((path for path in SENDMAILS if os.access(path, os.X_OK)), None)
    if program is None:
        fix = "install a mail program (msmtp-mta, postfix), or take mail out of guard.notify"
        return "mail: there is no %s: %s" % (SENDMAILS[0], fix)
    subject = "%(machine)s: GPU guard: %(event)s" % message
    head = "To: %s\nSubject: %s\nContent-Type: text/plain; charset=utf-8\n\n" % (recipient, " ".join(subject.split()))
    problem = by_program([program, "-oi", recipient], head + as_mail(message))
    return problem and "mail to %s: %s" % (recipient, problem)


def by_webhook(url, message):
    import urllib.error
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        """A redirect would send the readings elsewhere."""

        def redirect_request(self, *_):
            return None

    opener = urllib.request.build_opener(NoRedirect)
    body = json.dumps(message).encode()
    problem = None
    for pause_s in PAUSES_S:
        time.sleep(pause_s)
        try:
            headers = {"Content-Type": "application/json", "User-Agent": "rigwright-guard"}
            with opener.open(urllib.request.Request(url, data=body, headers=headers), timeout=LIMIT_S):
                return None
        except urllib.error.HTTPError as error:
            problem = "HTTP status %d" % error.code
        except urllib.error.URLError as error:
            problem = getattr(error.reason, "strerror", None) or type(error.reason).__name__
        except Exception as error:  # its text may contain the address
            problem = type(error).__name__
    return "webhook: %s, %d times" % (problem, len(PAUSES_S))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True)
    parser.add_argument("--message", required=True)
    options = parser.parse_args()
    try:
        with open(options.config) as file:
            ways = json.load(file).get("notify", {})
        with open(options.message) as file:
            message = json.load(file)
    except (OSError, ValueError) as error:
        sys.stderr.write("%s: %s\n" % (getattr(error, "filename", "message"), getattr(error, "strerror", "no JSON")))
        return 1
    functions = {"command": by_command, "webhook": by_webhook, "mail": by_mail}
    with concurrent.futures.ThreadPoolExecutor(len(functions)) as pool:
        answers = [pool.submit(function, ways[name], message) for name, function in functions.items() if ways.get(name)]
    problems = [answer.result() for answer in answers if answer.result()]
    text = "".join("%s\n" % problem for problem in sorted(problems))
    sys.stderr.write(text)
    if problems:
        with contextlib.suppress(OSError), open(options.message + ".said", "w") as file:
            file.write(text)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
