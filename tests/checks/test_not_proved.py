"""What was not tested is not called fit: facts that are not available, parts of a test that did not run, and notes that
hide either."""

from __future__ import annotations

import ast
import copy
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from rigwright.checks import Finding
from rigwright.checks.problems import judge, problems
from rigwright.core.errors import HostError
from rigwright.engine.plugins import known
from rigwright.facts import FactStore, Missing, Unavailable, Unreadable, parsed
from tests.paths import ROOT
from tests.test_cases import Case, cases, converted_parameters, result_of

ANOTHER_WAY = {
    ("health.xids", "gpu_health.cards"): "without them every GPU counts as one that does not answer",
}
"""By check and fact: why the check is also answered without the fact."""
NOT_OF_FACTS = ("nodes.",)
"""Checks that judge measurements of several nodes, which a parameter has."""


def findings_of(
    check: str, answers: Mapping[str, Any], parameters: Mapping[str, Any], store: FactStore, absent: str = ""
) -> list[Finding]:
    """Returns the findings of a check, as the engine evaluates it. `store`: gets the facts that it reads. `absent`: a
    fact that is not available, "*" for all."""
    function = known("checks")[check]
    taken = inspect.signature(function).parameters
    given = converted_parameters(function, {name: value for name, value in parameters.items() if name in taken})
    for _ in range(12):
        try:
            return list(function(store, **given))
        except Missing as wanted:
            for fact in wanted.facts:
                unavailable = absent in (fact.name, "*") or fact.name not in answers
                store.known[fact] = (
                    Unavailable("no answer") if unavailable else parsed(fact, result_of(answers[fact.name], fact.name))
                )
        except (Unavailable, Unreadable, HostError) as reason:
            return [Finding(check, "unknown", str(reason), check=check)]
    raise AssertionError("facts that never settle")


def is_fit(found: Sequence[Finding]) -> bool:
    """Returns whether the verdict on a machine with these findings says so."""
    verdict = judge(problems(tuple(found)), found)
    return verdict is not None and verdict.sentence.startswith("Fit")


SOUND = [
    case
    for case in cases("checks")
    if "unavailable" not in case.content and "error" not in case.content and not case.tested.startswith(NOT_OF_FACTS)
    and case.content.get("facts")
]  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{case.tested}/{case.title}") for case in SOUND])
def test_no_check_passes_without_a_fact_that_it_read(case: Case) -> None:
    answers, parameters = case.content["facts"], case.content.get("parameters") or {}
    store = FactStore()
    if not is_fit(findings_of(case.tested, answers, parameters, store)):
        return
    for fact in ("*", *(each.name for each in store.known)):
        found = findings_of(case.tested, answers, parameters, FactStore(), fact)
        assert not is_fit(found) or (case.tested, fact) in ANOTHER_WAY, (fact, found)


DOCUMENTS = {
    "nccl.tested": ("p2p.ran", "p2p.copies", "p2p.collective", "p2p.scaling"),
    "stress.measured": ("load.survived", "load.speed", "load.copies", "load.exact", "load.cool", "load.counters"),
    "training_smoke.trained": ("training_smoke.torch", "training_smoke.learned", "training_smoke.speed"),
    "nccl_programs.nccl_tests": ("nccl_programs.nccl_tests",),
}
"""By document of a test: the checks that judge it."""
MAY_BE_ABSENT = {
    "without_p2p": "what a workaround would cost",
    "with_level_sys": "what another setting would bring",
    "own": "nccl_p2p.py then also adds an error of the GPU, which is judged",
    "examined": "a torch that answered was examined",
    "rounds": "each pair has its own result",
    "gpus": "the host's own list of GPUs is judged by other checks",
    **dict.fromkeys(("notes", "leftovers", "looked_in", "errors", "events", "left_behind"), "no test"),
}
"""Parts of documents that are no test that the verdict needs, each with the reason."""


def without_a_part(document: Any) -> Iterator[tuple[str, Any]]:
    """Yields copies of a document in which one part did not run, or is not there, or in which the program was
    interrupted; with what is missing."""
    for path in _results(document):
        changed = copy.deepcopy(document)
        part = changed
        for key in path:
            part = part[key]
        part |= {key: None for key in ("ok", "gb_s", "round_gb_s", "busbw_gb_s") if key in part}
        part |= {"outcome": "not run", "error": "the time limit is over"}
        yield ".".join(map(str, path)), changed
    for name, value in document.items():
        if value and (isinstance(value, list) or name == "all_reduce"):
            yield name, {**document, name: [] if isinstance(value, list) else None}
    if "errors" in document:
        what = "interrupted by SIGTERM; the rest was not run"
        yield "program", {**document, "outcome": "failed", "errors": [{"where": "program", "what": what}]}


def _results(part: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    if path and isinstance(part, dict) and "outcome" in part:
        yield path
    for key, inner in items:
        yield from _results(inner, (*path, key))


@pytest.mark.parametrize("fact", DOCUMENTS)
def test_a_test_of_which_a_part_did_not_run_proves_nothing(fact: str) -> None:
    tried: dict[str, int] = {}
    others = {name: value for case in cases("checks") for name, value in (case.content.get("facts") or {}).items()}
    for case in cases("checks"):
        answers, parameters = case.content.get("facts") or {}, case.content.get("parameters") or {}
        if not isinstance(answers.get(fact), str):
            continue

        def found(document: str, answers: Any = answers, parameters: Any = parameters) -> list[Finding]:
            given = {**others, **answers, fact: document}
            return [each for check in DOCUMENTS[fact] for each in findings_of(check, given, parameters, FactStore())]

        if not answers[fact].startswith("{") or not is_fit(found(answers[fact])):
            continue
        for part, changed in without_a_part(json.loads(answers[fact])):
            if not MAY_BE_ABSENT.keys() & set(part.split(".")[-1:]):
                assert not is_fit(found(json.dumps(changed))), f"{case.tested}/{case.title}: {part} did not run"
                tried[part] = tried.get(part, 0) + 1
    assert tried, "no case of a test in which everything ran"


NOTES = {
    "not wanted": "the inventory says so",
    "not checked: the driver reports no NVLinks with MIG on": "instances of a GPU have no NVLinks",
    "not known: the kernel shows no table of the firmware, as in a container": "there is nothing to judge",
    "not judged: no GPU is under load": "an idle GPU has no heat to judge",
    "not read: no ipmitool with a management controller, and no sensors of the board": "most machines have none",
    "not run: {}": "node_train.py: only a training on the processor, as its option says, has no all-reduce of NCCL",
}
"""The notes that say that something was not done, each with the reason why nothing is missing."""


def test_no_note_hides_a_test_that_did_not_run() -> None:
    """A note (`info`) that begins with `not` or `could not` is one of NOTES; otherwise it is a finding `unknown`."""
    found: set[str] = set()
    for path in sorted([*(ROOT / "rigwright/checks").glob("*.py"), *(ROOT / "rigwright/features").rglob("*.py")]):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                found |= {text for text in _notes(function) if text.startswith(("not ", "could not "))}
    assert found == NOTES.keys()


def _notes(function: ast.FunctionDef) -> Iterator[str]:
    """Yields the texts of what the notes of a function say was seen."""
    nodes = list(ast.walk(function))
    values: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values.setdefault(node.targets[0].id, []).append(node.value)
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding" and len(node.args) > 2:
            verdict, seen = node.args[1:3]
            if "info" in [part.value for part in ast.walk(verdict) if isinstance(part, ast.Constant)]:
                for value in values.get(seen.id, []) if isinstance(seen, ast.Name) else [seen]:
                    yield from _texts(value)


def _texts(node: ast.expr) -> Iterator[str]:
    """Yields the text of a constant or an f-string, with {} for each value in it, and those of both of its branches."""
    if isinstance(node, ast.IfExp):
        yield from (text for branch in (node.body, node.orelse) for text in _texts(branch))
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    elif isinstance(node, ast.Constant):
        yield str(node.value)
