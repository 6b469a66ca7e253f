"""apt preferences files: where they stand and what is in them."""

from __future__ import annotations


def pin_path(name: str) -> str:
    """Where a pin stands."""
    return f"/etc/apt/preferences.d/rigwright-{name}"


def pin_text(packages: list[str], version: str, block: str = "") -> str:
    """An apt preferences file. apt takes the first stanza that matches a version of a package."""
    text = "# Written by rigwright. To move to another version, change the inventory and provision again.\n"
    text += f"Package: {' '.join(packages)}\nPin: version {version}\nPin-Priority: 1001\n"
    if block:
        text += f"\nPackage: {block}\nPin: version *\nPin-Priority: -1\n"
    return text
