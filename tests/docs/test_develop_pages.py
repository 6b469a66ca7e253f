"""The examples of docs/develop are right: a copy of the checkout gets their files, and what the pages say to run passes
there.

A fenced block names its file after its language: ```python rigwright/facts/swap.py. A block whose text the file has
already is a quotation. Another one is appended to the file, or is a new file; `diff` replaces lines of a file.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.paths import ROOT, files

PAGES = files("docs/develop/*.md")
_BLOCK = re.compile(r"^```(\w*)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^    (\.venv/bin/\w+ .*?)(?: +#.*)?$", re.MULTILINE)


class Example(NamedTuple):
    """A fenced block of a page."""

    page: str
    language: str
    path: str
    text: str


EXAMPLES = [Example(page.stem, *block) for page in PAGES for block in _BLOCK.findall(page.read_text(encoding="utf-8"))]
WITH_EXAMPLES = sorted({example.page for example in EXAMPLES})


def _typed(page: str, program: str) -> list[list[str]]:
    """Returns the words of each command of this program that a page says to type, without those for a host or the
    lab."""
    text = (ROOT / "docs" / "develop" / f"{page}.md").read_text(encoding="utf-8")
    lines = [shlex.split(line) for line in _COMMAND.findall(text)]
    return [
        words[1:]
        for words in lines
        if words[0] == f".venv/bin/{program}" and not any(word == "--host" or word.startswith("lab.") for word in words)
    ]


TYPED = [(page, words) for page in WITH_EXAMPLES for words in _typed(page, "pytest")]


def _replace(file: Path, diff: str) -> None:
    """Replaces the lines of a file that a diff begins with ` ` or `-` by those that it begins with ` ` or `+`."""
    old, new = (
        "".join(f"{line[1:]}\n" for line in diff.splitlines() if line[:1] in signs)
        for signs in ((" ", "-"), (" ", "+"))
    )
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{file}: the old lines of the diff are there {text.count(old)} times:\n{old}"
    file.write_text(text.replace(old, new), encoding="utf-8")


def _apply(folder: Path, example: Example) -> None:
    file = folder / example.path
    if example.language == "diff":
        _replace(file, example.text)
        return
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    if example.text in text:
        return
    assert "tests/features/example/" not in example.path, (
        f"{example.path} does not have the lines that it is quoted with"
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n\n{example.text}" if text else example.text, encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a copy of the checkout with the files of all examples."""
    folder: Path = tmp_path_factory.mktemp("examples")
    for path in ROOT.iterdir():
        if path.name in ("rigwright", "tests", "lab", "playbooks"):
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.is_file() and path.name != ".git":
            shutil.copy(path, folder)
        elif not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    for example in EXAMPLES:
        _apply(folder, example)
    return folder


def _python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(folder)}
    argv = [sys.executable, *words]
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def passed(copy: Path) -> set[str]:
    """Returns the names of the tests that pass in the copy, of all that the pages say to run. Fails if one of them
    fails."""
    selected = sorted({path for _, words in TYPED for path in words[: words.index("-k")]})
    words = " or ".join(f"({words[-1]})" for _, words in TYPED)
    options = ("-q", "-n", "0", "-p", "no:cacheprovider", "--junitxml", "passed.xml")
    done = _python(copy, "-m", "pytest", *options, *selected, "-k", words)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    cases = ElementTree.parse(copy / "passed.xml").iter("testcase")
    return {f"{case.get('classname')}.{case.get('name')}" for case in cases}


def test_every_kind_of_example_is_there() -> None:
    assert {"check", "command", "distribution", "fact", "feature", "gpu", "operation", "rig"} <= {*WITH_EXAMPLES}
    assert {page for page, _ in TYPED} >= {*WITH_EXAMPLES}, "a page with an example says how to test it"
    assert [example.text for example in EXAMPLES if not example.path] == [], "a block without the name of its file"


@pytest.mark.parametrize(("page", "words"), TYPED, ids=lambda value: value if isinstance(value, str) else value[-1])
def test_the_tests_that_a_page_names_pass(passed: set[str], page: str, words: list[str]) -> None:
    del page
    for part in words[-1].split(" or "):
        assert [name for name in passed if part in name], part


@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_a_command_without_a_host_ends_well(copy: Path, page: str) -> None:
    for words in _typed(page, "invoke"):
        done = _python(copy, "-c", "from rigwright.cli.program import main; main()", *words)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_new_command_writes_a_document(copy: Path) -> None:
    done = _python(copy, "-c", "from rigwright.cli.program import main; main()", "host.count", "--json", "-")
    assert json.loads(done.stdout)["count"] == 1


def test_a_new_check_is_bound_by_its_playbook(copy: Path) -> None:
    code = (
        "from pathlib import Path; from rigwright import inventory; from rigwright.engine import playbook\n"
        "hosts = inventory.read(Path('inventory'))\n"
        "print(*(check.check for check in playbook.bind(Path('playbooks/provision.yml'), hosts, hosts.only()).checks))"
    )
    done = _python(copy, "-c", code)
    assert "health.fans_turn" in done.stdout.split(), done.stderr
