"""Reads the command line before Invoke does: a mistake is one error with where, found, expected and fix."""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from invoke.exceptions import Exit, ParseError
from invoke.parser.argument import Argument
from invoke.parser.context import ParserContext
from invoke.parser.parser import Parser

from rigwright.core.process.program_name import program_name

if TYPE_CHECKING:
    from invoke.collection import Collection

Tasks = Mapping[str, Sequence[Argument]]
"""The flags of each task, by its name."""
_INFORMATIONAL = {"--help", "--list", "-l", "--version", "-V", "--complete", "--print-completion-script"}


def is_informational(words: Sequence[str]) -> bool:
    """Whether the words ask for help, a list, a version or a completion script. `COMMAND -h` is its `--host`."""
    return not words or words[0] == "-h" or not _INFORMATIONAL.isdisjoint(word.partition("=")[0] for word in words)


def check(words: Sequence[str], namespace: Collection, core: ParserContext) -> None:
    """Raises Exit with the error of a command line that Invoke cannot read; `core` are the flags of Invoke itself.

    With `--json -` the error is also written as a JSON document.
    """
    if is_informational(words):
        return
    contexts = namespace.to_contexts()
    try:
        Parser(initial=core, contexts=contexts).parse_argv(list(words))
    except ParseError as error:
        _refuse(words, error, {str(context.name): tuple(context.args.values()) for context in contexts})


def _refuse(words: Sequence[str], error: ParseError, tasks: Tasks) -> NoReturn:
    from rigwright.core.errors import UsageError
    from rigwright.report.wrapping import message

    first = next((word for word in words if not word.startswith("-")), "")
    name = next((word for word in words if word in tasks), "")
    fix = _fix(words, name, first, tasks)
    found, expected = _mistake(error, words, name, first, tasks)
    refused = UsageError(name or "command line", found, expected, fix)
    if "--json=-" in words or ("--json", "-") in itertools.pairwise(words):
        from rigwright.core.process import streams
        from rigwright.report import json_document

        streams.write_document(json_document.dumps(json_document.document(name or first, "", 1, refused, [])))
    raise Exit(message(f"error {refused}", sys.stderr), 1) from None


def _mistake(error: ParseError, words: Sequence[str], name: str, first: str, tasks: Tasks) -> tuple[str, str]:
    """What is wrong in the words, and what is expected there. An error that is not known keeps Invoke's words."""
    text = str(error)
    if not name:
        return (
            f"'{first}' is no command" if first else f"{_in_quotes(text)} stands without a command",
            "one of the commands",
        )
    meaning = {str(flag.name): flag.help or str(flag.name) for flag in tasks[name]}
    empty = re.search(r"Flag <Argument: (\w+)", text)
    if empty and empty[1] in meaning and "needed value" in text:
        return f"{_flag(empty[1])} has no value", f"a value after it: {meaning[empty[1]].partition(' (')[0]}"
    if "required positional" in text:
        missing = [str(flag.name) for flag in tasks[name] if flag.positional and f"'{flag.name}'" in text]
        return f"{' and '.join(missing).upper()} is missing", "; ".join(meaning[option] for option in missing)
    if text == _in_quotes(text):
        return text, "a command and its flags"
    word = _in_quotes(text).strip("'\"")
    if word.startswith("-"):
        return f"{_in_quotes(text)} is no flag", _list_of(meaning)
    joined = next((each.partition("=")[0] for each in words if each.startswith("-") and each.endswith(f"={word}")), "")
    if joined:
        return f"{joined} takes no value", f"{joined} alone"
    return f"{_in_quotes(text)} is one word too many", f"flags: {_list_of(meaning)}" if meaning else "no more words"


def _in_quotes(text: str) -> str:
    """The word in `No idea what 'WORD' is!`, in its quotes; the whole text of another message."""
    match = re.search(r"No idea what (.*) is!", text)
    return match[1] if match else text


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


def _list_of(options: Iterable[str]) -> str:
    """The flags of a command; the first six of many."""
    flags = [_flag(option) for option in options]
    more = f" and {len(flags) - 6} more" if len(flags) > 7 else ""
    return ", ".join(flags[:6] if more else flags) + more


def _fix(words: Sequence[str], name: str, first: str, tasks: Tasks) -> str:
    """The command that was probably meant, and where all are shown. `first` is the first word that is no flag."""
    program = program_name()
    if not name:
        meant = _nearest(first, tasks) if first else ""
        shown = f"{program} --list, then {program} {meant or 'TASK'} --help"
        return (
            f"{program} {shlex.join(_with_right_word(words, first, meant))}; all commands: {shown}" if meant else shown
        )
    shown = f"{program} {name} --help"
    meant = _meant(words, name, tasks)
    return f"{meant}; all flags: {shown}" if meant else shown


def _meant(words: Sequence[str], name: str, tasks: Tasks) -> str:
    """What was probably meant with the words after and before a known command; "" when it is not known."""
    program = program_name()
    before, after = words[: words.index(name)], words[words.index(name) + 1 :]
    names = [each for flag in tasks[name] for each in flag.names if len(each) > 1]
    flags = {each.replace("_", "-") for each in names}
    if before and before[0].partition("=")[0].removeprefix("--") in flags:
        return f"flags stand after the command: {program} {shlex.join([name, *after, *before])}"
    unknown = next((word for word in after if word.startswith("--") and word[2:].partition("=")[0] not in flags), "")
    if unknown:
        flag = unknown.partition("=")[0]
        meant = _nearest(flag[2:], flags)
        if meant:
            return f"{program} {shlex.join(_with_right_word(words, flag, '--' + meant))}"
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


def _with_right_word(words: Sequence[str], wrong: str, right: str) -> list[str]:
    """The words with the first wrong word replaced, also before `=`."""
    at = next(number for number, word in enumerate(words) if word.partition("=")[0] == wrong)
    return [*words[:at], right + words[at][len(wrong) :], *words[at + 1 :]]
