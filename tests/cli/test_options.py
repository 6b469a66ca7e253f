"""The options of the commands: every command has a function, every option a help text, and every flag its value."""

from __future__ import annotations

import importlib
import json
import keyword
import typing

import pytest
from invoke.exceptions import Exit

from rigwright.cli import command, execution, program
from rigwright.cli.options import CommandOptions, VerifyOptions
from rigwright.core.errors import Unreachable
from tests.cli.run_command import OPTIONS, run_command


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

    monkeypatch.setattr(execution, "run", run)
    verify = command.Command(VerifyOptions)
    verify(None, nccl_tests=True)
    verify(None, nccl_tests="/opt/nccl")
    assert [one.nccl_tests for one in given] == ["usual", "/opt/nccl"]


def test_an_error_is_one_message_and_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_options: CommandOptions) -> int:
        raise Unreachable("one", "no connection")

    monkeypatch.setattr(execution, "run", run)
    with pytest.raises(Exit) as raised:
        command.Command(VerifyOptions)(None)
    assert (raised.value.code, raised.value.message) == (3, "error one: no connection")


@pytest.mark.parametrize(
    ("command_name", "given", "flag", "expected"),
    [
        ("provision", {"serial": text}, "--serial", "percents of them up to 100 %")
        for text in ("0", "0%", "101%", "one", "1,", "1,,2", "-1", "1.5", "1;2", "%", "9999999")
    ]
    + [
        ("fleet.check", {"since": text}, "--since", "7d, 12h")
        for text in ("999999d", "999999w", "0001-01-01", "²d", "soon")
    ]
    + [("history.list", {"limit": text}, "--limit", "from 0 to 999999") for text in ("all", "-1", "²", "9" * 20)]
    + [("init", {"supply_w": text}, "--supply-w", "watts from 50 to 20000") for text in ("many", "49", "1600V")]
    + [
        ("stress", {"minutes": text}, "--minutes", "minutes from 0.1 to 1440")
        for text in ("0", "-3", "0.05", "nan", "1e1")
    ]
    + [("try", {"keep_if": "fastest"}, "--keep-if", "faster, no-slower, ask, never")]
    + [("verify", {"wheels": "/nowhere"}, "--wheels", "a directory with wheels, fetch, or none")]
    + [("fleet.run", {"timeout_s": text}, "--timeout-s", "seconds from 0.1 to 86400") for text in ("0", "1s", "90000")],
)
def test_a_value_of_another_type_is_one_error_with_an_example(
    command_name: str, given: dict[str, str], flag: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is also in the JSON document."""
    has_json = "json" in {one.name for one in OPTIONS[command_name].fields()}
    assert run_command(command_name, **given, **({"json": "-"} if has_json else {})) == 1
    output = capsys.readouterr()
    text = next(iter(given.values()))
    assert f"error {flag}: '{text}' is no " in output.err
    assert expected in output.err
    assert f"fix:      {flag} " in output.err
    if has_json:
        assert json.loads(output.out)["error"]["where"] == flag


@pytest.mark.parametrize(
    ("command_name", "given", "value"),
    [
        ("provision", {"serial": "1, 10%,100%"}, ("1", "10%", "100%")),
        ("history.list", {}, 20),
        ("history.list", {"limit": ""}, 20),
        ("history.list", {"limit": "0"}, 0),
        ("init", {"supply_w": "1600 W"}, 1600),
        ("stress", {"minutes": "0.1"}, 0.1),
        ("stress", {"minutes": " 1440 "}, 1440),
        ("fleet.check", {"since": None}, None),
    ],
)
def test_the_value_of_an_option_has_its_type(command_name: str, given: dict[str, str], value: object) -> None:
    options = execution.options_with(OPTIONS[command_name], dict(given))
    assert getattr(options, next(iter(given), "limit")) == value
