"""Labels of GPUs from position, bus id and UUID. They have no index, because an index changes when a GPU is missing."""

from __future__ import annotations

from collections.abc import Mapping

from rigwright.core.schema import BusId

SHORT_UUID = 12
"""The length of a shortened UUID (GPU-5d1c2f60) in messages. Documents and commands have the full UUID."""


def place(bus_id: str, slots: Mapping[BusId, str] | None) -> str:
    """A label such as `SXM2-2 0000:07:00.0`; only the bus id if the position has no name."""
    position = (slots or {}).get(BusId(bus_id), "")
    return f"{position} {bus_id}".strip()


def gpu_label(bus_id: str, uuid: str, slots: Mapping[BusId, str] | None) -> str:
    """A label such as `SXM2-2 0000:07:00.0 GPU-5d1c2f60`."""
    return f"{place(bus_id, slots)} {uuid[:SHORT_UUID]}".strip()
