"""A reboot that starts what runs already: ECC is set, the host reboots once and without a trial, and the mode is in
force."""

from __future__ import annotations

import itertools
import time

import pytest

from rigwright.core.command import Command, Result
from rigwright.core.desired import Ecc
from rigwright.engine import apply as engine_apply, plugins
from rigwright.engine.playbook import BoundPlaybook, Step
from rigwright.facts import display, grub, kernel, pci, system
from rigwright.facts.boot import reboot_record, trial
from rigwright.facts.gpu import gpus as gpu
from rigwright.inventory.model import Host
from tests import nvidia_smi
from tests.host_runs import host_run

UUID = "GPU-5a1c0000-0001-4000-8000-0000000000a0"
CFG = """parses=yes
--env
--cfg
menuentry 'Debian' --id 'simple' {
	linux	/boot/vmlinuz-6.1.0-50-amd64 root=UUID=1 ro
	initrd	/boot/initrd.img-6.1.0-50-amd64
}
"""
RELEASE = "6.1.0-50-amd64"


class Box:
    """A host with one V100. `deaf`: its infoROM does not keep a mode over a boot."""

    def __init__(self, deaf: bool = False) -> None:
        self.deaf, self.boots, self.record = deaf, 0, ""
        self.current = self.pending = "Disabled"
        self.ran: list[str] = []
        self.holder = ""

    def answer(self, cmd: Command) -> Result:
        text = str(cmd)
        if "systemctl reboot" in text:
            self.boots += 1
            self.pending = self.current if self.deaf else self.pending
            self.current = self.pending
        if text == f"nvidia-smi -i {UUID} -e 1":
            self.ran.append(text)
            self.pending = "Enabled"
        if cmd == reboot_record.forget():
            self.record = ""
        if cmd.argv[-1].startswith("ECC of"):  # the command that records a reboot in vain
            self.record = f"{'a' * 64}\n{'a' * 64}\n2026-11-22T03:25:07Z\n{cmd.argv[-1]}\n"
        texts = {
            system.boot_id.command: f"boot-{self.boots}",
            reboot_record.in_vain.command: self.record or "none\n",
            gpu.ecc_modes.command: nvidia_smi.xml(
                "gpu.ecc_modes", f"{UUID}, 00000000:06:00.0, Tesla V100-SXM2-16GB, {self.current}, {self.pending}\n"
            ),
            gpu.holders.command: self.holder,
            pci.gpus.command: "0000:06:00.0 0x030200 1db1 nvidia\n",
            grub.grub.command: CFG,
            kernel.module_version(RELEASE, "nvidia").command: "535.261.03",
            kernel.initramfs(f"/boot/initrd.img-{RELEASE}").command: "module nvme.ko\n",
            trial.trial.command: "none",
            display.graphical.command: "default=multi-user.target\nId=display-manager.service\nLoadState=not-found\n"
            "ActiveState=inactive\n",
        }
        return Result(0, texts.get(cmd, "").encode())

    def provision(self) -> engine_apply.ApplyResult | str:
        """Plans and applies the step as a run of its own; returns the plan's error where it has one."""
        step = Step("ECC", "gpu.ecc", plugins.known("operations")["gpu.ecc"], {"ecc": Ecc(enabled=True)}, "play.yml:1")
        run = host_run(self.answer, bound=BoundPlaybook(Host("h", (), {}), (step,), ()))
        planned = run.planned([step])
        return str(planned[0].reason) if planned[0].error else engine_apply.apply(run, planned)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0, 60)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(time, "sleep", lambda _: None)


def test_set_then_one_reboot_without_a_trial_then_in_force() -> None:
    box = Box()
    result = box.provision()
    assert not isinstance(result, str)
    assert result.error is None
    assert [step.status for step in result.steps] == ["changed"]
    assert (box.current, box.boots, box.ran) == ("Enabled", 1, [f"nvidia-smi -i {UUID} -e 1"])
    again = box.provision()
    assert not isinstance(again, str)
    assert [step.status for step in again.steps] == ["ok"]
    assert box.boots == 1


def test_a_gpu_that_does_not_keep_the_mode_costs_no_second_reboot_for_the_same() -> None:
    box = Box(deaf=True)
    first = box.provision()
    assert not isinstance(first, str)
    assert first.error is not None
    assert "did not help (ECC of 0000:06:00.0 GPU-5a1c0000 is off)" in str(box.provision())
    assert box.boots == 1


def test_nothing_is_set_while_a_process_uses_a_gpu() -> None:
    box = Box()
    box.holder = "--\n4242, python3\n"
    result = box.provision()
    assert not isinstance(result, str)
    assert "GPUs are in use by python3 (4242)" in str(result.error)
    assert (box.pending, box.boots) == ("Disabled", 0)
