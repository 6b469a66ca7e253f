"""Checks the documentation: commands exist, generated pages are current, tables match the code, links have a target."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from invoke.exceptions import ParseError
from invoke.parser import Parser

from rigwright import catalogue, inventory
from rigwright.checks import Finding
from rigwright.core.desired import variable_names
from rigwright.engine import limits as limits_table, playbook
from rigwright.facts.gpu.health import Card, Errors
from rigwright.inventory.model import Host
from rigwright.report import json_document, prometheus
from tests import reports
from tests.paths import ROOT, files
from tests.report import fleet_documents, run_documents

with pytest.MonkeyPatch.context() as _patch:
    _patch.setattr(sys, "argv", ["pytest"])  # tasks.py prepares the process only where Invoke runs it
    tasks = importlib.import_module("tasks")
PROGRAMS = ("invoke", ".venv/bin/invoke", "rigwright")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _commands(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the words of every invoke and scripts/ command of a page, from code blocks and inline code."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        texts = [line[4:]] if line.startswith("    ") else re.findall(r"`([^`]+)`", line)
        for text in texts:
            for part in re.split(r"&&|;|\|", text):
                words = part.partition(" #")[0].split()
                words = words[1:] if words[:1] == ["sudo"] else words
                if words and (words[0] in PROGRAMS or words[0].startswith("scripts/")):
                    yield number, shlex.split(" ".join(words))


COMMANDS = [
    pytest.param(path, words, id=f"{path.name}:{number}") for path in PAGES for number, words in _commands(path)
]


OF_EXAMPLES = {
    name
    for path in PAGES
    for name in re.findall(r', command="([\w.-]+)"|^@task.*\ndef (\w+)', path.read_text(encoding="utf-8"), re.M)
    for name in name
    if name
}
"""Commands and tasks that examples of the documentation add."""


@pytest.mark.parametrize(("path", "words"), COMMANDS)
def test_command_exists(path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    if words[0].startswith("scripts/"):
        script = ROOT / words[0]
        assert os.access(script, os.X_OK)
        text = script.read_text(encoding="utf-8")
        for option in words[1:]:
            assert not option.startswith("--") or option in text, f"{words[0]} does not know {option}"
        return
    arguments = words[1:]
    if not arguments or arguments[0] in ("TASK", "--list", "--print-completion-script", *OF_EXAMPLES):
        return
    monkeypatch.setattr("sys.argv", words)  # an optional word of a command depends on it
    try:
        parsed = Parser(contexts=tasks.ns.to_contexts()).parse_argv([one for one in arguments if one != "--help"])
    except ParseError as error:
        pytest.fail(f"{' '.join(words)}: {error}")
    assert [context.name for context in parsed] == [arguments[0]]


def test_readme_shows_the_three_doors() -> None:
    found = [" ".join(words) for _, words in _commands(ROOT / "README.md")]
    for command in ("scripts/demo", "scripts/setup", ".venv/bin/invoke provision --host servbadge"):
        assert command in found


def test_readme_has_a_whole_inventory(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml inventory/hosts.yml\n(.*?)^```$", _readme(), re.MULTILINE | re.DOTALL)
    (tmp_path / "hosts.yml").write_text(text, encoding="utf-8")
    hosts = inventory.read(tmp_path)
    bound = playbook.bind(ROOT / "playbooks" / "provision.yml", hosts, hosts.only())
    assert len(bound.steps) > 20
    assert len(bound.checks) > 20


@pytest.mark.parametrize("page", ["README.md", "docs/guide/first_hour.md"])
def test_supported_releases_are_named(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").replace(" or ", ", ").split())
    for name, releases in catalogue.supported_releases().items():
        assert f"{name.capitalize()} {', '.join(releases)}" in text


def _readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def test_pages_are_short_and_in_the_index() -> None:
    assert len(_readme().splitlines()) <= 90
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        assert (ROOT / name).stat().st_size <= 4096, name
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    linked = {(ROOT / "docs" / link).resolve() for link in re.findall(r"\]\(([^)#]+)\)", text)}
    assert {*files("docs/**/*.md")} - linked == {ROOT / "docs" / "index.md"}


def test_generated_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "docs", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (path.parent / link).exists()] == []


def _anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub makes of the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = (
        re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", found) for found in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_to_headings_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", path.read_text(encoding="utf-8"))
    pages = [(path.parent / page if page else path, anchor) for page, anchor in links]
    assert [f"{page}#{anchor}" for page, anchor in pages if page.suffix == ".md" and anchor not in _anchors(page)] == []


PAGE_NAMED = re.compile(r"(?<![\w/.-])docs/[\w/-]+\.(?:md|png|webp|jsonl)(?:#[\w-]+)?")


def test_every_page_that_a_file_names_exists() -> None:
    """The page and its heading, wherever a file of the project names it by its path from the top."""
    named = {
        (path.relative_to(ROOT).parts[0], page)
        for path in _project_files()
        for page in PAGE_NAMED.findall(path.read_text(encoding="utf-8", errors="replace"))
        if not page.startswith("docs/interop/")  # QEMU's
    }
    assert {"rigwright", "onhost", "lab", "scripts", "tests", "README.md"} <= {top for top, _ in named}
    missing = [
        (top, page)
        for top, page in sorted(named)
        for file, _, anchor in [page.partition("#")]
        if not (ROOT / file).exists() or (anchor and anchor not in _anchors(ROOT / file))
    ]
    assert missing == []


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)


def test_every_json_key_is_described() -> None:
    finding = Finding(**dict.fromkeys(Finding.__struct_fields__, "pass"))  # type: ignore[arg-type]
    report = reports.report(Host("h", (), {}), findings=(finding,))
    made = json_document.document("plan", "r", 0, None, [report])
    text = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    assert [key for key in _keys(made) if key != "h" and f'"{key}"' not in text] == []


def test_every_key_of_a_machine_and_its_limits_is_described() -> None:
    """Every key is in backticks in its section; the values of a GPU are described where they are read."""
    text = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    machine = run_documents.healthy()["machine"]
    gpu_values = set(Card.__struct_fields__) - {"bus_id", "uuid", "name", "lost", "unread"}
    keys = {*_keys({**machine, "rig": {**machine["rig"], "scaling": None, "bandwidth_gb_s": None}, "unknown": {}})}
    keys -= gpu_values | set(Errors.__struct_fields__)
    section = text.partition("## `machine`\n")[2].partition("\n## ")[0]
    assert [key for key in sorted(keys) if f"`{key}`" not in section] == []
    limits = text.partition("## `gpus` of a host")[2].partition("\n## ")[0]
    assert [key for key in limits_table._limit("", "", "", "") if f"`{key}`" not in limits] == []


def test_every_key_of_a_fleets_report_is_described() -> None:
    """Every key is in backticks within the section on `fleet`; every metric is in the table with its HELP text."""
    made = fleet_documents.a_fleet(40)
    text = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    section = text.partition("## `fleet`\n")[2].partition("\n## ")[0]
    fleets = [{**host["fleet"], "readings": {}} for host in made["hosts"].values()]
    assert sorted({key for one in fleets for key in _keys(one) if f"`{key}`" not in section}) == []
    table = (ROOT / "docs" / "guide" / "fleet.md").read_text(encoding="utf-8")
    assert [name for name, (_, said) in prometheus.FAMILIES.items() if f"| `{name}` | {said} |" not in table] == []
    assert table.count("| `rigwright_") == len(prometheus.FAMILIES)


def test_every_variable_is_described() -> None:
    text = (ROOT / "docs" / "reference" / "inventory.md").read_text(encoding="utf-8")
    used = set(variable_names())
    for path in files("rigwright/**/*.py"):
        used |= set(re.findall(r'"(ansible_\w+)"', path.read_text(encoding="utf-8")))
    assert {"ansible_host", "ansible_become_exe", "driver", "limits"} <= used
    assert [name for name in sorted(used) if f"`{name}" not in text] == []


def test_the_walk_through_provision_is_true() -> None:
    """The page has at most 12 steps; each names a function that its file defines. Other paths of its table exist."""
    text = (ROOT / "docs" / "develop" / "run.md").read_text(encoding="utf-8")
    hops = re.findall(r"^\| (\d+) \| `([a-z_/]+\.py)` \| `(\w+)` \| (.*) \|$", text, re.M)
    assert [int(number) for number, *_ in hops] == list(range(1, len(hops) + 1))
    assert 8 <= len(hops) <= 12
    for _, file, function, returns in hops:
        assert f"def {function}(" in (ROOT / "rigwright" / file).read_text(encoding="utf-8"), f"{file}: {function}"
        for other in re.findall(r"`([a-z_/]+\.py)`", returns):
            assert (ROOT / "rigwright" / other).exists(), other


PLACEHOLDERS = ("lab/hardware/models/MODEL.yml", "playbooks/mine.yml")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_files_of_the_project_that_a_page_names_exist(path: Path) -> None:
    """Files that the examples of docs/develop make are excluded, and names that stand for others."""
    text = path.read_text(encoding="utf-8")
    added = {*re.findall(r"^```\w+ (\S+)$", text, re.M), *PLACEHOLDERS}
    named = re.findall(r"(?<![\w/-])((?:rigwright|onhost|lab|templates|playbooks|scripts|tests)/[\w./-]+\.\w+)\b", text)
    missing = [name for name in named if not (ROOT / name).exists() and name not in added]
    assert missing == []


def test_every_dependency_has_a_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = re.findall(r'^    "([A-Za-z-]+)[<>=][^"]*",(?:  # (.+))?$', text, re.M)
    assert len(declared) > 10
    assert [name for name, reason in declared if not reason] == []


# Words that must not occur in the repository: paths of the development machine, and hosts of package mirrors.
# The words are split so that this file does not contain them.
FORBIDDEN = ["/wo" + "rk/", "../sha" + "red", "deb.deb" + "ian.org", "archive.ubu" + "ntu.com", "py" + "pi.org"]
SKIPPED = {".git", ".venv", ".lab", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", "__pycache__"}


def _project_files() -> Iterator[Path]:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.endswith(".egg-info")]
        yield from (Path(folder) / name for name in names if name not in SKIPPED)  # .git of a worktree is a file


def test_no_file_names_the_place_it_was_made_in() -> None:
    found = []
    for path in _project_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [f"{path.relative_to(ROOT)}: {word}" for word in FORBIDDEN if word in text]
    assert found == []
