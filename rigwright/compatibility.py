"""What the GPUs of one host can run together: driver branch, kernel module, CUDA, fabric manager."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from rigwright import catalogue
from rigwright.errors import HostError
from rigwright.versions import numbers
from rigwright.wanted import Driver


class Card(Protocol):
    """What has to be known of a GPU: a model of the catalogue says all of it, NVIDIA's own list the most important."""

    @property
    def label(self) -> str: ...
    @property
    def first_branch(self) -> int: ...
    @property
    def last_branch(self) -> int | None: ...
    @property
    def module_flavours(self) -> tuple[str, ...]: ...
    @property
    def last_cuda(self) -> str | None: ...
    @property
    def clock_verbs(self) -> tuple[str, ...]: ...
    @property
    def fabric(self) -> str: ...


def card_of(device_id: str) -> Card | None:
    """What is known of a PCI id: the catalogue's model, else the entry of NVIDIA's list; None where neither has it."""
    return catalogue.model_of(device_id) or catalogue.devices().get(device_id)


def runs(card: Card, branch: int) -> bool:
    """Whether a driver branch drives a GPU."""
    return card.first_branch <= branch and (card.last_branch is None or branch <= card.last_branch)


@dataclass(frozen=True)
class Fit:
    """What all of a host's GPUs can run.

    `branches`: driver branches of the catalogue, oldest first. `flavours`: of the kernel module, never empty.
    `last_cuda`: the newest CUDA toolkit with code for all, None when nothing limits it. `verbs`: what each model's clocks
    are set with. The `*_by` name the GPU that sets a limit.
    """

    branches: tuple[str, ...]
    last_by: str
    flavours: tuple[str, ...]
    flavour_by: str
    last_cuda: str | None
    last_cuda_by: str
    verbs: Mapping[str, tuple[str, ...]]

    @property
    def recommended(self) -> str:
        """The common branch to take: one that has releases, a long-term one, the one that is supported longest."""
        known = catalogue.branches()

        def merit(name: str) -> tuple[bool, bool, datetime.date]:
            branch = known[name]
            return bool(branch.versions), branch.kind == "long-term support", branch.eol or datetime.date.min

        return max(self.branches, key=merit)


def fit(gpus: Mapping[str, Card]) -> Fit:
    """The intersection over GPUs, each under the name that messages use (its position and bus id).

    Raises HostError that names the GPUs with their limits when they have no branch, or no flavour, in common.
    """
    named = [(f"{card.label} ({where})" if where else card.label, card) for where, card in gpus.items()]
    newest_first = max(named, key=lambda one: one[1].first_branch)
    oldest_last = min(named, key=lambda one: one[1].last_branch or _ENDLESS)
    branches = tuple(name for name in catalogue.branches() if all(runs(card, int(name)) for _, card in named))
    if not branches:
        if newest_first is oldest_last:
            found = f"no driver branch that is known drives the {_span(*newest_first)}"
            raise HostError("driver.branch", found, "a branch in drivers.yml", "add it to the catalogue")
        raise HostError(
            "driver.branch",
            f"no driver branch drives both the {_span(*oldest_last)} and the {_span(*newest_first)}",
            "GPUs with a branch in common",
            "move one of the two to another machine",
        )
    flavours = tuple(one for one in ("proprietary", "open") if all(one in card.module_flavours for _, card in named))
    strict = next((one for one in named if len(one[1].module_flavours) == 1), None)
    if not flavours:
        assert strict is not None
        other = next(one for one in named if not set(one[1].module_flavours) & set(strict[1].module_flavours))
        raise HostError(
            "driver.flavour",
            f"no kernel module drives both the {_flavours(*strict)} and the {_flavours(*other)}",
            "GPUs that run on the same module",
            "move one of the two to another machine",
        )
    bounded = [card for _, card in named if card.last_cuda]
    last = min(bounded, key=lambda card: numbers(card.last_cuda or ""), default=None)
    return Fit(
        branches,
        oldest_last[1].label if oldest_last[1].last_branch else "",
        flavours,
        strict[1].label if strict else "",
        last.last_cuda if last else None,
        last.label if last else "",
        {card.label: card.clock_verbs for _, card in named if card.clock_verbs},
    )


_ENDLESS = 10_000


def cuda_ceiling(found: Fit, branch: str) -> tuple[str | None, str]:
    """The newest CUDA toolkit that a branch's driver speaks and all GPUs run, and what sets the limit; None: not known."""
    known = catalogue.branches().get(branch)
    if known is None or known.cuda is None:
        return None, f"driver {branch}"
    options: list[tuple[str, str]] = [(known.cuda, f"driver {branch}")]
    if found.last_cuda:
        options.append((found.last_cuda, found.last_cuda_by))
    return min(options, key=lambda one: numbers(one[0]))


def needs_fabric_manager(cards: Iterable[Card], nvswitches: int) -> bool:
    """Whether a host wants the fabric manager: it has NVSwitches, or GPUs that never come without."""
    return nvswitches > 0 or any(card.fabric == "nvswitch" for card in cards)


def flavour_of(cards: Collection[Card], driver: Driver) -> str:
    """The kernel module that is installed: what the inventory says, or the one the GPUs want; proprietary where they
    want none in particular. Raises HostError when a GPU, or the branch, does not have what the inventory says."""
    if driver.flavour == "auto":
        return fit({str(number): card for number, card in enumerate(cards)}).flavours[0] if cards else "proprietary"
    first = catalogue.open_module_from()
    if driver.flavour == "open" and int(driver.branch) < first:
        found = f"branch {driver.branch} has no open kernel module"
        raise HostError("driver.flavour", found, f"branch {first} or newer", "flavour: auto")
    for card in cards:
        if driver.flavour not in card.module_flavours:
            raise HostError(
                "driver.flavour",
                f"the {driver.flavour} kernel module does not drive the {card.label}",
                " or ".join(card.module_flavours),
                "flavour: auto",
            )
    return driver.flavour


def check_branch(gpus: Mapping[str, Card], branch: str) -> None:
    """Nothing, when every GPU runs on a branch. Raises HostError that names the one that does not, and the common branches."""
    for where, card in gpus.items():
        if not runs(card, int(branch)):
            both = fit(gpus)
            spans = dict.fromkeys(_span(one.label, one) for one in gpus.values())
            raise HostError(
                "driver.branch",
                f"branch {branch} does not drive the {card.label}{f' at {where}' if where else ''}",
                f"a branch that all GPUs run, {_listed(both.branches)} ({'; '.join(spans)})",
                f"driver: {{branch: '{both.recommended}'}}",
            )


def check_cuda(gpus: Mapping[str, Card], toolkit: str) -> None:
    """Nothing, when a CUDA toolkit has code for every GPU. Raises HostError that names the one it has none for."""
    for where, card in gpus.items():
        if card.last_cuda and numbers(toolkit) > numbers(card.last_cuda):
            found = f"CUDA {toolkit} has no code for the {card.label} at {where}"
            raise HostError("cuda.toolkit", found, f"CUDA {card.last_cuda} or older", f"toolkit: '{card.last_cuda}'")


def check_toolkit(driver: Driver, toolkit: str) -> str:
    """What a driver makes of a CUDA toolkit: "" for all of it, or what is left out of a toolkit newer than the driver.

    Raises HostError when the driver is older than the toolkit's whole family runs on.
    """
    branch = catalogue.branches().get(driver.branch)
    newest = driver.version or (branch.versions[-1] if branch and branch.versions else "")
    known = catalogue.toolkits().get(toolkit)
    if not newest or not known or numbers(newest) >= numbers(known.shipped_driver):
        return ""
    least = catalogue.family_minimum(toolkit)
    said = driver.version or f"branch {driver.branch}"
    if numbers(newest) >= numbers(least):
        return f"CUDA {toolkit} came with driver {known.shipped_driver}; on {said} it runs by minor-version compatibility, without PTX JIT"
    fits = [name for name in catalogue.toolkits() if numbers(catalogue.family_minimum(name)) <= numbers(newest)]
    raise HostError(
        "cuda.toolkit",
        f"CUDA {toolkit} wants driver {least} or newer, and {said} is older",
        f"CUDA {fits[-1] if fits else '?'} or older",
    )


def runs_toolkit(gpus: Mapping[str, Card], driver: Driver, toolkit: str) -> bool:
    """Whether all GPUs and the driver run a CUDA toolkit, if only by minor-version compatibility."""
    try:
        check_cuda(gpus, toolkit)
        check_toolkit(driver, toolkit)
    except HostError:
        return False
    return True


def torch_wheel(models: Collection[catalogue.Model], driver: Driver) -> str | None:
    """The newest line of PyTorch's wheels that has kernels for all models and runs on the driver; None where none is known."""
    branch = catalogue.branches().get(driver.branch)
    newest = driver.version or (branch.versions[-1] if branch and branch.versions else "")
    fits = [
        name
        for name, wheel in catalogue.wheels().items()
        if newest
        and numbers(newest) >= numbers(catalogue.family_minimum(wheel.cuda))
        and all(model.architecture in wheel.architectures for model in models)
    ]
    return fits[-1] if fits and models else None


def _span(text: str, card: Card) -> str:
    return f"{text}, branches {card.first_branch or '?'} to {card.last_branch or 'the newest'}"


def _flavours(text: str, card: Card) -> str:
    return f"{text}, {' or '.join(card.module_flavours)} module only"


def _listed(branches: tuple[str, ...]) -> str:
    return branches[0] if len(branches) == 1 else f"{branches[0]} to {branches[-1]}"
