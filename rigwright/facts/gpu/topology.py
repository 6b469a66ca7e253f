"""The positions of the GPUs on the PCI bus, and their NVLinks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Result, script
from rigwright.core.schema import bus_id
from rigwright.facts import Fact, Unavailable
from rigwright.facts.gpu.gpus import LINKS_BEGIN, NVML
from rigwright.facts.gpu.nvidia_smi import LOST, successful_output


class Place(Struct, frozen=True):
    """The position of an NVIDIA device on the PCI bus. `is_gpu`: a display device; the others are NVSwitches.
    `numa_node`: None if unknown. `host_bridge`: pci0000:00; `bridges`: all bridges from the root port down."""

    bus_id: str
    is_gpu: bool
    numa_node: int | None
    host_bridge: str
    bridges: tuple[str, ...]


_PLACES = """
for device in /sys/bus/pci/devices/*; do
  [ -e "$device/vendor" ] || continue
  read vendor <"$device/vendor"; [ "$vendor" = 0x10de ] || continue
  read class <"$device/class"
  case $class in 0x03*|0x0680*) ;; *) continue;; esac
  node=-1; [ -e "$device/numa_node" ] && read node <"$device/numa_node"
  echo "$class $node $(readlink -f "$device")"
done; :
"""
_BUS_ID = lazy_re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def _places(result: Result) -> tuple[Place, ...]:
    places = []
    for line in result.lines:
        kind, node, path = line.split(" ", 2)
        parts = path.split("/")
        bridge = next((part for part in parts if part.startswith("pci")), "")
        steps = [part for part in parts[parts.index(bridge) + 1 :] if _BUS_ID.fullmatch(part)] if bridge else []
        if not steps:
            raise ValueError(f"no PCI device: {path}")
        number = host_text.integer(node)
        *bridges, own = steps
        places.append(Place(own, kind.startswith("0x03"), None if number < 0 else number, bridge, tuple(bridges)))
    return tuple(sorted(places, key=lambda place: place.bus_id))


places = Fact("topology.places", script(_PLACES, reads=True), _places)
"""Every GPU and NVSwitch on the bus, with or without a driver; () without any."""


class NvLink(Struct, frozen=True):
    """One end of an NVLink. `gb_s`: GB/s in one direction, None if it is down; `peer`: a bus id, "" if unknown."""

    uuid: str
    number: int
    gb_s: float | None
    peer: str = ""
    errors: int | None = None


_UUID = lazy_re.compile(r"GPU-[0-9a-fA-F-]{1,60}")
_GPU_LINE = lazy_re.compile(r"GPU \d+: .*\(UUID: (GPU-[0-9a-fA-F-]+)\)")
_LINK_LINE = lazy_re.compile(r"Link (\d+): (.+)")
_QUIET = lazy_re.compile(
    rf"{LOST}|Device does not have|Nvlink queries are not supported|(NVML: )?Unable to retrieve NVLink information",
    re.IGNORECASE,
)
"""Lines in place of links. From 595 on nvidia-smi writes Nvlink for NVLink."""
_COUNTER = lazy_re.compile(
    r"(?:Replay|Recovery|CRC|CRC Flit) Errors?: (\d{1,18})|(\d{1,18}) (?:replay|recovery|flit CRC) errors"
)
"""nvidia-smi of 470 writes the number first. Its fourth counter (data CRC) is ignored: later versions have three."""


def _nvlinks(result: Result) -> tuple[NvLink, ...]:
    text = result.text
    if text.startswith("{"):
        document, asked, text = text.partition(LINKS_BEGIN)
        if result.code and not asked:
            raise Unavailable(f"NVML: {(host_text.lines(result.error_text) or ['no answer'])[-1]}")
        links_of_nvml = _links_of_nvml(document)
        if links_of_nvml is not None or not asked:
            return links_of_nvml or ()
    status, _, rest = text.partition("--- peers\n")
    peers, _, counters = rest.partition("--- errors\n")
    if not any(map(_GPU_LINE.match, host_text.lines(status))) and (result.code != 0 or status.startswith("No devices")):
        raise Unavailable(f"nvidia-smi says: {(host_text.lines(successful_output(result)) or ['nothing'])[0]}")
    to = {key: bus_id(value) for key, value in _rows(peers) if re.search(r":[0-9A-Fa-f]{2}:", value)}
    errors: dict[tuple[str, int], int] = {}
    for key, value in _rows(counters):
        if match := _COUNTER.fullmatch(value):
            errors[key] = errors.get(key, 0) + host_text.integer(match[1] or match[2])
    links = []
    for (uuid, number), text in _rows(status):
        rate = re.fullmatch(r"([\d.]+) GB/s", text)
        if not rate and text.strip("<>").lower() != "inactive":
            raise ValueError(f"Link {number}: {text}")
        gb_s = float(rate[1]) if rate else None
        links.append(NvLink(uuid, number, gb_s, to.get((uuid, number), ""), errors.get((uuid, number))))
    return tuple(links)


def _links_of_nvml(document: str) -> tuple[NvLink, ...] | None:
    """The links of all GPUs that NVML can open, as nvidia-smi lists them; None if NVML has no GPU, or not the links of
    one. Raises Unavailable if a GPU does not answer in time."""
    links: list[NvLink] = []
    gpus = host_text.json_value(document)["gpus"]
    for gpu in gpus:
        if gpu.get("hangs"):
            raise Unavailable(f"NVML: {gpu['errors']['gpu']}")
        if gpu.get("code") is None and gpu.get("nvlinks") is None:
            return None
        own = [_link_of_nvml(gpu["uuid"], link) for link in gpu.get("nvlinks") or ()]
        if any(link.gb_s is not None for link in own):  # nvidia-smi lists no links if all are down
            links += own
    return tuple(links) if any(gpu.get("code") is None for gpu in gpus) else None


def _link_of_nvml(uuid: str, link: Mapping[str, Any]) -> NvLink:
    peer = (link["peer"] or "").lower()
    if not _UUID.fullmatch(uuid) or (peer and not _BUS_ID.fullmatch(peer)):
        raise ValueError(f"an NVLink of {uuid[:40]!r} to {peer[:40]!r}")
    mb_s, errors = (None if link[key] is None else host_text.integer(link[key]) for key in ("mb_s", "errors"))
    return NvLink(uuid, host_text.integer(link["link"]), None if mb_s is None else mb_s / 1000, bus_id(peer), errors)


def _rows(text: str) -> list[tuple[tuple[str, int], str]]:
    """Parses lines of links below lines of GPUs: the text by (UUID, link). Raises ValueError for other lines."""
    rows, uuid = [], ""
    for line in host_text.lines(text):
        if link := _LINK_LINE.match(line.strip()):
            rows.append(((uuid, host_text.integer(link[1])), link[2].strip()))
        elif gpu := _GPU_LINE.match(line.strip()):
            uuid = gpu[1]
        elif line.strip() and not _QUIET.match(line.strip()):
            raise ValueError(line.strip())
    return rows


nvlinks = Fact("topology.nvlinks", NVML, _nvlinks)
"""Every end of every NVLink, also of links that are down; () without NVLinks."""
