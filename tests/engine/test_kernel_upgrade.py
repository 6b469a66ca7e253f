"""A kernel that unattended-upgrades installed between the plan and its application: provision plans again, on the host
as it is then."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from rigwright.core.command import Command, Result
from rigwright.core.desired import Desired, Reboot
from rigwright.core.errors import RigwrightError
from rigwright.engine import apply as engine_apply, jobs, plugins
from rigwright.engine.boot.trial import Trials
from rigwright.engine.playbook import BoundPlaybook, Step
from rigwright.facts import display, driver, grub, kernel, pci, system
from rigwright.facts.apt import archive as apt_archive, dpkg
from rigwright.facts.boot import trial as trial_facts
from rigwright.inventory.model import Host
from tests.engine import test_trial as boots
from tests.engine.test_trial import NEW, OLD
from tests.host_runs import host_run

VERSION = "535.261.03"
NEXT = f"linux-headers-{NEW}"
STEPS = {"Kernel headers": "kernel.headers_installed", "Next boot is safe": "reboot.gate", "Reboot": "reboot.if_needed"}


class Box:
    """A host that runs the old kernel with the driver of before; a reboot loads the new one. `builds`: DKMS builds for
    new headers."""

    def __init__(self, builds: bool) -> None:
        self.builds, self.boots = builds, 0
        self.installed = [OLD]
        self.headers, self.modules = {OLD}, {OLD}
        self.ran: list[str] = []

    @property
    def running(self) -> str:
        """The kernel of this boot: GRUB starts the newest one."""
        return self.installed[-1] if self.boots else OLD

    @property
    def cfg(self) -> str:
        """The menu, as update-grub writes it: the newest kernel first."""
        return boots.config(*(boots.entry(release, name=f"linux-{release}") for release in reversed(self.installed)))

    def upgraded(self) -> None:
        """What unattended-upgrades does on Debian: an image without its headers, and update-grub."""
        self.installed.append(NEW)

    def answer(self, cmd: Command) -> Result:
        """Answers the facts; does what the commands do."""
        text = str(cmd)
        self.ran.append(text)
        if "systemctl reboot" in text:
            self.boots += 1
        if cmd == kernel.initramfs(f"/boot/initrd.img-{self.installed[-1]}").command:
            return Result(0, b"module nvidia.ko\n")
        texts = {
            system.boot_id.command: f"boot-{self.boots}",
            system.running_kernel.command: self.running,
            grub.grub.command: f"parses=yes\n--env\n--cfg\n{self.cfg}",
            kernel.command_line.command: f"BOOT_IMAGE=/boot/vmlinuz-{self.running} root=UUID=7d1a ro quiet",
            pci.gpus.command: "0000:01:00.0 0x030200 1db1 nvidia\n",
            driver.loaded_version.command: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  "
            f"{VERSION if self.boots else '535.247.01'}  Tue Mar  5 22:42:15 UTC 2024\n",
            display.graphical.command: "default=multi-user.target\nId=display-manager.service\nLoadState=not-found\n"
            "ActiveState=inactive\n",
            apt_archive.offered(
                (NEXT,)
            ).command: f"--key\n--madison\n{NEXT} | 6.1.2 | http://a.example bookworm/main amd64 Packages\n--show\n",
            trial_facts.trial.command: "none\n",
            trial_facts.boot.command: f"boot boot-{self.boots}\nline BOOT_IMAGE=/boot/vmlinuz-{self.running} "
            "root=UUID=7d1a ro quiet\n"
            f"grubenv file 1024\ncustom none 0\nlayers\nfilesystem ext2\nfree 300000\nimage 41943040 initrd.img-{OLD}\n"
            f"--env\n--custom\n\n--cfg\n{self.cfg}",
        }
        for release in (OLD, NEW):
            texts[kernel.headers(release).command] = "yes" if release in self.headers else ""
            texts[kernel.module_version(release, "nvidia").command] = VERSION if release in self.modules else ""
        if cmd == dpkg.packages(NEXT).command:
            return Result(1, b"")
        return Result(0, texts.get(cmd, "").encode())

    def job(self, _transport: Any, _owner: str, _step: str, _number: int, cmd: Command, _on_line: Any) -> Result:
        """Runs the only job of these steps: apt installs the headers, and DKMS' hook builds the module."""
        assert NEXT in str(cmd)
        self.headers.add(NEW)
        if self.builds:
            self.modules.add(NEW)
        return Result(0, b"")


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes on a minute at every look."""
    clock = itertools.count(0, 60)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(time, "sleep", lambda _: None)


def provisioned(box: Box, monkeypatch: pytest.MonkeyPatch) -> RigwrightError | None:
    """Plans; the host gets the new kernel; applies. Returns the error."""
    known = plugins.known("operations")
    monkeypatch.setattr(jobs, "run", box.job)
    steps = tuple(Step(name, key, known[key], {}, "play.yml:1") for name, key in STEPS.items())
    bound = BoundPlaybook(Host("h", (), {}), steps, (), desired=Desired(reboot=Reboot(trial=False)))
    run = host_run(box.answer, bound=bound, disrupt=True)
    plan = run.planned(steps)
    assert [step.status for step in plan] == ["ok", "ok", "pending"]
    box.upgraded()
    return engine_apply.apply(run, plan).error


def test_the_new_kernel_gets_headers_and_module_before_it_boots(monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box(builds=True)
    assert provisioned(box, monkeypatch) is None
    assert NEW in box.headers & box.modules
    assert (box.boots, box.running) == (1, NEW)


def test_a_module_that_was_not_built_is_named_before_the_reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box(builds=False)
    error = provisioned(box, monkeypatch)
    assert error is not None
    assert error.found.startswith(f"no nvidia module is built for {NEW}, the kernel that boots next")
    assert f"sudo dkms autoinstall -k {NEW}" in error.fix
    assert box.boots == 0


def test_the_kernel_that_runs_is_kept_and_not_the_one_that_was_upgraded_to() -> None:
    """The trial reads grub.cfg at the first change: its default is the new kernel then, and the entry to go back to
    loads the old one."""
    box = Box(builds=True)
    box.upgraded()
    commands = Trials(host_run(box.answer), None).keep(())
    kept = commands[-1].stdin.decode()
    assert f"/vmlinuz-{OLD} " in kept
    assert NEW not in kept
    assert commands[0].argv[4] == f"initrd.img-{OLD}", "the initramfs of which a copy is kept"
