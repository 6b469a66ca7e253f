"""Injects faults into hosts, removes them and lists them. Each fault is a module of lab/faults/catalogue."""

from __future__ import annotations

import difflib
import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Callable, Iterable
from typing import Protocol, cast

from lab.base.lock import lock, need_root
from lab.faults import catalogue
from lab.hardware import hw_state
from lab.hardware.board import board_conf, model
from lab.hardware.rigfile import describe
from lab.host import disk
from lab.host.active_faults import Standing, save, standing
from lab.host.disk import Host
from rigwright.core.errors import UsageError

Say = Callable[[str], None]


class Fault(Protocol):
    """A module of lab/faults/catalogue."""

    NEEDS: tuple[str, ...]
    ONE_GPU: bool
    LASTS: int | None

    def apply(self, host: Host, gpu: int) -> None: ...

    def heal(self, host: Host, gpu: int) -> None: ...


PARTS = {
    "rig": "a rig",
    "gpu": "a GPU",
    "several-gpus": "a second GPU",
    "nvlink": "NVLink",
    "ecc": "memory with ECC",
    "memory-limit": "a known limit of its memory's temperature",
    "rails": "power supplies whose voltage is simulated",
    "p2p": "a pair of GPUs that may reach each other's memory",
    "fabric": "NVSwitches and their fabric manager",
    "infiniband": "an InfiniBand or RoCE adapter",
}
"""Text for each part that a fault can need."""


def names() -> list[str]:
    """Returns the names of all faults."""
    return sorted(found.name.replace("_", "-") for found in pkgutil.iter_modules(catalogue.__path__))


def find(name: str) -> Fault:
    """Returns the fault with that name. Raises UsageError with the most similar name if there is none."""
    if not name:
        raise UsageError("lab.fault", "no fault is named", ", ".join(names()), "--fault NAME")
    if name not in names():
        raise UsageError("lab.fault", f"unknown fault {name!r}", ", ".join(names()), _close(name, names()))
    return cast(Fault, importlib.import_module(f"lab.faults.catalogue.{name.replace('-', '_')}"))


def told(name: str) -> tuple[str, str]:
    """Returns the effect and the symptoms of a fault: the first paragraph of its docstring, and the rest."""
    first, _, then = (inspect.getdoc(find(name)) or "").partition("\n\n")
    return " ".join(first.split()), " ".join(then.split())


def parts(rig: str | None, gpu: int | None = None) -> set[str]:
    """Returns the parts (keys of PARTS) that a host of that rig has; with `gpu`, the parts that concern that GPU."""
    if rig is None:
        return set()
    described = describe(rig)
    board = hw_state.parse(board_conf(described, {gpu["model"]: model(gpu["model"]) for gpu in described["gpus"]}))
    models = [one["model"] for number, one in enumerate(described["gpus"]) if gpu in (None, number)]
    switched = bool(described["nvswitches"]) and any(board[f"model.{name}.nvlinks"] != "0" for name in models)
    pairs = [
        f"{a}-{b}" for a, b in itertools.combinations(range(len(described["gpus"])), 2) if gpu is None or gpu in (a, b)
    ]
    linked = {pair for pair in pairs if switched or pair in described["nvlinks"]}
    usual = described["p2p"]["default"]
    granted = [pair for pair in pairs if described["p2p"].get(pair, "OK" if pair in linked else usual) == "OK"]
    found = {
        "rig": True,
        "gpu": board["gpus"] != "0",
        "several-gpus": int(board["gpus"]) > 1,
        "nvlink": bool(linked),
        "ecc": any(board.get(f"model.{name}.ecc", "0") not in ("", "0") for name in models),
        "memory-limit": any(
            board.get(f"model.{name}.temp.memory_{key}") for name in models for key in ("max", "throttle")
        ),
        "rails": board.get("rails", "0") != "0",
        "p2p": bool(granted),
        "fabric": bool(described["nvswitches"]),
        "infiniband": bool(described["infiniband"]),
    }
    return {name for name, there in found.items() if there}


def fault(host_name: str, name: str, gpu: str, say: Say) -> None:
    """Applies a fault to a host.

    Raises UsageError for an unknown host, fault or GPU, and if the rig lacks a needed part.
    """
    one, wanted = the(host_name), find(name)
    number = _gpu(one, name, wanted, gpu)
    there = parts(one.rig, number)
    lacks = [PARTS[part] for part in wanted.NEEDS if part not in there]
    if lacks:
        what = "a host without a rig" if one.rig is None else f"rig {one.rig}" + (f"'s GPU {number}" if number else "")
        raise UsageError(
            one.name,
            f"{name}: {what} has no {lacks[0].removeprefix('a ').removeprefix('an ')}",
            f"a host with {lacks[0]}",
        )
    need_root(" ".join(["lab.fault", "--host", host_name, "--fault", name, *(["--gpu", gpu] if gpu else [])]))
    if number is not None and hw_state.values(one.hw).get(f"gpu{number}.absent", "0") != "0" and name != "gpu-missing":
        raise UsageError(
            one.name, f"GPU {number} is not on the bus in this boot", "one that is there", "lab.status, lab.heal"
        )
    with lock(say):
        before = standing(one.name)
        others = [other for other in before if (other.name, other.gpu) != (name, number)]
        save(one.name, [*others, Standing(name, number, wanted.LASTS)])  # saved first, to heal partial faults
        try:
            wanted.apply(one, number or 0)
        except UsageError:
            save(one.name, before)
            raise
    say(f"{one.name}: {Standing(name, number, None)}: {told(name)[0]}")


def heal(host_name: str, name: str, say: Say) -> None:
    """Removes a fault from all GPUs of a host, or all faults if `name` is "".

    Raises UsageError for an unknown host or fault.
    """
    one = the(host_name)
    if name:
        find(name)
    need_root(" ".join(["lab.heal", "--host", host_name, *(["--fault", name] if name else [])]))
    with lock(say):
        there = [found for found in standing(one.name) if name in ("", found.name)]
        if not there:
            say(f"{one.name}: {f'no {name}' if name else 'no fault'}, nothing to heal")
        for found in reversed(there):
            find(found.name).heal(one, found.gpu or 0)
            save(one.name, [other for other in standing(one.name) if other != found])
            say(f"{one.name}: {found} healed")


def the(name: str) -> Host:
    """Returns the lab host with that name.

    Raises UsageError for other hosts: faults are injected into lab hosts only.
    """
    known = {one.name: one for one in disk.known()}
    found = known.get(name)
    if not name:
        raise UsageError("lab", "no host is named", "a host of the lab", "--host NAME")
    if found is None:
        todo = _close(name, known) if known else f"sudo .venv/bin/invoke lab.up --name {name}"
        raise UsageError("lab", f"{name!r} is no host of the lab", ", ".join(known) or "a host that lab.up made", todo)
    return found


def _gpu(one: Host, name: str, wanted: Fault, gpu: str) -> int | None:
    """Returns the number of the GPU (default: 0), or None if the fault affects the whole host.

    Raises UsageError for an unknown GPU, and for a GPU with a fault of the whole host.
    """
    if not wanted.ONE_GPU:
        if gpu:
            raise UsageError("lab.fault", f"--gpu {gpu}: {name} is of the whole host", fix="leave --gpu out")
        return None
    count = len(describe(one.rig)["gpus"]) if one.rig else 0
    there = [str(number) for number in range(count)]
    if gpu and there and gpu not in there:
        close = _close(gpu, there) if not gpu.isdigit() else ""
        raise UsageError(
            one.name, f"no GPU {gpu!r}", f"0 to {count - 1}", close or "as nvidia-smi -L counts the whole rig"
        )
    return int(gpu or 0)


def _close(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f"did you mean {close[0]!r}?" if close else "choose one of them"
