"""What follows from a host's GPUs, said in one line each: for the plan, and for `invoke explain` of a rig."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.change import Note
from rigwright.compatibility import Card, Fit, cuda_ceiling, fit, flavour_of, needs_fabric_manager
from rigwright.wanted import Driver

VERBS = {"application": "-ac", "locked_graphics": "-lgc", "locked_memory": "-lmc"}
"""The flag of nvidia-smi that sets each kind of clocks."""


def unknown_model(device_id: str) -> str:
    """What is said of a GPU that nobody has described; NVIDIA's own list may know its name."""
    listed = catalogue.devices().get(device_id)
    name = f" ({listed.name}, by NVIDIA's list of driver {catalogue.devices_version()})" if listed else ""
    return f"unknown model 10de:{device_id}{name}, add a file to rigwright/catalogue/gpus/"


def counted(cards: Iterable[Card | None]) -> str:
    """`4 x Tesla V100-SXM2-16GB`, in the order of names; None is a model that nobody knows."""
    names = Counter(card.label if card else "unknown model" for card in cards)
    return ", ".join(f"{number} x {name}" for name, number in sorted(names.items())) or "no GPU"


def counted_ids(device_ids: Iterable[str]) -> str:
    """As `counted`, of GPUs by their PCI ids and in the order of these; one that nobody knows is called by it. "" for none."""
    ids = Counter(device_ids)
    labels = {one: model.label if (model := catalogue.model_of(one)) else f"10de:{one}" for one in ids}
    return ", ".join(f"{number} x {labels[one]}" for one, number in sorted(ids.items()))


def counted_of(rig: Rig) -> str:
    """The GPUs of a rig, as `counted` says them."""
    return counted(catalogue.model(key) for key in rig.models)


def choices(gpus: Mapping[str, Card], driver: Driver, nvswitches: int, today: datetime.date) -> Iterator[Note]:
    """What the GPUs have in common and what was chosen from it, one line each. Raises HostError as `fit` does."""
    found = fit(gpus)
    yield _branch(found, driver, today)
    flavour = flavour_of(tuple(gpus.values()), driver)
    why = f"{found.flavour_by} has no other" if found.flavour_by else "the GPUs run on either"
    yield Note(f"kernel module: {flavour}, {why if driver.flavour == 'auto' else 'the inventory says so'}")
    toolkit, limit = cuda_ceiling(found, driver.branch)
    more = f"; {found.last_cuda_by} would end at {found.last_cuda}" if found.last_cuda not in (None, toolkit) else ""
    yield Note(f"CUDA: up to {toolkit}, by {limit}{more}" if toolkit else f"CUDA: not known for {limit}{more}")
    wanted = needs_fabric_manager(gpus.values(), nvswitches)
    yield Note("fabric manager: " + ("wanted, the GPUs hang on NVSwitches" if wanted else "none, there is no NVSwitch"))
    if found.verbs:
        yield Note("clocks: " + "; ".join(f"{name} {_verbs(verbs, driver)}" for name, verbs in found.verbs.items()))


def _verbs(verbs: Sequence[str], driver: Driver) -> str:
    gone = int(driver.branch) > catalogue.application_clocks_until()
    left = [VERBS[verb] for verb in verbs if not (gone and verb == "application")]
    return "by " + " or ".join(left) if left else "cannot be set"


def rig_branch(rig: Rig, driver: Driver, today: datetime.date) -> Iterator[Note]:
    """Where a branch has ended, or is another than the rig's: what the rig says, on which evidence, and what to measure."""
    branch = catalogue.branches().get(driver.branch)
    evidence = f"the rig {rig.key} says driver {rig.driver} ({rig.sources['driver']})"
    if driver.branch != rig.driver:
        yield Note(f"{evidence}, and here it is {driver.branch}: measure P2P before and after the change", warn=True)
    elif branch and branch.eol and branch.eol < today:
        yield Note(f"{evidence}; before a move to another branch, and after it, measure P2P")


def _branch(found: Fit, driver: Driver, today: datetime.date) -> Note:
    last = f"{found.branches[-1]}, the last for {found.last_by}" if found.last_by else "the newest"
    text = f"driver {driver.version or driver.branch}: the GPUs run {found.branches[0]} to {last}"
    branch = catalogue.branches().get(driver.branch)
    if branch is None:
        return Note(f"{text}; nothing is known of branch {driver.branch}", warn=True)
    if branch.eol is None or branch.eol >= today:
        return Note(f"{text}, supported until {branch.eol}" if branch.eol else text)
    better = catalogue.branches()[found.recommended]
    ahead = better.eol is not None and better.eol >= today
    module = f" ({found.flavours[0]})" if len(found.flavours) == 1 else ""
    instead = f"; recommended: {better.name}{module}, supported until {better.eol}" if ahead else ""
    return Note(f"{text}; {branch.name} is end of life since {branch.eol}{instead}", warn=True)
