"""Runs the commands of a measurement on a slower processor: with a part of one, as the kernel's bandwidth control gives
it out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from lab.base.paths import TAG
from rigwright.core.errors import HostError

PERIOD_US = 10_000
"""So short that a command waits often and briefly, as on a slow processor, not once and long."""


@contextlib.contextmanager
def limited(percent: int) -> Iterator[None]:
    """This process and its new children have `percent` of one processor. Lab hosts that run already are as fast as
    before.

    Raises HostError where the machine has no control group for processors, or this process may not use it.
    """
    group, quota = _group(percent)
    procs = "cgroup.procs"
    back = _now(group)
    try:
        group.mkdir(parents=True, exist_ok=True)
        for name, text in quota.items():
            (group / name).write_text(text)
        (group / procs).write_text(str(os.getpid()))
    except OSError as error:
        raise HostError(
            str(group), f"cannot be used: {error}", "a control group for processors", "run as root"
        ) from None
    try:
        yield
    finally:
        (back / procs).write_text(str(os.getpid()))
        with contextlib.suppress(OSError):  # a process that outlives its command
            group.rmdir()


def _group(percent: int) -> tuple[Path, dict[str, str]]:
    """The control group of this checkout's measurements, and what is written into which of its files."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        top = Path(before.split(" ")[4])
        quota_us = PERIOD_US * percent // 100
        if kind == "cgroup" and "cpu" in options.split(","):
            return top / f"{TAG}-bench", {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota_us)}
        if kind == "cgroup2" and "cpu" in (top / "cgroup.controllers").read_text().split():
            (top / "cgroup.subtree_control").write_text("+cpu")
            return top / f"{TAG}-bench", {"cpu.max": f"{quota_us} {PERIOD_US}"}
    raise HostError("lab", "no control group limits processors", "the controller cpu, of version 1 or 2")


def _now(group: Path) -> Path:
    """The control group of this process in the hierarchy of `group`."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        named = controllers.split(",") if controllers else [""]
        if "cpu" in named or (controllers == "" and (group.parent / "cgroup.controllers").exists()):
            return group.parent / path.lstrip("/")
    return group.parent
