"""`invoke catalogue.check`: reads the whole catalogue and compares it with NVIDIA's device list."""

from __future__ import annotations

from rich.console import Console

from rigwright import catalogue
from rigwright.cli.answer import answer
from rigwright.cli.options import CatalogueCheckOptions
from rigwright.core.errors import InputError


def catalogue_check(options: CatalogueCheckOptions) -> int:
    """Prints how much the catalogue has; returns the exit code, 1 when it contradicts NVIDIA's list."""
    return answer(options, _check)


def _check(console: Console) -> None:
    rigs = [catalogue.rig(name, "catalogue") for name in catalogue.rigs()]
    counts = {
        "GPU models": len(catalogue.models()),
        "rigs": len(rigs),
        "driver branches": len(catalogue.branches()),
        "CUDA toolkits": len(catalogue.toolkits()),
        "symptoms": len(catalogue.symptoms()),
        "Xids": len(catalogue.xids()),
    }
    console.print(", ".join(f"{number} {name}" for name, number in counts.items()), highlight=False)
    ids = [device_id for model in catalogue.models().values() for device_id in model.pci_ids]
    listed = [device_id for device_id in ids if device_id in catalogue.devices()]
    console.print(
        f"NVIDIA's list of driver {catalogue.devices_version()}: {len(catalogue.devices())} devices; "
        f"{len(listed)} of our {len(ids)} PCI ids are in it",
        highlight=False,
    )
    for text in catalogue.unlisted():
        console.print(f"  not in the list: {text}", highlight=False)
    if disagreements := catalogue.disagreements():
        raise InputError(
            "catalogue",
            "; ".join(disagreements),
            "the same name in both",
            "look up which is right; scripts/devices writes the list",
        )
    console.print("[green]They agree.[/]")
