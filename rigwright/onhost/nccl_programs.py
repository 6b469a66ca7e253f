#!/usr/bin/env python3
"""Runs programs that are not ours over the GPUs, and prints what they said: NVIDIA's nccl-tests, or an interpreter's torch.

    nccl_programs.py nccl-tests --gpus 4                     all_reduce_perf and sendrecv_perf, where they are
    nccl_programs.py nccl-tests --gpus 4 --at ~/built        only there
    nccl_programs.py torch --gpus 4 --python ~/venv/bin/python

One JSON document on stdout, lines of progress on stderr; it judges nothing. Every program runs in a process group of its
own, as --user when this is root, with a hard limit. What is left of it at its end or at the limit is killed with all
that it started, in whatever session, and waited for. Nobody's NCCL settings are in force. Python 3.8.

    nccl-tests: {"schema": 1, "gpus", "looked_in": [folder], "runs": [RUN], "left_behind": [pid]}
    torch:      {"schema": 1, "gpus", "python", "user", "look": LOOK | null, "started": RUN, "ranks": [RANK],
                 "collective": RUN | null, "left_behind": [pid]}
    RUN:        {"program", "path", "outcome": "done" | "failed" | "hang" | "flood" | "not run", "code", "seconds",
                 "limit_s", "stdout", "stderr", "error", "transports": {"0-1": {"transport", "kind"}}, "warnings"}

LOOK and RANK are nccl_torch.py's. A program that is not on the host has path null and outcome "not run".
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
import socket
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
LOOK_S, PROGRAM_S, TELL_S = 120, 300, 15
DIE_WITH_PARENT, ADOPT_ORPHANS = 1, 36  # prctl


class Interrupted(Exception):
    """Somebody wants this program to end."""


def prctl(*numbers):
    ctypes.CDLL(None, use_errno=True).prctl(*numbers)


class Runner:
    """Runs one program after the other, as `user` (a pwd entry, or None for who this is)."""

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
        """A folder that the program may write to."""
        path = os.path.join(self.folder, name)
        os.mkdir(path, 0o700)
        if self.user:
            os.chown(path, self.user.pw_uid, self.user.pw_gid)
        return path

    def home(self):
        return self.user.pw_dir if self.user else os.path.expanduser("~")

    @contextlib.contextmanager
    def as_user(self):
        """What is looked at here is looked at as the user: a home on a network may be closed to root."""
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
        prctl(DIE_WITH_PARENT, signal.SIGKILL)  # after setuid, which would forget it

    def run(self, name, argv, limit_s, **settings):
        """A RUN: what came of it."""
        made = {
            "program": name,
            "path": argv[0],
            "outcome": "not run",
            "code": None,
            "seconds": 0.0,
            "limit_s": limit_s,
        }
        made.update(stdout="", stderr="", error=None, transports={}, warnings=[])
        left_s = self.deadline - time.monotonic()
        if self.left_behind:
            return dict(made, error="process %d does not end, even killed" % self.left_behind[-1])
        if left_s <= 1:
            return dict(made, error="the time for all of it, %g s, is over" % self.timeout_s)
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
                made["outcome"], made["code"] = self.wait(child, name, min(limit_s, left_s), (out, err))
            finally:
                self.end()
            made.update(stdout=end_of(out), stderr=end_of(err), seconds=round(time.monotonic() - began, 1))
        text = "".join(read(path) for path in sorted(glob.glob(os.path.join(place, "nccl.*.log"))))
        for ends, way in sorted(nccl_log.transports(text).items()):
            made["transports"]["%d-%d" % ends] = {"transport": way["transport"], "kind": way["kind"]}
        made["warnings"] = nccl_log.warnings(text)[-5:]
        progress("%s: %s after %g s" % (name, made["outcome"], made["seconds"]))
        return made

    def wait(self, child, name, limit_s, files):
        """(outcome, exit code or minus the signal); the code is None where the program has not ended by itself."""
        began = told = time.monotonic()
        progress("%s: started, up to %g s" % (name, limit_s))
        while True:
            code = child.poll()
            if code is not None:
                return ("failed" if code else "done"), code
            now = time.monotonic()
            if now - began > limit_s:
                return "hang", None
            if sum(os.fstat(file.fileno()).st_size for file in files) > FLOOD_BYTES:
                return "flood", None
            if now - told > TELL_S:
                told = now
                progress("%s: running, %d of %g s" % (name, now - began, limit_s))
            time.sleep(0.05)

    def end(self):
        """No process is left of what was started; those that do not end, even killed, are in `left_behind`."""
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


def descendants():
    """The processes below this one that have not ended."""
    parents = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path, errors="replace") as file:
                pid, rest = int(path.split("/")[2]), file.read().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if rest[0] not in "ZX":
            parents[pid] = int(rest[1])
    found, own = [], os.getpid()
    for pid in parents:
        above = parents[pid]
        while above in parents and above != own:
            above = parents[above]
        if above == own:
            found.append(pid)
    return found


def progress(line):
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def read(path):
    try:
        with open(path, errors="replace") as file:
            return file.read(SAID_BYTES * 4)
    except OSError:
        return ""


def end_of(file):
    """The last that was written there, as text."""
    file.seek(max(0, os.fstat(file.fileno()).st_size - SAID_BYTES))
    return file.read(SAID_BYTES).decode("utf-8", "replace")


# --- NVIDIA's nccl-tests


def found_in(folders):
    """{program: its path or None}; a folder may also be that of the sources, or a program itself."""
    found = dict.fromkeys(PROGRAMS)
    for folder in folders:
        for place in (folder, os.path.join(folder, "build"), os.path.dirname(folder)):
            for name in PROGRAMS:
                path = os.path.join(place, name)
                beside = place != os.path.dirname(folder) or os.path.basename(folder) in PROGRAMS
                if beside and not found[name] and os.path.isfile(path) and os.access(path, os.X_OK, effective_ids=True):
                    found[name] = path
    return found


def nccl_tests(runner, options):
    usual = [] if options.at else [folder for folder in os.environ.get("PATH", "").split(":") if folder]
    named = [
        runner.home() + folder[1:] if folder.startswith("~/") else folder
        for folder in ([options.at] if options.at else FOLDERS)
    ]
    with runner.as_user():
        found = found_in(usual + named)
    looked_in = ["PATH"] * bool(usual) + named
    document = {
        "schema": 1,
        "gpus": options.gpus,
        "looked_in": looked_in,
        "runs": [],
        "left_behind": runner.left_behind,
    }
    for name in PROGRAMS:
        if found[name]:
            words = ["-b", "8M", "-e", "256M", "-f", "2", "-g", str(options.gpus), "-c", "1", "-n", "10", "-w", "2"]
            document["runs"].append(runner.run(name, [found[name], *words], options.program_timeout_s))
        else:
            missing = {"program": name, "path": None, "outcome": "not run", "code": None, "seconds": 0.0, "limit_s": 0}
            missing.update(stdout="", stderr="", error="not on the host", transports={}, warnings=[])
            document["runs"].append(missing)
    return document


# --- an interpreter's torch


def torch(runner, options):
    python = options.python
    if python.startswith("~/"):
        python = runner.home() + python[1:]
    elif "/" not in python:
        python = shutil.which(python) or python
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nccl_torch.py")
    user = runner.user.pw_name if runner.user else pwd.getpwuid(os.getuid()).pw_name
    document = {"schema": 1, "gpus": options.gpus, "python": python, "user": user, "look": None, "ranks": []}
    document.update(collective=None, left_behind=runner.left_behind)
    seen = os.path.join(runner.place("seen"), "look")
    document["started"] = runner.run("look", [python, program, "look", seen], min(LOOK_S, options.program_timeout_s))
    document["look"] = look = parsed(seen)
    if look and look["gpus"] and look["nccl"] and not look["error"]:
        places = runner.place("ranks")
        # torchrun, by the module's name: the script may not be installed. Old ones know only the underscores.
        argv = [python, "-m", "torch.distributed.run", "--nnodes=1", "--nproc_per_node=%d" % len(look["gpus"])]
        argv += ["--master_addr=127.0.0.1", "--master_port=%d" % free_port(), program, "rank", places]
        document["collective"] = runner.run("torchrun", argv, options.program_timeout_s, OMP_NUM_THREADS="1")
        ranks = (parsed(os.path.join(places, "rank.%d" % rank)) for rank in range(len(look["gpus"])))
        document["ranks"] = [rank for rank in ranks if rank]
    return document


def parsed(path):
    """The JSON object in a file; None where there is none, as after a crash."""
    try:
        found = json.loads(read(path))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def options_of(words):
    parser = argparse.ArgumentParser(
        prog="nccl_programs.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("nccl-tests", "torch"))
    parser.add_argument("--gpus", type=int, required=True, help="how many GPUs there are")
    parser.add_argument("--at", metavar="PATH", help="where nccl-tests is, if not in one of the usual folders")
    parser.add_argument("--python", metavar="PATH", help="the interpreter whose torch is meant")
    parser.add_argument(
        "--user", default=os.environ.get("RIGWRIGHT_USER"), help="run the programs as this user, when this is root"
    )
    parser.add_argument("--timeout-s", type=float, default=700, help="for all of it (700)")
    parser.add_argument("--program-timeout-s", type=float, default=PROGRAM_S, help="for each program (%d)" % PROGRAM_S)
    options = parser.parse_args(words)
    if options.what == "torch" and not options.python:
        parser.error("torch wants --python PATH")
    return options


def user_of(name):
    """The pwd entry of the user to become; None where this is to stay who it is."""
    if os.geteuid() or not name or name == "root":
        return None
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise SystemExit("nccl_programs.py: there is no user %s" % name) from None


def interrupt(number, _):
    raise Interrupted(signal.Signals(number).name)


def main():
    options = options_of(sys.argv[1:])
    runner = Runner(user_of(options.user), options.timeout_s)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        document = (nccl_tests if options.what == "nccl-tests" else torch)(runner, options)
    except Interrupted as error:
        print("nccl_programs.py: interrupted by %s" % error, file=sys.stderr)
        return 1
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        runner.close()
    print(json.dumps(document), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
