"""The lab's control groups. HIERARCHY/TAG/HOST holds every process of a host, so that one write kills all of them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path

from lab.base.paths import TAG
from rigwright.core.errors import HostError

KILL_S = 20.0


def hierarchies() -> list[Path]:
    """Returns the hierarchies where systemd-nspawn makes groups: version 2 and, on a mixed machine, `name=systemd`.

    systemd-nspawn puts its `payload` group below the group of its caller. Each host therefore needs its own group in
    both hierarchies; otherwise all hosts would share one `payload`. systemd-nspawn and the lab use no version 1
    hierarchy but `name=systemd`.
    """
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options.split(",")):
            found.append(Path(before.split(" ")[4]))
    return found


def enter(group: str, pid: str = "") -> None:
    """Moves this process (or process `pid`) into the group in every hierarchy; its future children are in it too.

    Raises HostError when the machine has no version 2 hierarchy.
    """
    own = [hierarchy / TAG / group for hierarchy in hierarchies()]
    for path in own:
        path.mkdir(parents=True, exist_ok=True)
        (path / "cgroup.procs").write_text(pid or str(os.getpid()))
    if not any((path / "cgroup.events").exists() for path in own):
        raise HostError("lab", "no cgroup version 2 hierarchy is mounted", "one, usually at /sys/fs/cgroup")


def entering(group: str) -> list[str]:
    """Returns the first words of a command line that runs a program in the group: the program's own words follow.

    Raises HostError when the machine has no version 2 hierarchy.
    """
    own = [hierarchy / TAG / group for hierarchy in hierarchies()]
    for path in own:
        path.mkdir(parents=True, exist_ok=True)
    if not any((path / "cgroup.events").exists() for path in own):
        raise HostError("lab", "no cgroup version 2 hierarchy is mounted", "one, usually at /sys/fs/cgroup")
    enters = 'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@"'
    return ["sh", "-c", enters, "sh", *map(str, own), "--"]


def groups() -> set[str]:
    """Returns the groups below TAG: one per host that was started, whether or not it still has processes."""
    return {path.name for top in hierarchies() for path in (top / TAG).glob("*") if path.is_dir()}


def processes(group: str = "") -> set[int]:
    """Returns the processes in the group, in any hierarchy; without a group, those of the whole lab."""
    found = set()
    for top in hierarchies():
        for path, _, _ in os.walk(top / TAG / group):
            with contextlib.suppress(OSError):  # the group was removed meanwhile
                found |= {int(pid) for pid in Path(path, "cgroup.procs").read_text().split()}
    return found


def kill(group: str = "") -> None:
    """Kills every process in the group, as a power cut does. Raises HostError when one does not die."""
    ends = time.monotonic() + KILL_S
    for top in hierarchies():
        button = top / TAG / group / "cgroup.kill"  # version 2 only
        if button.exists():
            button.write_text("1")
    while left := processes(group):
        if time.monotonic() > ends:
            raise HostError(
                "lab", f"processes {sorted(left)} do not die", fix="look at them with ps; try lab.down again"
            )
        for pid in left:  # a kernel before 5.14 has no cgroup.kill
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def remove(group: str = "") -> None:
    """Removes the (empty) group from every hierarchy; without a group, removes the whole TAG."""
    ends = time.monotonic() + KILL_S
    for top in hierarchies():
        path = top / TAG / group
        while path.is_dir():
            for child, _, _ in os.walk(path, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(child)
            if path.is_dir() and time.monotonic() > ends:
                raise HostError("lab", f"{path} cannot be removed", fix="kill what is in its cgroup.procs")
            time.sleep(0.01)


def sibling_labs() -> bool:
    """Returns whether another checkout's lab has groups on this machine."""
    return any(
        re.fullmatch(r"rw[0-9a-f]{6}", path.name) and path.name != TAG
        for top in hierarchies()
        for path in top.glob("rw*")
    )
