"""Commands whose flags are written out run without Invoke's parser, and get what Invoke would give them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invoke.exceptions import ParseError
from invoke.parser.context import ParserContext
from invoke.parser.parser import Parser

from rigwright.cli import program, start
from rigwright.cli.command import Command
from rigwright.cli.options import CommandOptions, ProvisionOptions, VerifyOptions
from tests.paths import ROOT

VALUES = ("a", "-", "", "a b", "=x", "7", "--yes", "-y", "all", "provision", "-5", "--")


def by_invoke(options: type[CommandOptions], words: list[str]) -> dict[str, object] | None:
    """The values that Invoke's parser reads; None for a mistake, or for more than one command."""
    contexts = [ParserContext(name=one.command, args=Command(one).get_arguments()) for one in program.commands()]
    try:
        found = Parser(initial=program.Program().initial_context, contexts=contexts).parse_argv(words)
    except ParseError:
        return None
    if (
        len(found) != 2
        or any(argument.got_value for argument in found[0].args.values())
        or found.unparsed
        or found.remainder
    ):
        return None
    return dict(found[1].as_kwargs) if found[1].name == options.command else None


@st.composite
def lines(draw: st.DrawFn) -> tuple[type[CommandOptions], list[str]]:
    """A command, and words that may be its flags and their values."""
    options = draw(st.sampled_from(program.commands()))
    flags = [f"--{field.name.replace('_', '-')}" for field in options.fields()]
    words = [options.command]
    for flag in draw(st.lists(st.sampled_from([*flags, "--nonsense", "-h", "word"]), max_size=4)):
        value = draw(st.sampled_from(VALUES))
        words += draw(st.sampled_from([[flag], [flag, value], [f"{flag}={value}"]]))
    return options, words


@given(lines())
def test_what_is_read_is_what_invoke_reads(line: tuple[type[CommandOptions], list[str]]) -> None:
    options, words = line
    read = start.plain(words)
    if read is not None:
        assert (read[0], read[1]) == (options, by_invoke(options, words)), words


def test_usual_lines_are_read() -> None:
    read = start.plain(["provision", "--host", "a", "--inventory", "i", "--yes", "--json", "-", "--playbook=p"])
    assert read is not None
    assert read[0] is ProvisionOptions
    given_values = {name: value for name, value in read[1].items() if value}
    assert given_values == {"host": "a", "inventory": "i", "yes": True, "json": "-", "playbook": "p"}
    assert start.plain(["verify", "--quick"]) is not None
    assert VerifyOptions(**start.plain(["verify", "--quick"])[1]).quick  # type: ignore[index]


@pytest.mark.parametrize(
    "words",
    [[], [""], ["--list"], ["verify", "--help"], ["verify", "-q"], ["verify", "x"], ["verify", "--quick", "--quick"], ["verify", "plan"],
     ["verify", "--quick=yes"], ["verify", "--host"], ["explain", "Xid 79"], ["lab.up", "--rig", "servbadge"], ["-e", "verify"]],
)  # fmt: skip
def test_all_else_is_left_to_invoke(words: list[str]) -> None:
    assert start.plain(words) is None


def process(name: str, *words: str, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """How a program of the .venv ends; stderr's last line says whether Invoke read the command line."""
    script = Path(sys.prefix) / "bin" / name
    code = (
        "import atexit, runpy, sys\natexit.register(lambda: print('invoke.program' in sys.modules, file=sys.stderr))\n"
    )
    code += f"sys.argv = [{str(script)!r}, *sys.argv[1:]]; runpy.run_path(sys.argv[0], run_name='__main__')"
    argv = [sys.executable, "-c", code, *words]
    return subprocess.run(
        argv, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", ["invoke", "rigwright"])
def test_both_programs_read_plain_lines_themselves(name: str) -> None:
    words = ("inventory.list", "--inventory", "inventory", "--json", "-")
    done, usual = process(name, *words), process(name, *words, INVOKE_OTHER="1")
    assert (done.returncode, done.stdout) == (usual.returncode, usual.stdout)
    assert '"servbadge"' in done.stdout
    assert [one.stderr.splitlines()[-1] for one in (done, usual)] == ["False", "True"]


@pytest.mark.parametrize("name", ["invoke", "rigwright"])
def test_an_error_is_told_as_by_invoke(name: str) -> None:
    words = ("facts", "--host", "nobody", "--inventory", "inventory")
    done, usual = process(name, *words), process(name, *words, INVOKE_OTHER="1")
    assert (done.returncode, done.stdout) == (usual.returncode, usual.stdout)
    assert done.returncode == 1
    assert done.stderr.splitlines()[:-1] == usual.stderr.splitlines()[:-1]
    assert "no host or group 'nobody'" in done.stdout


def test_invoke_in_another_folder_has_that_folders_tasks(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("from invoke import task\n@task\ndef facts(c):\n    print('own facts')\n")
    assert process("invoke", "facts", folder=tmp_path).stdout == "own facts\n"
    (tmp_path / "tasks.py").unlink()
    assert "Can't find any collection named 'tasks'!" in process("invoke", "facts", folder=tmp_path).stderr


EARLIER = (
    "import sys\nimport rigwright.cli.lean_invoke\nfrom invoke.main import program\nsys.exit(program.run())\n",
    "import rigwright.cli.lean_invoke\nfrom invoke.main import program\nfrom rigwright.core import process_end\nprocess_end.run(program.run)\n",
    "from rigwright.cli import start\nstart.invoke()\n",
)
"""What scripts/setup wrote to .venv/bin/invoke in earlier versions."""


@pytest.mark.parametrize("program", EARLIER)
def test_an_invoke_of_an_earlier_setup_works(program: str, tmp_path: Path) -> None:
    done = run_as_invoke(program, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert '"servbadge"' in done.stdout


def test_an_invoke_whose_module_has_moved_says_what_to_type(tmp_path: Path) -> None:
    text = (ROOT / "scripts" / "setup").read_text()
    (program,) = re.findall(r"<<END\n#!\$python\n(.*?)\nEND\n", text, re.DOTALL)
    assert '"servbadge"' in run_as_invoke(program, tmp_path).stdout
    done = run_as_invoke(program.replace("import start", "import started"), tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    error, fix = done.stderr.splitlines()
    assert error.startswith("error .venv/bin/invoke: cannot import name 'started' from 'rigwright.cli'")
    assert fix == "  fix:      scripts/setup, in the folder that has this .venv"


def run_as_invoke(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command of this checkout with a program in place of .venv/bin/invoke."""
    script = folder / "invoke"
    script.write_text(program)
    argv = [sys.executable, str(script), "inventory.list", "--inventory", "inventory", "--json", "-"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
