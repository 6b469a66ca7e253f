"""rigwright's command line, as a person types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parent.parent.parent
INVENTORY = CHECKOUT / ".lab" / "inventory"


def argv(task: str, *words: str) -> list[str]:
    """`invoke TASK ...` with this interpreter's Invoke."""
    return [sys.executable, "-m", "invoke", task, *words]


def invoke(task: str, *words: str, deadline: float = 240, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a command printed and returned; no terminal, no stdin."""
    return subprocess.run(
        argv(task, *words),
        cwd=CHECKOUT,
        env={**os.environ, "RIGWRIGHT_INVENTORY": str(INVENTORY), "COLUMNS": "100", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=deadline,
        check=False,
    )


def document(task: str, *words: str, deadline: float = 240, **environment: str) -> dict[str, Any]:
    """The one JSON document that `--json -` leaves on stdout."""
    done = invoke(task, *words, "--json", "-", deadline=deadline, **environment)
    found = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode, done.stderr
    assert isinstance(found, dict)
    return found
