"""The only rich console of rigwright. It filters every text, so that no text of a host controls the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from rigwright.core.control_characters import KEPT, LONGEST_LINE, left_out, visible
from rigwright.core.process.streams import unfiltered


class SafeConsole(Console):
    """A console that replaces control characters, cuts long lines and makes no links."""

    def render_str(self, text: str, **options: Any) -> Text:
        """The text of a string with rich markup; filtered, so that its width is that of what is shown."""
        options["highlight"] = False  # rich's patterns for numbers and paths take minutes for a text of a mebibyte
        return _cut(super().render_str(visible(text), **options))

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments that are written. All that is printed passes here."""
        shown = _cut(renderable) if isinstance(renderable, Text) else renderable
        for segment in super().render(shown, options):
            yield segment if segment.control else _harmless(segment)


def console_on(stream: IO[str] | None = None, **options: Any) -> SafeConsole:
    """A console that writes to a stream (default: stdout). `options` are those of rich's Console."""
    console = SafeConsole(file=unfiltered(stream or sys.stdout), **options)
    console._force_terminal = console.is_terminal  # rich asks the system for each line
    return console


def _harmless(segment: Segment) -> Segment:
    text, style, _ = segment
    if style and style.link:
        style = style.update_link(None)
    shown = visible(text)
    return segment if shown is text and style is segment.style else Segment(shown, style)


def _cut(text: Text) -> Text:
    """The text with control characters replaced, and the end of a long line replaced by the number of characters."""
    plain = visible(text.plain)
    if plain != text.plain:
        text = text.copy()
        text.plain = plain  # as long as before: the styles stay in their places
    if len(plain) <= LONGEST_LINE or max(map(len, plain.split("\n"))) <= LONGEST_LINE:
        return text
    lines = text.split("\n", allow_blank=True)
    for line in lines:
        if len(line) > LONGEST_LINE:
            more = len(line) - KEPT
            line.right_crop(more)
            line.append(left_out(more))
    made = Text("\n").join(lines)
    made.justify, made.overflow, made.no_wrap, made.end = text.justify, text.overflow, text.no_wrap, text.end
    return made
