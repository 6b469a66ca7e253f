"""What many hosts answered to one command: equal answers once, with the hosts that gave them."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape

from rigwright import patterns
from rigwright.hostreport import Ran


def grouped(answers: Mapping[str, Ran]) -> list[tuple[Ran, list[str]]]:
    """Every different answer with its hosts: those that ended well first, of these what most hosts say."""
    groups: dict[Ran, list[str]] = {}
    for name, ran in answers.items():
        groups.setdefault(Ran(ran.code, ran.output.strip("\n"), ran.cut), []).append(name)
    return sorted(groups.items(), key=lambda item: (item[0].code != 0, -len(item[1])))


def show(console: Console, answers: Mapping[str, Ran], limit_s: float) -> None:
    """Writes every answer under its hosts, then a line that counts."""
    for ran, names in grouped(answers):
        many = f" [dim]({len(names)} hosts)[/]" if len(names) > 2 else ""
        console.print(f"[bold]{escape(patterns.folded(names))}[/]{many}: {_ended(ran, limit_s)}", soft_wrap=True)
        for line in ran.output.split("\n") if ran.output else []:
            console.print(f"  {escape(line)}".rstrip(), soft_wrap=True)
        if ran.cut:
            console.print("  [yellow]... and more[/]: it was cut here, and the command ended where it went on writing")
    well = sum(ran.code == 0 for ran in answers.values())
    if len(answers) > 1:
        late = sum(ran.code is None for ran in answers.values())
        failed = len(answers) - well - late
        parts = [f"{well} of {len(answers)} hosts: exit 0"]
        parts += [f"{failed} with another exit"] if failed else []
        parts += [f"{late} did not end in time"] if late else []
        console.print(f"\n{', '.join(parts)}")


def _ended(ran: Ran, limit_s: float) -> str:
    if ran.code is None:
        return f"[bold red]not done within {limit_s:g} s[/]"
    return "[green]exit 0[/]" if ran.code == 0 else f"[bold red]exit {ran.code}[/]"
