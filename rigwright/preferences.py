"""apt preferences files: where they stand and what is in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def pin_path(name: str) -> str:
    """Where a pin stands."""
    return f"/etc/apt/preferences.d/rigwright-{name}"


def pin_text(
    packages: Sequence[str], version: str, block: str = "", also: Mapping[str, Sequence[str]] | None = None
) -> str:
    """An apt preferences file: `also` are packages by their own version. apt takes the first stanza that matches a
    version of a package."""
    text = "# Written by rigwright. To move to another version, change the inventory and provision again.\n"
    pins = [(packages, version), *((names, each) for each, names in (also or {}).items())]
    text += "\n".join(f"Package: {' '.join(names)}\nPin: version {each}\nPin-Priority: 1001\n" for names, each in pins)
    if block:
        text += f"\nPackage: {block}\nPin: version *\nPin-Priority: -1\n"
    return text
