"""The frequency of the processors."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.checks import Finding, check
from rigwright.core.desired import CpuGovernor
from rigwright.facts import Facts, cpu


@check()
def governor(facts: Facts, *, cpu_governor: CpuGovernor | None = None) -> Iterator[Finding]:
    """Every CPU has the frequency governor of the inventory; without one, none that keeps the lowest frequency while
    programs run."""
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
    if cpu_governor:
        right = set(names) == {cpu_governor}
        fix = (
            ""
            if right
            else "invoke provision; another program may set it: systemctl list-units | grep -e tuned -e power-profiles -e cpufreq"
        )
        yield Finding(
            "CPU governor", "pass" if right else "fail", seen, "" if right else cpu_governor, "", fix, "inventory"
        )
    elif any(policy.is_fixed for policy in policies):
        cause = "the CPUs stay at their lowest frequency, so the work between kernels and data loading takes longer"
        yield Finding(
            "CPU governor",
            "warn",
            seen,
            "performance",
            cause,
            "cpu_governor: performance in the inventory",
            "catalogue",
        )
    else:
        yield Finding("CPU governor", "pass", seen)
