"""`invoke catalogue.check`: reads the whole catalogue and compares it with NVIDIA's device list."""

from __future__ import annotations

from rich.console import Console

from rigwright import catalogue
from rigwright.catalogue import cards
from rigwright.catalogue.advisories import advisories
from rigwright.catalogue.consequences import check_consequences
from rigwright.catalogue.topics import check_conflicts, topics
from rigwright.cli.answer import answered
from rigwright.cli.options import CatalogueCheckOptions
from rigwright.core.errors import InputError


@answered
def catalogue_check(_options: CatalogueCheckOptions, console: Console) -> None:
    """Prints how much the catalogue has. Raises InputError when it contradicts NVIDIA's list or itself."""
    catalogue.check_symptoms()
    catalogue.init_failures_in("")
    counts = {
        "GPU models": len(catalogue.models()),
        "rigs": len([catalogue.rig(name, "catalogue") for name in catalogue.all_rigs()]),
        "driver branches": len(catalogue.branches()),
        "CUDA toolkits": len(catalogue.toolkits()),
        f"published releases of {catalogue.release_table().read}": len(catalogue.release_table().releases),
        "security bulletins": len(advisories()),
        "symptoms": len(catalogue.all_symptoms()),
        "topics": len(topics()),
        "Xids": len(catalogue.xids()),
    }
    check_conflicts()
    check_consequences()
    console.print(", ".join(f"{number} {name}" for name, number in counts.items()), highlight=False)
    ids = [device_id for model in catalogue.models().values() for device_id in model.pci_ids]
    listed = [device_id for device_id in ids if device_id in catalogue.all_devices()]
    devices = f"NVIDIA's list of driver {catalogue.devices_version()}: {len(catalogue.all_devices())} devices"
    console.print(f"{devices}; {len(listed)} of our {len(ids)} PCI ids are in it", highlight=False)
    for text in catalogue.unlisted():
        console.print(f"  not in the list: {text}", highlight=False)
    for text in cards.without_chip():
        console.print(f"  of the list, without a chip in chips.yml: {text}", highlight=False)
    if disagreements := (*catalogue.disagreements(), *cards.disagreements()):
        fix = "look up which is right; scripts/devices writes the list"
        raise InputError("catalogue", "; ".join(disagreements), "the same name in both", fix)
    console.print("[green]They agree.[/]")
