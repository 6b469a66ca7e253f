"""The expected connection of two GPUs, by the rig, the catalogue's models and the document of the peer-to-peer test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.catalogue.gpus import Model
from rigwright.catalogue.rigs import Kind
from rigwright.core.schema import BusId, bus_id
from rigwright.facts.nccl.p2p_test import Document, Gpu, Pair

Source = Literal["", "rig", "catalogue", "peers"]

NVLINK_SHARE = 0.9
"""The share of nvidia-smi's rate of a link that a large copy reaches: 24 of 25.8 GB/s on V100 boards."""


class Expected(Struct, frozen=True):
    """The expected connection of an ordered pair: its kind, its number of NVLinks and its speed.

    `granted`: whether CUDA must grant peer access; None: not known, so it is measured. `gb_s`: the speed of a large
    copy in one direction, from `source`; None if not known. `why`: the rig's explanation.
    """

    kind: Kind
    links: int
    granted: bool | None
    gb_s: float | None
    source: Source
    why: str = ""

    @property
    def words(self) -> str:
        """`2 NVLinks`, `peers over PCIe`, ..."""
        if self.links:
            return f"{self.links} NVLink{'s' if self.links > 1 else ''}"
        named = {"nvswitch": "NVSwitch", "pcie": "peers over PCIe", "x1": "a slot with one lane"}
        return named.get(self.kind, "through the host's memory")


class Machine(Struct, frozen=True):
    """The GPUs of a document by their index. `names`: the position, or `GPU 2`."""

    rig: Rig | None
    positions: Mapping[int, str]
    models: Mapping[int, Model | None]
    names: Mapping[int, str]

    def expected(self, pair: Pair, document: Document) -> Expected:
        """The expected connection of a pair."""
        if self.rig is None:
            return _without_rig(pair, document, self.models)
        a, b = (self.positions.get(index, "") for index in (pair.start, pair.end))
        links = next((count for first, second, count in self.rig.pairs if {first, second} == {a, b}), 0)
        models = self.models[pair.start], self.models[pair.end]
        granted = _granted(self.rig, pair, models, links)
        narrow = any(lanes.width == 1 for where, lanes in self.rig.lanes.items() if where in (a, b))
        kind = _kind(self.rig, links, narrow, pair, granted)
        figure = self.rig.bandwidth_gb_s.get(kind)
        if figure is None and links and models[0] and models[0].nvlink:
            return Expected(kind, links, granted, links * models[0].nvlink.gb_s_per_link * NVLINK_SHARE, "catalogue")
        return Expected(kind, links, granted, figure, "rig" if figure else "", self.rig.p2p.why)


def machine(
    document: Document, rig: Rig | None, slots: Mapping[BusId, str] | None, device_ids: Mapping[str, str]
) -> Machine:
    """The machine of a document. The positions are those of `slots`, or of the rig in the order of the GPUs.
    `device_ids`: PCI device ids by bus id."""
    positions = {gpu.index: (slots or {}).get(bus_id_of(gpu), "") for gpu in document.gpus}
    if rig and not any(positions.values()) and len(document.gpus) == len(rig.gpus):
        positions = dict(zip(sorted(positions), rig.gpus, strict=True))
    models = {gpu.index: catalogue.model_of(device_ids.get(bus_id_of(gpu), "none")) for gpu in document.gpus}
    of_pairs = {index for pair in document.pairs for index in (pair.start, pair.end)}
    names = {index: positions.get(index) or f"GPU {index}" for index in (*positions, *of_pairs)}
    return Machine(rig, positions, models, names)


def bus_id_of(gpu: Gpu) -> BusId:
    """The GPU's bus id as in sysfs; "" if it is not known."""
    return bus_id(gpu.bus_id or "")


def _granted(rig: Rig, pair: Pair, models: tuple[Model | None, Model | None], links: int) -> bool | None:
    if links or rig.p2p.path == "nvswitch":
        return True
    if rig.p2p.path == "none":
        return False
    if rig.p2p.path == "measure" or pair.grant.distance == "SYS":
        return None
    ways = {model.p2p.pcie if model else "measure" for model in models}
    return False if "denied" in ways else None if "measure" in ways else True


def _kind(rig: Rig, links: int, narrow: bool, pair: Pair, granted: bool | None) -> Kind:
    if rig.p2p.path == "nvswitch":
        return "nvswitch"
    if links:
        return f"nv{links}"  # type: ignore[return-value]
    if narrow:
        return "x1"
    peers = pair.grant.cuda if granted is None else granted
    return "pcie" if peers else "host"


def _without_rig(pair: Pair, document: Document, models: Mapping[int, Model | None]) -> Expected:
    """Without a rig: the peer access that NVML reports, and the median speed of similar pairs."""
    nvml = pair.grant.nvml
    linked = bool(nvml and nvml.nvlink == "ok")
    ways = {
        model.p2p.nvlink if linked else model.p2p.pcie for index in (pair.start, pair.end) if (model := models[index])
    }
    granted = True if linked else False if ways == {"denied"} else None
    alike = [
        speed
        for other in document.pairs
        if other.bytes
        and (speed := other.bytes.gb_s or other.bytes.round_gb_s)
        and other.grant.distance == pair.grant.distance
        and other.grant.nvml == nvml
    ]
    from statistics import median

    usual = median(alike) if len(alike) > 2 else None
    kind: Kind = "pcie" if pair.grant.cuda else "host"
    return Expected("nvswitch" if linked else kind, 0, granted, usual, "peers" if usual else "")
