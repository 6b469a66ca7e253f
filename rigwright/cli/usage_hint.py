"""Reads the command line before Invoke does: a mistake is one error with where, found, expected and fix."""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

from invoke.exceptions import Exit, ParseError
from invoke.parser.context import ParserContext
from invoke.parser.parser import Parser

from rigwright.core.program_name import program_name

if TYPE_CHECKING:
    from invoke.collection import Collection

_INFORMATIONAL = {"--help", "--list", "-l", "--version", "-V", "--complete", "--print-completion-script"}


def is_informational(words: Sequence[str]) -> bool:
    """Whether the words ask for help, a list, a version or a completion script. `-h` after a command is its `--host`."""
    return not words or words[0] == "-h" or not _INFORMATIONAL.isdisjoint(word.partition("=")[0] for word in words)


def check(words: Sequence[str], namespace: Collection, core: ParserContext) -> None:
    """Raises Exit with the error of a command line that Invoke cannot read; `core` are the flags of Invoke itself.

    With `--json -` the error is also written as a JSON document.
    """
    if is_informational(words):
        return
    names = [word for word in dict.fromkeys(words) if word in namespace.task_names]
    contexts = [ParserContext(name=name, args=namespace[name].get_arguments()) for name in names]
    try:
        Parser(initial=core, contexts=contexts).parse_argv(list(words))
    except ParseError as error:
        _refuse(words, names[0] if names else "", error, namespace)


def _refuse(words: Sequence[str], name: str, error: ParseError, namespace: Collection) -> NoReturn:
    from rigwright.core.errors import UsageError
    from rigwright.report.wrapping import message

    first = next((word for word in words if not word.startswith("-")), "")
    fix = _fix(words, name, first, namespace)
    found, expected = _mistake(error, words, name, first, namespace)
    refused = UsageError(name or "command line", found, expected, fix)
    if "--json=-" in words or ("--json", "-") in itertools.pairwise(words):
        from rigwright.core import terminal_stream
        from rigwright.report import json_document

        terminal_stream.write_document(json_document.dumps(json_document.document(name or first, "", 1, refused, [])))
    raise Exit(message(f"error {refused}", sys.stderr), 1) from None


def _mistake(error: ParseError, words: Sequence[str], name: str, first: str, namespace: Collection) -> tuple[str, str]:
    """What is wrong in the words, and what is expected there. An error that is not known keeps Invoke's words."""
    text = str(error)
    if not name:
        return (
            f"'{first}' is no command" if first else f"{_quoted(text)} stands without a command",
            "one of the commands",
        )
    command = namespace[name].options
    meaning = {field.name: field.metadata["help"] for field in command.fields()}
    flag = re.search(r"Flag <Argument: (\w+)", text)
    if flag and flag[1] in meaning and "needed value" in text:
        return f"{_flag(flag[1])} has no value", f"a value after it: {meaning[flag[1]].partition(' (')[0]}"
    if "required positional" in text:
        missing = [option for option in command.positional if f"'{option}'" in text]
        return f"{' and '.join(missing).upper()} is missing", "; ".join(meaning[option] for option in missing)
    if text == _quoted(text):
        return text, "a command and its flags"
    word = _quoted(text).strip("'\"")
    if word.startswith("-"):
        return f"{_quoted(text)} is no flag", _listed(meaning)
    joined = next((each.partition("=")[0] for each in words if each.startswith("-") and each.endswith(f"={word}")), "")
    if joined:
        return f"{joined} takes no value", f"{joined} alone"
    return f"{_quoted(text)} is one word too many", f"flags: {_listed(meaning)}" if meaning else "no more words"


def _quoted(text: str) -> str:
    """The word in `No idea what 'WORD' is!`, in its quotes; the whole text of another message."""
    match = re.search(r"No idea what (.*) is!", text)
    return match[1] if match else text


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


def _listed(options: Iterable[str]) -> str:
    """The flags of a command; the first six of many."""
    flags = [_flag(option) for option in options]
    more = f" and {len(flags) - 6} more" if len(flags) > 7 else ""
    return ", ".join(flags[:6] if more else flags) + more


def _fix(words: Sequence[str], name: str, first: str, namespace: Collection) -> str:
    """The command that was probably meant, and where all are shown. `first` is the first word that is no flag."""
    program = program_name()
    if not name:
        meant = _nearest(first, namespace.task_names) if first else ""
        shown = f"{program} --list, then {program} {meant or 'TASK'} --help"
        return f"{program} {shlex.join(_replaced(words, first, meant))}; all commands: {shown}" if meant else shown
    shown = f"{program} {name} --help"
    meant = _meant(words, name, namespace)
    return f"{meant}; all flags: {shown}" if meant else shown


def _meant(words: Sequence[str], name: str, namespace: Collection) -> str:
    """What was probably meant with the words after and before a known command; "" when it is not known."""
    program = program_name()
    before, after = words[: words.index(name)], words[words.index(name) + 1 :]
    names = [flag for argument in namespace[name].get_arguments() for flag in argument.names if len(flag) > 1]
    flags = {flag.replace("_", "-") for flag in names}
    if before and before[0].partition("=")[0].removeprefix("--") in flags:
        return f"flags stand after the command: {program} {shlex.join([name, *after, *before])}"
    unknown = next((word for word in after if word.startswith("--") and word[2:].partition("=")[0] not in flags), "")
    if unknown:
        flag = unknown.partition("=")[0]
        meant = _nearest(flag[2:], flags)
        if meant:
            return f"{program} {shlex.join(_replaced(words, flag, '--' + meant))}"
        return (
            "power limits and clocks stand in the inventory: limits: {power_limit_w: 200}" if name == "limits" else ""
        )
    if name == "explain":
        text = " ".join(after) or "Xid 79"
        return f"a text of several words stands in quotes: {program} explain '{text}'"
    if after and after[-1] == "--host":
        return f"{program} inventory.list shows the hosts"
    stray = after[0] if after and not after[0].startswith("-") else ""
    return f"{program} {shlex.join([name, '--host', *after])}" if stray and "host" in flags else ""


def _nearest(word: str, known: Iterable[str]) -> str:
    """The most similar known word; "" when none is similar."""
    import difflib

    return next(iter(difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)), "")


def _replaced(words: Sequence[str], wrong: str, right: str) -> list[str]:
    """The words with the wrong one (also the one before `=`) replaced, the first time that it stands there."""
    at = next(number for number, word in enumerate(words) if word.partition("=")[0] == wrong)
    return [*words[:at], right + words[at][len(wrong) :], *words[at + 1 :]]
