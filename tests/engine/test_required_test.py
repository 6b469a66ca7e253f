"""The record of an required peer-to-peer test: its scripts run in a shell, with a temporary folder in place of the
host's."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rigwright import operations
from rigwright.checks import Finding, p2p
from rigwright.core.change import Change
from rigwright.core.command import Command, Result, command
from rigwright.core.desired import Desired
from rigwright.core.mig import Mig
from rigwright.engine import plugins
from rigwright.engine.apply import apply
from rigwright.engine.host_run import HostRun
from rigwright.engine.p2p import required
from rigwright.engine.plan import PlannedStep
from rigwright.engine.playbook import BoundPlaybook, Check, Step
from rigwright.facts import driver, pci, system
from rigwright.facts.gpu import gpus as gpu
from rigwright.facts.nccl import p2p_record, p2p_test as nccl
from rigwright.inventory.model import Host
from tests import nvidia_smi
from tests.host_runs import host_run
from tests.paths import ROOT

HOST = Host("h", (), {})
RAN = Check("Peer-to-peer test", "p2p.ran", p2p.ran, {}, "play.yml:1")
PLAY = BoundPlaybook(HOST, (), (RAN,))
DRIVER = Change("change", "driver 535.261.03 (12 packages)", "535.161.08", "535.261.03", (command("true"),))
DOCUMENT = nccl.read((ROOT / "tests/cases/p2p/pair.json").read_text())
CMDLINE = Change("change", "kernel command line", "", "iommu=pt", (command("true"),))
GPUS = (
    "0, {uuid}, 00000000:{bus}:00.0, Tesla V100-SXM2-16GB, Enabled, 300.00, 150.00, 300.00, 300.00, 877, 1312, 877, "
    "1312\n"
)
PASS = Finding(p2p.TEST, "pass", "2 GPUs", check="p2p.ran")


class Machine:
    """A host whose state folder is `folder`. `uuids`: its GPUs by bus number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uuids = {"06": "GPU-a", "07": "GPU-b"}
        self.version, self.bios = "535.261.03", "R25"
        self.on_the_bus = True
        self.ran: list[str] = []

    def answer(self, cmd: Command) -> Result:
        """Runs the scripts of the record, and answers the other facts that the record is compared with."""
        self.ran.append(str(cmd))
        if any("p2p-test" in word for word in cmd.argv):
            words = [word.replace("/var/lib/rigwright", str(self.folder)) for word in cmd.argv]
            done = subprocess.run(words, capture_output=True, check=False)
            return Result(done.returncode, done.stdout, done.stderr)
        texts = {
            system.firmware.command: f"AMI\n{self.bios}\n09/14/2021\n",
            driver.loaded_version.command: f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {self.version}  Tue Mar  "
            "5 22:42:15 UTC 2024\n",
            pci.gpus.command: "".join(
                f"0000:{bus}:00.0 0x030200 1db1 nvidia\n" for bus in self.uuids if self.on_the_bus
            ),
            gpu.gpus.command: nvidia_smi.xml(
                "gpu.gpus", "".join(GPUS.format(bus=bus, uuid=uuid) for bus, uuid in self.uuids.items())
            ),
        }
        return Result(0, texts.get(cmd, "").encode())

    def run(self, run_id: str = "20261122-1", bound: BoundPlaybook = PLAY, tell: Any = None) -> HostRun:
        """A new run on the host."""
        return host_run(self.answer, run_id, tell=tell, bound=bound)

    def requires_test(self, change: Change = DRIVER, run_id: str = "20261122-1", single: bool = True) -> None:
        """Runs the command that goes with a change."""
        assert self.answer(required.record_changes(run_id, (change,), single=single)).code == 0

    def tests(self, run: HostRun, judged: tuple[Finding, ...] = (PASS,), **changed: Any) -> str:
        """Settles the test of the run with the machine's document."""
        run.store.known[nccl.tested] = self.document(**changed)
        return required.settle(run, judged)

    def document(self, **changed: Any) -> nccl.Document:
        """The document of a full test of the GPUs that the machine has."""
        cards = DOCUMENT.gpus[: len(self.uuids)]
        gpus = tuple(
            replace(card, bus_id=f"0000:{bus}:00.0", uuid=uuid)
            for card, (bus, uuid) in zip(cards, self.uuids.items(), strict=True)
        )
        versions = replace(DOCUMENT.versions, driver=self.version)
        return replace(DOCUMENT, **{"quick": False, "outcome": "ok", "gpus": gpus, "versions": versions, **changed})


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Returns a host that was never tested."""
    return Machine(tmp_path / "rigwright")


def warnings(run: HostRun) -> list[str]:
    """Returns the text of the warning that a test is required, [] without one."""
    return [finding.seen for finding in required.findings(run)]


def test_nothing_is_required_before_the_first_change(machine: Machine) -> None:
    assert warnings(machine.run()) == []
    assert not machine.folder.exists()


def test_a_test_is_required_until_a_test_passes(machine: Machine) -> None:
    machine.requires_test()
    run = machine.run("20261122-2")
    (finding,) = required.findings(run)
    assert finding.verdict == "warn"
    assert finding.seen.startswith("required since 20")
    assert finding.seen.endswith(" UTC by run 20261122-1: after driver 535.261.03 (12 packages)")
    assert finding.fix == "invoke provision, which runs it"
    elsewhere = Finding("GPUs", "fail", "3", check="gpu.present")
    assert machine.tests(run, (PASS, elsewhere)) == "", "a failure elsewhere does not count"
    assert warnings(run) == []
    assert warnings(machine.run()) == []


@pytest.mark.parametrize(
    ("judged", "changed"),
    [
        ((replace(PASS, verdict="fail"),), {}),
        ((PASS, replace(PASS, verdict="fail", check="p2p.collective")), {}),
        ((PASS, replace(PASS, verdict="unknown", check="p2p.copies")), {}),
        ((), {}),
        ((PASS,), {"quick": True}),
        ((PASS,), {"outcome": "could not run"}),
    ],
)
def test_only_a_full_test_that_passed_counts(machine: Machine, judged: tuple[Finding, ...], changed: Any) -> None:
    machine.requires_test()
    run = machine.run()
    before = warnings(run)
    machine.tests(run, judged, **changed)
    assert warnings(run) == before != []
    assert not (machine.folder / p2p_record.PASSED).exists()


def test_two_runs_require_the_same_test(machine: Machine) -> None:
    machine.requires_test(run_id="20261122-1")
    machine.requires_test(run_id="20261122-2")
    machine.requires_test(Change("run", "reboot", "driver", "a boot"), run_id="20261122-2")
    run = machine.run("20261122-3")
    (text,) = warnings(run)
    assert text.endswith("by run 20261122-1: after driver 535.261.03 (12 packages), reboot")
    machine.tests(run)
    assert warnings(machine.run()) == []


def test_what_another_run_changed_during_the_test_stays_required(machine: Machine) -> None:
    machine.requires_test()
    run = machine.run()
    warnings(run)
    machine.requires_test(run_id="20261122-9")
    machine.tests(run)
    assert len(warnings(run)) == 1
    again = machine.run()
    warnings(again)
    machine.tests(again)
    assert warnings(again) == []


def test_a_card_that_moved_a_driver_and_a_firmware(machine: Machine) -> None:
    run = machine.run("20261122-1")
    warnings(run)
    machine.tests(run)
    assert warnings(machine.run()) == []
    machine.uuids = {"06": "GPU-b", "07": "GPU-a"}
    (text,) = warnings(machine.run())
    assert text.endswith(
        " in run 20261122-1: after a GPU moved from 0000:07:00.0 to 0000:06:00.0, "
        "a GPU moved from 0000:06:00.0 to 0000:07:00.0"
    )
    machine.uuids = {"06": "GPU-a", "07": "GPU-c"}
    assert warnings(machine.run())[0].endswith(": after another GPU at 0000:07:00.0")
    machine.uuids = {"06": "GPU-a"}
    assert warnings(machine.run()) == [], "a missing GPU is a finding of its own"
    machine.version = "535.274.02"
    machine.bios = "R26"
    text = warnings(machine.run())[0]
    assert "after driver 535.274.02 in place of 535.261.03, firmware AMI R26 09/14/2021 in place of AMI R25" in text
    run = machine.run()
    warnings(run)
    machine.tests(run)
    assert warnings(machine.run()) == []


def test_a_host_without_gpus_needs_no_test_until_it_has_some(machine: Machine) -> None:
    machine.uuids = {}
    machine.requires_test()
    machine.requires_test(CMDLINE, single=False)
    (machine.folder / p2p_record.REQUIRED).open("a").write("damaged\n")
    assert warnings(machine.run()) == []
    machine.uuids = {"06": "GPU-a", "07": "GPU-b"}
    (text,) = warnings(machine.run())
    assert text.endswith(
        ": after driver 535.261.03 (12 packages), kernel command line, a record in /var/lib/rigwright that is damaged"
    )


def test_a_host_with_a_single_gpu_needs_it_after_a_driver_but_not_after_a_kernel_command_line(machine: Machine) -> None:
    machine.uuids = {"06": "GPU-a"}
    machine.requires_test(CMDLINE, run_id="20261122-1", single=False)
    assert warnings(machine.run()) == []
    machine.requires_test(run_id="20261122-2")
    (text,) = warnings(machine.run())
    assert text.endswith(" by run 20261122-2: after driver 535.261.03 (12 packages)")
    machine.uuids["07"] = "GPU-b"
    machine.on_the_bus = False  # as in a virtual machine: only the driver has the GPUs
    (text,) = warnings(machine.run())
    assert text.endswith(" by run 20261122-1: after kernel command line, driver 535.261.03 (12 packages)")


def test_a_record_of_an_older_version_counts_with_a_single_gpu(machine: Machine) -> None:
    machine.uuids = {"06": "GPU-a"}
    machine.folder.mkdir()
    old = {"since": "2026-11-22T11:24:32Z", "run": "20261122-1", "after": "kernel command line"}
    (machine.folder / p2p_record.REQUIRED).write_text(json.dumps(old) + "\n")
    assert warnings(machine.run()) == [
        "required since 2026-11-22 11:24 UTC by run 20261122-1: after kernel command line"
    ]


@pytest.mark.parametrize(
    ("plugin", "requires"),
    [("driver.installed", [0, 1, 1, 1]), ("grub.cmdline", [0, 0, 1, 1]), ("limits.applied", [0] * 4)],
)
def test_what_an_operation_declares(plugin: str, requires: list[int]) -> None:
    plugins.known("operations")
    declared = operations.declared(plugin)
    assert declared
    assert [declared.requires_p2p_test(gpus) for gpus in (0, 1, 2, None)] == requires


@pytest.mark.parametrize("content", [b"\xff\x00\x1b[2J{" * 30000, b"", b"null\n", b"[" * 70000, b'{"since": 1}\n'])
def test_a_damaged_record_requires_a_test(machine: Machine, content: bytes) -> None:
    machine.folder.mkdir()
    (machine.folder / p2p_record.REQUIRED).write_bytes(content)
    machine.requires_test()
    run = machine.run()
    (text,) = warnings(run)
    assert text.isprintable()
    assert len(text) < 400
    machine.tests(run)
    assert warnings(machine.run()) == []


def test_the_record_does_not_grow_without_end(machine: Machine) -> None:
    for number in range(p2p_record.MOST_LINES + 6):
        machine.requires_test(run_id=f"r{number}")
    lines = (machine.folder / p2p_record.REQUIRED).read_text().splitlines()
    assert len(lines) == p2p_record.MOST_LINES
    assert [json.loads(lines[at])["run"] for at in (0, -1)] == ["r0", f"r{p2p_record.MOST_LINES + 5}"]


def test_a_test_whose_result_cannot_be_written_stays_required(machine: Machine) -> None:
    machine.requires_test()
    run = machine.run()
    warnings(run)
    (machine.folder / f"{p2p_record.PASSED}.new").mkdir()
    cause = machine.tests(run)
    assert cause.startswith("it passed, and /var/lib/rigwright cannot be written: ")
    (finding,) = required.findings(run, cause)
    assert finding.cause == cause


@pytest.mark.parametrize(
    ("desired", "fix"),
    [
        (Desired(p2p_wheels="none"), "invoke verify --tags p2p --wheels fetch, which runs it; "
                                     "p2p_wheels is none, so provision does not"),
        (Desired(mig=Mig(gpus={"all": ("3g.20gb",)})),
         "mig: off in the inventory, then invoke provision, which runs it"),
        (Desired(mig=Mig(enabled=False)), "invoke provision, which runs it"),
    ],
)  # fmt: skip
def test_the_fix_is_that_of_the_inventory(machine: Machine, desired: Desired, fix: str) -> None:
    machine.requires_test()
    (finding,) = required.findings(machine.run(bound=replace(PLAY, desired=desired)))
    assert finding.fix == fix


def test_a_play_that_does_not_concern_it_reads_nothing(machine: Machine) -> None:
    machine.requires_test()
    run = machine.run(bound=BoundPlaybook(HOST, (), ()))
    assert required.findings(run) == ()
    assert run.transport.round_trips == 0
    run.bound = BoundPlaybook(HOST, (), (), partial=True)
    assert len(required.findings(run)) == 1, "--tags does not hide it"


@pytest.mark.parametrize(
    ("plugin", "requires", "single"),
    [("driver.installed", True, True), ("grub.cmdline", True, False), ("limits.applied", False, False)],
)
def test_it_is_written_in_the_script_of_the_change(machine: Machine, plugin: str, requires: bool, single: bool) -> None:
    done: list[str] = []
    change = replace(DRIVER, commands=(command("install-the-driver"),))
    changes = (Change("remove", "nvidia-driver-470", commands=(command("true"),)), change)
    plugins.known("operations")
    step = Step("Driver installed", plugin, lambda _facts: iter(() if done else changes), {}, "play.yml:1")
    run = machine.run(bound=BoundPlaybook(HOST, (step,), ()))
    real, scripts = run.transport.run, []

    def sent(commands: Any, **how: Any) -> Any:
        scripts.append([str(cmd) for cmd in commands])
        if "install-the-driver" in scripts[-1]:
            done.append("")
        return real(commands, **how)

    run.transport.run = sent  # type: ignore[method-assign]
    result = apply(run, (PlannedStep(step, "pending", changes),))
    assert result.error is None
    (script,) = [script for script in scripts if "true" in script]
    before = script[: script.index("true")]
    assert any("p2p-test.owed" in cmd for cmd in before) is requires
    assert sum("p2p-test.owed.new" in cmd for script in scripts for cmd in script) == requires
    texts = warnings(machine.run())
    assert [text.rpartition("after ")[2] for text in texts] == (["driver 535.261.03 (12 packages)"] if requires else [])
    del machine.uuids["07"]
    assert len(warnings(machine.run())) == single


def test_a_change_is_not_made_when_it_cannot_be_written(machine: Machine) -> None:
    machine.folder.parent.mkdir(exist_ok=True)
    machine.folder.write_text("a file in place of the folder")
    change = replace(DRIVER, commands=(command("install-the-driver"),))
    plugins.known("operations")
    step = Step("Driver installed", "driver.installed", lambda _facts: iter((change,)), {}, "play.yml:1")
    run = machine.run(bound=BoundPlaybook(HOST, (step,), ()))
    result = apply(run, (PlannedStep(step, "pending", (change,)),))
    assert result.error is not None
    assert "install-the-driver" not in machine.ran
