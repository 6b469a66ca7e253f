"""Injects faults into virtual machines, removes them and lists them. Each fault is a module of lab/vm/faults."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable
from typing import Protocol, cast

from lab.base.lock import lock, need_root
from lab.hardware.rigfile import describe
from lab.host.active_faults import Standing, save, standing
from lab.vm import faults, machine
from lab.vm.machine import Machine
from rigwright.core.errors import HostError, UsageError

Say = Callable[[str], None]


class Fault(Protocol):
    """A module of lab/vm/faults."""

    ONE_GPU: bool
    AT_POWER_ON: bool

    def apply(self, machine: Machine, gpu: str) -> None: ...

    def heal(self, machine: Machine, gpu: str) -> None: ...


def names() -> list[str]:
    """Returns the names of all faults."""
    return sorted(found.name.replace("_", "-") for found in pkgutil.iter_modules(faults.__path__))


def find(name: str) -> Fault:
    """Returns the fault with that name. Raises UsageError with the most similar name if there is none."""
    if not name:
        raise UsageError("lab.fault", "no fault is named", ", ".join(names()), "--fault NAME")
    if name not in names():
        raise UsageError(
            "lab.fault", f"a virtual machine has no fault {name!r}", ", ".join(names()), _close(name, names())
        )
    return cast(Fault, importlib.import_module(f"lab.vm.faults.{name.replace('-', '_')}"))


def told(name: str) -> tuple[str, str]:
    """Returns the effect and the symptoms of a fault: the first paragraph of its docstring, and the rest."""
    first, _, then = (inspect.getdoc(find(name)) or "").partition("\n\n")
    return " ".join(first.split()), " ".join(then.split())


def fault(one: Machine, name: str, gpu: str, say: Say) -> None:
    """Applies a fault to a machine. Raises UsageError for an unknown fault or GPU, and for a machine that is off."""
    wanted = find(name)
    need_root(" ".join(["lab.fault", "--host", one.name, "--fault", name, *(["--gpu", gpu] if gpu else [])]))
    number = _gpu(one, name, wanted, gpu)
    with lock(say):
        if not machine.running(one.name):
            raise UsageError(
                one.name, "it is off", "a running machine", f"sudo .venv/bin/invoke lab.up --vm --name {one.name}"
            )
        found = Standing(name, number, None)
        before = standing(one.name)
        save(one.name, [*(other for other in before if other != found), found])  # saved first, to heal partial faults
        try:
            wanted.apply(one, _position(one, number))
        except HostError:
            save(one.name, before)
            raise
    say(f"{one.name}: {found}: {told(name)[0]}")


def heal(one: Machine, name: str, say: Say) -> None:
    """Removes a fault from all GPUs of a machine, or all faults if `name` is "". Raises UsageError for an unknown
    fault."""
    if name:
        find(name)
    need_root(" ".join(["lab.heal", "--host", one.name, *(["--fault", name] if name else [])]))
    with lock(say):
        there = [found for found in standing(one.name) if name in ("", found.name)]
        if not there:
            say(f"{one.name}: {f'no {name}' if name else 'no fault'}, nothing to heal")
        for found in reversed(there):
            find(found.name).heal(one, _position(one, found.gpu))
            save(one.name, [other for other in standing(one.name) if other != found])
            say(f"{one.name}: {found} healed")


def renew(one: Machine) -> None:
    """Applies the hardware faults of a machine that was just switched on: a new QEMU process does not have them."""
    for found in standing(one.name):
        wanted = find(found.name)
        if wanted.AT_POWER_ON:
            wanted.apply(one, _position(one, found.gpu))


def _gpu(one: Machine, name: str, wanted: Fault, gpu: str) -> int | None:
    """Returns the number of the GPU (default: 0), or None for a fault of the whole machine. Raises UsageError."""
    count = len(describe(one.rig)["gpus"]) if one.rig else 0
    if not wanted.ONE_GPU:
        if gpu:
            raise UsageError("lab.fault", f"--gpu {gpu}: {name} is of the whole machine", fix="leave --gpu out")
        return None
    if count == 0:
        raise UsageError(one.name, f"{name}: a machine without a rig has no GPU", "a machine with a GPU")
    if gpu and gpu not in map(str, range(count)):
        raise UsageError(one.name, f"no GPU {gpu!r}", f"0 to {count - 1}", "as nvidia-smi -L counts the whole rig")
    return int(gpu or 0)


def _position(one: Machine, number: int | None) -> str:
    """Returns the position of a GPU in the rig; "" for the whole machine."""
    return "" if number is None or one.rig is None else str(describe(one.rig)["gpus"][number]["position"])


def _close(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f"did you mean {close[0]!r}?" if close else "choose one of them"
