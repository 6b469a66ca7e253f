"""The topics, one case each: what people type leads to the page, and the page fits on one screen."""

from __future__ import annotations

import datetime
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from rigwright import catalogue
from rigwright.catalogue import loader
from rigwright.catalogue.topics import MOST_LINES, check_conflicts, topics
from rigwright.core.errors import InputError, UsageError
from rigwright.core.yaml_source import load, only_keys
from rigwright.features.explain.table import show
from rigwright.features.explain.topics import explain
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


PAGE = """\
title: Fans
names: [fan]
patterns: ['.*fan.*loud.*']
texts: ["the fan is loud"]
lines:
  - {text: They turn., source: seen}
see: [invoke verify]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields a folder of a catalogue with one topic and all symptoms."""
    (tmp_path / "topics").mkdir()
    (tmp_path / "topics" / "fans.yml").write_text(PAGE, encoding="utf-8")
    (tmp_path / "symptoms.yml").write_bytes((loader.FOLDER / "symptoms.yml").read_bytes())
    monkeypatch.setattr(loader, "FOLDER", tmp_path)
    topics.cache_clear()
    yield tmp_path / "topics"
    topics.cache_clear()


@pytest.mark.usefixtures("folder")
def test_a_page_is_read() -> None:
    assert topics()["fans"].is_meant("My FAN is so loud now")
    assert not topics()["fans"].is_meant("the fan is quiet")
    check_conflicts()


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("names: [fan]", "name: [fan]", 2, "unknown key 'name'"),
        ("title: Fans\n", "title: Fans\nkey: fans\n", 2, "the file's name is the key"),
        ("'.*fan.*loud.*'", "'(fan'", 3, "a regular expression"),
        ('"the fan is loud"', '"the fan is quiet"', 4, "no pattern of 'fans' matches this text"),
        (", source: seen", "", 6, "'lines' lacks source"),
        ("{text: They turn., source: seen}", "\n  - ".join(["{text: a, source: b}"] * 15), 5, "a page of 17 lines"),
    ],
)
def test_a_mistake_is_named_by_line(folder: Path, old: str, new: str, line: int, words: str) -> None:
    assert old in PAGE
    (folder / "fans.yml").write_text(PAGE.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        topics()
    assert caught.value.where == f"catalogue/topics/fans.yml:{line}"
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("'.*fan.*loud.*'", "'.*fan.*loud.*', '.*library version mismatch'", 3, "of 'driver.mismatch'"),
        ("names: [fan]", "names: [fan, driver.mismatch]", 2, "of 'driver.mismatch'"),
        ("names: [fan]", "names: [fan, Airflow]", 2, "'Airflow' is also 'airflow' of 'heat'"),
        ("'.*fan.*loud.*'", "'.*fan.*loud.*', 'air.*'", 3, "'air.*' is also 'airflow' of 'heat'"),
    ],
)
def test_the_text_of_another_entry_is_named_by_line(folder: Path, old: str, new: str, line: int, words: str) -> None:
    (folder / "fans.yml").write_text(PAGE.replace(old, new), encoding="utf-8")
    (folder / "heat.yml").write_text(
        "title: Heat\nnames: [airflow]\nlines:\n  - {text: a, source: b}\nsee: []\n", encoding="utf-8"
    )
    with pytest.raises(InputError) as caught:
        check_conflicts()
    assert caught.value.where == f"catalogue/topics/fans.yml:{line}"
    assert words in str(caught.value)


def test_a_word_that_is_close_to_a_topic() -> None:
    with pytest.raises(UsageError, match="did you mean 'governor'"):
        explain("gouvernor", TODAY)
