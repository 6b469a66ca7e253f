"""The fabric manager of NVSwitch machines. Its package comes with the driver's, at the driver's very version."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.change import Change
from rigwright.compatibility import card_of, needs_fabric_manager
from rigwright.facts import Facts, pci
from rigwright.operations import systemd

UNIT = "nvidia-fabricmanager.service"


def running(facts: Facts) -> Iterator[Change]:
    """Where there are NVSwitches, the fabric manager starts at boot and runs; elsewhere nothing is asked of it.

    Raises Unavailable while its package is not installed.
    """
    gpus, switches = facts.all(pci.gpus, pci.nvswitches)
    cards = [card for one in gpus if (card := card_of(one.device_id))]
    if needs_fabric_manager(cards, len(switches)):
        yield from systemd.service(facts, name=UNIT)
