"""The IOMMU, as it is in force for the GPUs."""

from __future__ import annotations

from rigwright.core.command import Result, script
from rigwright.facts import Fact

_SCRIPT = """
for device in /sys/bus/pci/devices/*; do
  read -r vendor <"$device/vendor" && read -r class <"$device/class" || continue
  case $vendor,$class in 0x10de,0x03*) ;; *) continue;; esac
  type=none; [ ! -r "$device/iommu_group/type" ] || read -r type <"$device/iommu_group/type"
  case " $types " in *" $type "*) ;; *) types="$types $type"; echo "$type";; esac
done 2>/dev/null; :
"""


_KNOWN = {"none", "identity", "DMA", "DMA-FQ", "unmanaged", "auto"}


def _domains(result: Result) -> tuple[str, ...]:
    types = tuple(sorted(result.text.split()))
    if unknown := sorted({*types} - _KNOWN):
        raise ValueError(f"an IOMMU group of type {unknown[0]}")
    return types


domains = Fact("iommu.domains", script(_SCRIPT, reads=True), _domains)
"""The types of the GPUs' IOMMU groups, each once: identity (addresses pass unchanged), DMA or DMA-FQ (addresses are
translated), unmanaged (assigned to a virtual machine), none (no IOMMU, or disabled in the firmware)."""
