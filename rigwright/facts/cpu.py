"""How the kernel sets the frequency of the processors."""

from __future__ import annotations

from msgspec import Struct

from rigwright.core import lazy_re
from rigwright.core.command import Result, script
from rigwright.facts import Fact

UNIT = "cpu-governor.service"
"""The unit of rigwright that sets the governor at every boot."""


class FrequencyPolicy(Struct, frozen=True):
    """CPUs with one frequency. `name`: policy0. `driver`: acpi-cpufreq, intel_pstate, amd-pstate-epp, ..."""

    name: str
    driver: str
    governor: str
    available: tuple[str, ...]

    @property
    def is_fixed(self) -> bool:
        """Whether the governor keeps the lowest frequency under load: `powersave` does, except with intel_pstate and
        amd-pstate-epp, where the processor chooses (Linux, admin-guide/pm/intel_pstate.rst, amd-pstate.rst)."""
        return self.governor == "powersave" and self.driver not in ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")


_SCRIPT = """
said() { word=-; [ -r "$1" ] && read -r word <"$1" 2>/dev/null; [ -n "$word" ] || word=-; }
for policy in /sys/devices/system/cpu/cpufreq/policy*; do
  [ -e "$policy/scaling_governor" ] || continue
  line=${policy##*/}
  for name in scaling_driver scaling_governor scaling_available_governors; do
    said "$policy/$name"; line="$line|$word"
  done
  echo "$line"
done; :
"""
_WORD = lazy_re.compile(r"[A-Za-z0-9_-]{1,40}")


def _policies(result: Result) -> tuple[FrequencyPolicy, ...]:
    policies = []
    for line in result.lines:
        name, driver, governor, available = line.split("|")
        for word in (name, driver, governor, *available.split()):
            if not _WORD.fullmatch(word):
                raise ValueError(f"'{word[:40]}' is no name of a policy, driver or governor")
        policies.append(FrequencyPolicy(name, driver, governor, tuple(available.split()) if available != "-" else ()))
    return tuple(sorted(policies, key=lambda policy: int(policy.name.removeprefix("policy"))))


policies = Fact("cpu.policies", script(_SCRIPT, reads=True), _policies)
"""The frequency policies of all CPUs; () where the kernel sets no frequency, as in most virtual machines."""
