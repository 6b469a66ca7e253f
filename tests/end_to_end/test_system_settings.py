"""CPU governor, limits of processes and huge pages on one host: from the plan to `remove`. Governor and huge pages are
simulated.

The limits are real, so they stay below those of the machine that runs the lab: `memlock: unlimited` is not tried here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.cli import commands
from tests.end_to_end.conftest import Ssh, reboot
from tests.end_to_end.rw import document, inventory, invoke, not_as_wanted

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
NAME = "t-tune"
WANTED = {
    "cpu_governor": "performance",
    "ulimits": {"nofile": 16384},
    "hugepages": {"count": 1024, "transparent": "never"},
}
STEPS = {"CPU governor", "Limits of processes", "Huge pages"}
NOW = """
cat /sys/devices/system/cpu/cpufreq/policy*/scaling_governor | sort -u; ulimit -Sn; systemctl show -P DefaultLimitNOFILE
cat /proc/sys/vm/nr_hugepages; grep -o '\\[.*\\]' /sys/kernel/mm/transparent_hugepage/enabled
"""
IN_FORCE = ["performance", "16384", "16384", "1024", "[never]"]
OURS = "sudo find /etc -name '*rigwright*' -not -name rigwright-lab -o -name 'cpu-governor*' | sort"


@pytest.fixture
def given(lab_root: None, tmp_path: Path) -> Iterator[tuple[str, ...]]:  # noqa: ARG001
    """Yields --host, --inventory and --tags of a host with simulated frequency policies."""
    commands.down(name=NAME, say=print)
    commands.up(name=NAME, rig="maxwell-box", say=print)
    yield "--host", NAME, "--inventory", inventory(tmp_path / "tune", **{NAME: WANTED}), "--tags", "system"
    commands.down(name=NAME, say=print)


def changes(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Returns the step, subject and new value of each change of a run without errors."""
    assert found["exit_code"] == 0, not_as_wanted(found)
    return [(change["step"], change["subject"], change["after"]) for change in found["hosts"][NAME]["changes"]]


@pytest.mark.nightly
def test_from_the_plan_to_remove(given: tuple[str, ...], ssh: Ssh) -> None:
    def now() -> list[str]:
        return ssh(NAME, NOW).stdout.split()

    fresh = now()
    assert not set(fresh) & {"performance", "16384", "[never]"}
    assert "frequency policies are simulated" in ssh(NAME, "sudo dmesg").stdout
    planned = document("plan", *given)["hosts"][NAME]["steps"]
    assert {step["name"] for step in planned if step["status"] == "pending"} == STEPS, planned
    assert now() == fresh, "a plan changes nothing"

    made = changes(document("provision", *given, "--yes"))
    assert {step for step, _, _ in made} == STEPS
    assert {("CPU governor", "CPU governor", "performance"), ("Huge pages", "vm.nr_hugepages", "1024")} <= set(made)
    assert now() == IN_FORCE
    assert changes(document("provision", *given, "--yes")) == [], "the second run changes nothing"

    reboot(NAME)
    assert now() == IN_FORCE, "the next boot keeps it"
    assert changes(document("verify", *given)) == []

    drift = "echo schedutil >/sys/devices/system/cpu/cpufreq/policy1/scaling_governor; sysctl -qw vm.nr_hugepages=0"
    ssh(NAME, f"sudo sh -c '{drift}; rm /etc/security/limits.d/90-rigwright.conf'")
    found = document("verify", *given)
    failed = {one["subject"] for one in found["hosts"][NAME]["findings"] if one["verdict"] == "fail"}
    assert found["exit_code"] == 2
    assert {"CPU governor", "huge pages", "open files of a login"} <= failed, failed
    assert {step for step, _, _ in changes(document("provision", *given, "--yes"))} == STEPS
    assert now() == IN_FORCE

    gone = invoke("remove", *given[:4], "--yes")
    assert gone.returncode == 0, gone.stdout + gone.stderr
    assert ssh(NAME, OURS).stdout == ""
    reboot(NAME)
    assert now() == fresh, "without rigwright the next boot is as before"
