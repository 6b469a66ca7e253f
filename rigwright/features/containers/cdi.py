"""Whether the CDI specification of a host is right: for the loaded driver, for every GPU, with files that exist."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from rigwright.facts import Facts, pci
from rigwright.facts import driver as state
from rigwright.features.containers import facts as containers
from rigwright.features.containers.facts import KIND, Specification

PATH = "/var/run/cdi/nvidia.yaml"
"""Where the toolkit's own unit writes the specification at boot, after a driver change, and when it is started."""
REFRESH, REFRESH_PATH = "nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path"
"""The units of the toolkit, from release 1.18 on."""


ASKED = (containers.specifications, state.loaded_version, pci.gpus)
"""The facts that `judge` needs first."""


class Judgement(Struct, frozen=True):
    """What is wrong with the specification, "" if nothing is, and the symptom of the catalogue. `seen`: what it
    says."""

    problem: str
    symptom: str
    seen: str


def in_force(specifications: Sequence[Specification]) -> Specification | None:
    """The specification that engines use for the device `all`: the last one that has it."""
    return next((one for one in reversed(specifications) if "all" in one.devices), None)


def conflicts(specifications: Sequence[Specification]) -> list[tuple[str, str, str]]:
    """(device, path, path) of each pair of files of one folder that define the same device, which is then none."""
    found: list[tuple[str, str, str]] = []
    for number, one in enumerate(specifications):
        for other in specifications[number + 1 :]:
            shared = sorted(set(one.devices) & set(other.devices))
            if shared and one.folder == other.folder:
                found.append((shared[0], one.path, other.path))
    return found


def judge(facts: Facts) -> Judgement:
    """What the specification says, and what is wrong with it for the loaded driver and its GPUs."""
    specifications, loaded, bus = facts.all(*ASKED)
    broken = next((one for one in specifications if one.problem), None)
    used = in_force(specifications)
    if broken is not None and (used is None or broken.path == PATH):
        return Judgement(f"{broken.path} cannot be read: {broken.problem}", "container.cdi_outdated", "unreadable")
    if used is None:
        return Judgement(f"no CDI specification has {KIND}=all", "container.cdi_unresolved", "none")
    gone = facts(containers.missing(used.paths))
    gpus = [gpu for gpu in bus if gpu.driver == "nvidia"]
    named = {name.split(":")[0] for name in used.devices if re.fullmatch(r"\d{1,3}(:\d{1,3})?", name)}
    seen = f"{used.path}: driver {', '.join(used.versions) or 'none'}, {len(named)} GPUs, {len(used.paths)} files"
    if clash := [(device, one, other) for device, one, other in conflicts(specifications) if used.path in (one, other)]:
        device, one, other = clash[0]
        return Judgement(f"{one} and {other} both define {KIND}={device}", "container.cdi_unresolved", seen)
    if used.versions != (loaded,):
        return Judgement(
            f"{used.path} names driver {', '.join(used.versions) or 'none'}, and {loaded} is loaded",
            "container.cdi_outdated",
            seen,
        )
    if gone:
        more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""
        return Judgement(
            f"{used.path} names {', '.join(gone[:3])}{more}, which is not there", "container.cdi_outdated", seen
        )
    lacking = [str(index) for index in range(len(gpus)) if str(index) not in named]
    if lacking:
        return Judgement(f"{used.path} has no device for GPU {', '.join(lacking)}", "container.cdi_outdated", seen)
    if without := [name for name in facts(containers.mig_devices) if name not in used.devices]:
        found = f"{used.path} has no device for MIG device {', '.join(without[:4])}"
        return Judgement(found, "container.cdi_outdated", seen)
    return Judgement("", "", seen)


def device_of(specification: Specification | None, index: int) -> str:
    """The name of a GPU's device in a specification: its index, or its first MIG device where the whole GPU has
    none."""
    names = specification.devices if specification else {}
    return next((name for name in (str(index), f"{index}:0") if name in names), str(index))
