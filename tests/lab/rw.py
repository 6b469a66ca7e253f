"""rigwright's command line, as a person types it."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
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


def not_as_wanted(found: dict[str, Any]) -> list[Any]:
    """What a document has of errors and of findings that are no pass, for the message of an assert."""
    hosts = found["hosts"].values()
    errors = [one["error"] for one in (found, *hosts) if one["error"]]
    return errors + [
        finding for host in hosts for finding in host["findings"] if finding["verdict"] not in ("pass", "info")
    ]


def on_terminal(
    answers: list[tuple[str, str]], task: str, *words: str, deadline: float = 120, **environment: str
) -> tuple[int, str]:
    """A command's exit code and all it wrote on a terminal, where each answer is typed once its question stands there."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "RIGWRIGHT_INVENTORY": str(INVENTORY), "COLUMNS": "100", "TERM": "dumb", **environment}
    done = subprocess.Popen(argv(task, *words), cwd=CHECKOUT, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    text, asked, until = "", 0, time.monotonic() + deadline
    try:
        while time.monotonic() < until:
            if not select.select([ours], [], [], 0.5)[0]:
                continue
            try:
                read = os.read(ours, 65536)
            except OSError:
                break
            text += read.decode()
            if answers[asked:] and answers[asked][0] in text:
                os.write(ours, answers[asked][1].encode() + b"\n")
                asked += 1
        assert not answers[asked:], f"never asked: {answers[asked][0]}\n{text}"
        return done.wait(10), text.replace("\r\n", "\n")
    finally:
        done.kill()
        done.wait()
        os.close(ours)
