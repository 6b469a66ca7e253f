"""The folders of the files that are installed with rigwright: playbooks, templates and programs that run on hosts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).resolve().parents[2]
CHECKOUT = _PACKAGE.parent
"""The folder of the checkout; only valid when rigwright runs from a checkout."""


@cache
def folder(name: Literal["onhost", "playbooks", "templates"]) -> Path:
    """The path of the folder: inside the installed package, or next to the package in a checkout."""
    installed = _PACKAGE / name
    return installed if installed.is_dir() else CHECKOUT / name
