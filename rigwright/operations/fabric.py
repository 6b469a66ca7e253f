"""The fabric manager of machines with NVSwitches; driver.installed installs its package."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.catalogue.compatibility import card_of, needs_fabric_manager
from rigwright.core.change import Change
from rigwright.facts import Facts, pci, systemd as units
from rigwright.operations import operation, systemd


@operation(affects_p2p=True)
def running(facts: Facts) -> Iterator[Change]:
    """On a machine with NVSwitches the fabric manager is enabled and runs. Raises Unavailable while its package is not
    installed."""
    gpus, switches = facts.all(pci.gpus, pci.nvswitches)
    cards = [card for gpu in gpus if (card := card_of(gpu.device_id))]
    if needs_fabric_manager(cards, len(switches)):
        yield from systemd.service(facts, name=units.FABRIC_MANAGER_UNIT)
