"""apt preferences files: where they stand and what is in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def pin_path(name: str) -> str:
    """Where a pin stands."""
    return f"/etc/apt/preferences.d/rigwright-{name}"


def pin_text(
    packages: Sequence[str],
    version: str,
    block: str = "",
    also: Mapping[str, Sequence[str]] | None = None,
    not_from: str = "",
) -> str:
    """An apt preferences file: `also` are packages by their own version, `not_from` (release l=LABEL) is where the packages
    are never taken from. apt goes by the first stanza that matches a version of a package."""
    pins = [(packages, f"version {version}", 1001)]
    if not_from:
        pins.insert(0, (packages, not_from, -1))
    pins += [(names, f"version {each}", 1001) for each, names in (also or {}).items()]
    if block:
        pins.append(([block], "version *", -1))
    stanzas = (f"Package: {' '.join(names)}\nPin: {pin}\nPin-Priority: {priority}\n" for names, pin, priority in pins)
    head = "# Written by rigwright. To move to another version, change the inventory and provision again.\n"
    return head + "\n".join(stanzas)
