"""What the GPUs of one host can run together: the intersection of what each of them can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rigwright import catalogue
from rigwright.catalogue import Model
from rigwright.errors import HostError
from rigwright.versions import numbers


@dataclass(frozen=True)
class Fit:
    """What all of a host's GPUs can run.

    `branches`: driver branches of the catalogue, oldest first. `flavours`: of the kernel module, never empty.
    `last_cuda`: the newest CUDA toolkit with code for all, None when nothing limits it. `verbs`: what each model's clocks
    are set with. `fabric_manager`: NVSwitch boards want one. The `*_by` name the GPU that sets a limit.
    """

    branches: tuple[str, ...]
    first_by: str
    last_by: str
    flavours: tuple[str, ...]
    flavour_by: str
    last_cuda: str | None
    last_cuda_by: str
    verbs: Mapping[str, tuple[str, ...]]
    fabric_manager: bool

    @property
    def recommended(self) -> str:
        """The common branch that is supported longest; the newest of those whose end of life is the same or unknown."""
        known = catalogue.branches()
        return max(self.branches, key=lambda name: (known[name].kind == "long-term support", int(name)))


def fit(gpus: Mapping[str, Model], nvswitches: int = 0) -> Fit:
    """The intersection over GPUs, each under the name that messages use (its position and bus id).

    Raises HostError that names two GPUs with their limits when they have no branch, or no flavour, in common.
    """
    named = [(f"{model.name} ({where})" if where else model.name, model) for where, model in gpus.items()]
    newest_first = max(named, key=lambda one: one[1].first_branch)
    endless = 10_000
    oldest_last = min(named, key=lambda one: one[1].last_branch or endless)
    low, high = newest_first[1].first_branch, oldest_last[1].last_branch or endless
    branches = tuple(name for name in catalogue.branches() if low <= int(name) <= high)
    if not branches:
        raise HostError(
            "driver.branch",
            f"no driver branch drives both the {_span(*oldest_last)} and the {_span(*newest_first)}",
            "GPUs with a branch in common",
            "move one of the two to another machine",
        )
    flavours = tuple(one for one in ("proprietary", "open") if all(one in model.module_flavours for _, model in named))
    strict = next((one for one in named if len(one[1].module_flavours) == 1), None)
    if not flavours:
        other = next(
            one for one in named if strict and not set(one[1].module_flavours) & set(strict[1].module_flavours)
        )
        assert strict is not None
        raise HostError(
            "driver.flavour",
            f"no kernel module drives both the {_flavour(*strict)} and the {_flavour(*other)}",
            "GPUs that run on the same module",
            "move one of the two to another machine",
        )
    bounded = [(text, model) for text, model in named if model.last_cuda]
    last = min(bounded, key=lambda one: numbers(one[1].last_cuda or ""), default=None)
    return Fit(
        branches,
        newest_first[1].name,
        oldest_last[1].name if oldest_last[1].last_branch else "",
        flavours,
        strict[1].name if strict else "",
        last[1].last_cuda if last else None,
        last[1].name if last else "",
        {model.name: tuple(model.clock_verbs) for _, model in named},
        nvswitches > 0 or any(model.fabric == "nvswitch" for _, model in named),
    )


def cuda_ceiling(found: Fit, branch: str) -> tuple[str | None, str]:
    """The newest CUDA toolkit that a branch's driver and all GPUs run, and what sets the limit; None: nothing known does."""
    known = catalogue.branches().get(branch)
    by_driver = known.cuda if known else None
    options = [
        (value, why) for value, why in ((by_driver, f"driver {branch}"), (found.last_cuda, found.last_cuda_by)) if value
    ]
    return min(options, key=lambda one: numbers(one[0]), default=(None, ""))


def check_branch(gpus: Mapping[str, Model], branch: str) -> None:
    """Nothing, when every GPU runs on a branch. Raises HostError that names the one that does not, and the common branches."""
    for where, model in gpus.items():
        if int(branch) < model.first_branch or (model.last_branch is not None and int(branch) > model.last_branch):
            both = fit(gpus)
            spans = dict.fromkeys(_span(one.name, one) for one in gpus.values())
            raise HostError(
                "driver.branch",
                f"branch {branch} does not drive the {model.name}{f' at {where}' if where else ''}",
                f"a branch that all GPUs run, {_listed(both.branches)} ({'; '.join(spans)})",
                f"driver: {{branch: '{both.recommended}'}}",
            )


def check_cuda(gpus: Mapping[str, Model], toolkit: str) -> None:
    """Nothing, when a CUDA toolkit has code for every GPU. Raises HostError that names the one it has none for."""
    for where, model in gpus.items():
        if model.last_cuda and numbers(toolkit) > numbers(model.last_cuda):
            found = f"CUDA {toolkit} has no code for the {model.name} at {where}"
            raise HostError("cuda.toolkit", found, f"CUDA {model.last_cuda} or older", f"toolkit: '{model.last_cuda}'")


def _span(text: str, model: Model) -> str:
    return f"{text}, branches {model.first_branch} to {model.last_branch or 'the newest'}"


def _flavour(text: str, model: Model) -> str:
    return f"{text}, {' or '.join(model.module_flavours)} module only"


def _listed(branches: tuple[str, ...]) -> str:
    return branches[0] if len(branches) == 1 else f"{branches[0]} to {branches[-1]}"
