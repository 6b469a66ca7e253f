"""Secure Boot on a simulated servbadge with Ubuntu 24.04: the module is prebuilt and signed, and its kernel is held."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Ssh, secure_boot_host
from tests.end_to_end.rw import document, inventory

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]
NAME = "t-signed"


@pytest.fixture(scope="module")
def signed(lab_root: None) -> Iterator[str]:  # noqa: ARG001
    """Yields a servbadge in its second boot with Secure Boot, on which only the driver is installed."""
    with secure_boot_host(NAME, "ubuntu2404"):
        yield NAME


def provisioned(name: str, branch: str, folder: Path) -> dict[str, Any]:
    """Runs `provision --yes` for this driver branch, without CUDA toolkit and limits; returns the host's result."""
    wanted = {"driver": {"branch": branch}, "cuda": None, "limits": None, "p2p_wheels": "none"}
    where = inventory(folder, **{name: wanted})
    host: dict[str, Any] = document("provision", "--inventory", where, "--yes")["hosts"][name]
    return host


@pytest.mark.nightly
def test_a_signed_module_and_then_another_branch(signed: str, ssh: Ssh, tmp_path: Path) -> None:
    the_signed_module_is_taken_and_its_kernel_held(signed, ssh, tmp_path)
    another_branch_brings_its_own_signed_module(signed, ssh, tmp_path)


def the_signed_module_is_taken_and_its_kernel_held(signed: str, ssh: Ssh, tmp_path: Path) -> None:
    host = provisioned(signed, "535", tmp_path)
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
    again = provisioned(signed, "535", tmp_path)
    assert (again["status"], again["changes"]) == ("ok", [])


def another_branch_brings_its_own_signed_module(signed: str, ssh: Ssh, tmp_path: Path) -> None:
    host = provisioned(signed, "580", tmp_path)
    assert host["status"] == "changed", host
    assert "nvidia-580-server/" in ssh(signed, "/sbin/modinfo -n nvidia").stdout
    assert ssh(signed, "cat /sys/module/nvidia/version").stdout.startswith("580.")
    there = ssh(signed, "dpkg-query -W -f '${Package} ${db:Status-Status}\\n' '*nvidia*' | grep ' installed'").stdout
    assert "-535" not in there
    moving = ssh(signed, "sudo apt-get -s dist-upgrade | grep -E '^(Inst|Remv)'", 60).stdout
    assert not re.search("nvidia|linux-", moving), moving
    assert provisioned(signed, "580", tmp_path)["changes"] == []
