"""Splits the fix of a finding into steps, and tells how strong the restart is that a step asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass

_COMMANDS = (
    "sudo|nvidia-smi|invoke|journalctl|systemctl|lspci|lsmod|modinfo|dkms|dpkg|apt-get|apt-cache|cat|df|ls|free|grep|uname|"
    "for|dmesg|echo|printf|pip|ldconfig|apt-config"
)
_COMMAND = re.compile(rf"(?:(?P<before>then|else|first|otherwise|or)\s+)?(?P<command>(?:{_COMMANDS})\s.*)", re.DOTALL)
_PROSE = re.compile(
    r",\s|:\s|\s\(|\s(?:shows?|names?|lists?|says?|and|or|as|so|until|where|if|in|with|for|after|again|while|which)\s"
)
"""Where a command ends and a sentence goes on."""
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\$\([^)]*\)")
_BETWEEN = re.compile(r";\s+(?!do\b|done\b|then\s+(?:echo|sudo)\b.*\bfi\b)|,\s+then\s+")
"""Between two steps; a loop of the shell is one step."""
_RESTARTS = (
    (1, re.compile(r"nvidia-smi (?:-r|--gpu-reset)\b|\breset\b", re.IGNORECASE)),
    (2, re.compile(r"\breboot\b", re.IGNORECASE)),
    (3, re.compile(r"\bcold boot\b|\bpower(?: the machine)? off\b|\bpoweroff\b|\bmains off\b", re.IGNORECASE)),
)
_LATER = re.compile(r"(?:if|else|still|otherwise)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Step:
    """A step of a fix: a command to type, what to do or to look at, or both. `text` follows the command."""

    text: str
    command: str = ""

    @property
    def restart(self) -> int:
        """The least restart that the step asks for: 3 a cold boot, 2 a reboot, 1 a reset of a GPU, 0 none or only later."""
        whole = f"{self.command} {self.text}".strip()
        if _LATER.match(whole):
            return 0
        return next((strength for strength, pattern in _RESTARTS if pattern.search(whole)), 0)


def steps(fix: str) -> tuple[Step, ...]:
    """The steps of a fix, in their order; () for ""."""
    quoted = [match.span() for match in _QUOTED.finditer(fix)]
    parts, start = [], 0
    for match in _BETWEEN.finditer(fix):
        if not _inside(match.start(), quoted):
            parts.append(fix[start : match.start()])
            start = match.end()
    parts.append(fix[start:])
    return tuple(_step(part.strip()) for part in parts if part.strip())


def _step(part: str) -> Step:
    match = _COMMAND.fullmatch(part)
    if match is None:
        return Step(part.removeprefix("then "))
    command = match["command"]
    if command.startswith("for "):
        return Step("", command)
    quoted = [span.span() for span in _QUOTED.finditer(command)]
    for end in _PROSE.finditer(command):
        if not _inside(end.start(), quoted):
            return Step(command[end.start() :].lstrip(" ,:"), command[: end.start()])
    return Step("", command)


def _inside(position: int, spans: list[tuple[int, int]]) -> bool:
    return any(start <= position < end for start, end in spans)


def strongest(fix: tuple[Step, ...], others: tuple[tuple[Step, ...], ...]) -> tuple[Step, ...]:
    """The steps of a fix, with its first restart replaced by a stronger one that another fix asks for.

    A cold boot includes a reboot, and a reboot includes a reset: only the strongest is done, in place of the first.
    """
    own = max((step.restart for step in fix), default=0)
    best = max((step for other in others for step in other), key=lambda step: step.restart, default=None)
    if best is None or best.restart <= own:
        return fix
    first = next((number for number, step in enumerate(fix) if step.restart), None)
    if first is None:
        return (best, *fix)
    return (*fix[:first], best, *(step for step in fix[first + 1 :] if not step.restart))
