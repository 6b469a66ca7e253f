"""Measures wall time, CPU time and peak memory of each run of a command, as the kernel counts them."""

from __future__ import annotations

import os
import pwd
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Measured:
    """A command and the cost of each of its runs in a folder, including the child processes that it waited for."""

    name: str
    argv: tuple[str, ...]
    says: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path = ROOT
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_mib: list[float] = field(default_factory=list)
    round_trips: int | None = None

    def run(self) -> str:
        """Runs the command once and returns its output.

        Exits the benchmark when it fails or its output lacks `says`.
        """
        out, back = os.pipe()
        began = time.perf_counter()
        child = subprocess.Popen(
            self.argv, stdin=subprocess.DEVNULL, stdout=back, stderr=back, cwd=self.folder, **person(self.environment)
        )
        os.close(back)
        with os.fdopen(out, "rb") as pipe:
            said = pipe.read().decode(errors="replace")
        _, status, used = os.wait4(child.pid, 0)
        self.wall_s.append(time.perf_counter() - began)
        child.returncode = os.waitstatus_to_exitcode(status)
        self.cpu_s.append(used.ru_utime + used.ru_stime)
        self.peak_mib.append(used.ru_maxrss / 1024)
        if child.returncode != 0 or self.says not in said:
            sys.exit(f"error {' '.join(self.argv)}: exit {child.returncode}, without {self.says!r}\n{said[-2000:]}")
        return said

    @property
    def median_s(self) -> float:
        """The median wall time."""
        return statistics.median(self.wall_s)

    @property
    def median_cpu_s(self) -> float:
        """The median CPU time."""
        return statistics.median(self.cpu_s)


def in_turn(commands: Sequence[Measured], rounds: int) -> None:
    """Runs every command `rounds` times, each once per round, so that load on the machine affects all equally."""
    for number in range(rounds):
        for one in commands:
            if sys.stdout.isatty():
                print(f"round {number + 1} of {rounds}: {one.name}\033[K", end="\r", flush=True)
            one.run()
    if sys.stdout.isatty():
        print("\033[K", end="")


def person(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns Popen's arguments that run a command as the user who called sudo.

    The command runs as if started by hand: Python keeps its compiled modules.
    """
    name = os.environ.get("SUDO_USER", "root")
    outer = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    if name == "root":
        return {"env": {**outer, **(environment or {})}}
    who = pwd.getpwnam(name)
    return {
        "user": who.pw_uid,
        "group": who.pw_gid,
        "extra_groups": os.getgrouplist(name, who.pw_gid),
        "env": {**outer, "HOME": who.pw_dir, "USER": name, **(environment or {})},
    }


def row(*cells: str, widths: Sequence[int] = (28, 9, 13, 8, 10, 12)) -> str:
    """Returns one line of a table: the first cell left-aligned, the others right-aligned."""
    return (
        cells[0].ljust(widths[0]) + "".join(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=False))
    ).rstrip()
