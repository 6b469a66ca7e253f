"""The report page: one self-contained HTML file, made of JSON documents by the small templates in templates/report/.

Nothing in it is fetched and nothing runs; whatever a host said is text, and a character that would steer a terminal or
turn the direction of writing is shown as a sign for it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox

from rigwright.report import cards
from rigwright.report.document import STEERING, over_time
from rigwright.report.drawing import Drawing, drawn
from rigwright.report.heat import Matrix, gb_s, matrices
from rigwright.report.plot import Plot, plotted
from rigwright.report.words import SOURCES

FOLDER = Path(__file__).parent.parent.parent / "templates" / "report"

_HOST: dict[str, Any] = {
    "status": "", "error": None, "steps": [], "changes": [], "findings": [], "gpus": [], "events": [], "p2p": None,
    "machine": None, "fleet": None, "simulated": "", "rebooted": False, "round_trips": 0, "seconds": 0.0,
}  # fmt: skip
_FINDING = {"check": "", "subject": "", "seen": "", "wanted": "", "cause": "", "fix": "", "source": "", "symptom": ""}
_MACHINE: dict[str, Any] = {
    "board": "", "cpu": "", "system": "", "kernel": "", "driver": "", "rig": None, "gpus": [], "bus": [],
    "nvlinks": [], "unknown": {},
}  # fmt: skip

VERDICTS = ("fail", "unknown", "warn", "info", "pass")
WORDS = {"fail": "failed", "unknown": "unknown", "warn": "warning", "info": "information", "pass": "passed"}
SIGNS = {"fail": "✗", "unknown": "?", "warn": "!", "info": "i", "pass": "✓"}


@dataclass(frozen=True)
class Card:
    """A GPU with its rows; `worst` is the verdict of the worst finding about it."""

    title: str
    worst: str
    groups: list[cards.Group]


@dataclass(frozen=True)
class HostView:
    """One host of a document, ready to be shown: `said` has all of its keys, `counts` its findings by verdict."""

    name: str
    anchor: str
    said: dict[str, Any]
    findings: list[dict[str, Any]]
    counts: Counter[str]
    cards: list[Card] = field(default_factory=list)
    matrices: list[Matrix] = field(default_factory=list)
    drawing: Drawing | None = None
    plot: Plot | None = None

    @property
    def verdict(self) -> str:
        """The worst of it all; a host in error has failed."""
        if self.said["error"] or self.said["status"] in ("failed", "unreachable"):
            return "unknown" if self.said["status"] == "unreachable" else "fail"
        return next((one for one in VERDICTS if self.counts[one]), "pass")

    @property
    def label(self) -> str:
        """That in a word or two."""
        return "unreachable" if self.said["status"] == "unreachable" else WORDS[self.verdict]


def page(documents: Sequence[Mapping[str, Any]]) -> str:
    """The page of one or more documents, as `--json` writes them; several hosts have an index at its top."""
    hosts = [
        view(name, f"host-{number}", said, document)
        for number, (name, said, document) in enumerate(_hosts(documents), 1)
    ]
    first: dict[str, Any] = dict(documents[0]) if documents else {"command": "", "run": "", "exit_code": 0}
    return environment().get_template("page.html.j2").render(
        hosts=hosts, command=first["command"], run=first["run"], begun=begun(first["run"]),
        exit_code=first["exit_code"], errors=[one["error"] for one in documents if one.get("error")],
        verdicts=VERDICTS, words=WORDS, signs=SIGNS, sources=SOURCES,
    )  # fmt: skip


def _hosts(documents: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    for document in documents:
        for name, said in document["hosts"].items():
            yield name, said, document


def begun(run: str) -> str:
    """When a run began, out of its id; "" for an id that does not say."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.strptime(run[:15], "%Y%m%d-%H%M%S"))
    except ValueError:
        return ""


def view(name: str, anchor: str, given: Mapping[str, Any], document: Mapping[str, Any]) -> HostView:
    """A host of a document, with all that its sections show."""
    said: dict[str, Any] = {**_HOST, **given, "command": document["command"]}
    machine: dict[str, Any] = {**_MACHINE, **(said["machine"] or {})}
    p2p: dict[str, Any] = said["p2p"] or {}
    said |= {"machine": machine, "p2p": p2p, "fleet": {**over_time(), **(said["fleet"] or {})}}
    findings = [{**_FINDING, **one} for one in said["findings"]]
    known = {(one["subject"], one["seen"]) for one in findings}
    judged = ({**_FINDING, **one} for one in p2p.get("judged") or [])
    findings += [one for one in judged if (one["subject"], one["seen"]) not in known]
    findings.sort(key=lambda one: VERDICTS.index(one["verdict"]))
    limits = {row["bus_id"]: row for row in said["gpus"]}
    positions = {one["bus_id"]: one["position"] for one in machine["gpus"]}
    shown = [
        Card(cards.title(gpu), _worst(gpu, findings), cards.groups(gpu, machine, p2p, limits.get(gpu["bus_id"], {})))
        for gpu in machine["gpus"]
    ]
    return HostView(
        name, anchor, said, findings, Counter(one["verdict"] for one in findings), shown, matrices(p2p, positions),
        drawn(machine), plotted(p2p.get("scaling") or [], (machine["rig"] or {}).get("scaling")),
    )  # fmt: skip


def _worst(gpu: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> str:
    about = {one["verdict"] for one in findings if gpu["bus_id"] in one["subject"]}
    worst = next((one for one in VERDICTS if one in about), "")
    if gpu["answers"]:
        return worst
    return "fail" if gpu["lost"] else "unknown"


def shown(value: Any) -> Any:
    """What a template writes of a value: nothing for None, and text without what steers a terminal or turns its direction."""
    if value is None:
        return ""
    if isinstance(value, str) and not hasattr(value, "__html__"):  # a template's own text has it
        return STEERING.sub("�", value)
    return value


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """The templates of templates/report/, in which every value is only text."""
    made = jinja2.sandbox.SandboxedEnvironment(
        loader=jinja2.FileSystemLoader(FOLDER), undefined=jinja2.StrictUndefined, autoescape=True, finalize=shown,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {"seconds": _duration, "gb_s": gb_s}
    return made


def _duration(value: float) -> str:
    """4.2 s, 3 min 20 s."""
    return f"{value:.1f} s" if value < 60 else f"{int(value // 60)} min {int(value % 60)} s"
