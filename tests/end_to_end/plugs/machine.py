"""The hosts that are cut: what a kind of host can do (Machine), and the lab's simulated hosts in containers
(Nspawn)."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from lab.base.programs import run
from lab.cli import commands
from lab.host import cgroups, disk, login
from lab.power import switch


class Machine(Protocol):
    """A host that can be cut. Its disk can be kept and put back, so that many cuts start from one state."""

    name: str
    kind: str
    """The column of the table: `nspawn`, `vm`."""

    def keep(self, folder: Path) -> None:
        """Copies the disk as it is at this moment to `folder`, also while the host runs."""

    def put_back(self, folder: Path) -> None:
        """Boots the host from a copy of the disk in `folder`, and waits until a login works."""

    def cut_power(self) -> None:
        """Takes the power away, without a warning to the host or its network."""

    def power_on(self) -> None:
        """Boots the host from its disk; returns at once."""

    def wait(self) -> None:
        """Waits until a login works. Raises HostError after two minutes."""

    def cut_connections(self) -> int:
        """Ends every ssh connection to the host; returns how many there were. Programs that they started go on."""

    def programs(self) -> dict[int, str]:
        """The processes of the host and their command lines, the words divided by blanks."""

    def root(self, script: str) -> str:
        """Runs a script as root on the host by plain ssh, and returns its output. Raises AssertionError when it
        fails."""


class Nspawn:
    """A simulated host of the lab in a container: a power cut ends all of its processes; what they wrote is on its
    disk."""

    kind = "nspawn"

    def __init__(self, name: str, rig: str) -> None:
        self.name, self.rig = name, rig

    def create(self) -> None:
        """Boots the host with an empty disk."""
        commands.down(name=self.name, say=print)
        commands.up(name=self.name, rig=self.rig, say=print)

    def remove(self) -> None:
        """Removes the host."""
        commands.down(name=self.name, say=print)

    def keep(self, folder: Path) -> None:
        disk.copy_changes(switch.get(self.name).folder / "upper", folder)

    def put_back(self, folder: Path) -> None:
        host = switch.get(self.name)
        switch.cut(self.name)
        disk.unmount(host.folder)
        for path in (host.folder / "upper", host.folder / "work"):
            shutil.rmtree(path, ignore_errors=True)
        disk.copy_changes(folder, host.folder / "upper")
        self.power_on()
        self.wait()

    def cut_power(self) -> None:
        # First the cable: the kernel would end the connections of killed processes, which a power cut does not.
        run(["ip", "-n", f"{_namespace(self.name)}", "link", "set", "eth0", "down"], check=False)
        switch.cut(self.name)

    def power_on(self) -> None:
        commands.power_on(self.name)

    def wait(self) -> None:
        login.wait(switch.get(self.name))

    def cut_connections(self) -> int:
        sessions = [pid for pid, line in self.programs().items() if re.match(r"sshd(-session)?: ubuntu", line)]
        for pid in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(sessions)

    def programs(self) -> dict[int, str]:
        found = {}
        for pid in cgroups.processes(self.name):
            with contextlib.suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        return found

    def root(self, script: str) -> str:
        word = base64.b64encode(script.encode()).decode()
        done = login.ssh(switch.get(self.name), f"echo {word} | base64 -d | sudo sh", 90)
        assert done.returncode == 0, f"{self.name}: {script[:200]}: exit {done.returncode}: {done.stderr[-500:]}"
        return done.stdout


def _namespace(name: str) -> str:
    from lab.host import network

    return network.namespace(name).name


_ACTION = re.compile(r"--(unpack|configure|remove|purge|triggers-only)$")
_SCRIPTS = re.compile(r"/var/lib/dpkg/info/.+\.(pre|post)(inst|rm)$")
_PROGRAMS = re.compile(r"(/usr(/local)?)?/s?bin/[a-z][\w.+-]+$|(/usr/local/lib/rigwright|/run/rigwright-\w+)/\w+\.py$")
_WRAPPERS = frozenset({"sudo", "timeout", "env", "nice", "setpriv", "flock", "sleep", "frontend"})
_SHELLS = frozenset({"sh", "bash", "dash", "perl", "python3"})


def program(line: str) -> str:
    """The name of a program for the table, from its command line: `dpkg --unpack`, `nvidia-dkms-535.postinst
    configure`.

    "" for what is no place of its own: shells without a file, wrappers, the connection, and the helpers of other
    programs.
    """
    words = [word for word in line.split() if word]
    while words and words[0].rsplit("/", 1)[-1] in _SHELLS | _WRAPPERS:
        words = words[1:]
        if words and words[0] in ("-e", "-u", "-w", "-B"):
            words = words[1:]
    if not words or "=" in words[0]:
        return ""
    path, rest = words[0], words[1:]
    name = path.rsplit("/", 1)[-1]
    if _SCRIPTS.match(path):
        return f"{name} {rest[0] if rest else ''}".strip()
    if ("/" in path and not _PROGRAMS.match(path)) or not re.fullmatch(r"[a-z][\w.+-]+", name):
        return ""
    action = next((word for word in rest if _ACTION.match(word)), "") if name == "dpkg" else _verb(rest)
    return f"{name} {action}".strip()


def _verb(words: Sequence[str]) -> str:
    """The first word that is no option and no value of one, where it is a plain name, such as `install`; else ""."""
    values = False
    for word in words:
        if values or word.startswith("-"):
            values = word == "-o"
            continue
        return word if re.fullmatch(r"[a-z][a-z-]{2,20}", word) else ""
    return ""


def programs(machine: Machine, ignored: frozenset[int] = frozenset()) -> dict[int, str]:
    """The programs that the host runs now, by process; without the processes in `ignored`."""
    named = {pid: program(line) for pid, line in machine.programs().items() if pid not in ignored}
    return {pid: name for pid, name in named.items() if name}
