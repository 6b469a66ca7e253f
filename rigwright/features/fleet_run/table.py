"""`invoke fleet.run`: the answers of many hosts to one command; equal answers are shown once."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from rigwright.core import host_ranges
from rigwright.features.fleet_run.result import CommandResult
from rigwright.report.labels import as_is


def group_answers(answers: Mapping[str, CommandResult]) -> list[tuple[CommandResult, list[str]]]:
    """Each different answer with its hosts: exit code 0 first, then the answers that most hosts gave."""
    groups: dict[CommandResult, list[str]] = {}
    for name, ran in answers.items():
        groups.setdefault(CommandResult(ran.code, ran.output.strip("\n"), ran.cut), []).append(name)
    return sorted(groups.items(), key=lambda item: (item[0].code != 0, -len(item[1])))


def show(console: Console, answers: Mapping[str, CommandResult], limit_s: float) -> None:
    """Writes each answer under the names of its hosts, then a line that counts the exit codes."""
    for ran, names in group_answers(answers):
        result = "[green]exit 0[/]" if ran.code == 0 else f"[bold red]exit {ran.code}[/]"
        if ran.code is None:
            result = f"[bold red]not done within {limit_s:g} s[/]"
        many = f" [dim]({len(names)} hosts)[/]" if len(names) > 2 else ""
        console.print(f"[bold]{as_is(host_ranges.folded(names))}[/]{many}: {result}", soft_wrap=True)
        for line in ran.output.split("\n") if ran.output else []:
            console.print(f"  {as_is(line)}".rstrip(), soft_wrap=True)
        if ran.cut:
            note = "the output was cut here; a command that went on writing was ended"
            console.print(f"  [yellow]... and more[/]: {note}")
    succeeded = sum(ran.code == 0 for ran in answers.values())
    if len(answers) > 1:
        late = sum(ran.code is None for ran in answers.values())
        failed = len(answers) - succeeded - late
        others = f", {failed} with another exit" if failed else ""
        others += f", {late} did not end in time" if late else ""
        console.print(f"\n{succeeded} of {len(answers)} hosts: exit 0{others}")
