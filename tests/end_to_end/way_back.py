"""The ways forward of a host and their ways back: what a host is given, what is done, and what it must be afterwards.

sudo .venv/bin/python -m tests.end_to_end.way_back         prints the table of docs/guide/rollback.md from
.lab/way-back.jsonl
"""

from __future__ import annotations

import datetime
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.cli import commands
from lab.faults import inject
from lab.power import switch
from tests.end_to_end.conftest import reboot
from tests.end_to_end.plugs import state
from tests.end_to_end.plugs.machine import Nspawn
from tests.end_to_end.plugs.state import Difference, State
from tests.end_to_end.rw import document, inventory, invoke, not_as_wanted
from tests.end_to_end.test_training import wheel
from tests.paths import ROOT

RESULTS = ROOT / ".lab" / "way-back.jsonl"
"""A line for each way that was gone: when, given, way, seconds of its commands, and how it ended."""
_LEFT = {
    r" /var/lib/rigwright(/|$| )": "records of runs, and packages with which a driver can go back",
    r" /(var/lib/containers|etc/containers/networks|etc/cni|var/lib/cni)(/|$| )": "images and networks of containers",
    r" /opt/train(/|$| )": "a training environment, with what its owner installed into it",
    r" /etc/(passwd|group|g?shadow)$": "system users that packages made",
    r" /var/lib/dkms/mok\.(key|pub) ?$": "the key with which DKMS signs modules: the firmware may have enrolled it",
    r"^d [0-7]{3,4} \S+ /(usr/lib/modules/\S+/updates(/dkms)?|var/lib/dkms(/nvidia[a-z-]*)?) ?$": "empty DKMS folders",
}
"""Lines of a state that a way back leaves, with the reason (docs/guide/rollback.md)."""
STAYS = re.compile("|".join(_LEFT))


@dataclass(frozen=True)
class Given:
    """A host and what `provision` makes of it. `variables`: of the inventory; `words`: more words of provision.

    `fault`: what the host is before, as `desktop`. `prepare`: puts on the host's disk what provision needs.
    """

    rig: str
    distro: str
    variables: dict[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    fault: str = ""
    prepare: Callable[[Path], None] | None = None


def _wheels(disk: Path) -> None:
    """Puts a folder of wheels with a stand-in for torch, and its lock, on a servbadge's disk."""
    line = wheel(disk / "srv/wheels", gpus=4)
    (disk / "srv/lock.txt").write_text(line)


_BARE = {"p2p_wheels": "none"}
_DRIVER = {**_BARE, "cuda": None}
GIVEN: dict[str, Given] = {
    "driver and CUDA, Ubuntu 22.04": Given("servbadge", "ubuntu2204", _BARE),
    "driver, Ubuntu 24.04": Given("servbadge", "ubuntu2404", _DRIVER),
    "driver and CUDA, Debian 12": Given("rig-3090", "debian12", {**_BARE, "cuda": {"toolkit": "12.9"}}),
    "boots not tried, Ubuntu 24.04": Given("servbadge", "ubuntu2404", {**_DRIVER, "reboot": {"trial": False}}),
    "containers, Ubuntu 24.04": Given(
        "rig-3090", "ubuntu2404", {**_DRIVER, "driver": {"branch": "580"}, "containers": {"engine": "podman"}},
        ("--playbook", "train"),
    ),
    "training, Ubuntu 24.04": Given(
        "servbadge",
        "ubuntu2404",
        {**_DRIVER, "training": {"owner": "ubuntu", "lock": "/srv/lock.txt", "wheels": "/srv/wheels"}},
        ("--playbook", "train"),
        prepare=_wheels,
    ),
    "MIG, Ubuntu 22.04": Given("a100", "ubuntu2204", {**_DRIVER, "mig": {"SXM4-0": ["7g.40gb"]}}),
    "display, Debian 12": Given(
        "rig-3090", "debian12", {**_DRIVER, "driver": {"branch": "535", "display": True}}, (), "desktop"
    ),
}  # fmt: skip
"""What hosts are given, by the name in the table."""


class Host:
    """A host of the lab that goes forward and back. `seconds`: of the commands of the present way."""

    def __init__(self, name: str, given: Given, folder: Path) -> None:
        self.machine, self.given, self.folder = Nspawn(name, given.rig), given, folder
        self.seconds, self._made = 0.0, 0

    def inventory(self, **changed: Any) -> tuple[str, ...]:
        """The words --host and --inventory for the host with its variables and these."""
        self._made += 1
        values = {**self.given.variables, **changed}
        made = inventory(self.folder / f"inventory{self._made}", **{self.machine.name: values})
        return "--host", self.machine.name, "--inventory", made

    def does(self, task: str, *words: str, code: int = 0, **changed: Any) -> dict[str, Any]:
        """Runs a command that must end with that code; returns the host's part of its document, with `run` beside
        it."""
        began = time.monotonic()
        made = document(task, *self.inventory(**changed), *words, deadline=900)
        self.seconds += time.monotonic() - began
        assert made["exit_code"] == code, (task, words, not_as_wanted(made))
        return {**made["hosts"][self.machine.name], "run": made["run"]}

    def prints(self, task: str, *words: str) -> str:
        """What a command prints that must end with 0."""
        done = invoke(task, *self.inventory(), *words, deadline=900)
        assert done.returncode == 0, (task, words, done.stdout[-3000:], done.stderr[-3000:])
        return done.stdout

    def provision(self, **changed: Any) -> str:
        """Provisions the host; returns the number of the run."""
        return str(self.does("provision", *self.given.words, "--yes", **changed)["run"])

    def state(self) -> State:
        """What the host is, after another boot: what stays until the next one is not compared."""
        reboot(self.machine.name)
        return state.read(self.machine.root)

    def differences(self, before: State) -> list[Difference]:
        """What differs from a state of before, without what a way back leaves."""
        return [each for each in state.differences(self.state(), before) if not STAYS.search(each.line)]


@contextmanager
def host(name: str, given: Given, folder: Path) -> Iterator[Host]:
    """Yields a host as it is before the first command."""
    commands.down(name=name, say=print)
    commands.up(name=name, rig=given.rig, distro=given.distro, say=print)
    try:
        made = Host(name, given, folder)
        made.machine.root("LC_ALL=C update-grub 2>/dev/null; apt-get -qq update")  # as later programs make them
        if given.fault:
            inject.fault(name, given.fault, "", print)
        if given.prepare is not None:
            given.prepare(switch.get(name).root)
        yield made
    finally:
        commands.down(name=name, say=print)


def _unchanged(host: Host, task: str, *words: str) -> None:
    """Asserts that the same command, typed again, changes nothing and ends with 0."""
    again = host.does(task, *words, "--yes")
    assert again["changes"] == [], (task, again["changes"])


def rollback(host: Host, before: State) -> None:
    """provision, then rollback."""
    host.provision()
    host.does("rollback", "--yes")
    assert not (wrong := host.differences(before)), wrong[:20]
    _unchanged(host, "rollback")


def remove(host: Host, before: State) -> None:
    """provision, then remove: the packages stay, and nothing of rigwright's acts on the host."""
    host.provision()
    host.does("remove", "--yes")
    left = [each for each in host.differences(before) if each.section in ("holds", "broken", "boot")]
    left += [each for each in host.differences(before) if "rigwright" in each.line or "gpu-limits" in each.line]
    assert not left, left[:20]
    _unchanged(host, "remove")


def remove_with_driver(host: Host, before: State) -> None:
    """provision, then remove --driver."""
    host.provision()
    host.does("remove", "--driver", "--yes")
    assert not (wrong := host.differences(before)), wrong[:20]
    _unchanged(host, "remove", "--driver")


def rollback_to_each_run(host: Host, before: State) -> None:
    """provision three times with other variables, then rollback to before each of the runs, the last one first."""
    states, runs = [before], []
    for changed in ({}, {"kernel_cmdline": ["iommu=pt", "pcie_aspm=off"]}, {"limits": {"power_limit_w": 260}}):
        runs.append(host.provision(**changed))
        states.append(host.state())
    for run, was in reversed(list(zip(runs, states, strict=False))):
        host.does("rollback", "--to", run, "--yes")
        assert not (wrong := host.differences(was)), (run, wrong[:20])


def limits_alone(host: Host, _before: State) -> None:
    """provision, then limits with other values, and a rollback of that run alone."""
    host.provision()
    was = host.state()
    assert host.does("limits", limits={"power_limit_w": 220})["changes"]
    host.does("rollback", "--yes")
    assert not (wrong := host.differences(was)), wrong[:20]


Way = Callable[[Host, State], None]
WAYS: dict[str, Way] = {
    "rollback": rollback,
    "remove": remove,
    "remove --driver": remove_with_driver,
    "rollback to each run": rollback_to_each_run,
}
ON_ONE_HOST: dict[str, Way] = {"limits alone": limits_alone}
"""Ways that are the same on every host, and are gone on one host only."""


def write(given: str, way: str, seconds: float, ends: str) -> None:
    """Adds a row to RESULTS."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    row = {"when": when, "given": given, "way": way, "seconds": round(seconds), "ends": ends}
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")


def table() -> str:
    """The last row of each way in RESULTS as Markdown: the seconds of its commands, or how it ended."""
    rows = {(row["given"], row["way"]): row for row in map(json.loads, RESULTS.read_text().splitlines())}
    ways = list(dict.fromkeys(way for _, way in rows))
    lines = [f"| host | {' | '.join(ways)} |", "|---" * (len(ways) + 1) + "|"]
    for given in GIVEN:
        cells = [rows.get((given, way)) for way in ways]
        texts = [
            "-" if row is None else f"{row['seconds']} s" if row["ends"] == "same" else row["ends"] for row in cells
        ]
        lines.append(f"| {given} | {' | '.join(texts)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
