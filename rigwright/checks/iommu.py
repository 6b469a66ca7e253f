"""The IOMMU between the GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.checks import Finding, Verdict, check, of_symptom
from rigwright.facts import Facts, iommu, pci

_TRANSLATED = ("DMA", "DMA-FQ", "auto")


@check()
def passthrough(facts: Facts) -> Iterator[Finding]:
    """The IOMMU is off or in passthrough mode. It does not matter with one GPU."""
    domains, gpus = facts.all(iommu.domains, pci.gpus)
    seen = f"on, {' and '.join(domains)}" if domains and domains != ("none",) else "off, or not there"
    if any(domain in _TRANSLATED for domain in domains):
        verdict: Verdict = "warn" if len(gpus) > 1 else "info"
        wanted, seen = "passthrough, or off", f"{seen}: it translates addresses"
        yield of_symptom("p2p.iommu_translated", "IOMMU", seen, wanted, "catalogue", verdict=verdict)
    else:
        yield Finding("IOMMU", "pass", seen)
