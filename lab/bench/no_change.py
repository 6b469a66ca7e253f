"""Measures commands that find nothing to change, for `scripts/bench`: wall time as a ratio to `ssh HOST true`,
processor time, round trips.

    python -m lab.bench.no_change ROUNDS PERCENT PROFILE [COMMIT]

With PERCENT other than 0 the commands run once more with that part of a processor; the host is as fast as before. With
PROFILE other than 0 each command is profiled in so many runs (`lab/bench/processor_profile.py`). COMMIT: the commands
of that version in turn with these.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.base.paths import CHECKOUT, INVENTORY
from lab.bench import processor_profile, processor_quota
from lab.bench.measured import Measured, in_turn, person, row

PYTHON = str(CHECKOUT / ".venv" / "bin" / "python")
RIG = "servbadge"
SSH_CONFIG = str(CHECKOUT / ".lab" / "ssh_config")


@dataclass(frozen=True)
class Version:
    """rigwright in a folder, and the host that it provisions: two versions would change each other's files on one
    host."""

    host: str
    folder: Path = CHECKOUT
    name: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """What makes Python import this version, with a history of its own."""
        own = {"PYTHONPATH": str(self.folder), "RIGWRIGHT_HISTORY": str(self.folder / ".lab" / "history.sqlite")}
        return {} if self.folder == CHECKOUT else own

    def command(self, name: str, *words: str, says: str) -> Measured:
        """The command with these words on the host."""
        on_host = ("--host", self.host, "--inventory", str(INVENTORY))
        argv = (str(self.folder / ".venv" / "bin" / "invoke"), *words, *on_host)
        return Measured(f"{name}{self.name}", argv, says, self.environment, self.folder)

    def commands(self) -> tuple[Measured, ...]:
        """The commands that read the host."""
        nothing = "Nothing to change"
        return (
            self.command(
                "bench.yml, 11 steps", "provision", "--yes", "--playbook", "playbooks/bench.yml", says=nothing
            ),
            self.command("provision.yml, with checks", "provision", "--yes", says=nothing),
            self.command("verify --quick", "verify", "--quick", says="as planned"),
            self.command("fleet.check", "fleet.check", says=self.host),
        )


NOW = Version("bench")


def before(commit: str, folder: Path) -> Version:
    """The version of a commit, copied into the folder; it uses the packages of this checkout's .venv."""
    files = subprocess.run(["git", "archive", commit], cwd=CHECKOUT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=files, check=True)
    invoke = folder / ".venv" / "bin" / "invoke"
    invoke.parent.mkdir(parents=True)
    shutil.copy(CHECKOUT / ".venv" / "bin" / "invoke", invoke)
    return Version("bench-before", folder, ", before")


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


def commands(versions: Sequence[Version]) -> tuple[Measured, ...]:
    """The measured commands; the first one is `ssh true`."""
    invoke = str(CHECKOUT / ".venv" / "bin" / "invoke")
    return (
        Measured("ssh true", ("ssh", "-F", SSH_CONFIG, NOW.host, "true")),
        *(one for version in versions for one in version.commands()),
        Measured("invoke --list", (invoke, "--list"), "provision"),
        Measured("import rigwright.cli.runner", (PYTHON, "-c", "import rigwright.cli.runner")),
        Measured("python -c pass", (PYTHON, "-c", "pass")),
    )


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


def _once(one: Measured, *words: str, argv: Sequence[str] = ()) -> str:
    """Runs a command, with more words, that is not measured; returns its stdout. `argv`: its words in place of its
    own."""
    environment = person({**one.environment})
    done = subprocess.run(
        [*(argv or one.argv), *words],
        cwd=one.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **environment,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"error {' '.join(done.args)}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return str(done.stdout)


def prepare(version: Version, rows: Sequence[Measured]) -> None:
    """Provisions the host, and runs each of its commands until it finds nothing to change and has a record of what to
    read ahead."""
    print(f"provisioning {version.host} ...", flush=True)
    own = [one for one in rows if one.name in {each.name for each in version.commands()}]
    bench, whole = own[:2]
    _once(whole, "--wheels", str(CHECKOUT / ".lab" / "cache" / "wheels"))
    _once(bench)
    for one in own:
        for _ in range(3):  # the second one reads ahead what the document needs, too
            hosts: dict[str, Any] = json.loads(_once(one, "--json", "-"))["hosts"]
            one.round_trips = int(hosts[version.host]["round_trips"])
        _once(one)


def main() -> int:
    """Measures, prints the tables, removes the hosts, and returns the exit code."""
    from lab.cli import commands as lab

    rounds, percent, profiles = (int(word) for word in sys.argv[1:4])
    commit = "".join(sys.argv[4:])
    with tempfile.TemporaryDirectory(prefix="rigwright-bench-") as folder:
        os.chmod(folder, 0o755)
        versions = (NOW, before(commit, Path(folder))) if commit else (NOW,)
        rows = commands(versions)
        try:
            for version in versions:
                lab.up(name=version.host, rig=RIG, say=print)
                prepare(version, rows)
            in_turn(rows, rounds)
            _show(rows, rounds)
            if profiles:
                _profile(rows, profiles)
            if percent:
                slow = commands(versions)
                for one, known in zip(slow, rows, strict=True):
                    one.round_trips = known.round_trips
                with processor_quota.limited(percent):
                    in_turn(slow, rounds)
                print(f"\nWith {percent} % of a processor:", end="")
                _show(slow, rounds, False)
        finally:
            for version in versions:
                lab.down(name=version.host, say=print)
    return 0


def _profile(rows: Sequence[Measured], runs: int) -> None:
    """Prints where the processor time of each command that connects goes."""
    for one in (each for each in rows[1:] if each.round_trips is not None):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "profile"
            for _ in range(runs):
                _once(one, argv=[PYTHON, str(Path(processor_profile.__file__)), str(file), *one.argv])
            print(f"\n{one.name}: processor time of the controller, mean of {runs} runs\n")
            print(processor_profile.table(processor_profile.mean(file), one.median_cpu_s), flush=True)
    asked = json.loads(_once(rows[0], argv=[PYTHON, "-m", "lab.bench.host_cost", NOW.host, "playbooks/provision.yml"]))
    print("\nprovision.yml, with checks: the host\n\n" + asked, flush=True)


def _show(rows: Sequence[Measured], rounds: int, whole_processor: bool = True) -> None:
    load = os.getloadavg()[0]
    print(
        f"\n{time.strftime('%Y-%m-%d')}, {rounds} rounds, {os.cpu_count()} CPUs, "
        f"load {load:.1f}, Python {sys.version.split()[0]}\n"
    )
    print(table(rows))
    print("\n" + "\n".join(verdicts(rows, whole_processor)), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
