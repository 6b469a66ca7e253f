"""The options of the commands: every command has a function, every option a help text, and every flag its value."""

from __future__ import annotations

import importlib
import keyword
import typing

import pytest
from invoke.exceptions import Exit

from rigwright.cli import command, program
from rigwright.cli.options import CommandOptions, VerifyOptions
from rigwright.core.errors import Unreachable


@pytest.mark.parametrize("options", program.commands(), ids=lambda one: one.command)
def test_a_command_has_a_function_that_takes_its_options(options: type[CommandOptions]) -> None:
    """The module has the name of the command or of the command's group, or it is the feature's command.py."""
    module, _, function = options.function.partition(":")
    name = options.command.replace(".", "_").replace("-", "_")
    name += "_" * keyword.iskeyword(name)
    *package, file = module.split(".")
    assert file in (name, name.split("_")[0]) or (package[:2] == ["rigwright", "features"] and file == "command")
    hints = typing.get_type_hints(getattr(importlib.import_module(module), function))
    assert hints == {"options": options, "return": int}


@pytest.mark.parametrize("options", program.commands(), ids=lambda one: one.command)
def test_every_command_and_option_has_help(options: type[CommandOptions]) -> None:
    assert options.__doc__
    assert [one.name for one in options.fields() if not one.metadata["help"]] == []


def test_a_flag_that_needs_no_value_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[VerifyOptions] = []

    def run(options: VerifyOptions) -> int:
        given.append(options)
        return 0

    monkeypatch.setattr(command, "run", run)
    verify = command.Command(VerifyOptions)
    verify(None, nccl_tests=True)
    verify(None, nccl_tests="/opt/nccl")
    assert [one.nccl_tests for one in given] == ["usual", "/opt/nccl"]


def test_an_error_is_one_message_and_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_options: CommandOptions) -> int:
        raise Unreachable("one", "no connection")

    monkeypatch.setattr(command, "run", run)
    with pytest.raises(Exit) as raised:
        command.Command(VerifyOptions)(None)
    assert (raised.value.code, raised.value.message) == (3, "error one: no connection")
