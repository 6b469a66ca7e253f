#!/usr/bin/env python3
"""Runs NVIDIA's nccl-tests on the GPUs and prints the results; train_smoke.py uses its Runner.

    nccl_programs.py --gpus 4                     all_reduce_perf and sendrecv_perf from the usual folders
    nccl_programs.py --gpus 4 --at ~/built        from this folder only

Prints one JSON document on stdout and progress on stderr. Every program runs in a separate session with a time limit,
and as --user if this program runs as root. At its end or at the limit all its remaining descendants are killed. The
caller's NCCL settings are not used.

    {"schema": 1, "gpus", "looked_in": [folder], "runs": [RUN], "left_behind": [pid]}
    RUN: {"program", "path", "outcome": "done" | "failed" | "hang" | "flood" | "not run", "code", "seconds",
          "limit_s", "stdout", "stderr", "error", "transports": {"0-1": {"transport", "kind"}}, "warnings"}

A program that is not on the host has path null and outcome "not run".
"""

import argparse
import contextlib
import ctypes
import glob
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nccl_host
import nccl_log

PROGRAMS = ("all_reduce_perf", "sendrecv_perf")
FOLDERS = ("/usr/local/bin", "~/nccl-tests/build", "/opt/nccl-tests/build")
KILL_S = 20  # how long the kernel may take to end killed processes
FLOOD_BYTES = 4 << 20
SAID_BYTES = 200000
PROGRAM_S, TELL_S = 300, 15
QUIET_S = 90  # nccl-tests flush every line, and need at most half a minute a size, also over a PCIe x1 riser
DIE_WITH_PARENT, ADOPT_ORPHANS = 1, 36  # prctl


def prctl(*numbers):
    ctypes.CDLL(None, use_errno=True).prctl(*numbers)


class Runner:
    """Runs one program after the other as `user` (a pwd entry; None: the current user)."""

    def __init__(self, user, timeout_s):
        self.user, self.deadline, self.timeout_s = user, time.monotonic() + timeout_s, timeout_s
        self.left_behind = []
        self.folder = tempfile.mkdtemp(prefix="nccl_programs.")
        os.chmod(self.folder, 0o711)
        prctl(ADOPT_ORPHANS, 1)

    def close(self):
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def place(self, name):
        """Creates a folder that the program may write to; returns its path."""
        path = os.path.join(self.folder, name)
        os.mkdir(path, 0o700)
        if self.user:
            os.chown(path, self.user.pw_uid, self.user.pw_gid)
        return path

    def home(self):
        return self.user.pw_dir if self.user else os.path.expanduser("~")

    def in_home(self, path):
        """The path with the user's home in place of `~`."""
        return self.home() + path[1:] if path.startswith("~/") else path

    @contextlib.contextmanager
    def as_user(self):
        """Inside the context files are accessed as the user, because root may have no access to a home on a network."""
        if self.user:
            os.setegid(self.user.pw_gid)
            os.seteuid(self.user.pw_uid)
        try:
            yield
        finally:
            if self.user:
                os.seteuid(0)
                os.setegid(0)

    def become(self):
        if self.user:
            os.initgroups(self.user.pw_name, self.user.pw_gid)
            os.setgid(self.user.pw_gid)
            os.setuid(self.user.pw_uid)
        prctl(DIE_WITH_PARENT, signal.SIGKILL)  # after setuid, which resets it

    def run(self, name, argv, limit_s, quiet_s=None, **settings):
        """Runs a program; returns a RUN. `quiet_s`: the longest permitted time without output."""
        made = not_run(name, argv[0], limit_s)
        left_s = self.deadline - time.monotonic()
        if self.left_behind:
            return dict(made, error="process %d does not end after SIGKILL" % self.left_behind[-1])
        if left_s <= 1:
            return dict(made, error="the time limit of all programs, %g s, is over" % self.timeout_s)
        place = self.place(name)
        log, began = os.path.join(place, "nccl.%p.log"), time.monotonic()
        environ = nccl_host.environment(os.environ, log, settings)
        environ.update(PYTHONUSERBASE=os.path.join(self.home(), ".local"), PYTHONDONTWRITEBYTECODE="1", TMPDIR=place)
        environ.update(USER=self.user.pw_name if self.user else environ.get("USER", "root"))
        with open(place + ".out", "w+b") as out, open(place + ".err", "w+b") as err:
            try:
                child = subprocess.Popen(
                    argv, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                    start_new_session=True, preexec_fn=self.become, cwd="/",
                )  # fmt: skip
            except OSError as error:
                return dict(made, error=error.strerror or str(error))
            try:
                ended = self.wait(child, name, min(limit_s, left_s), quiet_s or limit_s, (out, err))
                made["outcome"], made["code"], made["error"] = ended
            finally:
                self.end()
            made.update(stdout=end_of(out), stderr=end_of(err), seconds=round(time.monotonic() - began, 1))
        text = "".join(read(path) for path in sorted(glob.glob(os.path.join(place, "nccl.*.log"))))
        for ends, way in sorted(nccl_log.transports(text).items()):
            made["transports"]["%d-%d" % ends] = {"transport": way["transport"], "kind": way["kind"]}
        made["warnings"] = nccl_log.warnings(text)[-5:]
        nccl_host.progress("%s: %s after %g s" % (name, made["outcome"], made["seconds"]))
        return made

    def wait(self, child, name, limit_s, quiet_s, files):
        """(outcome, exit code or negative signal number, error); the code is None if the program was not over."""
        began = told = wrote = time.monotonic()
        size = 0
        nccl_host.progress("%s: started, up to %g s" % (name, limit_s))
        while True:
            code = child.poll()
            if code is not None:
                return ("failed" if code else "done"), code, None
            now = time.monotonic()
            before, size = size, sum(os.fstat(file.fileno()).st_size for file in files)
            wrote = now if size != before else wrote
            if now - began > limit_s:
                return "hang", None, "no end within %g s" % limit_s
            if now - wrote > quiet_s:
                return "hang", None, "no output for %g s" % quiet_s
            if size > FLOOD_BYTES:
                return "flood", None, "more output than %d MiB" % (FLOOD_BYTES >> 20)
            if now - told > TELL_S:
                told = now
                nccl_host.progress("%s: running, %d of %g s" % (name, now - began, limit_s))
            time.sleep(0.05)

    def end(self):
        """Kills all descendants and waits for them; those that do not end are added to `left_behind`."""
        deadline = time.monotonic() + KILL_S
        while True:
            alive = descendants()
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not alive:
                return
            if time.monotonic() > deadline:
                self.left_behind += [pid for pid in alive if pid not in self.left_behind]
                return
            time.sleep(0.02)


def not_run(name, path, limit_s, error=None):
    """The RUN of a program that was not started."""
    made = {"program": name, "path": path, "outcome": "not run", "code": None, "seconds": 0.0, "limit_s": limit_s}
    return dict(made, stdout="", stderr="", error=error, transports={}, warnings=[])


def descendants():
    """The descendants of this process that have not ended."""
    parents = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path, errors="replace") as file:
                pid, rest = int(path.split("/")[2]), file.read().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if rest[0] not in "ZX":
            parents[pid] = int(rest[1])
    pids, own = [], os.getpid()
    for pid in parents:
        above = parents[pid]
        while above in parents and above != own:
            above = parents[above]
        if above == own:
            pids.append(pid)
    return pids


def read(path):
    try:
        with open(path, errors="replace") as file:
            return file.read(SAID_BYTES * 4)
    except OSError:
        return ""


def end_of(file):
    """The last SAID_BYTES of a file as text."""
    file.seek(max(0, os.fstat(file.fileno()).st_size - SAID_BYTES))
    return file.read(SAID_BYTES).decode("utf-8", "replace")


# --- NVIDIA's nccl-tests


def found_in(folders):
    """{program: its path or None}. A folder may also be the source folder, or the path of a program."""
    paths = dict.fromkeys(PROGRAMS)
    for folder in folders:
        for place in (folder, os.path.join(folder, "build"), os.path.dirname(folder)):
            for name in PROGRAMS:
                path = os.path.join(place, name)
                beside = place != os.path.dirname(folder) or os.path.basename(folder) in PROGRAMS
                if beside and not paths[name] and os.path.isfile(path) and os.access(path, os.X_OK, effective_ids=True):
                    paths[name] = path
    return paths


def nccl_tests(runner, options):
    usual = [] if options.at else [folder for folder in os.environ.get("PATH", "").split(":") if folder]
    named = [runner.in_home(folder) for folder in ([options.at] if options.at else FOLDERS)]
    with runner.as_user():
        paths = found_in(usual + named)
    document = {"schema": 1, "gpus": options.gpus, "looked_in": ["PATH"] * bool(usual) + named, "runs": []}
    document["left_behind"] = runner.left_behind
    for name in PROGRAMS:
        if paths[name]:
            words = ["-b", "8M", "-e", "256M", "-f", "2", "-g", str(options.gpus), "-c", "1", "-n", "10", "-w", "2"]
            document["runs"].append(runner.run(name, [paths[name], *words], options.program_timeout_s, QUIET_S))
        else:
            document["runs"].append(not_run(name, None, 0, "not on the host"))
    return document


# --- results


def json_object(path):
    """The JSON object in a file; None without one, as after a crash."""
    try:
        document = json.loads(read(path))
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def parser_of(doc, timeout_s):
    """A parser with the options of print_document. `timeout_s`: the default time limit of all programs."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    text = "run the programs as this user, if this program runs as root (who logged in)"
    parser.add_argument("--user", default=os.environ.get("RIGWRIGHT_USER"), help=text)
    text = "time limit of all programs (%g)" % timeout_s
    parser.add_argument("--timeout-s", type=float, default=timeout_s, help=text)
    return parser


def print_document(options, work):
    """Prints the document that `work(runner, options)` returns; returns the exit status. A signal ends all programs."""
    runner, own = Runner(user_of(options.user), options.timeout_s), os.path.basename(sys.argv[0])
    nccl_host.on_signals(nccl_host.interrupt)
    try:
        document = work(runner, options)
    except nccl_host.Interrupted as error:
        print("%s: interrupted by %s" % (own, error), file=sys.stderr)
        return 1
    finally:
        nccl_host.on_signals(signal.SIG_IGN)
        runner.close()
    print(json.dumps(document), flush=True)
    return 0


def user_of(name):
    """The pwd entry of the user for the programs; None for the current user."""
    if os.geteuid() or not name or name == "root":
        return None
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise SystemExit("%s: no user %s" % (os.path.basename(sys.argv[0]), name)) from None


def main():
    parser = parser_of(__doc__, 700)
    parser.add_argument("--gpus", type=int, required=True, help="number of GPUs")
    parser.add_argument("--at", metavar="PATH", help="folder of nccl-tests; only this one is searched")
    text = "time limit of each program (%d)" % PROGRAM_S
    parser.add_argument("--program-timeout-s", type=float, default=PROGRAM_S, help=text)
    return print_document(parser.parse_args(), nccl_tests)


if __name__ == "__main__":
    sys.exit(main())
