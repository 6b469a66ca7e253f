"""Makes the recordings of virtual machines that have booted once. Only with -m vm."""

from __future__ import annotations

import pytest

from lab.cli import commands
from lab.host import login
from lab.vm import commands as vm, machine
from lab.vm.console import Console
from lab.vm.hardware import power_on
from tests.vm.recorded import SIGNED, SMALL, Recorded

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800), pytest.mark.usefixtures("as_root")]


@pytest.mark.parametrize("one", [SMALL, SIGNED], ids=lambda one: one.name)
def test_a_machine_boots_and_is_recorded(one: Recorded) -> None:
    commands.down(name=one.name, say=print)
    if not one.is_there():
        wanted = vm.kind("debian12", one.firmware, memory_mib=one.memory_mib)
        made = vm.create(one.name, "servbadge", wanted, print)
        login.record([*machine.known()])
        started = vm.Started(made, Console(made.console), is_resumed=False)
        power_on(made, print)
        vm.wait(started, print)
        commands.record_vm(one.name, one.state, print)
    assert one.is_there()
