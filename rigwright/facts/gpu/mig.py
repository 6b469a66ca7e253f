"""MIG of the GPUs: the mode from nvidia-smi, and the instances from NVML."""

from __future__ import annotations

import re
from typing import Any

from rigwright.core import host_text
from rigwright.core.command import Result, command, script
from rigwright.core.control_characters import one_line
from rigwright.core.mig import MigInstance
from rigwright.core.schema import BusId, bus_id
from rigwright.facts import Fact, Unavailable
from rigwright.facts.gpu.gpus import modes_of
from rigwright.facts.gpu.nvidia_smi import XML

PROGRAM = "/usr/local/lib/rigwright/gpu_mig.py"
UNIT = "gpu-mig.service"
MOST_GPUS, MOST_INSTANCES = 64, 16


modes = Fact("mig.modes", XML, lambda result: modes_of(result, "mig_mode/current_mig", "mig_mode/pending_mig"))
"""The MIG mode of all GPUs of the driver, also lost ones."""


def _document(result: Result) -> list[dict[str, Any]]:
    if result.code == 2 or "can't open file" in result.error_text:
        raise Unavailable(f"known when {PROGRAM} is on the host")
    if result.code != 0:
        raise Unavailable(f"NVML: {host_text.lines(result.error_text)[-1] if result.error_text else 'no answer'}")
    document = host_text.json_value(result.text)
    gpus = document.get("gpus") if isinstance(document, dict) else None
    if not isinstance(gpus, list) or len(gpus) > MOST_GPUS or not all(isinstance(gpu, dict) for gpu in gpus):
        raise ValueError("no JSON object with GPUs")
    return [gpu for gpu in gpus if "error" not in gpu]


def _bus_id(gpu: dict[str, Any]) -> BusId:
    at = str(gpu["pci_bus_id"])
    if not re.fullmatch(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]", at):
        raise ValueError(f"{at[:40]!r} is no bus id")
    return bus_id(at)


def _instance(given: Any) -> MigInstance:
    profile, parts = str(given["profile"]), tuple(int(part) for part in given["parts"][:MOST_INSTANCES])
    if not re.fullmatch(r"\dg\.[\w.+-]{1,30}", profile):
        raise ValueError(f"{profile[:40]!r} is no profile")
    return MigInstance(profile, tuple(sorted(parts)))


def _layouts(result: Result) -> dict[BusId, tuple[MigInstance, ...]]:
    try:
        return {_bus_id(gpu): tuple(map(_instance, gpu["layout"][:MOST_INSTANCES])) for gpu in _document(result)}
    except (KeyError, TypeError) as error:
        raise ValueError(f"a GPU without {error}") from None


layouts = Fact("mig.layouts", command("python3", PROGRAM, "show", timeout_s=60), _layouts)
"""The MIG instances of each GPU that answers, by bus id; () for a GPU without MIG mode."""

_CHECK = 'config=$1; printf %s "$config" | python3 "$2" check --config -'


def refused(config: str) -> Fact[dict[BusId, str]]:
    """The instances of a configuration (mig.json) that the driver would refuse, by bus id of their GPU."""

    def parse(result: Result) -> dict[BusId, str]:
        refusals = {_bus_id(gpu): gpu["refused"] for gpu in _document(result) if gpu.get("refused")}
        return {at: one_line(str(refused))[2:-2][:400] for at, refused in refusals.items()}

    return Fact(f"mig.refused({config})", script(_CHECK, config, PROGRAM, timeout_s=60), parse)
