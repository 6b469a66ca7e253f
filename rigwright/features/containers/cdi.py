"""Whether the CDI specification of a host is right: for the loaded driver, for every GPU, with files that exist."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from msgspec import Struct

from rigwright.facts import Facts, driver as state, pci
from rigwright.features.containers import facts as containers
from rigwright.features.containers.facts import KIND, Specification

PATH = "/var/run/cdi/nvidia.yaml"
"""Where the toolkit's own unit writes the specification at boot, after a driver change, and when it is started."""
REFRESH, REFRESH_PATH = "nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path"
"""The units of the toolkit, from release 1.18 on."""
ASKED = (containers.specifications, state.loaded_version, pci.gpus)
"""The facts that `judge` needs first."""


class Judgement(Struct, frozen=True):
    """The problem of the specification with its symptom in the catalogue, "" without one. `seen`: a summary of the
    specification."""

    problem: str
    symptom: str
    seen: str


def in_force(specifications: Sequence[Specification]) -> Specification | None:
    """The specification that engines use for the device `all`: the last one that has it."""
    return next((each for each in reversed(specifications) if "all" in each.devices), None)


def conflicts(specifications: Sequence[Specification]) -> list[tuple[str, str, str]]:
    """(device, path, path) of each two files of one folder that define the same device; engines then ignore it."""
    found = []
    for first, second in itertools.combinations(specifications, 2):
        shared = sorted(set(first.devices) & set(second.devices))
        if shared and first.folder == second.folder:
            found.append((shared[0], first.path, second.path))
    return found


def judge(facts: Facts) -> Judgement:
    """What the specification says, and what is wrong with it for the loaded driver and its GPUs."""
    specifications, loaded, bus = facts.all(*ASKED)
    broken = next((each for each in specifications if each.problem), None)
    used = in_force(specifications)
    if broken is not None and (used is None or broken.path == PATH):
        return Judgement(f"{broken.path} cannot be read: {broken.problem}", "container.cdi_outdated", "unreadable")
    if used is None:
        return Judgement(f"no CDI specification has {KIND}=all", "container.cdi_unresolved", "none")
    gone = facts(containers.missing(used.paths))
    gpus = [gpu for gpu in bus if gpu.driver == "nvidia"]
    named = {name.split(":")[0] for name in used.devices if re.fullmatch(r"\d{1,3}(:\d{1,3})?", name)}
    versions = ", ".join(used.versions) or "none"
    seen = f"{used.path}: driver {versions}, {len(named)} GPUs, {len(used.paths)} files"
    for device, first, second in conflicts(specifications):
        if used.path in (first, second):
            return Judgement(f"{first} and {second} both define {KIND}={device}", "container.cdi_unresolved", seen)
    problem = ""
    if used.versions != (loaded,):
        problem = f"names driver {versions}, and {loaded} is loaded"
    elif gone:
        more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""
        problem = f"names {', '.join(gone[:3])}{more}, which is not there"
    elif lacking := [str(index) for index in range(len(gpus)) if str(index) not in named]:
        problem = f"has no device for GPU {', '.join(lacking)}"
    elif without := [name for name in facts(containers.mig_devices) if name not in used.devices]:
        problem = f"has no device for MIG device {', '.join(without[:4])}"
    return Judgement(f"{used.path} {problem}", "container.cdi_outdated", seen) if problem else Judgement("", "", seen)


def device_of(specification: Specification | None, index: int) -> str:
    """The name of a GPU's device in a specification: its index, or its first MIG device."""
    names = specification.devices if specification else {}
    return next((name for name in (str(index), f"{index}:0") if name in names), str(index))
