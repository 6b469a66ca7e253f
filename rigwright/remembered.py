"""What the controller remembers of each host between runs: $XDG_STATE_HOME/rigwright/hosts/HOST.json, nothing of it on the host."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

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
    path = _file(host)
    text = json.dumps({"address": address, **dataclasses.asdict(past)}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", delete=False, encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(file.name, path)
    except OSError:
        return


def _file(host: str) -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "rigwright" / "hosts" / f"{quote(host, safe='')}.json"
