"""The frequency of the processors."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.checks import Finding, check
from rigwright.core.desired import CpuGovernor
from rigwright.facts import Facts, cpu


@check()
def governor(facts: Facts, *, cpu_governor: CpuGovernor | None = None) -> Iterator[Finding]:
    """Every CPU has the frequency governor of the inventory; without one there, a governor that raises the frequency
    under load."""
    policies = facts(cpu.policies)
    if not policies:
        seen, cause = "the kernel sets no CPU frequency", "a virtual machine, or the firmware sets it"
        if cpu_governor:
            yield Finding("CPU governor", "fail", seen, cpu_governor, cause, "leave cpu_governor out", "inventory")
        else:
            yield Finding("CPU governor", "info", seen)
        return
    names = {policy.governor: policy.driver for policy in policies}
    seen = ", ".join(f"{name} ({driver})" for name, driver in sorted(names.items()))
    if cpu_governor and set(names) == {cpu_governor}:
        yield Finding("CPU governor", "pass", seen, source="inventory")
    elif cpu_governor:
        others = "systemctl list-units | grep -e tuned -e power-profiles -e cpufreq"
        fix = f"invoke provision; another program may set it: {others}"
        yield Finding("CPU governor", "fail", seen, cpu_governor, "", fix, "inventory")
    elif any(policy.is_fixed for policy in policies):
        cause = "the CPUs stay at their lowest frequency, so the work between kernels and data loading takes longer"
        fix = "cpu_governor: performance in the inventory"
        yield Finding("CPU governor", "warn", seen, "performance", cause, fix, "catalogue")
    else:
        yield Finding("CPU governor", "pass", seen)
