"""The fabric manager: installed in the driver's version on hosts with NVSwitches only."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.catalogue.compatibility import card_of, needs_fabric_manager
from rigwright.checks import Finding, check, of_symptom
from rigwright.driver.package_sets import FABRIC_MANAGER, upstream
from rigwright.facts import Facts, driver, pci, systemd as units
from rigwright.facts.apt import dpkg


@check()
def equal(facts: Facts) -> Iterator[Finding]:
    """With NVSwitches, the fabric manager is active and of exactly the loaded driver's version; without, it is not
    installed."""
    of_manager = (dpkg.matching(f"{FABRIC_MANAGER}*"), units.unit(units.FABRIC_MANAGER_UNIT))
    gpus, switches, loaded, packages, unit = facts.all(pci.gpus, pci.nvswitches, driver.loaded_version, *of_manager)
    cards = [card for entry in gpus if (card := card_of(entry.device_id))]
    installed = sorted({upstream(entry.version) for entry in packages.values() if entry.installed})
    has = ", ".join(installed) or "none"
    if not needs_fabric_manager(cards, len(switches)):
        seen = f"{has}, without NVSwitches" if installed else "none, and no NVSwitch"
        fix = f"sudo apt-get purge '{FABRIC_MANAGER}*'"
        yield Finding("fabric manager", "warn" if installed else "pass", seen, "none", "", fix)
        return
    seen, wanted = f"{has}, {unit.active}", f"{loaded or 'the version of the driver'}, active"
    if installed == [loaded] and unit.active == "active":
        yield Finding("fabric manager", "pass", seen, wanted, source="host")
    else:
        skew = "fm.mismatch" if installed and installed != [loaded] else "fm.not_running"
        yield of_symptom(skew, "fabric manager", seen, wanted, "host")
