"""The drawing of a machine's topology: processors, PCIe switches, GPUs and NVLinks as shapes with coordinates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, field

STEP = 104
"""Units from one GPU to the next; a unit is a pixel where the drawing is not scaled."""
BOX = 88
ROW = 66
HEIGHT = 40
MARGIN = 8
LANES = 26
SPACE = 44
"""Units above and below the NVSwitches, or between two rows of GPUs."""
MOST = 10
"""The number of GPUs up to which they are in one row; a screen of 1280 pixels shows so many."""


class Box(Struct, frozen=True):
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


class Line(Struct, frozen=True):
    """An SVG path and its label at (x, y); `kind`: a CSS class, `width`: of the stroke."""

    path: str
    kind: str
    width: float = 1.5
    label: str = ""
    x: float = 0
    y: float = 0


class Drawing(Struct, frozen=True):
    """The whole drawing, in its own units; `words`: its NVLinks as sentences."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    words: tuple[str, ...] = ()


class _Node(Struct):
    """A device on the PCI bus and the devices below it."""

    name: str
    below: dict[str, _Node] = field(default_factory=dict)
    gpu: dict[str, Any] | None = None


def drawn(machine: dict[str, Any]) -> Drawing | None:
    """The drawing of the `machine` of a document; None where no GPU is known.

    The GPUs are in one row below their processors. More than MOST are in two rows, the processors of the second one
    below it, and NVSwitches between the rows.
    """
    gpus = {gpu["bus_id"]: gpu for gpu in machine.get("gpus", []) if gpu["bus_id"]}
    if not gpus:
        return None
    upper, lower = _halves(_trees(machine.get("bus", []), gpus))
    columns = [
        {bus_id: number for number, bus_id in enumerate(leaf for tree in half for leaf in _leaves(tree))}
        for half in (upper, lower)
    ]
    links = [link for link in machine.get("nvlinks", []) if link["from"] in gpus]
    pairs = [link for link in links if link["to"] in gpus]
    boxes: list[Box] = []
    lines: list[Line] = []
    y = MARGIN + max(map(_depth, upper)) * ROW
    first = _Row(columns[0], y, -1)
    for tree in upper:
        _place(tree, 0, first, gpus, boxes, lines)
    low = y + HEIGHT + _reach(pairs, columns[0])
    names = {link["to"] for link in links} - gpus.keys() - {""}
    bar_y = low + SPACE
    low = bar_y + HEIGHT if names else low
    rows = [first]
    if lower:
        second = _Row(columns[1], low + SPACE + _reach(pairs, columns[1]), 1)
        rows.append(second)
        for tree in lower:
            _place(tree, 0, second, gpus, boxes, lines)
        low = second.y + max(map(_depth, lower)) * ROW + HEIGHT
    known = {box.bus_id: box for box in boxes if box.bus_id}
    for row in rows:
        lines += _arcs(pairs, known, row)
    lines += _across(pairs, known, columns[0])
    switches, drops = _switches(links, names, known, bar_y)
    width = max(map(len, columns)) * STEP - (STEP - BOX) + 2 * MARGIN + LANES
    return Drawing(width, low + MARGIN, (*boxes, *switches), (*lines, *drops), tuple(_sentences(machine, gpus)))


class _Row(Struct, frozen=True):
    """A row of GPUs: their columns, their y, and the side of their processors: -1 above, 1 below."""

    column: dict[str, int]
    y: float
    side: int


def _halves(trees: list[_Node]) -> tuple[list[_Node], list[_Node]]:
    """The trees of the two rows, with about as many GPUs in each; few GPUs, or one tree, have one row."""
    sizes = [len(list(_leaves(tree))) for tree in trees]
    if sum(sizes) <= MOST or len(trees) == 1:
        return trees, []
    cut = min(range(1, len(trees)), key=lambda number: abs(sum(sizes[:number]) - sum(sizes[number:])))
    return trees[:cut], trees[cut:]


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
    node: _Node, level: int, row: _Row, gpus: dict[str, Any], boxes: list[Box], lines: list[Line], depth: int = 0
) -> Box:
    """Appends the boxes and lines of a tree to the lists; all GPUs are in the row. Returns the box of the node."""
    depth = depth or _depth(node)
    if node.gpu:
        x = MARGIN + row.column[node.name] * STEP
        kind = "gpu" if node.gpu["answers"] else "gpu lost" if node.gpu["lost"] else "silent"
        box = Box(x, row.y, BOX, str(node.gpu["position"] or "GPU"), _short_bus(node.name), kind, node.name)
    else:
        columns = [row.column[leaf] for leaf in _leaves(node)]
        x, y = MARGIN + min(columns) * STEP, row.y + row.side * (depth - level) * ROW
        kind = "cpu" if level == 0 else "bridge"
        title = node.name if level == 0 else "host bridge" if node.name.startswith("pci") else "PCIe switch"
        text = "" if level == 0 else _short_bus(node.name.removeprefix("pci"))
        box = Box(x, y, (max(columns) - min(columns)) * STEP + BOX, title, text, kind)
        for child in node.below.values():
            child_box = _place(child, level + 1, row, gpus, boxes, lines, depth)
            upper, below = sorted((box, child_box), key=lambda one: one.y)
            path = f"M{child_box.middle:g} {upper.y + HEIGHT:g}V{below.y:g}"
            label_y = child_box.y - 8 if row.side < 0 else child_box.y + HEIGHT + 15
            lines.append(Line(path, "pcie", 1.5, _lanes(child.gpu), child_box.middle + 5, label_y))
    boxes.append(box)
    return box


def _short_bus(bus_id: str) -> str:
    return bus_id.removeprefix("0000:")


def _lanes(gpu: dict[str, Any] | None) -> str:
    """`x16 Gen3`: the current lanes, and the highest generation of GPU and port, which an idle link does not use."""
    if not gpu or not gpu["width"]:
        return ""
    most = [value for value in (gpu["generation_max"], gpu["generation_host"]) if value]
    return f"x{gpu['width']}" + (f" Gen{min(most)}" if most else "")


def _drop(link: dict[str, Any], column: dict[str, int]) -> float:
    """How far an arc is drawn out, in units; deeper between distant GPUs."""
    return 16 + 22 * abs(column[link["from"]] - column[link["to"]])


def _reach(pairs: Sequence[dict[str, Any]], column: dict[str, int]) -> float:
    """The units that the arcs of a row need beside it."""
    inside = [link for link in pairs if link["from"] in column and link["to"] in column]
    return max((_drop(link, column) * 0.75 + 10 for link in inside), default=0.0)


def _arcs(pairs: Sequence[dict[str, Any]], boxes: dict[str, Box], row: _Row) -> Iterator[Line]:
    """Arcs between the GPUs of a row, on the side away from their processors."""
    inside = [link for link in pairs if link["from"] in row.column and link["to"] in row.column]
    edge = row.y + HEIGHT if row.side < 0 else row.y
    for link in sorted(inside, key=lambda link: _drop(link, row.column)):
        a, b = sorted((boxes[link["from"]], boxes[link["to"]]), key=lambda box: box.x)
        inset = min(abs(row.column[a.bus_id] - row.column[b.bus_id]), 7) * 4.5
        start, end = a.middle + inset, b.middle - inset
        drop = -row.side * _drop(link, row.column)
        path = f"M{start:g} {edge:g}C{start:g} {edge + drop:g} {end:g} {edge + drop:g} {end:g} {edge:g}"
        yield _link(link, path, (start + end) / 2, edge + drop * 0.75 + 4)


def _across(pairs: Sequence[dict[str, Any]], boxes: dict[str, Box], column: dict[str, int]) -> Iterator[Line]:
    """Straight lines between the GPUs of two rows."""
    for link in pairs:
        if (link["from"] in column) != (link["to"] in column):
            a, b = sorted((boxes[link["from"]], boxes[link["to"]]), key=lambda box: box.y)
            path = f"M{a.middle:g} {a.y + HEIGHT:g}L{b.middle:g} {b.y:g}"
            yield _link(link, path, (a.middle + b.middle) / 2, (a.y + HEIGHT + b.y) / 2 + 4)


def _link(link: dict[str, Any], path: str, x: float, y: float) -> Line:
    expected = link["up"] + link["down"] if link["expected"] is None else link["expected"]
    kind = "nvlink" if link["up"] >= expected else "down"
    label = str(link["up"]) if kind == "nvlink" else f"{link['up']} of {expected}"
    return Line(path, kind, 1.2 + link["up"] * 0.8, label, x, y)


def _switches(
    links: Sequence[dict[str, Any]], names: set[str], boxes: dict[str, Box], y: float
) -> tuple[list[Box], list[Line]]:
    """One bar at y for all NVSwitches of these names, and a line from each GPU with the number of its links."""
    up, down = Counter[str](), Counter[str]()
    for link in links if names else ():
        if link["to"] not in boxes:
            up[link["from"]] += link["up"]
            down[link["from"]] += link["down"]
    if not up:
        return [], []
    used = [boxes[bus_id] for bus_id in up]
    left, right = min(box.x for box in used), max(box.x + box.width for box in used)
    bar = Box(left, y, right - left, f"{len(names)} NVSwitches" if len(names) > 1 else "NVSwitch", "", "switch")
    lines = []
    for box in used:
        begin, end = (box.y + HEIGHT, y) if box.y < y else (y + HEIGHT, box.y)
        lost = down[box.bus_id]
        lines.append(
            Line(f"M{box.middle:g} {begin:g}V{end:g}", "down" if lost else "nvlink", 1.2 + min(up[box.bus_id], 4) * 0.8,
                 f"{up[box.bus_id]} of {up[box.bus_id] + lost}" if lost else str(up[box.bus_id]), box.middle,
                 (begin + end) / 2 + 4)
        )  # fmt: skip
    return [bar], lines


def _sentences(machine: dict[str, Any], gpus: dict[str, Any]) -> Iterator[str]:
    for link in machine.get("nvlinks", []):
        ends = [(gpus.get(bus_id, {}).get("position", ""), _short_bus(bus_id)) for bus_id in (link["from"], link["to"])]
        a, b = (" ".join(end).strip() for end in ends)
        expected = "" if link["expected"] in (None, link["up"]) else f" of {link['expected']}"
        down = f", {link['down']} down" if link["down"] else ""
        yield f"{a} to {b or 'an unknown end'}: {link['up']}{expected} NVLinks{down}"
