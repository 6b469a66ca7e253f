"""What reports of every form share: who wanted what a finding wanted, and a host's own words as they are."""

from __future__ import annotations

from rich.markup import escape

from rigwright.errors import printable

FOLDED = 4
"""Up to so many steps of a host's plan that are not so are told one by one, as findings; more are one entry."""

SOURCES = {
    "rig": "by the rig",
    "inventory": "by the inventory",
    "catalogue": "by the catalogue",
    "host": "by the host itself",
    "peers": "by its peers",
    "past": "by its past",
}
"""By the source of a finding."""


def as_is(text: str) -> str:
    """A text of a host or a file in rich's markup: it is none itself, and steers no terminal."""
    return escape(printable(text))
