"""Every plug, every step: cuts each command at each of its places by connection, controller and power; the same command
ends it.

The commands are those of tests/end_to_end/plugs/commands.py; the places are those of an uninterrupted run on the same
rig (tests/end_to_end/plugs/run.py). `-m plugs` runs all cuts, each in a run of its own; every run of all tests has two
samples of RIGWRIGHT_PLUGS_SAMPLE (4) cuts, which RIGWRIGHT_PLUGS_SEED chooses: one in a provision, one in another
command. The same command is typed after each cut that ends it, until nobody cuts it. Each cut of `-m plugs` adds a line
to .lab/plugs/results.jsonl, from which scripts/reliability writes docs/measurements/reliability.md. With
RIGWRIGHT_PLUGS_REST=1 the cuts that ended in the same state there or in docs/measurements/reliability.jsonl are left
out: a run that was interrupted goes on. RIGWRIGHT_PLUGS_MOST=3 makes at most so many cuts in each test.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import random
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from lab.power import switch
from tests.end_to_end.conftest import WORKER
from tests.end_to_end.plugs import state
from tests.end_to_end.plugs.commands import COMMANDS, TRAINING
from tests.end_to_end.plugs.cut import KINDS, Cut, Kind, Outcome, carry_out, carry_out_all, sample
from tests.end_to_end.plugs.machine import Machine, Nspawn
from tests.end_to_end.plugs.run import Reference, record
from tests.end_to_end.rw import inventory, invoke
from tests.end_to_end.test_training import TORCHRUN, wheel
from tests.paths import ROOT

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
SEED = int(os.environ["RIGWRIGHT_PLUGS_SEED"])
SAMPLE = int(os.environ.get("RIGWRIGHT_PLUGS_SAMPLE", "4"))
SHORT = ("rollback without a trial", "remove", "remove --driver", "limits.find")
"""The commands of which one has a sample in every run of all tests: seconds, and their programs end soon after a
cut."""
RIG = "servbadge"
OTHERS = [command.name for command in COMMANDS if command.name != "provision"]
STEPS = [
    task["name"] for play in yaml.safe_load((ROOT / "playbooks/provision.yml").read_text()) for task in play["tasks"]
]
DATA = ROOT / "docs" / "measurements" / "reliability.jsonl"
"""The outcomes of earlier runs, which scripts/reliability keeps there."""
RESULTS = ROOT / ".lab" / "plugs" / "results.jsonl"


@dataclass(frozen=True)
class Table:
    """A host, and the uninterrupted run of a command on it."""

    machine: Machine
    reference: Reference

    def cuts(self) -> list[Cut]:
        """All cuts, in order."""
        fraction = random.Random(SEED).uniform(0.1, 0.9)
        return [Cut(place, kind) for place in self.reference.places(fraction) for kind in KINDS]

    def sample(self, folder: Path) -> None:
        """Carries SAMPLE cuts out, one after the other in one run. Raises AssertionError when that does not end in the
        same state."""
        cuts = sample(self.cuts(), SAMPLE, SEED)
        made, wrong = carry_out_all(self.machine, cuts, self.reference, folder)
        told = f"RIGWRIGHT_PLUGS_SEED={SEED}: {self.reference.command.name}: {', '.join(map(str, cuts))}"
        assert not wrong, f"{told}: {wrong}"
        # On a busy machine a program may end before it is seen: that cut comes at the next place and is not counted.
        assert len(made) >= len(cuts) / 2, f"{told}: only {made}"


class Tables:
    """The tables of one host, each made when it is asked for."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine, self.folder = machine, folder
        self._made: dict[str, Table] = {}
        self._disks: dict[str, Path] = {}
        given = {**{command.name: command.variables for command in COMMANDS}, "trainable": {"training": TRAINING}}
        # All of them now: the lab's inventory has only the hosts that are on when another one is made.
        for name, variables in given.items():
            inventory(folder / name / "inventory", **{machine.name: dict(variables)})

    def of(self, name: str) -> Table:
        """The table of a command."""
        if name not in self._made:
            command = next(command for command in COMMANDS if command.name == name)
            if command.start != "bare":
                self.machine.put_back(self._disk(command.start))
            own = self.folder / name
            typed = dataclasses.replace(command, words=(*command.words, *self._where(name)))
            reference = record(self.machine, typed, own / "disks", own / "uninterrupted.log")
            if name == "provision":
                self._keep("provisioned")
            self._made[name] = Table(self.machine, reference)
        return self._made[name]

    def _where(self, name: str) -> tuple[str, ...]:
        return "--host", self.machine.name, "--inventory", str(self.folder / name / "inventory")

    def _keep(self, state: str) -> None:
        self._disks[state] = self.folder / "states" / state
        self.machine.keep(self._disks[state])

    def _disk(self, state: str) -> Path:
        """The disk of the host in a state, which is made once."""
        if state == "provisioned" and state not in self._disks:
            self.of("provision")
        elif state not in self._disks:
            self.machine.put_back(self._disk("provisioned"))
            self._trains()
            self._keep(state)
        return self._disks[state]

    def _trains(self) -> None:
        """Makes a training environment on the host, with a stand-in for torch whose trainings take some seconds."""
        root = switch.get(self.machine.name).root
        slow = TORCHRUN.replace("import json", "import time; time.sleep(3)\nimport json")
        (root / "srv/lock.txt").write_text(wheel(root / "srv/wheels", 4, slow))
        where = self._where("trainable")
        done = invoke("provision", "--playbook", "train", *where, "--yes", deadline=400)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def tables(lab_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:  # noqa: ARG001
    """Yields the tables of a new host."""
    host = Nspawn(f"t-plugs{WORKER}", RIG)
    host.create()
    try:
        yield Tables(host, tmp_path_factory.mktemp("plugs"))
    finally:
        host.remove()


def test_a_sample(tables: Tables, tmp_path: Path) -> None:
    """All cuts of the sample one after the other in one provision, in the order of its places."""
    tables.of("provision").sample(tmp_path)


def test_a_sample_of_another_command(tables: Tables, tmp_path: Path) -> None:
    """The same for one of the short ones of the other commands; the seed chooses it."""
    tables.of(random.Random(SEED).choice(SHORT)).sample(tmp_path)


@pytest.mark.nightly
def test_a_package_whose_script_needs_one_that_was_not_unpacked(tables: Tables) -> None:
    """CUDA's common package cannot be configured before the packages that have the files of the toolkit are
    unpacked."""
    table, name = tables.of("provision"), "cuda-toolkit-12-2-config-common"
    table.machine.put_back(table.reference.disk("CUDA toolkit"))
    said = table.machine.root(
        f"cd /run && apt-get -qq update && apt-get -qq download {name} && dpkg --unpack {name}_*.deb; "
        "dpkg --configure -a 2>&1 || :"
    )
    assert "error exit status 2" in said, said
    done = invoke(*table.reference.command.words, "--yes")
    assert done.returncode == 0, done.stdout
    assert not state.differences(state.read(table.machine.root), table.reference.state)


@pytest.mark.plugs
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("command", "step"), [*(("provision", step) for step in STEPS), *((one, "") for one in OTHERS)]
)
def test_every_cut(tables: Tables, command: str, step: str, kind: Kind, tmp_path: Path) -> None:
    """`step`: of provision; "": all steps of the command."""
    table = tables.of(command)
    cuts = [cut for cut in table.cuts() if cut.kind == kind and step in ("", cut.place.step)]
    assert bool(cuts) == (step in ("", *table.reference.steps)), "a step without a place changes nothing on this host"
    measured = _measured() if "RIGWRIGHT_PLUGS_REST" in os.environ else frozenset()
    cuts = [cut for cut in cuts if (command, cut.place.step, cut.place.text, cut.kind) not in measured]
    cuts = sample(cuts, int(os.environ.get("RIGWRIGHT_PLUGS_MOST", len(cuts))), SEED)
    failed = []
    for cut in cuts:
        try:
            outcome = carry_out(table.machine, cut, table.reference, tmp_path)
        except AssertionError as error:
            failed.append(f"{cut}: {error}")
            continue
        _write(outcome, len(table.cuts()))
        if outcome.ends != "same":
            failed.append(f"{cut}: {outcome}")
    assert not failed, f"RIGWRIGHT_PLUGS_SEED={SEED}: " + "\n".join(failed)


def _measured() -> frozenset[tuple[str, str, str, str]]:
    """Command, step, place and kind of the cuts in DATA and RESULTS that ended in the same state."""
    files = [file for file in (DATA, RESULTS) if file.exists()]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return frozenset((row["command"], row["step"], row["place"], row["kind"]) for row in rows if row["ends"] == "same")


def _write(outcome: Outcome, of: int) -> None:
    """Adds an outcome to RESULTS; `of`: the number of all cuts."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M")
    row = {
        "when": when,
        "commit": _commit(),
        "seed": SEED,
        "rig": RIG,
        "of": of,
        **dataclasses.asdict(outcome),
        "ends": outcome.ends,
    }
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _commit() -> str:
    """The commit that was measured."""
    words = ("git", "-c", "safe.directory=*", "rev-parse", "--short=8", "HEAD")
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
