"""GPU models by PCI id and by key: described in gpus/, or made of NVIDIA's list and the table of chips (chips.yml)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct

from rigwright.catalogue import drivers, gpus
from rigwright.catalogue.devices import all_devices, version as devices_version
from rigwright.catalogue.gpus import VENDOR, Architecture, ClocksMhz, Flavour, Model, PeerToPeer, Power, Verb
from rigwright.catalogue.loader import table
from rigwright.core.errors import InputError
from rigwright.core.files.disk_cache import cached_on_disk
from rigwright.core.schema import PciId, Release


class Chip(Struct, frozen=True):
    """A chip: the PCI ids of the cards with it ('1b80-1bff'), and the first driver branch with one of them."""

    ids: tuple[str, ...]
    architecture: Architecture
    compute_capability: Release
    first_branch: int

    def __post_init__(self) -> None:
        for span in self.ids:
            if not re.fullmatch(r"[0-9a-f]{4}-[0-9a-f]{4}", span) or span[:4] > span[5:]:
                raise ValueError(f"ids {span!r}", "the first and the last PCI id of a range, such as 1b80-1bff")

    def has(self, device_id: str) -> bool:
        """Whether a card with this PCI id has the chip."""
        return any(span[:4] <= device_id <= span[5:] for span in self.ids)


class Chips(Struct, frozen=True):
    """The chips by name."""

    chips: dict[str, Chip]
    sources: dict[str, str]


@cached_on_disk
def chip_table() -> Chips:
    """The table of chips.yml. Raises InputError."""
    return table("chips.yml", Chips, "chips")


def chip_of(device_id: str) -> tuple[str, Chip] | None:
    """The name and the properties of the chip of a PCI id; None if it is in no range. Raises InputError."""
    return next(((name, chip) for name, chip in chip_table().chips.items() if chip.has(device_id)), None)


@lru_cache(maxsize=64)
def model_of(device_id: str) -> Model | None:
    """The model of a PCI device id: described, else drafted; None if its chip is not known. Raises InputError."""
    return gpus.model_of(device_id) or _drafted(device_id)


def model(key: str) -> Model:
    """The model with a key: a file name of gpus/, or '10de:1b82'. Raises InputError for an unknown PCI id."""
    if not key.startswith(VENDOR):
        return gpus.model(key)
    found = model_of(key.removeprefix(VENDOR))
    if found is None:
        raise InputError(key, "a PCI id that nothing is known of", f"a GPU of the list of driver {devices_version()}")
    return found


def without_chip() -> tuple[str, ...]:
    """The cards of NVIDIA's list without a chip in chips.yml, if the catalogue has their last driver branch."""
    known = {int(name) for name in drivers.branches()}
    return tuple(
        f"{device.device_id} {device.name}"
        for device in all_devices().values()
        if (device.last_branch is None or device.last_branch in known) and chip_of(device.device_id) is None
    )


def disagreements() -> tuple[str, ...]:
    """Contradictions between chips.yml, the described models and NVIDIA's list, one sentence each."""
    sentences = []
    for described in gpus.models().values():
        for device_id in described.pci_ids:
            name, chip = chip_of(device_id) or ("no chip", None)
            ours = (described.architecture, described.compute_capability)
            if chip is None or (chip.architecture, chip.compute_capability) != ours:
                theirs = f"{chip.architecture} {chip.compute_capability}" if chip else "nothing"
                sentences.append(f"gpus/{described.key}.yml says {' '.join(ours)} of {device_id}, and {name} {theirs}")
    for device in all_devices().values():
        known = chip_of(device.device_id)
        if known is None:
            continue
        flavours = _MODULES.get(known[1].architecture, _BOTH)
        if not set(device.module_flavours) <= set(flavours):
            modules = " and ".join(device.module_flavours)
            sentences.append(f"NVIDIA's list says {modules} module of {device.device_id}, which is a {known[0]}")
        last = _last_branch(known[1].architecture)
        if device.last_branch != last and not (device.last_branch and last and device.last_branch < last):
            sentences.append(
                f"NVIDIA's list says last branch {device.last_branch or 'none'} of {device.device_id}, "
                f"which is a {known[0]}"
            )
    return tuple(sentences)


def _drafted(device_id: str) -> Model | None:
    """A model with what NVIDIA's list and the chip tell of a card; None without a chip. `None` in it means unknown."""
    known = chip_of(device_id)
    if known is None:
        return None
    chip_name, chip = known
    listed = all_devices().get(device_id)
    source = f"NVIDIA's list of supported GPUs, driver {devices_version()}"
    by_chip = f"{source}, does not have it; by its chip {chip_name}"
    sources = chip_table().sources
    modules = listed.module_flavours if listed else _MODULES.get(chip.architecture, _BOTH)
    name = listed.name if listed else f"GPU {VENDOR}{device_id} ({chip_name})"
    return Model(
        name=name,
        pci_ids=(PciId(device_id),),
        architecture=chip.architecture,
        compute_capability=chip.compute_capability,
        memory_mib=None,
        memory_bandwidth_gb_s=None,
        tensor_cores=None,
        power_w=Power(None, None, None),
        clocks_mhz=ClocksMhz((), None),
        clock_verbs=_lockable(chip.architecture),
        nvlink=None,
        p2p=PeerToPeer("measure"),
        idle=None,
        module_flavours=tuple(kind for kind in _BOTH if kind in modules),
        first_branch=chip.first_branch,
        last_branch=listed.last_branch if listed else _last_branch(chip.architecture),
        last_cuda=_last_cuda(chip.architecture),
        sources={
            "pci_ids": source if listed else by_chip,
            "compute_capability": f"chip {chip_name}; {sources['compute_capability']}",
            "last_branch": source if listed else by_chip,
            "last_cuda": drivers.cuda_table().sources["dropped"],
            "fabric": "assumed: NVSwitches for every SXM module of Blackwell, as the B200 has; "
            "the bus shows older ones",
            "clock_verbs": "nvidia-smi manual: locked graphics clocks from Volta on; "
            "NVML header: locked memory clocks from Ampere on",
        },
        fabric="nvswitch" if chip.architecture == "Blackwell" and "SXM" in name else "none",
        key=f"{VENDOR}{device_id}",
    )


_BOTH: tuple[Flavour, ...] = ("proprietary", "open")
_MODULES: Mapping[str, tuple[Flavour, ...]] = {
    **dict.fromkeys(("Kepler", "Maxwell", "Pascal", "Volta"), ("proprietary",)),
    "Blackwell": ("open",),
}
"""The kernel modules for cards that the list does not have, as it has them for every other card of the architecture."""


def _lockable(architecture: Architecture) -> tuple[Verb, ...]:
    if architecture in ("Kepler", "Maxwell", "Pascal"):
        return ()
    return (
        ("locked_graphics", "locked_memory") if architecture in ("Ampere", "Ada", "Blackwell") else ("locked_graphics",)
    )


def _last_branch(architecture: Architecture) -> int | None:
    return next((int(name) for name, branch in drivers.branches().items() if architecture in branch.last_for), None)


def _last_cuda(architecture: Architecture) -> Release | None:
    """The newest toolkit before the one that dropped the architecture; None if none has."""
    names = list(drivers.toolkits())
    dropped = (at for at, toolkit in enumerate(drivers.toolkits().values()) if architecture in toolkit.dropped)
    return next((Release(names[at - 1]) for at in dropped if at), None)
