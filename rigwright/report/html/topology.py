"""The drawing of a machine's topology: processors, PCIe switches, GPUs and NVLinks as shapes with coordinates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

STEP = 104
"""Units from one GPU to the next; a unit is a pixel where the drawing is not scaled."""
BOX = 88
ROW = 66
HEIGHT = 40
MARGIN = 8
LANES = 16


@dataclass(frozen=True)
class Box:
    """A device: a title, a line under it, and its state as a CSS class."""

    x: float
    y: float
    width: float
    title: str
    text: str
    kind: str
    bus_id: str = ""

    @property
    def middle(self) -> float:
        """x of its centre."""
        return self.x + self.width / 2


@dataclass(frozen=True)
class Line:
    """An SVG path and its label at (x, y); `kind`: a CSS class, `width`: of the stroke."""

    path: str
    kind: str
    width: float = 1.5
    label: str = ""
    x: float = 0
    y: float = 0


@dataclass(frozen=True)
class Drawing:
    """The whole drawing, in its own units; `words`: its NVLinks as sentences."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    words: tuple[str, ...] = ()


@dataclass
class _Node:
    """A device on the PCI bus and the devices below it."""

    name: str
    below: dict[str, _Node] = field(default_factory=dict)
    gpu: dict[str, Any] | None = None


def drawn(machine: dict[str, Any]) -> Drawing | None:
    """The drawing of the `machine` of a document; None where no GPU is known."""
    gpus = {gpu["bus_id"]: gpu for gpu in machine.get("gpus", [])}
    if not gpus:
        return None
    trees = _trees(machine.get("bus", []), gpus)
    order = [leaf for tree in trees for leaf in _leaves(tree)]
    column = {bus_id: number for number, bus_id in enumerate(order)}
    depth = max(map(_depth, trees))
    boxes: list[Box] = []
    lines: list[Line] = []
    for tree in trees:
        _place(tree, 0, depth, column, gpus, boxes, lines)
    known = {box.bus_id: box for box in boxes if box.bus_id}
    bottom = MARGIN + depth * ROW + HEIGHT
    links, low = _links(machine.get("nvlinks", []), known, column, bottom)
    switches, drops, low = _switches(machine.get("nvlinks", []), known, low)
    width = len(order) * STEP - (STEP - BOX) + 2 * MARGIN + LANES
    return Drawing(width, low + MARGIN, (*boxes, *switches), (*lines, *links, *drops), tuple(_sentences(machine, gpus)))


def _trees(bus: Sequence[dict[str, Any]], gpus: dict[str, Any]) -> list[_Node]:
    """A tree for each processor, with all host bridges of its NUMA node; bridges without a branch are left out."""
    roots: dict[str, _Node] = {}
    for place in bus:
        if place["bus_id"] not in gpus:
            continue
        number = place["numa_node"]
        name = f"CPU {number}" if number is not None else f"host bridge {place['host_bridge'].removeprefix('pci')}"
        node = roots.setdefault(name, _Node(name))
        for step in (place["host_bridge"], *place["bridges"]):
            node = node.below.setdefault(step, _Node(step))
        node.below[place["bus_id"]] = _Node(place["bus_id"], gpu=gpus[place["bus_id"]])
    placed = {leaf for root in roots.values() for leaf in _leaves(root)}
    lost = {bus_id: _Node(bus_id, gpu=gpu) for bus_id, gpu in gpus.items() if bus_id not in placed}
    if lost:
        name = "not on the bus" if roots else "the machine"
        roots[name] = _Node(name, lost)
    return [_short(root, True) for _, root in sorted(roots.items())]


def _short(node: _Node, root: bool = False) -> _Node:
    """The tree without bridges that have a single device below them."""
    below = {name: _short(child) for name, child in node.below.items()}
    if not root and len(below) == 1:
        return next(iter(below.values()))
    flat: dict[str, _Node] = {}
    for name, child in below.items():
        flat[name if child.gpu or not root else child.name] = child
    if root and len(flat) == 1 and not (only := next(iter(flat.values()))).gpu and only.name.startswith("pci"):
        flat = only.below
    return _Node(node.name, flat, node.gpu)


def _leaves(node: _Node) -> Iterator[str]:
    if node.gpu:
        yield node.name
    for child in node.below.values():
        yield from _leaves(child)


def _depth(node: _Node) -> int:
    return 0 if node.gpu else 1 + max(map(_depth, node.below.values()))


def _place(
    node: _Node, row: int, depth: int, column: dict[str, int], gpus: dict[str, Any], boxes: list[Box], lines: list[Line]
) -> Box:
    """Appends the boxes and lines of a tree to the lists; all GPUs are in the last row. Returns the box of the node."""
    if node.gpu:
        x, y = MARGIN + column[node.name] * STEP, MARGIN + depth * ROW
        kind = "gpu" if node.gpu["answers"] else "gpu lost" if node.gpu["lost"] else "silent"
        box = Box(x, y, BOX, str(node.gpu["position"] or "GPU"), _short_bus(node.name), kind, node.name)
    else:
        columns = [column[leaf] for leaf in _leaves(node)]
        x, y = MARGIN + min(columns) * STEP, MARGIN + row * ROW
        kind = "cpu" if row == 0 else "bridge"
        title = node.name if row == 0 else "host bridge" if node.name.startswith("pci") else "PCIe switch"
        text = "" if row == 0 else _short_bus(node.name.removeprefix("pci"))
        box = Box(x, y, (max(columns) - min(columns)) * STEP + BOX, title, text, kind)
        for child in node.below.values():
            child_box = _place(child, row + 1, depth, column, gpus, boxes, lines)
            path = f"M{child_box.middle:g} {y + HEIGHT:g}V{child_box.y:g}"
            lines.append(Line(path, "pcie", 1.5, _lanes(child.gpu), child_box.middle + 5, child_box.y - 8))
    boxes.append(box)
    return box


def _short_bus(bus_id: str) -> str:
    return bus_id.removeprefix("0000:")


def _lanes(gpu: dict[str, Any] | None) -> str:
    """`x16 Gen3`: the current lanes, and the highest generation of the GPU and its port; an idle link uses a lower one."""
    if not gpu or not gpu["width"]:
        return ""
    most = [value for value in (gpu["generation_max"], gpu["generation_host"]) if value]
    return f"x{gpu['width']}" + (f" Gen{min(most)}" if most else "")


def _links(
    links: Sequence[dict[str, Any]], boxes: dict[str, Box], column: dict[str, int], bottom: float
) -> tuple[list[Line], float]:
    """Arcs under the GPUs, deeper between distant GPUs; and y of the lowest point."""
    pairs = [link for link in links if link["from"] in boxes and link["to"] in boxes]
    arcs, low = [], bottom
    for link in sorted(pairs, key=lambda link: abs(column[link["from"]] - column[link["to"]])):
        a, b = sorted((boxes[link["from"]], boxes[link["to"]]), key=lambda box: box.x)
        span = column[b.bus_id] - column[a.bus_id]
        inset = min(span, 7) * 4.5
        start, end = a.middle + inset, b.middle - inset
        drop = 16 + 22 * span
        deepest = bottom + drop * 0.75
        expected = link["up"] + link["down"] if link["expected"] is None else link["expected"]
        kind = "nvlink" if link["up"] >= expected else "down"
        label = str(link["up"]) if kind == "nvlink" else f"{link['up']} of {expected}"
        path = f"M{start:g} {bottom:g}C{start:g} {bottom + drop:g} {end:g} {bottom + drop:g} {end:g} {bottom:g}"
        arcs.append(Line(path, kind, 1.2 + link["up"] * 0.8, label, (start + end) / 2, deepest + 4))
        low = max(low, deepest + 10)
    return arcs, low


def _switches(
    links: Sequence[dict[str, Any]], boxes: dict[str, Box], low: float
) -> tuple[list[Box], list[Line], float]:
    """One bar for all NVSwitches, and a line from each GPU with the number of its links."""
    up, down = Counter[str](), Counter[str]()
    names = set()
    for link in links:
        if link["from"] in boxes and link["to"] not in boxes:
            up[link["from"]] += link["up"]
            down[link["from"]] += link["down"]
            names |= {link["to"]} - {""}
    if not names:
        return [], [], low
    used = [boxes[bus_id] for bus_id in up]
    y = low + 44
    left, right = min(box.x for box in used), max(box.x + box.width for box in used)
    title = "NVSwitch" if len(names) == 1 else f"{len(names)} NVSwitches"
    bar = Box(left, y, right - left, title, "", "switch")
    lines = [
        Line(f"M{box.middle:g} {box.y + HEIGHT:g}V{y:g}", "down" if down[box.bus_id] else "nvlink",
             1.2 + min(up[box.bus_id], 4) * 0.8,
             f"{up[box.bus_id]} of {up[box.bus_id] + down[box.bus_id]}" if down[box.bus_id] else str(up[box.bus_id]),
             box.middle, (box.y + HEIGHT + y) / 2 + 4)
        for box in used
    ]  # fmt: skip
    return [bar], lines, y + HEIGHT


def _sentences(machine: dict[str, Any], gpus: dict[str, Any]) -> Iterator[str]:
    for link in machine.get("nvlinks", []):
        ends = [(gpus.get(bus_id, {}).get("position", ""), _short_bus(bus_id)) for bus_id in (link["from"], link["to"])]
        a, b = (" ".join(end).strip() for end in ends)
        expected = "" if link["expected"] in (None, link["up"]) else f" of {link['expected']}"
        down = f", {link['down']} down" if link["down"] else ""
        yield f"{a} to {b or 'an unknown end'}: {link['up']}{expected} NVLinks{down}"
