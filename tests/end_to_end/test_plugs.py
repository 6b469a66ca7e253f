"""Every plug, every step: cuts provision at each of its places by connection, controller and power; the same command ends it.

The steps are those of playbooks/provision.yml, and the places in them are those of an uninterrupted run on the same rig
(tests/end_to_end/plugs/run.py). `-m plugs` runs all cuts, each in a provision of its own; every run of all tests has a sample of
RIGWRIGHT_PLUGS_SAMPLE (6) cuts, which RIGWRIGHT_PLUGS_SEED chooses, in one provision: the same command is typed after each cut that ends it,
until nobody cuts it. Each cut of `-m plugs` adds a line to .lab/plugs/results.jsonl, from which scripts/reliability writes
docs/reliability.md. With RIGWRIGHT_PLUGS_REST=1 the cuts that ended in the same state there or in docs/reliability.jsonl are left out: a run that was
interrupted goes on.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.end_to_end.conftest import WORKER
from tests.end_to_end.plugs import state
from tests.end_to_end.plugs.cut import KINDS, Cut, Kind, Outcome, carry_out, carry_out_all, sample
from tests.end_to_end.plugs.machine import Machine, Nspawn
from tests.end_to_end.plugs.run import Reference, record
from tests.end_to_end.rw import inventory, invoke
from tests.paths import ROOT

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
SEED = int(os.environ["RIGWRIGHT_PLUGS_SEED"])
SAMPLE = int(os.environ.get("RIGWRIGHT_PLUGS_SAMPLE", "6"))
RIG = "servbadge"
STEPS = [
    task["name"] for play in yaml.safe_load((ROOT / "playbooks/provision.yml").read_text()) for task in play["tasks"]
]
DATA = ROOT / "docs" / "reliability.jsonl"
"""The outcomes of earlier runs, which scripts/reliability keeps there."""
RESULTS = ROOT / ".lab" / "plugs" / "results.jsonl"


@dataclass(frozen=True)
class Table:
    """A host, the uninterrupted run on it, and the words of the command."""

    machine: Machine
    reference: Reference
    words: tuple[str, ...]

    def cuts(self) -> list[Cut]:
        """All cuts, in order."""
        fraction = random.Random(SEED).uniform(0.1, 0.9)
        return [Cut(place, kind) for place in self.reference.places(fraction) for kind in KINDS]

    def outcome(self, cut: Cut, folder: Path) -> Outcome:
        """Carries a cut out."""
        return carry_out(self.machine, cut, self.reference, self.words, folder)


@pytest.fixture(scope="module")
def table(lab_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:  # noqa: ARG001
    """Yields the table of a host that is provisioned without an interruption first."""
    folder = tmp_path_factory.mktemp("plugs")
    host = Nspawn(f"t-plugs{WORKER}", RIG)
    host.create()
    try:
        own = inventory(folder / "inventory", **{host.name: {"p2p_wheels": "none"}})
        words = ("--host", host.name, "--inventory", own)
        reference = record(host, words, folder / "disks", folder / "uninterrupted.log")
        yield Table(host, reference, words)
    finally:
        host.remove()


def test_a_sample(table: Table, tmp_path: Path) -> None:
    """All cuts of the sample one after the other in one provision, in the order of its places."""
    cuts = sample(table.cuts(), SAMPLE, SEED)
    made, wrong = carry_out_all(table.machine, cuts, table.reference, table.words, tmp_path)
    assert not wrong, f"RIGWRIGHT_PLUGS_SEED={SEED}: {', '.join(map(str, cuts))}: {wrong}"
    # On a busy machine the program of a place may end before it is seen; that cut comes at the next place, and is not counted here.
    assert len(made) >= len(cuts) / 2, f"RIGWRIGHT_PLUGS_SEED={SEED}: of {', '.join(map(str, cuts))} only {made}"


@pytest.mark.nightly
def test_a_package_whose_script_needs_one_that_was_not_unpacked(table: Table) -> None:
    """CUDA's common package cannot be configured before the packages that have the files of the toolkit are unpacked."""
    name = "cuda-toolkit-12-2-config-common"
    table.machine.put_back(table.reference.disk("CUDA toolkit"))
    said = table.machine.root(
        f"cd /run && apt-get -qq update && apt-get -qq download {name} && dpkg --unpack {name}_*.deb; dpkg --configure -a 2>&1 || :"
    )
    assert "error exit status 2" in said, said
    done = invoke("provision", *table.words, "--yes")
    assert done.returncode == 0, done.stdout
    assert not state.differences(state.read(table.machine.root), table.reference.state)


@pytest.mark.plugs
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", STEPS)
def test_every_cut(table: Table, step: str, kind: Kind, tmp_path: Path) -> None:
    cuts = [cut for cut in table.cuts() if (cut.place.step, cut.kind) == (step, kind)]
    assert bool(cuts) == (step in table.reference.steps), "a step without a place changes nothing on this host"
    measured = _measured() if "RIGWRIGHT_PLUGS_REST" in os.environ else frozenset()
    cuts = [cut for cut in cuts if (cut.place.step, cut.place.text, cut.kind) not in measured]
    failed = []
    for cut in cuts:
        try:
            outcome = table.outcome(cut, tmp_path)
        except AssertionError as error:
            failed.append(f"{cut}: {error}")
            continue
        _write(outcome, len(table.cuts()))
        if outcome.ends != "same":
            failed.append(f"{cut}: {outcome}")
    assert not failed, f"RIGWRIGHT_PLUGS_SEED={SEED}: " + "\n".join(failed)


def _measured() -> frozenset[tuple[str, str, str]]:
    """Step, place and kind of the cuts in DATA and RESULTS that ended in the same state."""
    files = [file for file in (DATA, RESULTS) if file.exists()]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return frozenset((row["step"], row["place"], row["kind"]) for row in rows if row["ends"] == "same")


def _write(outcome: Outcome, of: int) -> None:
    """Adds an outcome to RESULTS; `of`: the number of all cuts."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M")
    row = {"when": when, "seed": SEED, "rig": RIG, "of": of, **dataclasses.asdict(outcome), "ends": outcome.ends}
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")
