"""The PCI ids that one NVIDIA driver supports: devices.csv, which scripts/devices writes from the driver's own list.

The list has many more GPUs than gpus/, but fewer properties of each. Properties of GPUs in both must agree.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from msgspec import Struct

from rigwright.catalogue import loader
from rigwright.catalogue.gpus import Model, models
from rigwright.core.errors import InputError
from rigwright.core.files.disk_cache import cached_on_disk

_SHOWN = "catalogue/devices.csv"
_COLUMNS = ["device_id", "name", "legacy_branch", "open", "proprietary"]


class Device(Struct, frozen=True):
    """A PCI id. `legacy_branch`: the last branch that supports it ('470'), '' if the list's driver does.

    `name`: the names of several cards with one id are separated by ' / '. `open`, `proprietary`: whether that kernel
    module supports it. The list does not contain the other properties.
    """

    device_id: str
    name: str
    legacy_branch: str
    open: bool
    proprietary: bool
    first_branch: ClassVar[int] = 0
    last_cuda: ClassVar[None] = None
    clock_verbs: ClassVar[tuple[str, ...]] = ()
    fabric: ClassVar[str] = "none"

    @property
    def label(self) -> str:
        """The name in the list."""
        return self.name

    @property
    def last_branch(self) -> int | None:
        """The last branch that supports it (None: no end); 580 without an open module (before Turing)."""
        return int(self.legacy_branch.split(".")[0]) if self.legacy_branch else None if self.open else 580

    @property
    def module_flavours(self) -> tuple[str, ...]:
        """The kernel modules that support it."""
        return tuple(name for name, drives in (("proprietary", self.proprietary), ("open", self.open)) if drives)


@cached_on_disk
def _table() -> tuple[str, Mapping[str, Device]]:
    path = loader.FOLDER / "devices.csv"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(_SHOWN, f"cannot be read: {error}", "the table", "scripts/devices") from None
    driver = re.fullmatch(r"# driver ([0-9]{3}[0-9.]*)", lines[0] if lines else "")
    if not driver:
        raise InputError(f"{_SHOWN}:1", "no driver version", "# driver 580.178.04", "scripts/devices")
    above = sum(line.startswith("#") for line in lines)
    by_id: dict[str, Device] = {}
    for number, row in enumerate(csv.reader(lines[above:]), above + 1):
        if number == above + 1 and row == _COLUMNS:
            continue
        if not re.fullmatch(r"[0-9a-f]{4},.+,[0-9.]*,(yes|no),(yes|no)", ",".join(row)) or row[0] in by_id:
            raise InputError(f"{_SHOWN}:{number}", f"the row {','.join(row)!r}", ",".join(_COLUMNS), "scripts/devices")
        device_id, name, legacy, is_open, proprietary = row
        by_id[device_id] = Device(device_id, name, legacy, is_open == "yes", proprietary == "yes")
    return driver[1], by_id


def version() -> str:
    """The version of the list's driver, such as 580.178.04. Raises InputError."""
    return _table()[0]


def all_devices() -> Mapping[str, Device]:
    """All GPUs of the list by PCI id (four digits). Raises InputError."""
    return _table()[1]


def disagreements() -> tuple[str, ...]:
    """Contradictions between files in gpus/ and the list, one sentence each."""
    return tuple(
        f"gpus/{model.key}.yml says {ours} of {device_id}, and the list of driver {version()} says {theirs}"
        for model in models().values()
        for device_id in model.pci_ids
        if device_id in all_devices()
        for ours, theirs in _differences(model, all_devices()[device_id])
    )


def unlisted() -> tuple[str, ...]:
    """The PCI ids in gpus/ that are not in the list, as 'KEY ID': those of OEM boards and of newer GPUs."""
    pairs = ((key, device_id) for key, model in models().items() for device_id in model.pci_ids)
    return tuple(f"{key} {device_id}" for key, device_id in pairs if device_id not in all_devices())


def _differences(model: Model, device: Device) -> Iterator[tuple[str, str]]:
    branch = int(version().split(".")[0])
    if device.legacy_branch:
        if model.last_branch != int(device.legacy_branch.split(".")[0]):
            yield f"last_branch {model.last_branch or 'none'}", f"{device.legacy_branch}"
    elif model.last_branch is not None and model.last_branch < branch:
        yield f"last_branch {model.last_branch}", f"that {branch} still drives it"
    if set(model.module_flavours) != set(device.module_flavours):
        yield f"module_flavours {', '.join(sorted(model.module_flavours))}", ", ".join(sorted(device.module_flavours))
    if bare_name(model.name) not in {bare_name(name) for name in device.name.split(" / ")}:
        yield f"name {model.name}", device.name


def bare_name(name: str) -> str:
    """A GPU's name without manufacturer, family, spaces and hyphens, for comparisons."""
    return re.sub(r"nvidia|tesla|geforce|[^a-z0-9]", "", name.lower())
