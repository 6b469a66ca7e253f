"""The table of cuts: names of programs, the sample, and docs/measurements/reliability.md, which scripts/reliability
writes from measured outcomes."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import re
from typing import Any

import pytest
import yaml

from tests.end_to_end.plugs import state
from tests.end_to_end.plugs.commands import COMMANDS
from tests.end_to_end.plugs.cut import KINDS, Cut, sample
from tests.end_to_end.plugs.machine import program
from tests.end_to_end.plugs.run import Place, Reference, Stop
from tests.end_to_end.plugs.state import differences
from tests.paths import ROOT

STEPS = [
    task["name"]
    for name in ("provision", "rollback", "remove", "remove-driver")
    for task in yaml.safe_load((ROOT / f"playbooks/{name}.yml").read_text())[0]["tasks"]
]
PROVISION, ROLLBACK, *_ = COMMANDS


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("/usr/bin/dpkg --status-fd 12 --no-triggers --unpack --auto-deconfigure a.deb", "dpkg --unpack"),
        ("/bin/sh /var/lib/dpkg/info/nvidia-dkms-535.postinst configure 535.1", "nvidia-dkms-535.postinst configure"),
        (
            "/usr/bin/perl -w /usr/share/debconf/frontend /var/lib/dpkg/info/x.postinst configure",
            "x.postinst configure",
        ),
        ("apt-get -y -q -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 install dkms", "apt-get install"),
        ("/bin/sh /usr/sbin/update-initramfs -u -k 6.1.0", "update-initramfs"),
        ("/usr/lib/apt/methods/http", ""),
        ("sh -c set -f sh", ""),
        ("sh /var/lib/rigwright/runs/20261122-1/rigwright-job-x-0/script", ""),
        ("timeout -k 5 120 systemctl daemon-reload", ""),
        ("systemctl enable gpu-limits.service", "systemctl enable"),
        ("python3 /usr/local/lib/rigwright/gpu_limits.py apply", "gpu_limits.py apply"),
        ("sshd: ubuntu@notty", ""),
        ("sleep 0.1", ""),
        ("", ""),
    ],
)
def test_names_of_programs(line: str, name: str) -> None:
    assert program(line) == name


def _cuts(places: int) -> list[Cut]:
    return [Cut(Place(f"step {n % 5}", f"place {n}", "sends", 1), kind) for n in range(places) for kind in KINDS]


def test_the_sample_depends_on_the_seed_alone() -> None:
    chosen = sample(_cuts(30), 6, 4711)
    assert chosen == sample(_cuts(30)[::-1], 6, 4711)
    assert chosen != sample(_cuts(30), 6, 4712)
    assert sorted(cut.kind for cut in chosen) == sorted(2 * KINDS)
    assert len({cut.place.step for cut in chosen}) == 5
    assert len(sample([cut for cut in _cuts(30) if cut.kind == "power"], 4, 4711)) == 4
    every = sample(_cuts(30), 1000, 1)
    assert (len(every), set(every)) == (90, set(_cuts(30)))


def test_places_of_a_run(tmp_path: Any) -> None:
    told = [
        ("begun", "Packages", 0), ("sends", "Packages", 1), ("answered", "Packages", 1), ("changed", "Packages", 1),
        ("begun", "Words", 0), ("sends", "Words", 1), ("answered", "Words", 1), ("sends", "Words", 2),
        ("answered", "Words", 2),
        ("begun", "Reboot", 0), ("sends", "Reboot", 1), ("answered", "Reboot", 1), ("back", "Reboot", 1),
        ("changed", "Reboot", 1),
    ]  # fmt: skip
    stops = [Stop(at, step, trip, step == "Words", float(second)) for second, (at, step, trip) in enumerate(told)]
    ran = {"apt-get install": (1.0, 2.0), "dpkg --configure": (1.1, 1.95), "dkms build": (1.2, 1.4), "sed": (1.1, 1.12)}
    reference = Reference(tmp_path, PROVISION, {}, {}, stops, {("Packages", 1): ran})
    assert [str(place) for place in reference.places(0.5)] == [
        "Packages: before the first command of the run",
        "Packages: in dpkg --configure",
        "Packages: in dkms build",
        "Packages: between the change and its proof",
        "Words: while commands 1 of 2 run",
        "Words: between commands 1 and 2 of 2",
        "Words: while commands 2 of 2 run",
        "Words: between the change and its proof",
        "Reboot: while commands run",
        "Reboot: after the order, before the host goes down",
        "Reboot: in the reboot, at 10% of its time",
        "Reboot: in the reboot, at 40% of its time",
        "Reboot: in the reboot, at 70% of its time",
        "Reboot: after the boot, before the proof",
        "Reboot: after the last step, before the checks",
    ]
    assert [reference.disk(step).name for step in reference.steps] == ["Packages", "Words", "Words"]


def test_places_of_a_program_that_measures(tmp_path: Any) -> None:
    told = [("begun", 1), ("sends", 1), ("ended", 1), ("removed", 1), ("sends", 2), ("ended", 2), ("removed", 2)]
    stops = [Stop(at, "load", trip, False, float(second)) for second, (at, trip) in enumerate(told)]
    reference = Reference(tmp_path, ROLLBACK, {}, {}, stops, {("load", 1): {"nccl_load.py": (1.0, 2.0)}})
    assert reference.places(0.5)[0].trip == 1
    assert [str(place) for place in reference.places(0.5)] == [
        "load: before the first command of the run",
        "load: in nccl_load.py 1 of 2, at 10% of its time",
        "load: in nccl_load.py 1 of 2, at 40% of its time",
        "load: in nccl_load.py 1 of 2, at 70% of its time",
        "load: when it has ended 1 of 2",
        "load: when its files are removed 1 of 2",
        "load: while commands 2 of 2 run",
        "load: when it has ended 2 of 2",
        "load: when its files are removed 2 of 2",
    ]


def test_a_command_is_cut_from_its_first_step(tmp_path: Any) -> None:
    stops = [Stop("begun", step, 0, False, 0.0) for step in ("Record", "Files")]
    assert [Reference(tmp_path, ROLLBACK, {}, {}, stops).disk(step).name for step in ("Record", "Files")] == [
        "Record"
    ] * 2


@pytest.mark.parametrize(
    ("name", "code", "error", "refused"),
    [
        ("limits.find", 1, "the GPUs are in use by python3 (262), and beside their work a sweep says nothing", True),
        ("limits.find", 2, "the GPUs are in use by python3 (262)", False),
        ("limits.find", 1, "the host has no python3", False),
        ("rollback", 1, "the GPUs are in use by python3 (262)", False),
    ],
)
def test_a_refusal_because_of_what_a_cut_left(name: str, code: int, error: str, refused: bool) -> None:
    (command,) = (command for command in COMMANDS if command.name == name)
    assert command.is_refused(code, error) == refused


def test_only_a_recording_may_stay_after_a_power_cut() -> None:
    here, reference = (
        {"files": frozenset({"d 700 root:root /var/lib/rigwright/recordings/RUN ", "b"})},
        {"files": frozenset("c")},
    )
    kept = [one for one in differences(here, reference) if state.is_kept_for_the_next_run(one)]
    assert [one.line for one in kept] == ["d 700 root:root /var/lib/rigwright/recordings/RUN "]


def test_differences_have_both_sides() -> None:
    here, reference = {"holds": frozenset({"a", "b"})}, {"holds": frozenset({"b", "c"})}
    assert [str(one) for one in differences(here, reference)] == ["holds: + a", "holds: - c"]


def test_after_a_power_cut_each_section_may_be_as_after_a_boot() -> None:
    run, booted = ({"boot": frozenset(line), "limits": frozenset(watts)} for line, watts in (("a", "2"), ("b", "3")))
    here = {"boot": frozenset("a"), "limits": frozenset("3")}
    assert [str(one) for one in differences(here, run)] == ["limits: + 3", "limits: - 2"]
    assert differences(here, run, booted) == []
    assert len(differences({**here, "boot": frozenset("c")}, run, booted)) == 2


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("BOOT_IMAGE=/vmlinuz ro panic=60 rigwright.trial=20261122-210219-fcad0123 "
         "systemd.wants=rigwright-trial.service", "BOOT_IMAGE=/vmlinuz ro"),
        ("BOOT_IMAGE=/vmlinuz ro panic=60", "BOOT_IMAGE=/vmlinuz ro panic=60"),
        ("/var/lib/rigwright/20261122-210219-fcad0123.new", "/var/lib/rigwright/RUN.new"),
    ],
)  # fmt: skip
def test_the_number_of_a_run_is_no_difference(line: str, same: str) -> None:
    assert state._without_run(line) == same


def _script() -> Any:
    loader = importlib.machinery.SourceFileLoader("reliability", str(ROOT / "scripts" / "reliability"))
    spec = importlib.util.spec_from_loader("reliability", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _row(**changed: Any) -> dict[str, Any]:
    return {
        "when": "2026-11-22 20:00", "seed": 7, "rig": "servbadge", "command": "provision", "host": "nspawn",
        "number": 3, "step": "Reboot", "place": "in sync",
        "kind": "power", "reached": True, "first": 3, "said": "gone", "second": 0, "seconds": 12.4, "changes": 3,
        "error": "", "differs": [],
        "ends": "same", "of": 315, **changed,
    }  # fmt: skip


def test_the_page_tells_what_went_wrong() -> None:
    outcomes = [
        _row(),
        _row(kind="controller", second=1, error="no", ends="stops: no"),
        _row(kind="connection", second=None, first=0, reached=False),
        _row(number=1, step="Base packages", place="in dpkg", differs=["holds: + a"], ends="differs"),
    ]
    text = _script().page(outcomes)
    assert "| Reboot | in sync | goes on * | **stops** | same, 12 s |" in text
    assert "| Base packages | in dpkg | - | - | **differs** |" in text
    assert "4 cuts of 315, at 2 places: 1 differ, 2 in the same state, 1 stopped" in text
    assert "- Reboot, in sync, controller killed: stops: no" in text
    assert "  - `holds: + a`" in text


def test_each_host_has_its_own_figures() -> None:
    text = _script().page([_row(), _row(host="vm", when="2026-11-23 01:00", seed=8, of=12, step="A step of before")])
    assert "Measured 2026-11-22, seed 7: 1 cuts of 315, at 1 places: 1 in the same state." in text
    assert "Measured 2026-11-23, seed 8: 1 cuts of 12, at 1 places: 1 in the same state." in text
    assert "| A step of before | in sync | - | - | same, 12 s |" in text


def test_each_command_has_its_own_table() -> None:
    sweep = _row(
        command="limits.find",
        step="sweep",
        place="in limits_sweep.py",
        commit="0123abcd",
        refused_s=20.1,
        settled_s=99.6,
    )
    text = _script().page([sweep, _row(), _row(command="remove --driver", step="Units")])
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert titles == [f"## {name}: nspawn, rig servbadge" for name in ("provision", "remove --driver", "limits.find")]
    assert "Measured 2026-11-22, commit 0123abcd, seed 7" in text
    assert "| sweep | in limits_sweep.py | - | - | same, 12 s (refused for 20 s) (after 100 s) |" in text
    assert re.search(r"not measured yet: dpkg is whole, .*Files, Records\.", text)


@pytest.mark.parametrize("line", ['{"host": "nspawn", "st', "[]", '{"host": 1}'])
def test_a_line_that_was_cut_is_named(tmp_path: Any, capsys: pytest.CaptureFixture[str], line: str) -> None:
    """The test that writes the file may have been killed."""
    results = tmp_path / "results.jsonl"
    results.write_text(f"{json.dumps(_row())}\n{line}\n")
    with pytest.raises(SystemExit):
        _script().rows([results])
    assert f"error scripts/reliability: {results}:2 is no outcome of a cut" in capsys.readouterr().err


def test_the_page_has_the_steps_of_the_playbook() -> None:
    text = (ROOT / "docs" / "measurements" / "reliability.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| ([A-Z][^|]+?) \| .+ \| .+ \| .+ \| .+ \|$", text, re.MULTILINE))
    assert named
    assert named <= set(STEPS)
