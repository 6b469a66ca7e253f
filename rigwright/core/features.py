"""Finds what features bring, by name."""

from __future__ import annotations

import importlib


def result_keys() -> tuple[str, ...]:
    """The keys of the results of all features in the JSON document of a host."""
    return tuple(importlib.import_module("rigwright.features").RESULT_KEYS)
