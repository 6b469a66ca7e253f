"""GPUs are granted each other's memory, and what goes directly between them never ends, until a driver of another
branch is loaded.

nvidia-smi topo -p2p r says OK; copies between GPUs and NCCL hang, with the GPUs busy, and go with NCCL_P2P_DISABLE=1.
"""

from __future__ import annotations

from itertools import combinations

from lab.faults import tamper
from lab.hardware import hw_state
from lab.hardware.board import P2P_STATUS
from lab.host.disk import Host
from rigwright.core.errors import UsageError

NEEDS: tuple[str, ...] = ("gpu", "several-gpus")
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    keys = {"p2p": P2P_STATUS["OK"], "fault.pair": f"hang@{loaded_branch(host)}"}
    tamper.remembers(host, **{f"{key}.{pair}": value for pair in pairs_of(host) for key, value in keys.items()})


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.remembers(host, **{f"{key}.{pair}": "" for pair in pairs_of(host) for key in ("p2p", "fault.pair")})


def loaded_branch(host: Host) -> str:
    """Returns the branch of the loaded driver, such as 535. Raises UsageError when none is loaded."""
    branch = hw_state.read(host.hw, hw_state.VOLATILE).get("driver.loaded", "none").partition(".")[0]
    if branch == "none":
        raise UsageError(host.name, "no driver is loaded", "a driver that is loaded", "invoke provision, or nvidia-smi")
    return branch


def pairs_of(host: Host) -> list[str]:
    """Returns all pairs of GPUs, such as 0-1."""
    count = int(hw_state.read(host.hw, hw_state.BOARD).get("gpus", 0))
    return [f"{a}-{b}" for a, b in combinations(range(count), 2)]
