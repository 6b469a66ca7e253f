"""What the guard does: programs that it starts and does not wait for, one notification at a time."""

import collections
import contextlib
import json
import os
import subprocess
import sys

import guard_store

STOP_S, POWER_OFF_S, TELL_S = 120.0, 120.0, 60.0
WAIT_FOR_TELLING_S = 15.0  # the machine is powered off so long after the decision at the latest
MOST_WAITING = 50
NOTIFY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guard_notify.py")


class Program:
    """A program that runs, with a time limit."""

    def __init__(self, argv, now, limit_s):
        self.argv, self.until, self.killed = argv, now + limit_s, False
        try:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, bufsize=0
            )
            os.set_blocking(self.process.stderr.fileno(), False)
            self.problem = None
        except OSError as error:
            self.process, self.problem = None, "%s: %s" % (argv[0], error.strerror)

    def ended(self, now):
        """Whether it is over. Then `problem` is None, or says why it failed."""
        if self.process is None:
            return True
        status = self.process.poll()
        if status is None:
            if now < self.until:
                return False
            if not self.killed:
                self.killed = True
                self.process.kill()
            self.problem = "no end of %s in time" % self.argv[0]
            return True
        if status and not self.problem:
            words = (self.process.stderr.read(2000) or b"").decode(errors="replace").split()
            self.problem = " ".join(words)[:300] or "%s: exit status %d" % (self.argv[0], status)
        return True


class Acts:
    """Stops units, powers the machine off, tells the owner. `config`: a path; `folder`: the folder of the messages."""

    def __init__(self, config, folder, ways):
        self.config, self.folder, self.ways = config, folder, ways
        self.waiting, self.telling, self.running = collections.deque(maxlen=MOST_WAITING), [], []
        self.number, self.power_off_by, self.last_words, self.forced = 0, None, None, False

    def stop(self, units, now):
        """Stops units of systemd."""
        self.running.append(("stop", Program(["systemctl", "stop", "--", *units], now, STOP_S)))

    def tell(self, message):
        """Tells the owner as soon as the messages before it are told."""
        if self.ways:
            self.waiting.append(message)

    def power_off(self, message, now):
        """Tells the owner at once, also while another notification runs; then, or after its time, powers off."""
        if self.ways:
            self.last_words = self._tell(message, now)
        self.power_off_by = now + WAIT_FOR_TELLING_S

    def tick(self, now):
        """Goes on with everything; returns what failed since the last call: pairs of name and text."""
        failed = []
        for name, program in list(self.running):
            if program.ended(now):
                self.running.remove((name, program))
                if program.problem:
                    failed.append((name, program.problem))
                    if name == "power-off" and not self.forced:
                        self.forced = True
                        self._run("power-off", ["systemctl", "poweroff", "--force"], now)
        for program, path in list(self.telling):
            if program.ended(now):
                self.telling.remove((program, path))
                problems = "; ".join(guard_store.read(path + ".said", 2000).splitlines())
                for file in (path, path + ".said"):
                    with contextlib.suppress(OSError):
                        os.unlink(file)
                if program.problem:
                    failed.append(("notify", problems or program.problem))
        if not self.telling and self.waiting:
            self._tell(self.waiting.popleft(), now)
        told = self.last_words is None or self.last_words.ended(now)
        if self.power_off_by is not None and (told or now >= self.power_off_by):
            self.power_off_by = None
            self._run("power-off", ["systemctl", "poweroff", "-i"], now)
        return failed

    def _run(self, name, argv, now):
        self.running.append((name, Program(argv, now, POWER_OFF_S)))

    def _tell(self, message, now):
        """The program guard_notify.py, started as a unit of its own, because the owner's programs need more rights."""
        self.number += 1
        path = os.path.join(self.folder, "message-%d.json" % self.number)
        with contextlib.suppress(OSError):  # then guard_notify.py says that there is no message
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(file, "w") as out:
                json.dump(message, out)
        argv = ["systemd-run", "--quiet", "--collect", "--wait"]
        argv += ["--unit=gpu-guard-notify-%d-%d" % (os.getpid(), self.number)]
        argv += ["--property=RuntimeMaxSec=%d" % TELL_S, "--property=UMask=0077", "--"]
        argv += [sys.executable, "-I", "-B", NOTIFY, "--config", self.config, "--message", path]
        program = Program(argv, now, TELL_S + 5)
        self.telling.append((program, path))
        return program
