"""The list of a large fleet: a short row for each machine, filters, and the cards of all machines compressed within the
page.

A browser with JavaScript filters and searches the rows, and unpacks the card of a machine when its row is opened.
Without JavaScript the rows are a plain list.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from markupsafe import Markup
from msgspec import Struct

from rigwright.core.control_characters import visible
from rigwright.core.files import shipped_files
from rigwright.core.gpu_labels import SHORT_UUID
from rigwright.features.fleet_report.machine_tiles import SHOWN, Machine, model
from rigwright.features.fleet_report.problems import Changed, Ending, Problem

PER_PACK = 20
"""The number of cards that are compressed together: more are smaller, fewer are unpacked faster."""
OPTIONS = 40
"""The most values of a filter; rarer ones are found by the search."""

_STEPS = "0123456789abcdefghijklmnopqrstuvwxyz"
_VERDICTS = ("fail", "unknown", "warn", "pass")


class Row(Struct, frozen=True):
    """What the list shows of a machine. `hottest`, `power`: "" where no GPU reports them."""

    machine: Machine
    driver: str
    hottest: str
    power: str
    problems: int


class Filter(Struct, frozen=True):
    """A choice of the values that machines have, with the number of machines of each. `column`: its place in the data
    of a machine."""

    name: str
    column: int
    values: tuple[tuple[str, int], ...]


class MachineList(Struct, frozen=True):
    """The rows, worst first; the filters; the data of the script, and the script with the hash that lets a browser run
    no other."""

    rows: tuple[Row, ...]
    filters: tuple[Filter, ...]
    data: Markup
    script: Markup
    script_hash: str


def sorted_rows(machines: Sequence[Machine], problems: Sequence[Problem]) -> list[Row]:
    """The rows of machines, the worst first, those with most problems before others; else in the order of the
    machines."""
    count = Counter(where.name for problem in problems for where in problem.hosts)
    ordered = sorted(machines, key=lambda one: (_VERDICTS.index(one.verdict), -count[one.host.name]))
    return [_row(machine, count[machine.host.name]) for machine in ordered]


def _row(machine: Machine, problems: int) -> Row:
    gpus = machine.host.data["machine"]["gpus"]
    degrees = [gpu["temperature_c"] for gpu in gpus if gpu["temperature_c"] is not None]
    watts = [gpu["power_w"] for gpu in gpus if gpu["power_w"] is not None]
    hottest, power = f"{max(degrees)} °C" if degrees else "", f"{sum(watts):.0f} W" if watts else ""
    return Row(machine, str(machine.host.data["machine"]["driver"] or ""), hottest, power, problems)


def machine_list(
    rows: Sequence[Row],
    problems: Sequence[Problem],
    changes: Sequence[Changed],
    endings: Sequence[Ending],
    card: Callable[[Machine], str],
) -> MachineList:
    """The list. The machines of a problem, a change or an end of life can be shown alone; `card`: the HTML of a
    machine's card."""
    lists: dict[str, Sequence[Problem | Changed | Ending]] = {"p": problems, "c": changes, "e": endings}
    of_row: tuple[tuple[str, Callable[[Row], Sequence[str]]], ...] = (
        ("State", lambda row: [row.machine.label]),
        ("Group", lambda row: [group] if (group := row.machine.group) else []),
        ("GPU", lambda row: sorted({model(gpu.data) for gpu in row.machine.gpus})),
        ("Driver", lambda row: [row.driver] if row.driver else []),
    )  # fmt: skip
    filters: list[Filter] = []
    columns: list[list[list[int]]] = []
    for name, values_of in of_row:
        values = [[visible(value) for value in values_of(row)] for row in rows]
        counted = Counter(value for of_row in values for value in of_row).most_common(OPTIONS)
        number = {value: place for place, (value, _) in enumerate(counted)}
        filters.append(Filter(name, len(filters), tuple(counted)))
        columns.append([[number[value] for value in of_row if value in number] for of_row in values])
    titles: dict[str, list[str]] = {}
    for problem in problems:
        for where in problem.hosts:
            titles.setdefault(where.name, []).append(f"{problem.check} {problem.title}")
    place = {row.machine.host.name: number for number, row in enumerate(rows)}
    cards = [card(row.machine) for row in rows]
    data = {
        "values": list(zip(*columns, strict=True)),
        "words": [visible(_words(row, titles.get(row.machine.host.name, ()))) for row in rows],
        "gpus": [" ".join(_cell(gpu.kind, gpu.values) for gpu in row.machine.gpus) for row in rows],
        "shows": list(SHOWN),
        "causes": {
            f"{letter}{number}": [place[where.name] for where in entry.hosts if where.name in place]
            for letter, entries in lists.items()
            for number, entry in enumerate(entries)
        },
        "packs": [_pack(cards[start : start + PER_PACK]) for start in range(0, len(cards), PER_PACK)],
        "per": PER_PACK,
    }
    script = (shipped_files.folder("templates") / "report" / "fleet_list.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    several = tuple(each for each in filters if len(each.values) > 1)
    return MachineList(tuple(rows), several, _json(data), Markup(script), digest)


def _words(row: Row, titles: Sequence[str]) -> str:
    """What the search finds beside the text of the row."""
    of = row.machine.host.data["machine"]
    gpus = [(str(gpu["uuid"] or "")[:SHORT_UUID], gpu.get("serial") or "") for gpu in of["gpus"]]
    texts = (row.machine.host.data["address"], of["board"], of["system"], of["kernel"], *chain(*gpus), *titles)
    return " ".join(dict.fromkeys(filter(None, map(str, texts))))


def _cell(kind: str, values: Mapping[str, Any]) -> str:
    """A GPU as one letter for its state and one for each value of SHOWN: its share of the maximum in 36 steps, `-` for
    none."""
    shares = (values[name].share if name in values else None for name in SHOWN)
    return (kind or "pass")[0] + "".join("-" if share is None else _STEPS[share * 35 // 100] for share in shares)


def _pack(cards: Sequence[str]) -> str:
    """Cards, separated by a zero byte, as raw deflate in base64."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    text = "\0".join(card.replace("\0", "") for card in cards).encode()
    return base64.b64encode(squeeze.compress(text) + squeeze.flush()).decode()


def _json(data: object) -> Markup:
    """Data for a script element, which no text in it can end."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.translate({ord(sign): f"\\u{ord(sign):04x}" for sign in "&<>\u2028\u2029"}))
