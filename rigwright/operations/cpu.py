"""The frequency governor of the processors."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.core.change import Change
from rigwright.core.command import command
from rigwright.core.desired import CpuGovernor
from rigwright.core.errors import HostError
from rigwright.core.templates.host_files import SHIPPED, Templates
from rigwright.core.templates.variables import Template
from rigwright.facts import Facts, cpu, systemd as units
from rigwright.facts.cpu import UNIT
from rigwright.operations import operation, systemd


@operation()
def governor(facts: Facts, *, cpu_governor: CpuGovernor, templates: Templates = SHIPPED) -> Iterator[Change]:
    """Every CPU has the frequency governor `cpu_governor` now, and cpu-governor.service sets it at every boot. Raises
    HostError if the kernel sets no frequency, or does not have the governor."""
    policies, unit = facts.all(cpu.policies, units.unit(UNIT))
    if not policies:
        problem = "the kernel sets no CPU frequency: a virtual machine, or a firmware that does it"
        fix = "leave cpu_governor out for this host; or the firmware's power profile: OS control"
        raise HostError("cpu_governor", problem, "/sys/devices/system/cpu/cpufreq/policy0", fix)
    lacking = next((policy for policy in policies if cpu_governor not in policy.available), None)
    if lacking:
        problem = f"{lacking.driver} has no governor '{cpu_governor}'"
        raise HostError("cpu_governor", problem, f"one of {', '.join(lacking.available)}", "cpu_governor: performance")
    text = templates.render(f"systemd/{UNIT}.j2", {"governor": cpu_governor})
    files = list(systemd.unit(facts, name=UNIT, template=Template(text)))
    yield from files
    if unit.enabled != "enabled":
        enable = command("systemctl", "enable", UNIT)
        yield Change("change", UNIT, unit.at_boot, "enabled at boot", (enable,), units=(UNIT,))
    other = sorted({policy.governor for policy in policies if policy.governor != cpu_governor})
    if other or files or unit.active != "active":
        before = ", ".join(other) or "not set by the unit"
        restart = command("systemctl", "restart", UNIT, timeout_s=60)
        yield Change("change", "CPU governor", before, cpu_governor, (restart,), units=(UNIT,))
