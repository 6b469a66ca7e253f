"""A reboot that did not help is not made again: neither by the same run nor by the next one, until what boots has
changed."""

from __future__ import annotations

import itertools
import re
import subprocess
import time
from pathlib import Path

import pytest

from rigwright.core.command import Command, Result
from rigwright.core.desired import Desired, Reboot
from rigwright.engine import apply as engine_apply, plugins
from rigwright.engine.playbook import BoundPlaybook, Step
from rigwright.facts import display, driver, grub, kernel, kernel_log, pci, system, systemd
from rigwright.facts.boot import reboot_record, trial
from rigwright.inventory.model import Host
from tests.host_runs import host_run

CFG = """parses=yes
--env
--cfg
menuentry 'Debian' --id 'simple' {
	linux	/boot/vmlinuz-6.1.0-50-amd64 root=UUID=1 ro
	initrd	/boot/initrd.img-6.1.0-50-amd64
}
"""
REFUSED = """NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1db1)
NVRM: installed in this system is not supported by the
NVRM: NVIDIA 535.261.03 driver release.
"""
RELEASE = "6.1.0-50-amd64"
NO_TRIAL = Desired(reboot=Reboot(trial=False))


class Box:
    """A host whose driver no boot loads. Its record and the files of its boot are in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.boots = folder, 0
        (folder / "boot").mkdir()
        (folder / "boot/grub.cfg").write_text(CFG)
        (folder / "modprobe.d").mkdir()

    def answer(self, cmd: Command) -> Result:
        """Runs the scripts of the record in the folder; counts reboots; answers the other facts."""
        text = str(cmd)
        if "systemctl reboot" in text:
            self.boots += 1
        if "reboot-in-vain" in text:
            places = {
                "/var/lib/rigwright": "var", "/boot/grub/grub.cfg": "boot/grub.cfg", "/boot": "boot",
                "/etc/modprobe.d": "modprobe.d",
                "/lib/modules": "none", "/usr": "none", "/sys": "none", "/etc": "none", "/lib": "none",
            }  # fmt: skip
            pattern = re.compile("|".join(map(re.escape, places)))
            words = [pattern.sub(lambda match: f"{self.folder}/{places[match[0]]}", word) for word in cmd.argv]
            done = subprocess.run(words, capture_output=True, check=False)
            return Result(done.returncode, done.stdout, done.stderr)
        texts = {
            system.boot_id.command: f"boot-{self.boots}",
            system.running_kernel.command: RELEASE,
            grub.grub.command: CFG,
            kernel.command_line.command: "root=UUID=1 ro",
            kernel.module_version(RELEASE, "nvidia").command: "535.261.03",
            pci.gpus.command: "0000:01:00.0 0x030200 1db1\n",
            driver.loaded_version.command: "",
            display.graphical.command: "default=multi-user.target\nId=display-manager.service\nLoadState=not-found\n"
            "ActiveState=inactive\n",
            kernel_log.kernel.command: REFUSED,
            systemd.module_load_errors.command: "",
            trial.trial.command: "none",
        }
        return Result(0, texts.get(cmd, "").encode())

    def provision(self) -> str:
        """Plans and applies the reboot's step as a run of its own; returns what its error says."""
        function = plugins.known("operations")["reboot.if_needed"]
        step = Step("Reboot", "reboot.if_needed", function, {}, "play.yml:1")
        bound = BoundPlaybook(Host("h", (), {}), (step,), (), desired=NO_TRIAL)
        run = host_run(self.answer, bound=bound, disrupt=True)
        planned = run.planned([step])
        error = planned[0].error or engine_apply.apply(run, planned).error
        assert error is not None
        return f"{error.found}; {error.fix}"


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    """Returns the host, in a world whose clock goes on a minute at every look."""
    clock = itertools.count(0, 60)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return Box(tmp_path)


def test_the_driver_s_sentence_is_named_and_the_host_is_not_rebooted_again(box: Box) -> None:
    first = box.provision()
    assert "the driver says: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1db1) installed in this system" in first
    assert "(branch 535 supports this GPU by its PCI id" in first
    assert "another branch does not change that); sudo poweroff" in first
    again = box.provision()
    assert (again, box.boots) == (first, 1)


def test_a_change_of_what_boots_is_a_reason_to_try_again(box: Box) -> None:
    box.provision()
    (box.folder / "modprobe.d/new.conf").write_text("options nvidia NVreg_OpenRmEnableUnsupportedGpus=1\n")
    box.provision()
    assert box.boots == 2
    box.provision()
    assert box.boots == 2


def test_a_record_that_is_damaged_leads_to_a_reboot(box: Box) -> None:
    box.provision()
    (box.folder / "var/reboot-in-vain").write_bytes(b"\x00\xff what\n")
    box.provision()
    assert box.boots == 2


def test_reasons_are_one_line_and_an_argument() -> None:
    script = reboot_record.write("a\nb$(touch /tmp/x)").argv
    assert script[-1] == "a b$(touch /tmp/x)"
    assert "touch" not in script[2]
