"""Splits the fix of a finding into steps, and tells how strong the restart is that a step asks for."""

from __future__ import annotations

import re

from msgspec import Struct

from rigwright.core import lazy_re

_COMMANDS = (
    "sudo|nvidia-smi|invoke|journalctl|systemctl|lspci|lsmod|modinfo|dkms|dpkg|apt-get|apt-cache|cat|df|ls|free|grep|uname|"
    "dmesg|echo|printf|pip|ldconfig|apt-config|nvcc|python3|nvidia-ctk"
)
_LOOP = lazy_re.compile(r"\bfor \w+ in [^;]+; do .+?; done\b|\bif [^;]+; then .+?; fi\b", re.DOTALL)
_ORDER = lazy_re.compile(r"(?:then|first)\s+")
"""Words that say no more than the number of the step."""
_INSTEAD = lazy_re.compile(r"(?P<before>else|otherwise|or)\s+(?=\S)")
_COMMAND = lazy_re.compile(rf"(?:{_COMMANDS})(?:[\s:].*)?", re.DOTALL)
_PROSE = lazy_re.compile(
    r",\s|:\s(?!-)|\s\(|\s(?:shows?|names?|(?<!pip )(?<!snap )(?<!cdi )lists?|"
    r"says?|and|or|as|so|of|until|where|if|in|with|for|after|"
    r"again|while|which|instead)\s"
)
"""Where a command ends and a sentence goes on."""
_QUOTED = lazy_re.compile(r"(?<!\w)'[^']*'(?!\w)|\"[^\"]*\"|\$\([^)]*\)")
_BETWEEN = lazy_re.compile(r";\s+|,\s+then\s+")
_RESTARTS = (
    (1, lazy_re.compile(r"nvidia-smi (?:-r|--gpu-reset)\b|^reset\b")),
    (2, lazy_re.compile(r"\bsudo reboot\b|\bsystemctl reboot\b|^(?:a )?reboot\b")),
    (
        3,
        lazy_re.compile(
            r"\bsudo poweroff\b|^(?:\w+: )?(?:a |switch the )?(?:cold boot|power off|power the machine off|mains off)\b"
        ),
    ),
)
"""The restart that a step asks for: its command, or the beginning of a sentence."""
_LATER = lazy_re.compile(r"(?:.*\b)?if\b.*|(?:else|still|otherwise|before|after)\b.*", re.DOTALL)


class Step(Struct, frozen=True):
    """A step of a fix: a command to type, what to do or to look at, or both.

    `text` follows the command. `before`: what is said before it, as `or` where it takes the place of the step above.
    """

    text: str
    command: str = ""
    before: str = ""

    @property
    def restart(self) -> int:
        """The restart that the step asks for now: 3 a cold boot, 2 a reboot, 1 a reset of a GPU, 0 none."""
        text = self.command or self.text
        restarts = [(strength, match) for strength, pattern in _RESTARTS if (match := pattern.search(text))]
        if not restarts or self.before:
            return 0
        before = text[: min(match.start() for _, match in restarts)]
        return 0 if not self.command and _LATER.match(before) else restarts[0][0]


def steps(fix: str) -> tuple[Step, ...]:
    """The steps of a fix, in their order; () for ""."""
    quoted = _spans(fix)
    parts, start = [], 0
    for match in _BETWEEN.finditer(fix):
        if not _inside(match.start(), quoted):
            parts.append(fix[start : match.start()])
            start = match.end()
    parts.append(fix[start:])
    return tuple(_step(part.strip()) for part in parts if part.strip())


def _step(part: str) -> Step:
    part = _ORDER.sub("", part, count=1) if _ORDER.match(part) else part
    if loop := _LOOP.search(part):
        return Step(part[loop.end() :].lstrip(" ,:"), loop[0], part[: loop.start()].rstrip(" ,:"))
    instead = _INSTEAD.match(part)
    rest = part[instead.end() :] if instead else part
    if not _COMMAND.fullmatch(rest):
        return Step(part)
    quoted = _spans(rest)
    end = next((match.start() for match in _PROSE.finditer(rest) if not _inside(match.start(), quoted)), len(rest))
    return Step(rest[end:].lstrip(" ,:"), rest[:end], instead["before"] if instead else "")


def _spans(text: str) -> list[tuple[int, int]]:
    """Where a text is quoted, or a loop of the shell: nothing ends there."""
    return [match.span() for pattern in (_QUOTED, _LOOP) for match in pattern.finditer(text)]


def _inside(position: int, spans: list[tuple[int, int]]) -> bool:
    return any(start <= position < end for start, end in spans)


def strongest(fix: tuple[Step, ...], others: tuple[tuple[Step, ...], ...]) -> tuple[Step, ...]:
    """The steps of a fix, with a stronger restart of another fix in place of its first restart."""
    own = max((step.restart for step in fix), default=0)
    best = max((step for other in others for step in other), key=lambda step: step.restart, default=None)
    if best is None or best.restart <= own:
        return fix
    first = next((number for number, step in enumerate(fix) if step.restart), None)
    if first is None:
        return (best, *fix)
    return (*fix[:first], best, *(step for step in fix[first + 1 :] if not step.restart))
