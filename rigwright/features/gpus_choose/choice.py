"""Which GPUs of a machine are best joined: by measured bandwidths, otherwise by the topology."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from msgspec import Struct

from rigwright.core.errors import HostError
from rigwright.core.gpu_labels import place
from rigwright.core.numbers import count
from rigwright.core.process.program_name import as_typed
from rigwright.core.schema import BusId
from rigwright.facts.gpu.gpus import Gpu, Process
from rigwright.facts.gpu.topology import NvLink, Place
from rigwright.features.stress.measured_before import DatedPair

MOST_GPUS = 20
"""More GPUs have too many groups to compare; a machine with NVIDIA GPUs has 16 at most."""
ALIKE = 1.1
"""Bandwidths that differ by less than about this factor count as equal, and the topology decides (assumed)."""


class Join(Struct, frozen=True, order=True):
    """The connection of two GPUs; a greater one is better. `nvlinks`: NVLinks that are up, also through NVSwitches.
    `near`: 3 the same PCIe switch, 2 the same root complex, 1 the same NUMA node, 0 none of these."""

    nvlinks: int
    near: int

    def __str__(self) -> str:
        if self.nvlinks:
            return count(self.nvlinks, "NVLink")
        places = ("different NUMA nodes", "the same NUMA node", "the same root complex", "the same PCIe switch")
        return places[self.near]


class Choice(Struct, frozen=True):
    """The chosen GPUs in the order of the bus. `devices`: the words of CUDA_VISIBLE_DEVICES; `names`: their labels.

    `joined`: how their pairs are joined, in words. `left_out`: the reason for each GPU that could not be taken.
    `basis`: whether measured bandwidths or the topology decided, and the age of the measurement; "" for a single GPU.
    """

    devices: tuple[str, ...]
    names: tuple[str, ...]
    joined: str
    left_out: tuple[str, ...]
    basis: str = ""

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
    measured: Mapping[frozenset[str], DatedPair] | None = None,
    now: datetime.datetime | None = None,
    driver: str = "",
    split: Collection[str] = (),
) -> Choice:
    """The group of `wanted` GPUs whose worst pair is joined best; of equal groups the one with the better pairs, then
    the first on the bus.

    If `measured` has every pair of free GPUs, its bandwidths count before the topology: NCCL's if all pairs have them,
    otherwise those of copies. `now` (UTC) and the loaded `driver` are for the text about their age. GPUs of one model
    are preferred. Lost GPUs, GPUs in `users` (processes by UUID), and GPUs in `split` (bus ids of GPUs with MIG on, of
    which a program sees one instance) are left out. The devices are numbers in the order of the bus, or UUIDs if a GPU
    is lost or split, because CUDA then counts differently. Raises HostError for too few free GPUs.
    """
    names = {gpu.bus_id: place(gpu.bus_id, slots) for gpu in gpus}
    on_bus = sorted(gpus, key=lambda gpu: gpu.bus_id)
    left_out = [f"{names[gpu.bus_id]} is lost" for gpu in on_bus if gpu.lost]
    left_out += [f"{names[gpu.bus_id]} has MIG on" for gpu in on_bus if not gpu.lost and gpu.bus_id in split]
    for gpu in on_bus:
        if using := users.get(gpu.uuid):
            more = f" and {len(using) - 1} more" if len(using) > 1 else ""
            left_out.append(f"{names[gpu.bus_id]} is in use by {using[0].name} (pid {using[0].pid}){more}")
    free = [gpu for gpu in on_bus if not gpu.lost and gpu.bus_id not in split and not users.get(gpu.uuid)]
    if wanted > len(free):
        reasons = f": {'; '.join(left_out)}" if left_out else ""
        problem = f"{count(len(free), 'GPU')} can be taken{reasons}"
        busy = any(users.get(gpu.uuid) for gpu in on_bus)
        fix = "a smaller number; or --busy, which takes GPUs in use too" if busy else "a smaller number"
        raise HostError("gpus.choose", problem, count(wanted, "GPU"), fix)
    if len(free) > MOST_GPUS:
        fix = "choose by hand: nvidia-smi topo -m"
        raise HostError("gpus.choose", f"{len(free)} GPUs", f"{MOST_GPUS} at most", fix)
    joins = {(a.bus_id, b.bus_id): _join(a, b, places, links) for a, b in combinations(free, 2)}
    speeds = _Speeds.of(free, measured or {})
    levels = {pair: _level(gb_s) for pair, gb_s in speeds.gb_s.items()}

    def worth(group: tuple[Gpu, ...]) -> tuple[int, tuple[int, int], Join, tuple[int, int]]:
        pairs = [joins[a.bus_id, b.bus_id] for a, b in combinations(group, 2)]
        fast = [levels[a.uuid, b.uuid] for a, b in combinations(group, 2)] if levels else []
        models = len({gpu.name for gpu in group})
        totals = sum(pair.nvlinks for pair in pairs), sum(pair.near for pair in pairs)
        return -models, (min(fast, default=0), sum(fast)), min(pairs, default=Join(0, 0)), totals

    best = max(combinations(free, wanted), key=worth)
    by_uuid = any(gpu.lost or gpu.bus_id in split for gpu in on_bus)
    devices = tuple(gpu.uuid if by_uuid else str(on_bus.index(gpu)) for gpu in best)
    kinds = Counter(str(joins[a.bus_id, b.bus_id]) for a, b in combinations(best, 2))
    joined = ", ".join(f"{count(number, 'pair')} with {kind}" for kind, number in kinds.most_common())
    basis = speeds.basis(best, names, now or datetime.datetime.now(datetime.timezone.utc), driver) if wanted > 1 else ""
    return Choice(devices, tuple(names[gpu.bus_id] for gpu in best), joined, tuple(left_out), basis)


class _Speeds(Struct, frozen=True):
    """The measured GB/s of all pairs of GPUs by their UUIDs, {} if a pair is missing. `kind`: what was measured.
    `dated`: the figures of the `known` measured pairs, of `all` pairs."""

    gb_s: dict[tuple[str, str], float]
    kind: str
    dated: dict[tuple[str, str], DatedPair]
    known: int
    all: int

    @classmethod
    def of(cls, gpus: Sequence[Gpu], measured: Mapping[frozenset[str], DatedPair]) -> _Speeds:
        pairs = [(a.uuid, b.uuid) for a, b in combinations(gpus, 2)]
        dated = {pair: measured[frozenset(pair)] for pair in pairs if frozenset(pair) in measured}
        for kind, key in (("NCCL", "nccl_gb_s"), ("copies", "copy_gb_s")):
            gb_s = {pair: getattr(each.figures, key) for pair, each in dated.items()}
            if pairs and len(gb_s) == len(pairs) and None not in gb_s.values():
                return cls(gb_s, kind, dated, len(pairs), len(pairs))
        return cls({}, "", dated, len(dated), len(pairs))

    def basis(self, group: Sequence[Gpu], names: Mapping[str, str], now: datetime.datetime, driver: str) -> str:
        """What decided, in words."""
        if not self.gb_s:
            of_all = f"{self.known} of {count(self.all, 'pair')} that can be taken are measured"
            measured = of_all if self.known else "no pair is measured"
            return as_typed(f"by the topology: {measured}; invoke verify --tags p2p measures them")
        pairs = list(combinations(group, 2))
        a, b = min(pairs, key=lambda pair: self.gb_s[pair[0].uuid, pair[1].uuid])
        dated = [self.dated[a.uuid, b.uuid] for a, b in pairs]
        others = {each.figures.driver for each in dated} - {"", driver} if driver else ()
        other = f", with driver {', '.join(sorted(others))}, now {driver}" if others else ""
        speed, first, second = self.gb_s[a.uuid, b.uuid], names[a.bus_id], names[b.bus_id]
        slowest = f"{speed:.1f} GB/s between {first} and {second}" if speed else f"{first} and {second} failed the test"
        age = _age(min(each.at for each in dated), now)
        return f"by bandwidths of {self.kind}, measured {age}{other}; the slowest pair: {slowest}"


def _age(at: str, now: datetime.datetime) -> str:
    """`3 days ago (2026-11-20)`."""
    then = datetime.datetime.fromisoformat(at)
    seconds = max(0.0, (now - then).total_seconds())
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{count(int(seconds // length), unit)} ago ({then.date()})"
    return f"less than a minute ago ({then.date()})"


def _level(gb_s: float) -> int:
    """A number that is equal for speeds that differ by less than about ALIKE; the lowest for a failed pair."""
    return math.floor(math.log(gb_s, ALIKE)) if gb_s > 1e-3 else -1000


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
