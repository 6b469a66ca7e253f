"""The topics, one case each: what people type leads to the page, and the page fits on one screen."""

from __future__ import annotations

import datetime
import io
from pathlib import Path

import pytest
from rich.console import Console

from rigwright import catalogue
from rigwright.catalogue.topics import MOST_LINES, check_conflicts, topics
from rigwright.core.errors import UsageError
from rigwright.core.yaml_source import load, only_keys
from rigwright.features.explain.answer import explain
from rigwright.features.explain.table import show
from tests.paths import CASES

TODAY = datetime.date(2026, 11, 22)
FILES = CASES / "topics"
CASE = pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in sorted(FILES.glob("*.yml"))])


@CASE
def test_topic(path: Path) -> None:
    case, topic = load(path), topics()[path.stem]
    only_keys(case, ("types", "says"), "key of a topic's case")
    for typed in (path.stem, *case["types"]):
        (page,) = explain(typed, TODAY)
        assert page.title == topic.title, f"'{typed}' is answered with '{page.title}'"
    text = "\n".join(line.text for line in page.lines)
    assert [words for words in case["says"] if words not in text] == []


def test_every_topic_has_a_case() -> None:
    assert {path.stem for path in FILES.glob("*.yml")} == set(topics())


@pytest.mark.parametrize("key", list(topics()))
def test_every_statement_has_a_source_and_the_page_fits_on_a_screen(key: str) -> None:
    topic = topics()[key]
    for line in topic.lines:
        assert line.text.strip() == line.text != ""
        assert line.source.strip() == line.source != ""
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    show(console, explain(key, TODAY))
    written = console.file.getvalue().rstrip().splitlines()  # type: ignore[attr-defined]
    assert len(written) <= MOST_LINES


@pytest.mark.parametrize("key", list(topics()))
def test_the_commands_of_a_page_are_answered(key: str) -> None:
    for command in topics()[key].see:
        if command.startswith("invoke explain "):
            assert explain(command.removeprefix("invoke explain ").strip("'"), TODAY), command
        else:
            assert command.startswith(("invoke ", "sudo dmesg | invoke explain -"))


def test_no_topic_has_the_examples_of_another_or_of_a_symptom() -> None:
    check_conflicts()


@pytest.mark.parametrize("key", list(topics()))
def test_a_topic_is_no_other_entry_of_the_catalogue(key: str) -> None:
    assert key not in (*catalogue.gpu_keys(), *catalogue.all_rigs(), *catalogue.all_symptoms(), *catalogue.branches())


def test_a_word_that_is_close_to_a_topic() -> None:
    with pytest.raises(UsageError, match="did you mean 'governor'"):
        explain("gouvernor", TODAY)
