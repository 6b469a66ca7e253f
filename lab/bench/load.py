"""What recorder and guard cost and miss, for `scripts/bench --load`: samples a second, gaps, peaks that are seen,
processor time.

A simulated host with four GPUs is measured at rest, and beside as many busy processes as the machine has processors. A
peak is a load of 0.3 s on one GPU, at a moment of chance; it is seen if a sample of the recording is near the GPU's
power under load.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.base.paths import CHECKOUT
from lab.bench.measured import row
from lab.cli import commands
from lab.hardware import hw_state
from lab.host import cgroups
from lab.power import switch
from rigwright import inventory
from rigwright.core.errors import HostError, RigwrightError
from rigwright.engine.host_run import HostRun, Options, no_events
from rigwright.engine.playbook import BoundPlaybook
from rigwright.features.recorder import recorder
from rigwright.features.recorder.facts import Recording
from rigwright.fleet import host_runs

NAME, RIG = "load", "servbadge"
VARIABLES = "guard: {}\np2p_wheels: none\n"
PEAK_S, EVERY_S = 0.3, 1.5
"""Seconds: the length of a peak, and the mean time between the beginnings of two."""
SEEN_W = 100.0
"""A sample above it is of a peak: a simulated V100 uses 40 to 57 W at rest, and 128 W under load at servbadge's 1005
MHz."""
GOAL_HZ, GOAL_CORE, CLOCKS = 10.0, 0.01, 0.99
"""Samples a second, a share of a core, and how near to the first counts: the ends of a recording are not exact to a
sample."""
WIDTHS = (26, 10, 12, 15, 13, 13)


@dataclass(frozen=True)
class Cost:
    """One measurement. `samples`, `seen` and `peaks` are None for the guard, which keeps one reading a second."""

    name: str
    seconds: float
    cpu_s: float
    samples: int | None = None
    longest_gap_s: float | None = None
    seen: int | None = None
    peaks: int | None = None

    @property
    def core(self) -> float:
        """The share of one processor core."""
        return self.cpu_s / self.seconds

    @property
    def hz(self) -> float | None:
        """Samples a second."""
        return None if self.samples is None else self.samples / self.seconds


GUARD = ("guard.py", "guard_gpus.py")
"""The programs of the guard: its loop, and the process that asks the driver."""


def cpu_s(*names: str) -> float:
    """Returns the processor time of the host's processes of these programs, and of their children that ended, s."""
    ticks, found = 0, 0
    for pid in cgroups.processes(NAME):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        if any(one.endswith(b"/" + name.encode()) for one in words for name in names):
            found += 1
            ticks += sum(int(one) for one in after[11:15])  # utime, stime, cutime, cstime: proc(5), fields 14 to 17
    if not found:
        sys.exit(f"error scripts/bench: no {names[0]} runs on {NAME}")
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keeps `count` processors busy while it is open."""
    made = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in made:
            one.kill()
            one.wait()


def peaks(seconds: float, chance: random.Random) -> list[tuple[float, float]]:
    """Makes peaks on the first GPU for so many seconds; returns the beginning and end of each, s since 1970."""
    hw, made, ends = switch.get(NAME).hw, [], time.monotonic() + seconds
    while time.monotonic() + EVERY_S + PEAK_S < ends:
        time.sleep(chance.uniform(EVERY_S - 0.7, EVERY_S + 0.7) - PEAK_S)
        hw_state.edit(hw, volatile={"gpu0.load": 100})
        began = time.time()
        time.sleep(PEAK_S)
        hw_state.edit(hw, volatile={"gpu0.load": ""})
        made.append((began, time.time()))
    return made


def seen(found: Recording, made: Sequence[tuple[float, float]]) -> int:
    """Returns how many of the peaks a sample of the first GPU shows."""
    watts = [found.peak(0, rows).most_w for rows in (found.rows(began, ended) for began, ended in made) if len(rows)]
    return sum(one is not None and one > SEEN_W for one in watts)


def longest_gap_s(found: Recording) -> float:
    """Returns the longest time between two samples, s."""
    times = found.series.t
    return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)


def measure(run: HostRun, beside: str, seconds: float, chance: random.Random) -> list[Cost]:
    """Records for so many seconds; returns what the recorder and the guard cost in that time."""
    folder = recorder.start(run, int(seconds) + 120)
    try:
        began, ours, guards = time.monotonic(), cpu_s("recorder.py"), cpu_s(*GUARD)
        made = peaks(seconds, chance)
        took = time.monotonic() - began
        ours, guards = cpu_s("recorder.py") - ours, cpu_s(*GUARD) - guards
    finally:
        recorder.stop(run, folder)
    found = recorder.fetch(run)
    if found is None or len(found.series) < 2:
        sys.exit("error scripts/bench: the recording has no samples")
    length = found.series.t[-1] - found.series.t[0]
    per_s = (len(found.series) - 1) / length
    return [
        Cost(
            f"recorder, {beside}", took, ours, round(per_s * took), longest_gap_s(found), seen(found, made), len(made)
        ),
        Cost(f"guard, {beside}", took, guards),
    ]


def lines(costs: Sequence[Cost]) -> list[str]:
    """Returns the table."""
    made = [row("", "seconds", "samples/s", "longest gap s", "peaks seen", "% of a core", widths=WIDTHS)]
    for one in costs:
        hz, gap = ("", "") if one.hz is None else (f"{one.hz:.2f}", f"{one.longest_gap_s:.2f}")
        shown = "" if one.peaks is None else f"{one.seen} of {one.peaks}"
        made.append(row(one.name, f"{one.seconds:.0f}", hz, gap, shown, f"{100 * one.core:.1f}", widths=WIDTHS))
    return made


def goals(costs: Sequence[Cost]) -> list[str]:
    """Returns a line for each goal: met or missed."""
    recorders, guards = [one for one in costs if one.hz is not None], [one for one in costs if one.hz is None]
    told = (
        (f"{GOAL_HZ:g} samples a second or more, at rest", (recorders[0].hz or 0) >= GOAL_HZ * CLOCKS),
        (f"every peak of {PEAK_S:g} s is seen", all(one.seen == one.peaks for one in recorders)),
        (f"the guard takes less than {100 * GOAL_CORE:g} % of a core", all(one.core < GOAL_CORE for one in guards)),
    )
    return [f"{'met   ' if met else 'MISSED'}  {goal}" for goal, met in told]


def _provisioned(folder: Path) -> HostRun:
    """Makes the host with its driver and the guard; returns a connected run."""
    commands.up(name=NAME, rig=RIG, say=print)
    where = folder / "inventory"
    shutil.copytree(CHECKOUT / ".lab/inventory", where, symlinks=True)
    variables = where / "host_vars" / f"{NAME}.yml"
    variables.write_text(variables.read_text() + VARIABLES)
    known = f"ssh_known_hosts: {CHECKOUT / '.lab/known_hosts'}\n"
    if "ssh_known_hosts" not in variables.read_text():
        variables.write_text(variables.read_text() + known)
    print(f"provisioning {NAME} ...", flush=True)
    invoke = [str(CHECKOUT / ".venv/bin/invoke"), "provision", "--host", NAME, "--inventory", str(where), "--yes"]
    done = subprocess.run(invoke, cwd=CHECKOUT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error {' '.join(invoke)}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    options = Options(time.strftime("%Y%m%d-%H%M%S-bead"))
    bound = BoundPlaybook(inventory.read(where).hosts[NAME], (), ())
    run = host_runs.prepare([bound], options, no_events)[0]
    run.transport.connect()
    return run


def main() -> int:
    """Measures, prints the table and the goals, and removes the host. Returns the exit code. Argument: seconds for each
    row."""
    seconds, seed = float(sys.argv[1]), random.randrange(10**6)
    chance, processors = random.Random(seed), os.cpu_count() or 1
    print(f"seed of the peaks: {seed}")
    try:
        with tempfile.TemporaryDirectory(prefix="rigwright-bench-") as folder:
            run = _provisioned(Path(folder))
            costs = measure(run, "at rest", seconds, chance)
            with busy(processors):
                costs += measure(run, f"beside {processors} busy", seconds, chance)
            run.transport.close()
    except (HostError, RigwrightError) as error:
        print(f"error scripts/bench: {error}", file=sys.stderr)
        return 1
    finally:
        commands.down(name=NAME, say=lambda _: None)
    print(
        f"\n{time.strftime('%Y-%m-%d')}, {processors} CPUs, "
        f"load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}\n"
    )
    print("\n".join([*lines(costs), "", *goals(costs)]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
