"""What the machine that connects to a host (this one, or an executor's worker) remembers of it between runs; nothing of it on the host."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rigwright import state
from rigwright.facts.machine import Past


def last(host: str, address: str) -> Past | None:
    """What was remembered of a host in its last run; None when nothing was, or of another address, or it cannot be read."""
    try:
        found = json.loads(_file(host).read_text(encoding="utf-8"))
        if found.pop("address") != address:
            return None
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in found.items()
        }
        return Past(**values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def remember(host: str, address: str, past: Past) -> None:
    """It is what `last` says from now on; on a disk that cannot be written nothing is remembered."""
    text = json.dumps({"address": address, **dataclasses.asdict(past)}, indent=1)
    try:
        state.write(_file(host), text + "\n", lasting=False)  # one that is lost is made anew
    except OSError:
        return


def _file(host: str) -> Path:
    return state.place("hosts", f"{quote(host, safe='')}.json")
