"""Versions of drivers and toolkits, as numbers that compare."""

from __future__ import annotations


def numbers(version: str) -> tuple[int, ...]:
    """535.171.04 as (535, 171, 4), to compare releases. Raises ValueError for what is no version."""
    return tuple(int(part) for part in version.split("."))
