"""The IOMMU between the GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.checks import Finding, Verdict, of_symptom
from rigwright.facts import Facts, iommu, pci

_TRANSLATED = ("DMA", "DMA-FQ", "auto")


def passes(facts: Facts) -> Iterator[Finding]:
    """The IOMMU leaves the GPUs' addresses alone: passthrough, or off (then iommu=pt has nothing to do). One GPU alone does not mind."""
    domains, gpus = facts.all(iommu.domains, pci.gpus)
    seen = f"on, {' and '.join(domains)}" if domains and domains != ("none",) else "off, or not there"
    if any(one in _TRANSLATED for one in domains):
        verdict: Verdict = "warn" if len(gpus) > 1 else "info"
        yield of_symptom(
            "p2p.iommu_translated",
            "iommu.passes",
            "IOMMU",
            f"{seen}: it translates",
            "passthrough, or off",
            "catalogue",
            verdict=verdict,
        )
    else:
        yield Finding("iommu.passes", "IOMMU", "pass", seen)
