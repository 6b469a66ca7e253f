"""The versions of Python: one oldest version everywhere, and the grammar of the programs that run on hosts."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rigwright.core import features
from tests.paths import ROOT, files

SCRIPT = ROOT / "scripts" / "test-pythons"
OLDEST_ON_HOSTS = (3, 8)
"""Ubuntu 20.04's Python, the oldest of a host that docs/develop/run.md promises."""


def _versions() -> list[str]:
    found = re.search(r"^VERSIONS='([^']+)'$", SCRIPT.read_text(encoding="utf-8"), re.M)
    assert found is not None
    return found[1].split()


def test_the_oldest_version_is_the_same_everywhere() -> None:
    """setuptools refuses an older one; ruff and mypy look for what it lacks; the locks are made for it."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    oldest = _versions()[0]
    assert f'requires-python = ">={oldest}"' in text
    assert f'python_version = "{oldest}"' in text
    assert f'target-version = "py{oldest.replace(".", "")}"' in text
    assert f"--python-version {oldest} " in (ROOT / "scripts" / "lock").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", features.host_programs().values(), ids=lambda path: path.name)
def test_programs_for_hosts_are_of_the_oldest_grammar(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=OLDEST_ON_HOSTS)
    page = (ROOT / "docs" / "develop" / "run.md").read_text(encoding="utf-8")
    assert f"Python {OLDEST_ON_HOSTS[0]}.{OLDEST_ON_HOSTS[1]}" in page


def test_programs_for_hosts_need_nothing_but_the_standard_library_and_each_other() -> None:
    """All are in one folder on a host, so no two have one name."""
    used = set()
    for path in features.host_programs().values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            used |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            used |= {str(node.module)} if isinstance(node, ast.ImportFrom) else set()
    own = {Path(name).stem for name in features.host_programs()}
    assert {name.split(".")[0] for name in used} - own - set(sys.stdlib_module_names) == {"pynvml", "torch"}
    assert len(own) == len(files("onhost/*.py", "rigwright/features/*/host/*.py"))


@pytest.mark.parametrize(("word", "said"), [("3.9", "unknown version '3.9'"), ("--quick", "unknown option '--quick'")])
def test_another_word_is_refused(word: str, said: str) -> None:
    done = subprocess.run([SCRIPT, word], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
