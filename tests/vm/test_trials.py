"""New boots that fail on virtual machines with a real GRUB, kernel and initramfs: each comes back by itself, and the
report says why.

Only with -m vm: seven to ten minutes for each failure under software emulation.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.bench import trials
from lab.cli import commands
from lab.vm.machine import Firmware

pytestmark = [pytest.mark.vm, pytest.mark.timeout(3600), pytest.mark.usefixtures("as_root")]
MACHINES: tuple[tuple[tuple[Firmware, str], tuple[str, ...]], ...] = (
    (("bios", "plain"), tuple(trials.VM_KINDS)),
    (("bios", "boot"), ("panic",)),
    (("uefi", "plain"), ("driver panic", "emergency shell")),
    (("secureboot", "plain"), ("driver panic",)),
)
"""Firmware and disk layout of each machine, and the kinds of failure on it. pytest keeps a machine from one kind to the
next because the pair is the same object."""
NAME = "t-vm-trial"
TRIALS = [(where, kind) for where, kinds in MACHINES for kind in kinds]


@pytest.fixture(scope="module")
def host(request: pytest.FixtureRequest) -> Iterator[tuple[Firmware, str]]:
    """Yields firmware and disk layout of a machine that is up; the tests of one machine follow each other."""
    firmware, layout = request.param
    commands.down(name=NAME, say=print)
    needs_gpus = "no GPUs" in dict(MACHINES)[request.param]
    trials.up_vm(NAME, firmware, layout, trials.RIG if needs_gpus else None)
    yield firmware, layout
    commands.down(name=NAME, say=print)


@pytest.mark.parametrize(
    ("host", "name"), TRIALS, ids=[f"{'-'.join(where)}-{kind}" for where, kind in TRIALS], indirect=["host"]
)
def test_it_comes_back_and_the_report_says_why(host: tuple[Firmware, str], name: str, tmp_path: Path) -> None:
    ended = trials.tried_on_vm(NAME, trials.VM_KINDS[name], tmp_path)
    assert "the host went back to what ran before" in ended.found
    if name == "driver panic" and host[0] != "bios":
        assert "Kernel panic - not syncing: sysrq triggered crash" in ended.found
    if name == "driver panic" and host[0] == "bios":
        assert "the host has no place for it" in ended.found
