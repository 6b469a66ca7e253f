"""Secure Boot on a simulated servbadge with Debian 12: refused, staged, confirmed at the console, and the module that
DKMS built loads.

shim, MokManager and mokutil are the lab's stand-ins (lab/power/mok.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.hardware import hw_state
from lab.power import mok, switch
from tests.end_to_end.conftest import Ssh, reboot, secure_boot_host
from tests.end_to_end.rw import document, inventory, invoke

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(900)]
NAME, PASSWORD = "t-mok", "Tulip2026"
ASKED = {"secure_boot": "enrol", "mok_password": PASSWORD}


@pytest.fixture(scope="module")
def locked(lab_root: None) -> Iterator[str]:  # noqa: ARG001
    """Yields a servbadge in its second boot with Secure Boot, on which only the driver is installed."""
    with secure_boot_host(NAME, "debian12"):
        yield NAME


def provisioned(folder: Path, **more: Any) -> dict[str, Any]:
    """Runs `provision --yes` for driver 535 without CUDA toolkit and limits; returns the host's result."""
    wanted = {"driver": {"branch": "535"}, "cuda": None, "limits": None, "p2p_wheels": "none", **more}
    found = document("provision", "--inventory", inventory(folder, **{NAME: wanted}), "--yes")
    assert PASSWORD not in str(found)
    host: dict[str, Any] = found["hosts"][NAME]
    return host


def made(host: dict[str, Any]) -> list[str]:
    """Returns the subjects of the changes that the run made; a failed run's document also lists those still to be
    made."""
    return [change["subject"] for change in host["changes"] if change["done"]]


def test_from_the_refusal_to_the_enrolled_key(locked: str, ssh: Ssh, tmp_path: Path) -> None:
    without_a_word_of_the_owner_nothing_is_installed(locked, ssh, tmp_path)
    the_key_is_staged_and_the_driver_waits(locked, ssh, tmp_path)
    a_missed_console_is_staged_again_with_the_same_key(locked, ssh, tmp_path)
    with_the_key_enrolled_the_driver_is_installed_and_loads(locked, ssh, tmp_path)
    the_owner_need_not_say_so_any_more(locked, tmp_path)


def without_a_word_of_the_owner_nothing_is_installed(locked: str, ssh: Ssh, tmp_path: Path) -> None:
    host = provisioned(tmp_path)
    assert (host["status"], made(host)) == ("failed", [])
    assert "it refuses a driver module that is built on the host" in host["error"]["found"]
    assert "set secure_boot: enrol and mok_password: !secret {env: MOK_PASSWORD}" in host["error"]["fix"]
    assert (
        ssh(locked, "ls /var/lib/dkms /etc/apt/preferences.d 2>/dev/null").stdout.split("\n").count("rigwright-nvidia")
        == 0
    )


def the_key_is_staged_and_the_driver_waits(locked: str, ssh: Ssh, tmp_path: Path) -> None:
    host = provisioned(tmp_path, **ASKED)
    error = host["error"]
    assert "machine owner key" in made(host)
    assert "the key /var/lib/dkms/mok.pub is staged, and no one has confirmed it at the console yet" in error["found"]
    assert "Enroll MOK; Continue; Yes; type the one-time password" in error["fix"]
    assert not host["rebooted"]
    assert ssh(locked, "sudo stat -c %a /var/lib/dkms/mok.key").stdout == "600\n"
    assert ssh(locked, "dpkg-query -W -f '${Package}\\n' '*nvidia*' 2>/dev/null").stdout == ""
    again = provisioned(tmp_path, **ASKED)
    assert (again["error"]["found"], made(again)) == (error["found"], [])


def a_missed_console_is_staged_again_with_the_same_key(locked: str, ssh: Ssh, tmp_path: Path) -> None:
    before = ssh(locked, "sha256sum /var/lib/dkms/mok.pub").stdout
    reboot(locked)
    host = provisioned(tmp_path, **ASKED)
    assert made(host) == ["machine owner key"]
    assert ssh(locked, "sha256sum /var/lib/dkms/mok.pub").stdout == before


def with_the_key_enrolled_the_driver_is_installed_and_loads(locked: str, ssh: Ssh, tmp_path: Path) -> None:
    hw_state.edit(switch.get(locked).hw, nvram={mok.TYPES: PASSWORD})
    reboot(locked)
    host = provisioned(tmp_path, **ASKED)
    assert (host["status"], host["error"]) == ("changed", None), host
    # Debian's DKMS builds nvidia-current, which modprobe loads for the name nvidia
    assert "updates/dkms/nvidia-current.ko" in ssh(locked, "/sbin/modinfo -n nvidia-current").stdout
    assert ssh(locked, "cat /sys/module/nvidia/version").stdout == "535.261.03\n"
    assert {one["verdict"] for one in host["findings"]} <= {"pass", "info", "warn"}
    again = provisioned(tmp_path, **ASKED)
    assert (again["status"], again["changes"]) == ("ok", [])


def the_owner_need_not_say_so_any_more(locked: str, tmp_path: Path) -> None:
    where = inventory(tmp_path, **{locked: {"driver": {"branch": "535"}, "cuda": None, "limits": None}})
    plan = invoke("plan", "--inventory", where)
    assert plan.returncode == 0, plan.stdout
