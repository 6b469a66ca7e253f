"""What a GPU is called: its position in the machine, its bus id and its UUID; an index moves when a GPU is missing."""

from __future__ import annotations

from collections.abc import Mapping

from rigwright.typed import BusId

SHORT_UUID = 12
"""GPU-5d1c2f60: what lines show of a UUID; documents and commands have all of it."""


def place(bus_id: str, slots: Mapping[BusId, str] | None) -> str:
    """`SXM2-2 0000:07:00.0`, or the bus id alone where nobody has named its position."""
    position = (slots or {}).get(BusId(bus_id), "")
    return f"{position} {bus_id}".strip()


def called(bus_id: str, uuid: str, slots: Mapping[BusId, str] | None) -> str:
    """`SXM2-2 0000:07:00.0 GPU-5d1c2f60`."""
    return f"{place(bus_id, slots)} {uuid[:SHORT_UUID]}".strip()
