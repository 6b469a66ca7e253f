"""Secure Boot on a simulated servbadge with Ubuntu 24.04: the module comes built and signed, and its kernel is held with it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lab import commands, fault, login, power
from tests.lab.conftest import Ssh
from tests.lab.rw import INVENTORY, document

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
NAME = "t-signed"


@pytest.fixture(scope="module")
def signed(lab_root: None) -> Iterator[str]:  # noqa: ARG001
    """A servbadge in its second boot, with Secure Boot on; the driver only, so that it is quick. Its tests run in order."""
    commands.down(name=NAME, say=print)
    commands.up(name=NAME, rig="servbadge", distro="ubuntu2404", say=print)
    wants("'535'")
    fault.fault(NAME, "secure-boot", "", print)
    one = power.the(NAME)
    before, ends = one.boots.read_text(), time.monotonic() + 60
    login.ssh(one, "sudo systemctl reboot", 20)
    while one.boots.read_text() == before:
        assert time.monotonic() < ends
        time.sleep(0.05)
    login.wait(one, 60)
    yield NAME
    commands.down(name=NAME, say=print)


def wants(branch: str) -> None:
    """The inventory asks for this branch, and for no CUDA toolkit and no limits."""
    path = INVENTORY / "host_vars" / f"{NAME}.yml"
    text = re.sub(r"^(cuda|limits):.*\n", "", path.read_text(), flags=re.MULTILINE)
    path.write_text(re.sub(r"^driver:.*", f"driver: {{branch: {branch}}}", text, flags=re.MULTILINE))


def provisioned(name: str) -> dict[str, Any]:
    host: dict[str, Any] = document("provision", "--host", name, "--yes")["hosts"][name]
    return host


def test_the_signed_module_is_taken_and_its_kernel_held(signed: str, ssh: Ssh) -> None:
    host = provisioned(signed)
    assert (host["status"], host["rebooted"]) == ("changed", True), host
    pinned = next(change for change in host["changes"] if change["step"] == "Driver pinned")
    assert "Secure Boot takes no other" in pinned["after"]
    kernel = next(finding for finding in host["findings"] if finding["subject"] == "kernel")
    assert kernel["verdict"] == "warn"
    assert re.search(r" of \d{4}-\d\d-\d\d, held$", kernel["seen"]), kernel
    assert {one["verdict"] for one in host["findings"]} <= {"pass", "info", "warn"}
    loaded = "/sbin/modinfo -n nvidia; cat /sys/module/nvidia/version"
    assert re.search(r"/kernel/nvidia-535-server/nvidia.ko\n535\.161\.08\n", ssh(signed, loaded).stdout)
    release = ssh(signed, "uname -r").stdout.strip()
    held = ssh(signed, "apt-mark showhold").stdout.split()
    assert {f"linux-image-{release}", f"linux-modules-nvidia-535-server-{release}"} <= set(held)
    again = provisioned(signed)
    assert (again["status"], again["changes"]) == ("ok", [])


def test_another_branch_brings_its_own_signed_module(signed: str, ssh: Ssh) -> None:
    wants("'580'")
    host = provisioned(signed)
    assert host["status"] == "changed", host
    assert "nvidia-580-server/" in ssh(signed, "/sbin/modinfo -n nvidia").stdout
    assert ssh(signed, "cat /sys/module/nvidia/version").stdout.startswith("580.")
    there = ssh(signed, "dpkg-query -W -f '${Package} ${db:Status-Status}\\n' '*nvidia*' | grep ' installed'").stdout
    assert "-535" not in there
    moving = ssh(signed, "sudo apt-get -s dist-upgrade | grep -E '^(Inst|Remv)'", 60).stdout
    assert not re.search("nvidia|linux-", moving), moving
    assert provisioned(signed)["changes"] == []
