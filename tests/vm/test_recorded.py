"""Recorded virtual machines, each up within seconds: plan against real sysfs, a small /run, a lost GPU, Secure Boot,
the real module.

A test whose machine has no recording is left out, and the end of the run says so; `sudo scripts/test --vm` makes the
recordings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.cli import commands
from lab.hardware.rigfile import describe
from lab.host import login
from lab.vm import inject, machine
from tests.end_to_end import rw
from tests.vm.recorded import DRIVER, SIGNED, SMALL, Recorded

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600), pytest.mark.usefixtures("as_root")]
RUN_S = 300.0


def up(one: Recorded) -> Iterator[Recorded]:
    one.up()
    yield one
    commands.down(name=one.name, say=print)


@pytest.fixture(scope="module")
def small() -> Iterator[Recorded]:
    """Yields a machine with little memory."""
    yield from up(SMALL)


@pytest.fixture(scope="module")
def signed() -> Iterator[Recorded]:
    """Yields a machine with Secure Boot."""
    yield from up(SIGNED)


@pytest.fixture(scope="module")
def driver() -> Iterator[Recorded]:
    """Yields a machine on which NVIDIA's real driver is loaded."""
    yield from up(DRIVER)


def asked(one: Recorded, command: str) -> str:
    """Returns what a command in the machine prints."""
    made = machine.load(one.name)
    assert made is not None
    return login.ssh(made, command, 120).stdout


def run(one: Recorded, path: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    """Returns exit code, JSON document and output of a command of rigwright about the machine."""
    done = rw.invoke(*words, "--host", one.name, "--json", str(path), deadline=RUN_S)
    return done.returncode, json.loads(path.read_text(encoding="utf-8")), done.stdout


@pytest.mark.recorded(SMALL.name)
def test_a_plan_reads_a_real_bus_and_leaves_run_its_room(small: Recorded, tmp_path: Path) -> None:
    code, document, text = run(small, tmp_path / "plan.json", "plan")
    assert code == 2, text
    assert "GPUs: 4 x Tesla V100-SXM2-16GB" in text
    assert "linux-headers-6.1" in text
    assert document["hosts"][small.name]["status"] == "pending"
    used = asked(small, "df --output=pcent /run | tail -n 1")
    assert int(used.strip().rstrip("%")) < 50
    assert asked(small, "ls /var/cache/rigwright 2>/dev/null") == ""


@pytest.mark.recorded(SMALL.name)
def test_a_lost_gpu_is_named(small: Recorded, tmp_path: Path) -> None:
    made = machine.load(small.name)
    assert made is not None
    inject.fault(made, "gpu-lost", "2", print)
    code, document, text = run(small, tmp_path / "verify.json", "verify", "--tags", "hardware")
    assert code == 2, text
    (first, *_) = document["hosts"][small.name]["problems"]
    assert "0a:00.0" in json.dumps(first)
    inject.heal(made, "gpu-lost", print)


@pytest.mark.recorded(SMALL.name)
def test_the_kernel_sees_the_rigs_gpus_their_links_and_a_gpu_that_is_pulled_out(small: Recorded) -> None:
    made = machine.load(small.name)
    assert made is not None
    bus_ids = [gpu["bus_id"] for gpu in describe("servbadge")["gpus"]]
    listed = "lspci -D -d 10de: | cut -d' ' -f1"
    width = f"cat /sys/bus/pci/devices/{bus_ids[1]}/current_link_width"
    assert asked(small, listed).split() == bus_ids
    assert asked(small, width) == "16\n"
    inject.fault(made, "link-x1", "1", print)
    assert asked(small, width) == "1\n"
    inject.heal(made, "link-x1", print)
    assert asked(small, width) == "16\n"
    inject.fault(made, "gpu-missing", "3", print)
    assert asked(small, listed).split() == bus_ids[:3]
    inject.heal(made, "gpu-missing", print)
    there = "for i in $(seq 60); do [ $(lspci -d 10de: | wc -l) = 4 ] && break; sleep 1; done"
    assert asked(small, f"{there}; {listed}").split() == bus_ids


@pytest.mark.recorded(SIGNED.name)
def test_secure_boot_is_refused_before_anything_is_installed(signed: Recorded, tmp_path: Path) -> None:
    before = asked(signed, "dpkg-query -W | sha256sum")
    code, _, text = run(signed, tmp_path / "provision.json", "provision", "--yes")
    assert code == 1, text
    assert "Secure Boot is on" in text
    assert "secure_boot: enrol" in text
    assert asked(signed, "dpkg-query -W | sha256sum") == before


@pytest.mark.recorded(DRIVER.name)
def test_a_provision_over_the_real_module_changes_nothing(driver: Recorded, tmp_path: Path) -> None:
    assert "NVIDIA UNIX x86_64 Kernel Module" in asked(driver, "cat /proc/driver/nvidia/version")
    code, document, text = run(driver, tmp_path / "provision.json", "provision", "--yes")
    assert code == 0, text
    assert document["hosts"][driver.name]["changes"] == []
