"""MIG of the GPUs: the mode, as nvidia-smi says it, and the instances, as NVML has them."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.command import Result, command, script
from rigwright.core.control_characters import one_line
from rigwright.core.mig import MigInstance
from rigwright.core.schema import BusId, bus_id
from rigwright.facts import Fact, Unavailable
from rigwright.facts.gpu import gpus as gpu
from rigwright.facts.gpu import smi

PROGRAM = "/usr/local/lib/rigwright/gpu_mig.py"
UNIT = "gpu-mig.service"
MOST_GPUS, MOST_INSTANCES = 64, 16


class MigMode(Struct, frozen=True):
    """MIG of one GPU. `current`: in force; `pending`: after the next reset or boot. Both None: the GPU has no MIG, or
    is lost."""

    uuid: str
    bus_id: BusId
    name: str
    current: bool | None
    pending: bool | None
    lost: str = ""


def _modes(result: Result) -> tuple[MigMode, ...]:
    return tuple(MigMode(*row) for row in gpu.modes_of(result, "mig_mode/current_mig", "mig_mode/pending_mig"))


modes = Fact("mig.modes", smi.XML, _modes)
"""The MIG mode of all GPUs of the driver, also lost ones."""


def _document(result: Result) -> list[dict[str, Any]]:
    if result.code == 2 or "can't open file" in result.error_text:
        raise Unavailable(f"known when {PROGRAM} is on the host")
    if result.code != 0:
        raise Unavailable(f"NVML: {host_text.lines(result.error_text)[-1] if result.error_text else 'no answer'}")
    document = host_text.json_value(result.text)
    gpus = document.get("gpus") if isinstance(document, dict) else None
    if not isinstance(gpus, list) or len(gpus) > MOST_GPUS or not all(isinstance(one, dict) for one in gpus):
        raise ValueError("no JSON object with GPUs")
    return gpus


def _at(one: dict[str, Any]) -> BusId:
    at = str(one["pci_bus_id"])
    if not re.fullmatch(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]", at):
        raise ValueError(f"{at[:40]!r} is no bus id")
    return bus_id(at)


def _instance(one: Any) -> MigInstance:
    profile, parts = str(one["profile"]), tuple(int(part) for part in one["parts"][:MOST_INSTANCES])
    if not re.fullmatch(r"\dg\.[\w.+-]{1,30}", profile):
        raise ValueError(f"{profile[:40]!r} is no profile")
    return MigInstance(profile, tuple(sorted(parts)))


def _layouts(result: Result) -> dict[BusId, tuple[MigInstance, ...]]:
    found = {}
    for one in _document(result):
        if "error" not in one:
            try:
                found[_at(one)] = tuple(_instance(each) for each in one["layout"][:MOST_INSTANCES])
            except (KeyError, TypeError) as error:
                raise ValueError(f"a GPU without {error}") from None
    return found


layouts = Fact("mig.layouts", command("python3", PROGRAM, "show", timeout_s=60), _layouts)
"""The MIG instances of each GPU that answers, by bus id; () of a GPU without MIG mode."""

_CHECK = 'config=$1; printf %s "$config" | python3 "$2" check --config -'


def refused(config: str) -> Fact[dict[BusId, str]]:
    """What the driver of each GPU would refuse of its layout in a configuration (mig.json), by bus id; nothing where it
    fits."""

    def parse(result: Result) -> dict[BusId, str]:
        found = {}
        for one in _document(result):
            if one.get("refused") and "error" not in one:
                found[_at(one)] = one_line(str(one["refused"]))[2:-2][:400]
        return found

    return Fact(f"mig.refused({config})", script(_CHECK, config, PROGRAM, timeout_s=60), parse)
