"""One-line summaries of what a host's GPUs support, for the plan and for `invoke explain`."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rigwright import catalogue
from rigwright.catalogue import Model, Rig
from rigwright.catalogue.compatibility import (
    Card,
    Fit,
    cuda_ceiling,
    fit,
    flavour_of,
    flavours_at,
    needs_fabric_manager,
)
from rigwright.core.change import Note
from rigwright.core.desired import Driver

VERBS = {"application": "-ac", "locked_graphics": "-lgc", "locked_memory": "-lmc"}
"""The flag of nvidia-smi that sets each kind of clocks."""


def unknown_model(device_id: str) -> str:
    """The text for a GPU without a file in the catalogue, with its name from NVIDIA's list if it is there."""
    listed = catalogue.all_devices().get(device_id)
    name = f" ({listed.name}, by NVIDIA's list of driver {catalogue.devices_version()})" if listed else ""
    return f"unknown model 10de:{device_id}{name}, add a file to rigwright/catalogue/gpus/"


def not_described(model: Model) -> str:
    """What a drafted model lacks, and how each value is found out."""
    return (
        f"{model.label} ({model.key}) is drafted from {model.sources['pci_ids']}: {model.architecture}, "
        f"compute capability {model.compute_capability}, its branches and kernel modules. "
        "Not known: power range, clocks and memory size (asked from the GPU itself), "
        "memory bandwidth and NVLink, peer access (measured)"
    )


def counted(cards: Iterable[Card | None]) -> str:
    """`4 x Tesla V100-SXM2-16GB`, sorted by name; None is an unknown model."""
    names = Counter(card.label if card else "unknown model" for card in cards)
    return ", ".join(f"{number} x {name}" for name, number in sorted(names.items())) or "no GPU"


def counted_ids(device_ids: Iterable[str]) -> str:
    """The result of `counted` for PCI ids, in their order; an unknown GPU is shown by its id. "" for no ids."""
    ids = Counter(device_ids)
    labels = {
        device_id: model.label if (model := catalogue.model_of(device_id)) else f"10de:{device_id}" for device_id in ids
    }
    return ", ".join(f"{number} x {labels[device_id]}" for device_id, number in sorted(ids.items()))


def counted_of(rig: Rig) -> str:
    """The GPUs of a rig in the format of `counted`."""
    return counted(catalogue.model(key) for key in rig.models)


def choices(gpus: Mapping[str, Card], driver: Driver, nvswitches: int, today: datetime.date) -> Iterator[Note]:
    """The software that all GPUs support and the choices made from it, one line each. Raises HostError."""
    common = fit(gpus)
    yield _branch(common, driver, today)
    flavour = flavour_of(tuple(gpus.values()), driver)
    yield Note(f"kernel module: {flavour}, {_why(flavour, common, driver)}")
    toolkit, limit = cuda_ceiling(common, driver.branch)
    last = common.last_cuda
    more = f"; {common.last_cuda_by} supports up to {last}" if last not in (None, toolkit) else ""
    yield Note(f"CUDA: up to {toolkit}, by {limit}{more}" if toolkit else f"CUDA: not known for {limit}{more}")
    needed = needs_fabric_manager(gpus.values(), nvswitches)
    yield Note(
        "fabric manager: "
        f"{'required, the GPUs are connected by NVSwitches' if needed else 'none, there is no NVSwitch'}"
    )
    if common.verbs:
        yield Note("clocks: " + "; ".join(f"{name} {_verbs(verbs, driver)}" for name, verbs in common.verbs.items()))


def _why(flavour: str, common: Fit, driver: Driver) -> str:
    """The reason for a kernel module."""
    if driver.flavour != "auto":
        return "the inventory says so"
    if common.flavour_by:
        return f"{common.flavour_by} supports no other"
    if len(flavours_at(driver.branch, common.flavours)) == 1:
        return f"branch {driver.branch} has no other"
    if driver.source == "ubuntu-server":
        return "the one that source ubuntu-server names; the GPUs support both"
    first = catalogue.driver_table().open_module_preferred_from
    return "the GPUs support both" + (f", and NVIDIA prefers it from branch {first} on" if flavour == "open" else "")


def _verbs(verbs: Sequence[str], driver: Driver) -> str:
    gone = int(driver.branch) > catalogue.driver_table().application_clocks_until
    left = [VERBS[verb] for verb in verbs if not (gone and verb == "application")]
    return "by " + " or ".join(left) if left else "cannot be set"


def rig_branch(rig: Rig, driver: Driver, today: datetime.date) -> Iterator[Note]:
    """Notes, with evidence and measurements, if the branch is at its end of life or is not the rig's."""
    branch = catalogue.branches().get(driver.branch)
    evidence = f"the rig {rig.key} says driver {rig.driver} ({rig.sources['driver']})"
    if driver.branch != rig.driver:
        yield Note(f"{evidence}, and here it is {driver.branch}: measure P2P before and after the change", warn=True)
    elif branch and branch.eol and branch.eol < today:
        yield Note(f"{evidence}; before a move to another branch, and after it, measure P2P")


def _branch(common: Fit, driver: Driver, today: datetime.date) -> Note:
    last = f"{common.branches[-1]}, the last for {common.last_by}" if common.last_by else "the newest"
    text = f"driver {driver.version or driver.branch}: the GPUs run {common.branches[0]} to {last}"
    branch = catalogue.branches().get(driver.branch)
    if branch is None:
        return Note(f"{text}; nothing is known of branch {driver.branch}", warn=True)
    if branch.eol is None or branch.eol >= today:
        return Note(f"{text}, supported until {branch.eol}" if branch.eol else text)
    better = catalogue.branches()[common.recommended]
    ahead = better.eol is not None and better.eol >= today
    modules = flavours_at(better.name, common.flavours)
    module = f" ({modules[0]})" if len(modules) == 1 else ""
    instead = f"; recommended: {better.name}{module}, supported until {better.eol}" if ahead else ""
    return Note(f"{text}; {branch.name} is end of life since {branch.eol}{instead}", warn=True)
