"""The programs `invoke` and `rigwright` as processes, and tasks.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import invoke
import pytest

from tests.paths import ROOT


def process(*argv: str, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """How a process ends."""
    variables = {**os.environ, **environment}
    none = subprocess.DEVNULL
    return subprocess.run(
        argv, cwd=folder, env=variables, stdin=none, capture_output=True, text=True, check=False, timeout=60
    )


def program(name: str) -> str:
    """The path of a program of this .venv."""
    return str(Path(sys.prefix) / "bin" / name)


def test_invoke_is_the_program_of_invoke() -> None:
    assert "from invoke.main import program" in Path(program("invoke")).read_text()


@pytest.mark.parametrize("name", ["invoke", "rigwright"])
def test_both_programs_run_a_command(name: str) -> None:
    done = process(program(name), "inventory.list", "--inventory", "inventory", "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    assert '"servbadge"' in done.stdout


@pytest.mark.parametrize("name", ["invoke", "rigwright"])
def test_both_programs_tell_an_error(name: str) -> None:
    done = process(program(name), "facts", "--host", "nobody", "--inventory", "inventory")
    assert (done.returncode, done.stderr) == (1, "")
    assert "no host or group 'nobody'" in done.stdout


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Returns a folder with tasks.py, whose example of a task counts."""
    text = (ROOT / "tasks.py").read_text()
    (tmp_path / "tasks.py").write_text(re.sub("^#     ", "", text, flags=re.MULTILINE))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code", "out", "error"),
    [
        ("scratch --host a --size-gb 7", 1, "", "error inventory: no inventory there: "),
        ("--list", 0, "  scratch             Mount memory as /scratch on a host.\n", ""),
        ("scratch --help", 0, "a host of the inventory", ""),
        ("scratch a", 1, "", "error scratch: 'a' is one word too many\n  expected: flags: --host, --size-gb\n"),
        ("scratch --size", 1, "", "error scratch: '--size' is no flag\n  expected: --host, --size-gb\n"),
        (
            "scratch --size-gb",
            1,
            "",
            "error scratch: --size-gb has no value\n  expected: a value after it: size_gb\n",
        ),
        ("scrtch a", 1, "", "error command line: 'scrtch' is no command\n"),
        ("catalogue.check", 0, "They agree.", ""),
    ],
)
def test_a_task_of_ones_own(own: Path, words: str, code: int, out: str, error: str) -> None:
    done = process(program("invoke"), *words.split(), folder=own, PYTHONPATH=str(ROOT))
    assert done.returncode == code, done.stderr
    assert out in done.stdout
    assert error in done.stderr
    assert bool(done.stderr) == bool(error)


def test_a_python_without_the_packages_is_told_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "invoke").symlink_to(Path(invoke.__file__).parent)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from invoke.main import program; "
        "program.run(['invoke', 'plan'])"
    )
    done = process(sys._base_executable, "-I", "-S", "-c", code)
    found, expected, fix = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    imported = {"pyyaml": "yaml", "nvidia-ml-py": "pynvml"}
    dependencies = (ROOT / "pyproject.toml").read_text().partition("\ndependencies = [\n")[2].partition("\n]")[0]
    names = re.findall(r'^ *"([a-z0-9-]+)', dependencies, re.MULTILINE)
    missing = sorted(imported.get(name, name) for name in names if name != "invoke")
    assert found == f"error invoke: {os.path.realpath(sys._base_executable)} has no {', '.join(missing)}"
    assert expected == "  expected: Python 3.10 or newer, with the packages of requirements/rigwright.lock"
    assert fix == "  fix:      scripts/setup, then type .venv/bin/invoke"


def test_rigwright_imports_no_mock_and_leaves_it_usable() -> None:
    code = (
        "import sys, rigwright.cli.program as p; print('unittest.mock' in sys.modules); import unittest.mock as m; "
        "print(m.Mock.__module__)"
    )
    assert process(sys.executable, "-c", code).stdout == "False\nunittest.mock\n"


def test_a_process_that_has_imported_mock_keeps_it() -> None:
    code = "import unittest.mock as m, rigwright.cli.program, invoke.context; print(invoke.context.Mock is m.Mock)"
    assert process(sys.executable, "-c", code).stdout == "True\n"


def test_no_garbage_is_looked_for_among_the_modules_at_the_end() -> None:
    code = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 10_000))\n"
    code += "from rigwright.core.process import startup; startup.prepare(); print(gc.get_freeze_count())"
    assert process(sys.executable, "-c", code).stdout == "0\nTrue\n"
