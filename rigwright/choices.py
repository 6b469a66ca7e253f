"""What follows from a host's GPUs, said in one line each: for the plan, and for `invoke explain` of a rig."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rigwright import catalogue
from rigwright.catalogue import Model, Rig
from rigwright.change import Note
from rigwright.compatibility import Fit, cuda_ceiling, fit
from rigwright.errors import HostError
from rigwright.wanted import Driver

VERBS = {"application": "-ac", "locked_graphics": "-lgc", "locked_memory": "-lmc"}
"""The flag of nvidia-smi that sets each kind of clocks."""


def unknown_model(device_id: str) -> str:
    """What is said of a GPU that nobody has described; NVIDIA's own list may know its name."""
    listed = catalogue.devices().get(device_id)
    name = f" ({listed.name}, by NVIDIA's list of driver {catalogue.devices_version()})" if listed else ""
    return f"unknown model 10de:{device_id}{name}, add a file to rigwright/catalogue/gpus/"


def counted(models: Iterable[Model | None]) -> str:
    """`4 x Tesla V100-SXM2-16GB`, the models in the order of their names; None is a model that nobody has described."""
    names = Counter(model.name if model else "unknown model" for model in models)
    return ", ".join(f"{number} x {name}" for name, number in sorted(names.items())) or "no GPU"


def counted_of(rig: Rig) -> str:
    """The GPUs of a rig, as `counted` says them."""
    return counted(catalogue.model(key) for key in rig.models)


def flavour_of(models: Sequence[Model], driver: Driver) -> str:
    """The kernel module that is installed: what the inventory says, or the one the GPUs want; proprietary where they
    want none in particular. Raises HostError when a GPU does not run on what the inventory says."""
    if driver.flavour == "auto":
        return fit({str(number): model for number, model in enumerate(models)}).flavours[0] if models else "proprietary"
    for model in models:
        if driver.flavour not in model.module_flavours:
            raise HostError(
                "driver.flavour",
                f"the {driver.flavour} kernel module does not drive the {model.name}",
                " or ".join(model.module_flavours),
                "flavour: auto",
            )
    return driver.flavour


def needs_fabric_manager(models: Sequence[Model], nvswitches: int) -> bool:
    """Whether a host wants the fabric manager: it has NVSwitches, or GPUs that never come without."""
    return nvswitches > 0 or any(model.fabric == "nvswitch" for model in models)


def choices(gpus: Mapping[str, Model], driver: Driver, nvswitches: int, today: datetime.date) -> Iterator[Note]:
    """What the GPUs have in common and what was chosen from it, one line each. Raises HostError as `fit` does."""
    found = fit(gpus, nvswitches)
    yield Note(f"GPUs: {counted(gpus.values())}")
    yield _branch(found, driver, today)
    flavour = flavour_of(tuple(gpus.values()), driver)
    why = (
        "the inventory says so"
        if driver.flavour != "auto"
        else f"{found.flavour_by} has no other"
        if found.flavour_by
        else "the GPUs run on either"
    )
    yield Note(f"kernel module: {flavour}, {why}")
    toolkit, limit = cuda_ceiling(found, driver.branch)
    if toolkit:
        more = (
            f"; {found.last_cuda_by} would end at {found.last_cuda}" if found.last_cuda not in (None, toolkit) else ""
        )
        yield Note(f"CUDA: up to {toolkit}, by {limit}{more}")
    yield Note(fabric_manager(found))
    yield Note("clocks: " + "; ".join(f"{name} {_verbs(verbs)}" for name, verbs in found.verbs.items()))


def fabric_manager(found: Fit) -> str:
    """Whether the fabric manager is wanted."""
    return (
        "fabric manager: wanted, the GPUs hang on NVSwitches"
        if found.fabric_manager
        else "fabric manager: none, there is no NVSwitch"
    )


def _verbs(verbs: Sequence[str]) -> str:
    return "by " + " or ".join(VERBS[verb] for verb in verbs) if verbs else "cannot be set"


def _branch(found: Fit, driver: Driver, today: datetime.date) -> Note:
    last = f"{found.branches[-1]}, the last for {found.last_by}" if found.last_by else "the newest"
    text = f"driver {driver.version or driver.branch}: the GPUs run {found.branches[0]} to {last}"
    branch = catalogue.branches().get(driver.branch)
    if branch is None or branch.eol is None or branch.eol >= today:
        until = f", supported until {branch.eol}" if branch and branch.eol else ""
        return Note(text + until)
    better = catalogue.branches()[found.recommended]
    ahead = better.eol is not None and better.eol >= today
    instead = f"; {better.name} is supported until {better.eol}" if ahead else ""
    return Note(f"{text}; {branch.name} is end of life since {branch.eol}{instead}", warn=True)
