"""The unit that sets the limits at boot. Its files are too long for a case."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from rigwright.core.change import Change, Note
from rigwright.core.command import Command, Result
from rigwright.core.desired import Clocks, Limits
from rigwright.facts import Fact, FactStore, Missing, files, parsed, pci
from rigwright.facts.gpu import gpus
from rigwright.operations import limits
from tests import nvidia_smi

SERVICE, TIMER = "gpu-limits.service", "gpu-limits.timer"
WANTED = Limits(True, 200, Clocks(877, 1005))


class Unit:
    """A host with the files and units that `limits.boot` reads and changes. Each command advances its clock."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, str, int]] = {}
        self.enabled: dict[str, str] = {}
        self.active: dict[str, str] = {}
        self.started: dict[str, int] = {}
        self.needs_reload = False
        self.gpus = self.listed = 4
        self.clock = self.rounds = 0
        self.notes: list[str] = []

    def answer(self, fact: Fact[Any]) -> Any:
        """The value of the fact."""
        path = fact.name.partition("(")[2][:-1]
        if fact.name.startswith("files.file("):
            if path not in self.files:
                return None
            content, mode, _ = self.files[path]
            return files.File("file", mode, "root", "root", hashlib.sha256(content).hexdigest(), content)
        if fact.name == "gpu.containers":
            return ()
        if fact.name == "pci.gpus":
            return tuple(pci.PciGpu(f"0000:0{number}:00.0", "1db1", "nvidia") for number in range(self.gpus))
        if fact.name == "kernel_log.kernel":
            return ("NVRM: GPU 0000:03:00.0: RmInitAdapter failed! (0x31:0xffff:967)",)
        load = "loaded" if f"/etc/systemd/system/{path}" in self.files else "not-found"
        text = (
            f"LoadState={load}\nActiveState={self.active.get(path, 'inactive')}\nSubState=x\n"
            f"UnitFileState={self.enabled.get(path, '')}\nNeedDaemonReload={'yes' if self.needs_reload else 'no'}\n"
            f"ActiveEnterTimestampMonotonic={self.started.get(path, 0) * 1_000_000}\nnow={self.clock}\n"
            f"up={self.clock}\n"
        )
        times = [f"ctime {self.files[word][2]} {word}\n" for word in fact.command.argv if word in self.files]
        return parsed(fact, Result(0, (text + "".join(times)).encode()))

    def run(self, cmd: Command) -> None:
        """Applies the effect of the command to the host."""
        self.clock += 1
        if cmd.argv[:2] == ("sh", "-c"):
            path, mode, owner, group = cmd.argv[4:]
            assert (owner, group) == ("root", "root")
            self.files[path] = (cmd.stdin, mode, self.clock)
            if path.startswith("/etc/systemd"):
                self.enabled.setdefault(path.rpartition("/")[2], "disabled")
                self.needs_reload = True
            return
        verb, unit = cmd.argv[1], cmd.argv[-1]
        assert cmd.argv[0] == "systemctl"
        if verb == "daemon-reload":
            self.needs_reload = False
        elif verb == "enable":
            self.enabled[unit] = "enabled"
        elif verb in ("start", "restart"):
            assert not self.needs_reload
            self.active[unit], self.started[unit] = "active", self.clock

    def works(self) -> bool:
        """Whether unit and timer are active and enabled, the watch is not started, and systemd is reloaded."""
        right = all(
            (self.enabled.get(unit), self.active.get(unit)) == ("enabled", "active") for unit in (SERVICE, TIMER)
        )
        return right and "gpu-limits-watch.service" not in self.active and not self.needs_reload

    def wants(self, wanted: Limits) -> list[Change]:
        """The changes that `limits.boot` still makes. `limits.applied` reads the GPUs in the same round, so they are
        known."""
        store = FactStore()
        rows = (f"{n}, U{n}, 0000:0{n}:00.0, V100, Enabled, 200, 150, 300, 300, 1, 1, 1, 1" for n in range(self.listed))
        smi = nvidia_smi.xml("gpu.gpus", "\n".join(rows)) or "<nvidia_smi_log></nvidia_smi_log>"
        store.known[gpus.gpus] = parsed(gpus.gpus, Result(0, smi.encode()))
        for self.rounds in range(9):
            try:
                yielded = list(limits.boot(store, limits=wanted, expected_gpus=4))
                self.notes = [note.text for note in yielded if isinstance(note, Note)]
                return [change for change in yielded if isinstance(change, Change)]
            except Missing as missing:
                store.known.update((fact, self.answer(fact)) for fact in missing.facts)
        raise AssertionError("facts that never settle")

    def becomes(self, wanted: Limits) -> None:
        """Applies all changes that `limits.boot` makes."""
        for change in self.wants(wanted):
            for cmd in change.commands:
                self.run(cmd)


@pytest.fixture
def host() -> Unit:
    """A host without the unit."""
    return Unit()


def test_from_nothing(host: Unit) -> None:
    """All facts are read in one round."""
    assert [(change.action, change.subject) for change in host.wants(WANTED)] == [
        ("add", "/usr/local/lib/rigwright/gpu_limits.py"),
        ("add", "/usr/local/lib/rigwright/pynvml.py"),
        ("add", "/etc/rigwright/limits.json"),
        ("add", f"/etc/systemd/system/{SERVICE}"),
        ("add", "/etc/systemd/system/gpu-limits-watch.service"),
        ("add", f"/etc/systemd/system/{TIMER}"),
        ("change", SERVICE),
        ("change", TIMER),
        ("run", SERVICE),
        ("run", TIMER),
    ]
    assert host.rounds == 1
    host.becomes(WANTED)
    assert host.wants(WANTED) == []
    assert host.works()
    clocks = {"memory_mhz": 877, "graphics_mhz": 1005}
    gpu = {"match": {}, "persistence": True, "power_limit_w": 200, "application_clocks": clocks}
    assert json.loads(host.files["/etc/rigwright/limits.json"][0]) == {"expected_gpus": 4, "gpus": [gpu]}
    unit = host.files[f"/etc/systemd/system/{SERVICE}"][0].decode()
    assert "gpu_limits.py apply --config /etc/rigwright/limits.json" in unit


@pytest.mark.parametrize("after", range(12))
def test_it_heals_after_a_run_that_died(host: Unit, after: int) -> None:
    """If the controller dies after any command, the next run completes the work."""
    for cmd in [cmd for change in host.wants(WANTED) for cmd in change.commands][:after]:
        host.run(cmd)
    host.becomes(WANTED)
    assert host.wants(WANTED) == []
    assert host.works()


def test_it_cannot_succeed_without_all_gpus(host: Unit) -> None:
    """The unit is installed and not started; a failed unit stays failed until all GPUs are present."""
    host.gpus = 3
    host.becomes(WANTED)
    assert host.wants(WANTED) == []
    assert (host.enabled[SERVICE], host.active) == ("enabled", {TIMER: "active"})
    host.active[SERVICE] = "failed"
    assert host.wants(WANTED) == []
    host.gpus = 4
    assert [change.subject for change in host.wants(WANTED)] == [SERVICE]


def test_it_is_not_started_while_the_driver_lacks_a_gpu(host: Unit) -> None:
    """It would wait two minutes for the GPU and fail; the note has the driver's own sentence."""
    host.listed = 3
    host.becomes(WANTED)
    assert host.wants(WANTED) == []
    assert SERVICE not in host.active
    assert host.notes == [
        "gpu-limits.service fails at every boot until all 4 GPUs answer; "
        "0000:03:00.0 does not answer the driver, which "
        "could not start it: RmInitAdapter failed! (0x31:0xffff:967)"
    ]
    host.listed = 4
    assert [change.subject for change in host.wants(WANTED)] == [SERVICE]
    assert host.notes == []


def test_it_runs_again_with_other_limits(host: Unit) -> None:
    host.becomes(WANTED)
    host.becomes(Limits(True, 250, None))
    changes = host.wants(WANTED)
    assert [change.subject for change in changes] == ["/etc/rigwright/limits.json", SERVICE]
    assert changes[1].commands[0].argv == ("systemctl", "restart", SERVICE)
    host.run(changes[0].commands[0])
    (rest,) = host.wants(WANTED)
    assert rest.commands[0].argv[1] == "restart", "also when a run died between the file and the restart"


def test_after_a_failure_it_is_started_again(host: Unit) -> None:
    host.becomes(WANTED)
    host.active[SERVICE] = "failed"
    (change,) = host.wants(WANTED)
    assert [cmd.argv[1] for cmd in change.commands] == ["reset-failed", "start"]
