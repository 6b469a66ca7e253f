"""Which GPUs of a machine are best joined: NVLinks first, then a common PCIe switch, root complex and NUMA node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from rigwright.core.errors import HostError
from rigwright.core.gpu_labels import place
from rigwright.core.numbers import count
from rigwright.core.schema import BusId
from rigwright.facts.gpu import Gpu, Process
from rigwright.facts.topology import NvLink, Place

MOST_GPUS = 20
"""Of more GPUs there are too many groups to compare; a machine with NVIDIA GPUs has 16 at most."""


@dataclass(frozen=True, order=True)
class Join:
    """How two GPUs are joined. `nvlinks` that are up, also by way of NVSwitches. `near`: 3 a common PCIe switch, 2 a common root
    complex, 1 a common NUMA node, 0 none of these. A greater one is better."""

    nvlinks: int
    near: int

    def __str__(self) -> str:
        if self.nvlinks:
            return count(self.nvlinks, "NVLink")
        return ("different NUMA nodes", "the same NUMA node", "the same root complex", "the same PCIe switch")[
            self.near
        ]


@dataclass(frozen=True)
class Choice:
    """The chosen GPUs in the order of the bus. `devices`: the words of CUDA_VISIBLE_DEVICES; `names`: how rigwright calls them.

    `joined`: how their pairs are joined, in words. `left_out`: the reason for each GPU that could not be taken.
    """

    devices: tuple[str, ...]
    names: tuple[str, ...]
    joined: str
    left_out: tuple[str, ...]

    @property
    def settings(self) -> tuple[str, str]:
        """The environment variables of a program that uses these GPUs."""
        return "CUDA_DEVICE_ORDER=PCI_BUS_ID", f"CUDA_VISIBLE_DEVICES={','.join(self.devices)}"


def choose(
    wanted: int,
    gpus: Sequence[Gpu],
    places: Sequence[Place],
    links: Sequence[NvLink],
    users: Mapping[str, Sequence[Process]],
    slots: Mapping[BusId, str] | None,
) -> Choice:
    """The group of `wanted` GPUs whose worst pair is joined best; of equal ones, that with the better pairs, then the first on the bus.

    GPUs of one model are preferred. Lost ones and those in `users` (processes by UUID) are left out. The devices are numbers in the order
    of the bus; UUIDs where a GPU is lost, because CUDA counts the others then. Raises HostError where too few are left.
    """
    names = {gpu.bus_id: place(gpu.bus_id, slots) for gpu in gpus}
    on_bus = sorted(gpus, key=lambda gpu: gpu.bus_id)
    left_out = [f"{names[gpu.bus_id]} is lost" for gpu in on_bus if gpu.lost]
    for gpu in on_bus:
        if using := users.get(gpu.uuid):
            more = f" and {len(using) - 1} more" if len(using) > 1 else ""
            left_out.append(f"{names[gpu.bus_id]} is in use by {using[0].name} (pid {using[0].pid}){more}")
    free = [gpu for gpu in on_bus if not gpu.lost and not users.get(gpu.uuid)]
    if wanted > len(free):
        reasons = f": {'; '.join(left_out)}" if left_out else ""
        found = f"{count(len(free), 'GPU')} can be taken{reasons}"
        fix = "a smaller number; or --busy, which takes GPUs in use too" if left_out else "a smaller number"
        raise HostError("gpus.choose", found, count(wanted, "GPU"), fix)
    if len(free) > MOST_GPUS:
        raise HostError(
            "gpus.choose", f"{len(free)} GPUs", f"{MOST_GPUS} at most", "choose by hand: nvidia-smi topo -m"
        )
    joins = {(a.bus_id, b.bus_id): _join(a, b, places, links) for a, b in combinations(free, 2)}

    def worth(group: tuple[Gpu, ...]) -> tuple[int, Join, tuple[int, int]]:
        pairs = [joins[a.bus_id, b.bus_id] for a, b in combinations(group, 2)]
        worst = min(pairs, default=Join(0, 0))
        return -len({gpu.name for gpu in group}), worst, (sum(p.nvlinks for p in pairs), sum(p.near for p in pairs))

    best = max(combinations(free, wanted), key=worth)
    by_uuid = any(gpu.lost for gpu in on_bus)
    devices = tuple(gpu.uuid if by_uuid else str(on_bus.index(gpu)) for gpu in best)
    kinds = Counter(str(joins[a.bus_id, b.bus_id]) for a, b in combinations(best, 2))
    joined = ", ".join(f"{count(number, 'pair')} with {kind}" for kind, number in kinds.most_common())
    return Choice(devices, tuple(names[gpu.bus_id] for gpu in best), joined, tuple(left_out))


def _join(a: Gpu, b: Gpu, places: Sequence[Place], links: Sequence[NvLink]) -> Join:
    switches = {entry.bus_id for entry in places if not entry.is_gpu}

    def up(gpu: Gpu, peers: set[str]) -> int:
        return sum(link.uuid == gpu.uuid and link.gb_s is not None and link.peer in peers for link in links)

    nvlinks = up(a, {b.bus_id}) + min(up(a, switches), up(b, switches))
    at = {entry.bus_id: entry for entry in places}
    first, second = at.get(a.bus_id), at.get(b.bus_id)
    if first is None or second is None:
        return Join(nvlinks, 0)
    if first.bridges and second.bridges and first.bridges[0] == second.bridges[0]:
        return Join(nvlinks, 3)
    if first.host_bridge == second.host_bridge:
        return Join(nvlinks, 2)
    return Join(nvlinks, int(first.numa_node is not None and first.numa_node == second.numa_node))
