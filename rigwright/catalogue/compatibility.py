"""Driver branch, kernel module, CUDA and fabric manager that all GPUs of a host support."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from rigwright import catalogue
from rigwright.catalogue.devices import Device
from rigwright.catalogue.gpus import Model
from rigwright.core.desired import Driver
from rigwright.core.errors import HostError
from rigwright.core.numbers import numbers

Card = Model | Device
"""A GPU with the properties that decide compatibility, from a model of the catalogue or from NVIDIA's list."""


def card_of(device_id: str) -> Card | None:
    """The catalogue's model of a PCI id, or the entry of NVIDIA's list, or None."""
    return catalogue.model_of(device_id) or catalogue.all_devices().get(device_id)


def runs(card: Card, branch: int) -> bool:
    """Whether a driver branch supports a GPU."""
    return card.first_branch <= branch and (card.last_branch is None or branch <= card.last_branch)


def common_branches(cards: Collection[Card]) -> tuple[str, ...]:
    """The driver branches of the catalogue that support all GPUs, oldest first."""
    return tuple(name for name in catalogue.branches() if all(runs(card, int(name)) for card in cards))


class Fit(Struct, frozen=True):
    """The software that all GPUs of a host support.

    `branches`: driver branches of the catalogue, oldest first. `flavours`: kernel modules, never empty. `last_cuda`:
    the newest CUDA toolkit with code for all GPUs (None: no limit). `verbs`: the clock settings that each model
    supports, by label. `last_by`, `flavour_by`, `last_cuda_by`: the GPU that limits the branches, the modules or CUDA.
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
        """The recommended common branch: with releases, preferably long-term support, with the latest end of life."""
        known = catalogue.branches()

        def merit(name: str) -> tuple[bool, bool, datetime.date]:
            branch = known[name]
            return bool(branch.versions), branch.kind == "long-term support", branch.eol or datetime.date.min

        return max(self.branches, key=merit)


def fit(gpus: Mapping[str, Card]) -> Fit:
    """Returns the software that all GPUs support. The keys of `gpus` (position and bus id) identify them in messages.

    Raises HostError with the GPUs and their limits if they have no common branch or no common kernel module.
    """
    named = [(f"{card.label} ({where})" if where else card.label, card) for where, card in gpus.items()]
    newest_first = max(named, key=lambda gpu: gpu[1].first_branch)
    oldest_last = min(named, key=lambda gpu: gpu[1].last_branch or _ENDLESS)
    branches = common_branches([card for _, card in named])
    if not branches:
        if newest_first is oldest_last:
            problem = f"no driver branch that is known drives the {_span(*newest_first)}"
            raise HostError("driver.branch", problem, "a branch in drivers.yml", "add it to the catalogue")
        raise HostError(
            "driver.branch",
            f"no driver branch supports both the {_span(*oldest_last)} and the {_span(*newest_first)}",
            "GPUs with a branch in common",
            "move one of the two to another machine",
        )
    flavours = tuple(kind for kind in ("proprietary", "open") if all(kind in card.module_flavours for _, card in named))
    strict = next((gpu for gpu in named if len(gpu[1].module_flavours) == 1), None)
    if not flavours:
        assert strict is not None
        other = next(gpu for gpu in named if not set(gpu[1].module_flavours) & set(strict[1].module_flavours))
        raise HostError(
            "driver.flavour",
            f"no kernel module supports both the {_flavours(*strict)} and the {_flavours(*other)}",
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


def cuda_ceiling(common: Fit, branch: str) -> tuple[str | None, str]:
    """The newest CUDA toolkit that the branch and all GPUs support, and what limits it; None if unknown."""
    known = catalogue.branches().get(branch)
    if known is None or known.cuda is None:
        return None, f"driver {branch}"
    options: list[tuple[str, str]] = [(known.cuda, f"driver {branch}")]
    if common.last_cuda:
        options.append((common.last_cuda, common.last_cuda_by))
    return min(options, key=lambda option: numbers(option[0]))


def needs_fabric_manager(cards: Iterable[Card], nvswitches: int) -> bool:
    """Whether a host needs the fabric manager: it has NVSwitches, or GPUs that always have them."""
    return nvswitches > 0 or any(card.fabric == "nvswitch" for card in cards)


def flavours_at(branch: str, flavours: Collection[str]) -> tuple[str, ...]:
    """Of these kernel modules those that a driver branch has, the preferred one first."""
    number, table = int(branch), catalogue.driver_table()
    has = {"open": number >= table.open_module_from, "proprietary": number < table.open_module_only_from}
    preferred = "open" if number >= table.open_module_preferred_from else "proprietary"
    return tuple(sorted((kind for kind in flavours if has[kind]), key=lambda kind: kind != preferred))


def flavour_of(cards: Collection[Card], driver: Driver) -> str:
    """The kernel module to install: the inventory's, or the preferred one that all GPUs and the branch support.

    Raises HostError if a GPU or the branch does not support the inventory's module, or if they have none in common.
    """
    table = catalogue.driver_table()
    if driver.flavour == "auto":
        common = fit({str(number): card for number, card in enumerate(cards)}).flavours if cards else _FLAVOURS
        for card in cards:
            if not flavours_at(driver.branch, card.module_flavours):
                check_branch({"": card}, driver.branch)
        left = flavours_at(driver.branch, common)
        return "proprietary" if driver.source == "ubuntu-server" and "proprietary" in left else left[0]
    if driver.flavour == "open" and int(driver.branch) < table.open_module_from:
        problem = f"branch {driver.branch} has no open kernel module"
        raise HostError("driver.flavour", problem, f"branch {table.open_module_from} or newer", "flavour: auto")
    if driver.flavour == "proprietary" and int(driver.branch) >= table.open_module_only_from:
        problem = f"branch {driver.branch} has only the open kernel module"
        last = [name for name in catalogue.branches() if int(name) < table.open_module_only_from][-1]
        raise HostError("driver.flavour", problem, f"the open module, or a branch up to {last}", "flavour: auto")
    for card in cards:
        if driver.flavour not in card.module_flavours:
            raise HostError(
                "driver.flavour",
                f"the {driver.flavour} kernel module does not support the {card.label}",
                " or ".join(card.module_flavours),
                "flavour: auto",
            )
    return driver.flavour


_FLAVOURS = ("proprietary", "open")


def check_branch(gpus: Mapping[str, Card], branch: str) -> None:
    """Returns if the branch supports every GPU. Otherwise raises HostError with the GPU and the common branches."""
    for where, card in gpus.items():
        if not runs(card, int(branch)) or not flavours_at(branch, card.module_flavours):
            common = fit(gpus)
            names = common.branches
            kind = " or ".join(card.module_flavours)
            other = "open" if kind == "proprietary" else "proprietary"
            no_module = f": {branch} has only the {other} kernel module, and this GPU runs on the {kind} one"
            lacks = "" if flavours_at(branch, card.module_flavours) else no_module
            listed = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
            spans = dict.fromkeys(_span(other.label, other) for other in gpus.values())
            raise HostError(
                "driver.branch",
                f"branch {branch} does not support the {card.label}{f' at {where}' if where else ''}{lacks}",
                f"a branch that all GPUs run, {listed} ({'; '.join(spans)})",
                f"driver: {{branch: '{common.recommended}'}}",
            )


def check_cuda(gpus: Mapping[str, Card], toolkit: str) -> None:
    """Returns if the CUDA toolkit supports every GPU. Otherwise raises HostError with the GPU."""
    for where, card in gpus.items():
        if card.last_cuda and numbers(toolkit) > numbers(card.last_cuda):
            problem = f"CUDA {toolkit} has no code for the {card.label} at {where}"
            raise HostError("cuda.toolkit", problem, f"CUDA {card.last_cuda} or older", f"toolkit: '{card.last_cuda}'")


def check_toolkit(driver: Driver, toolkit: str) -> str:
    """Limits of a CUDA toolkit with a driver: "" if fully supported, otherwise what is missing with that driver.

    Raises HostError when the driver is older than the minimum of the toolkit's family.
    """
    newest, known = _newest(driver), catalogue.toolkits().get(toolkit)
    if not newest or not known or numbers(newest) >= numbers(known.shipped_driver):
        return ""
    least = catalogue.family_minimum(toolkit)
    installed = driver.version or f"branch {driver.branch}"
    if numbers(newest) >= numbers(least):
        return (
            f"CUDA {toolkit} came with driver {known.shipped_driver}; "
            f"on {installed} it runs by minor-version compatibility, without PTX JIT"
        )
    fits = [name for name in catalogue.toolkits() if numbers(catalogue.family_minimum(name)) <= numbers(newest)]
    raise HostError(
        "cuda.toolkit",
        f"CUDA {toolkit} needs driver {least} or newer, and {installed} is older",
        f"CUDA {fits[-1] if fits else '?'} or older",
        f"cuda: {{toolkit: '{fits[-1]}'}}, or a newer driver branch" if fits else "a newer driver branch",
    )


def runs_toolkit(gpus: Mapping[str, Card], driver: Driver, toolkit: str) -> bool:
    """Whether all GPUs and the driver support a CUDA toolkit, at least by minor-version compatibility."""
    with contextlib.suppress(HostError):
        check_cuda(gpus, toolkit)
        check_toolkit(driver, toolkit)
        return True
    return False


class TorchChoice(Struct, frozen=True):
    """PyTorch wheels (cu126), and the last torch version with kernels for the GPUs; None if they are still built."""

    name: str
    last: str | None


def torch_wheel(models: Collection[Model], driver: Driver) -> TorchChoice | None:
    """The PyTorch wheels with kernels for all models that work with the driver; None if none are known.

    The newest torch has precedence, then a CUDA that the branch itself supports, then the newest CUDA.
    """
    newest, branch = _newest(driver), catalogue.branches().get(driver.branch)
    speaks = numbers(branch.cuda) if branch and branch.cuda else ()
    architectures = {model.architecture for model in models}
    choices = []
    for name, wheel in catalogue.torch_wheels().wheels.items():
        if not newest or not models or numbers(newest) < numbers(catalogue.family_minimum(wheel.cuda)):
            continue
        try:
            last = wheel.last_for(architectures)
        except LookupError:
            continue
        merit = (numbers(last) if last else (_ENDLESS,), numbers(wheel.cuda) <= speaks, numbers(wheel.cuda))
        choices.append((merit, TorchChoice(name, last)))
    return max(choices, key=lambda choice: choice[0])[1] if choices else None


def _newest(driver: Driver) -> str:
    """The driver's version, or the newest known version of its branch; "" if none is known."""
    branch = catalogue.branches().get(driver.branch)
    return driver.version or (branch.versions[-1] if branch and branch.versions else "")


def _span(text: str, card: Card) -> str:
    return f"{text}, branches {card.first_branch or '?'} to {card.last_branch or 'the newest'}"


def _flavours(text: str, card: Card) -> str:
    return f"{text}, {' or '.join(card.module_flavours)} module only"
