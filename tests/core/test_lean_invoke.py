"""What a command imports of Invoke, and what it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

LEFT_OUT = ("unittest", "unittest.mock", "asyncio", "invoke.vendor.yaml.reader")


def _python(code: str) -> str:
    """Returns the output of a Python that runs the code."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_command_imports_no_mock_and_no_second_yaml() -> None:
    loaded = f"import json, sys, rigwright.cli.program; print(json.dumps([n for n in {LEFT_OUT} if n in sys.modules]))"
    assert json.loads(_python(loaded)) == []


def test_what_was_left_out_can_be_imported_and_used_afterwards() -> None:
    code = (
        "import rigwright.cli.program, unittest.mock, unittest, asyncio; from invoke.util import yaml\n"
        "print(unittest.mock.Mock.__module__, unittest.TestCase.__name__, yaml.safe_load('a: 1'))"
    )
    assert _python(code) == "unittest.mock TestCase {'a': 1}\n"


def test_a_process_that_has_unittest_keeps_it() -> None:
    code = "import unittest.mock as mock, rigwright.cli.program, sys; print(sys.modules['unittest.mock'] is mock)"
    assert _python(code) == "True\n"


@pytest.mark.parametrize("name", ["invoke", "rigwright"])
def test_setup_makes_programs_that_use_it(name: str) -> None:
    program = Path(sys.prefix) / "bin" / name
    code = "import atexit, runpy, sys; atexit.register(lambda: print('asyncio' in sys.modules))\n"
    code += f"sys.argv = [{str(program)!r}, '--version']; runpy.run_path({str(program)!r}, run_name='__main__')"
    assert _python(code).splitlines()[-1] == "False"
