"""Measures commands that find nothing to change, for `scripts/bench`: wall time as a ratio to `ssh HOST true`, processor time, round trips.

    python -m lab.bench.no_change ROUNDS PERCENT PROFILE

With PERCENT other than 0 the commands run once more with that part of a processor; the host is as fast as before. With PROFILE other than 0
each command is profiled in so many runs (`lab/bench/processor_profile.py`).
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.base.paths import CHECKOUT
from lab.bench import processor_profile, processor_quota
from lab.bench.measured import Measured, in_turn, person, row

INVOKE = str(CHECKOUT / ".venv" / "bin" / "invoke")
PYTHON = str(CHECKOUT / ".venv" / "bin" / "python")
HOST, RIG = "bench", "servbadge"
ON_HOST = ("--host", HOST, "--inventory", ".lab/inventory")
SSH = ("ssh", "-F", ".lab/ssh_config", HOST, "true")


@dataclass(frozen=True)
class Goal:
    """What a row must reach: the ratio to `ssh true`, round trips, or seconds; None for no goal."""

    ratio: float | None = None
    round_trips: int | None = None
    seconds: float | None = None


GOALS = {
    "bench.yml, 11 steps": Goal(1.7, 2),
    "provision.yml, with checks": Goal(2.5, 2),
    "verify --quick": Goal(3.0, 2),
    "fleet.check": Goal(2.5, 2),
    "invoke --list": Goal(seconds=0.2),
}
"""By row. The seconds are those of a whole processor."""


def commands() -> tuple[Measured, ...]:
    """The measured commands; the first one is `ssh true`, the next have round trips."""
    nothing = "Nothing to change"
    return (
        Measured("ssh true", SSH),
        Measured("bench.yml, 11 steps", provision("--playbook", "playbooks/bench.yml"), nothing),
        Measured("provision.yml, with checks", provision(), nothing),
        Measured("verify --quick", (INVOKE, "verify", *ON_HOST, "--quick"), "as planned"),
        Measured("fleet.check", (INVOKE, "fleet.check", *ON_HOST), HOST),
        Measured("invoke --list", (INVOKE, "--list"), "provision"),
        Measured("import rigwright.cli.runner", (PYTHON, "-c", "import rigwright.cli.runner")),
        Measured("python -c pass", (PYTHON, "-c", "pass")),
    )


def provision(*words: str) -> tuple[str, ...]:
    """The command that provisions the host without a question."""
    return (INVOKE, "provision", *ON_HOST, "--yes", *words)


def table(rows: Sequence[Measured]) -> str:
    """The rows as text. The first one is `ssh true`."""
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # a child has this size before exec
    lines = [row("", "seconds", "x ssh true", "CPU s", "peak MiB", "round trips")]
    ssh = rows[0]
    for one in rows:
        trips = "" if one.round_trips is None else str(one.round_trips)
        ratio = f"{one.median_s / ssh.median_s:.2f}" if one.round_trips is not None or one is ssh else ""
        cpu, peak = statistics.median(one.cpu_s), max(one.peak_mib)
        shown = f"{peak:.0f}" if peak > ours + 1 else f"< {ours:.0f}"
        lines.append(row(one.name, f"{one.median_s:.3f}", ratio, f"{cpu:.3f}", shown, trips))
    return "\n".join(lines)


def verdicts(rows: Sequence[Measured], whole_processor: bool = True) -> list[str]:
    """A line for each goal: met or MISSED."""
    lines = []
    for one in rows[1:]:
        goal, ratio = GOALS.get(one.name, Goal()), one.median_s / rows[0].median_s
        said = (
            (goal.ratio, ratio, "x ssh true"),
            (goal.round_trips, 99 if one.round_trips is None else one.round_trips, "round trips"),
            (goal.seconds if whole_processor else None, one.median_s, "s"),
        )
        lines += [
            f"{'met   ' if value <= most else 'MISSED'}  {one.name}: at most {most:g} {unit}"
            for most, value, unit in said
            if most is not None
        ]
    return lines


def _once(argv: Sequence[str]) -> str:
    """Runs a command that is not measured; returns its stdout."""
    done = subprocess.run(
        argv, cwd=CHECKOUT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **person()
    )
    if done.returncode:
        sys.exit(f"error {' '.join(argv)}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return str(done.stdout)


def _round_trips(argv: Sequence[str]) -> int:
    hosts: dict[str, Any] = json.loads(_once([*argv, "--json", "-"]))["hosts"]
    return int(hosts[HOST]["round_trips"])


def prepare(rows: Sequence[Measured]) -> None:
    """Provisions the host, and runs each command until it finds nothing to change and has a record of what to read ahead."""
    print(f"provisioning {HOST} ...", flush=True)
    wheels = str(Path(".lab", "cache", "wheels"))
    _once(provision("--wheels", wheels))
    _once(provision("--playbook", "playbooks/bench.yml"))
    for one in rows[1:5]:
        for _ in range(3):  # the second one reads ahead what the document needs, too
            one.round_trips = _round_trips(one.argv)
        _once(one.argv)


def main() -> int:
    """Measures, prints the tables, removes the host, and returns the exit code."""
    from lab.cli import commands as lab

    rounds, percent, profiles = (int(word) for word in sys.argv[1:4])
    rows = commands()
    lab.up(name=HOST, rig=RIG, say=print)
    try:
        prepare(rows)
        in_turn(rows, rounds)
        _show(rows, rounds)
        if profiles:
            _profile(rows, profiles)
        if percent:
            slow = commands()
            for one, known in zip(slow, rows, strict=True):
                one.round_trips = known.round_trips
            with processor_quota.limited(percent):
                in_turn(slow, rounds)
            print(f"\nWith {percent} % of a processor:", end="")
            _show(slow, rounds, False)
    finally:
        lab.down(name=HOST, say=print)
    return 0


def _profile(rows: Sequence[Measured], runs: int) -> None:
    """Prints where the processor time of each command that connects goes."""
    for one in (each for each in rows[1:] if each.round_trips is not None):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "profile"
            for _ in range(runs):
                _once([PYTHON, "-m", "lab.bench.processor_profile", str(file), *one.argv])
            print(f"\n{one.name}: processor time of the controller, mean of {runs} runs\n")
            print(processor_profile.table(processor_profile.mean(file), one.median_cpu_s), flush=True)


def _show(rows: Sequence[Measured], rounds: int, whole_processor: bool = True) -> None:
    load = os.getloadavg()[0]
    print(
        f"\n{time.strftime('%Y-%m-%d')}, {rounds} rounds, {os.cpu_count()} CPUs, load {load:.1f}, Python {sys.version.split()[0]}\n"
    )
    print(table(rows))
    print("\n" + "\n".join(verdicts(rows, whole_processor)), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
