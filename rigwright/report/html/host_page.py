"""The report page: one self-contained HTML file, made from JSON documents by the templates in templates/report/.

The page fetches nothing and runs no script. Text of a host is escaped, and its control characters are replaced.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.sandbox
from markupsafe import Markup, escape
from msgspec import Struct, field
from msgspec.structs import replace

from rigwright.checks import VERDICTS, Finding
from rigwright.checks.problems import Judgement, Problem, judge, problems
from rigwright.core.control_characters import visible
from rigwright.core.files import shipped_files
from rigwright.core.fix_steps import Step
from rigwright.core.host_ranges import folded
from rigwright.core.process.program_name import as_typed
from rigwright.engine.report import BAD
from rigwright.report.html import gpu_cards
from rigwright.report.html.p2p_matrix import Matrix, gb_s, matrices
from rigwright.report.html.scaling_plot import Plot, plotted
from rigwright.report.html.topology import Drawing, drawn
from rigwright.report.json_document import over_time
from rigwright.report.labels import SIGNS, SOURCES, WEIGHTS, WORDS

WORD = 28
"""The length up to which a word with a hyphen is not broken: the characters that fit on a phone."""

MANY = 8
"""The number of GPUs up to which all cards are open."""

FOLDER = shipped_files.folder("templates") / "report"

_HOST: dict[str, Any] = {
    "status": "", "error": None, "steps": [], "changes": [], "findings": [], "problems": [], "gpus": [], "events": [],
    "p2p": None, "owed": [], "measured": None, "machine": None, "fleet": None, "simulated": "", "rebooted": False,
    "round_trips": 0, "seconds": 0.0,
}  # fmt: skip
_FINDING = dict.fromkeys(Finding.__struct_fields__, "")
_MACHINE: dict[str, Any] = {
    "board": "", "cpu": "", "system": "", "kernel": "", "driver": "", "rig": None, "gpus": [], "bus": [],
    "nvlinks": [], "unknown": {},
}  # fmt: skip


class Card(Struct, frozen=True):
    """The card of a GPU. `worst`: the worst verdict of its findings, or ""; `answers`: to the driver."""

    title: str
    worst: str
    groups: list[gpu_cards.Group]
    answers: bool = True


class HostView(Struct, frozen=True):
    """One host of a document. `data`: its part of the document with every key; `counts`: its findings by verdict."""

    name: str
    anchor: str
    data: dict[str, Any]
    findings: list[dict[str, Any]]
    counts: Counter[str]
    problems: tuple[Problem, ...] = ()
    judgement: Judgement | None = None
    cards: list[Card] = field(default_factory=list)
    matrices: list[Matrix] = field(default_factory=list)
    drawing: Drawing | None = None
    plot: Plot | None = None

    @property
    def verdict(self) -> str:
        """The worst verdict of its findings; fail for an error, unknown for an unreachable host."""
        if self.data["error"] or self.data["status"] in ("failed", "unreachable"):
            return "unknown" if self.data["status"] == "unreachable" else "fail"
        return next((verdict for verdict in VERDICTS if self.counts[verdict]), "pass")

    @property
    def label(self) -> str:
        """The verdict in a word."""
        return "unreachable" if self.data["status"] == "unreachable" else WORDS[self.verdict]

    @property
    def level(self) -> str:
        """The verdict of the sentence, or of the findings where no check ran."""
        return self.judgement.level if self.judgement else self.verdict

    @property
    def sentence(self) -> str:
        """Whether the machine can be used; what the run found where no check ran."""
        return self.judgement.sentence if self.judgement else self.label

    @property
    def folds(self) -> bool:
        """Whether the cards of GPUs without a problem are folded: for many GPUs, except on a sheet to sign."""
        return len(self.cards) > MANY and self.data["command"] != "accept"

    @property
    def is_long(self) -> bool:
        """Whether its problems fill the column beside a drawing, so that the machine is described below the drawing."""
        return sum(len(text) for one in self.problems for text in (one.title, one.cause, *map(str, one.steps))) > 600


def page(documents: Sequence[Mapping[str, Any]]) -> str:
    """The page of one or more documents as `--json` writes them; for several hosts it begins with an index."""
    named = ((name, data, document) for document in documents for name, data in document["hosts"].items())
    hosts = [view(name, f"host-{number}", data, document) for number, (name, data, document) in enumerate(named, 1)]
    first: dict[str, Any] = dict(documents[0]) if documents else {"command": "", "run": "", "exit_code": 0}
    return environment().get_template("page.html.j2").render(
        hosts=hosts, command=first["command"], run=first["run"], begun=begun(first["run"]),
        exit_code=first["exit_code"], errors=[document["error"] for document in documents if document.get("error")],
        verdicts=VERDICTS, words=WORDS, signs=SIGNS, sources=SOURCES, weights=WEIGHTS, bad=BAD,
    )  # fmt: skip


def begun(run: str) -> str:
    """The start time of a run from its id; "" for an id without a time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.strptime(run[:15], "%Y%m%d-%H%M%S"))
    except ValueError:
        return ""


def view(
    name: str, anchor: str, host: Mapping[str, Any], document: Mapping[str, Any], *, brief: bool = False
) -> HostView:
    """The view of one host of a document; a brief one has no rows of cards, no matrices and no drawings."""
    data: dict[str, Any] = {**_HOST, **host, "command": document["command"]}
    machine: dict[str, Any] = {**_MACHINE, **(data["machine"] or {})}
    p2p: dict[str, Any] = data["p2p"] or {}
    data |= {"machine": machine, "p2p": p2p, "fleet": {**over_time(), **(data["fleet"] or {})}}
    findings = [{**_FINDING, **finding} for finding in data["findings"]]
    known = {(finding["subject"], finding["seen"]) for finding in findings}
    judged = ({**_FINDING, **finding} for finding in p2p.get("judged") or [])
    findings += [finding for finding in judged if (finding["subject"], finding["seen"]) not in known]
    findings.sort(key=lambda finding: VERDICTS.index(finding["verdict"]))
    made = tuple(_finding(finding) for finding in findings)
    found = tuple(_as_saved(problem, data["problems"]) for problem in problems(made))
    error = (data["error"] or {}).get("found", "")
    judgement = judge(found, made, error, data["status"] != "unreachable", len(data["owed"]))
    limits = {row["bus_id"]: row for row in data["gpus"]}
    positions = {gpu["bus_id"]: gpu["position"] for gpu in machine["gpus"]}

    def card(gpu: dict[str, Any]) -> Card:
        groups = (
            [] if brief else gpu_cards.groups(gpu, machine, p2p, limits.get(gpu["bus_id"], {}), data["measured"] or [])
        )
        title = f"{gpu['position']} {gpu['name'] or gpu['expected'] or 'GPU'}".strip()
        return Card(title, _worst(gpu, findings), groups, bool(gpu["answers"]))

    cards = [card(gpu) for gpu in machine["gpus"]]
    counts = Counter(finding["verdict"] for finding in findings)
    if brief:
        return HostView(name, anchor, data, findings, counts, found, judgement, cards)
    return HostView(
        name, anchor, data, findings, counts, found, judgement, cards, matrices(p2p, positions),
        drawn(machine), plotted(p2p.get("scaling") or [], (machine["rig"] or {}).get("scaling")),
    )  # fmt: skip


def _as_saved(problem: Problem, saved: Sequence[Mapping[str, Any]]) -> Problem:
    """The problem with the steps of the document, whose commands are as its reader types them."""
    for one in saved:
        if one["title"] == problem.title:
            return replace(problem, steps=tuple(Step(**{"command": "", "before": "", **step}) for step in one["steps"]))
    return problem


def _finding(finding: Mapping[str, Any]) -> Finding:
    return Finding(**{key: finding[key] for key in _FINDING})


def _worst(gpu: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> str:
    about = {finding["verdict"] for finding in findings if gpu["bus_id"] in finding["subject"]}
    worst = next((verdict for verdict in VERDICTS if verdict in about), "")
    if gpu["answers"]:
        return worst
    return "fail" if gpu["lost"] else "unknown"


def shown(value: Any) -> Any:
    """The text that a template writes for a value: "" for None, control characters replaced."""
    if value is None:
        return ""
    if isinstance(value, str) and not hasattr(value, "__html__"):  # a template's own text has it
        return visible(value)
    return value


def whole(text: str) -> Markup:
    """The text as HTML. Words with a hyphen, such as `apt-get`, stay on one line up to WORD characters."""
    words = (escape(part) for part in re.split(r"(\s+)", visible(text)))
    return Markup("").join(
        Markup('<span class="word">{}</span>').format(word) if "-" in word and len(word) <= WORD else word
        for word in words
    )


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """The environment of the templates in templates/report/; it escapes every value."""
    environment = jinja2.sandbox.SandboxedEnvironment(
        loader=jinja2.FileSystemLoader(FOLDER), undefined=jinja2.StrictUndefined, autoescape=True, finalize=shown,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"seconds": _duration, "gb_s": gb_s, "as_typed": as_typed, "whole": whole, "folded": folded}
    return environment


def _duration(value: float) -> str:
    """4.2 s, 3 min 20 s."""
    return f"{value:.1f} s" if value < 60 else f"{int(value // 60)} min {int(value % 60)} s"
