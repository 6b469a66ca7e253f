"""Where the processor time of a command goes, by stage (`scripts/bench --swarm --stages`).

The functions of STAGES note the processor time of their thread. A stage that runs inside another one counts alone. What
none of them does is the rest. Noting a stage takes about a microsecond, which is part of the figures.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

STAGES = (
    ("inventory", "rigwright.inventory", "read"),
    ("inventory", "rigwright.inventory.model", "Inventory.select"),
    ("playbook for each host", "rigwright.engine.playbook", "bind_all"),
    ("key exchange, login, decryption", "paramiko.transport", "Transport.run"),
    ("key exchange, login, decryption", "rigwright.ssh.connect", "verified"),
    ("scripts sent, answers collected", "rigwright.ssh.transport", "Transport.run"),
    ("facts parsed", "rigwright.facts", "FactStore.learn"),
    ("plans", "rigwright.engine.plan", "plan_steps"),
    ("checks", "rigwright.engine.verify", "CheckEvaluation.evaluate"),
    ("description of the machine", "rigwright.engine.machine", "describe"),
    ("comparison with past and peers", "rigwright.cli.fleet_check", "compare"),
    ("JSON document", "rigwright.report.json_document", "document"),
    ("JSON document", "rigwright.report.output_files", "write"),
    ("history", "rigwright.report.output_files", "record"),
    ("history", "rigwright.fleet.host_runs", "load_recorded"),
    ("text", "rigwright.report.terminal", "Text.plans"),
    ("text", "rigwright.report.terminal", "Text.errors"),
    ("text", "rigwright.report.tables.fleet", "check"),
    ("text", "rigwright.cli.runner", "show_result"),
    ("connections closed", "rigwright.fleet.pool", "leave"),
    ("connections closed", "rigwright.fleet.pool", "close"),
)
"""The stages, each with functions that are it."""
REST = "start of the program, threads, the rest"


class Stages:
    """Counts processor time by stage, in all threads."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._open = threading.local()
        self._lock = threading.Lock()

    def noted(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time counts as that of the stage."""

        @wraps(function)
        def run(*given: Any, **named: Any) -> Any:
            stack = self._open.__dict__.setdefault("stack", [])
            stack.append(0.0)
            began = time.thread_time()
            try:
                return function(*given, **named)
            finally:
                took = time.thread_time() - began
                inner = stack.pop()
                if stack:
                    stack[-1] += took
                with self._lock:
                    self.seconds[stage] += took - inner

        return run


def run(file: Path, words: list[str]) -> None:
    """Runs a command, and writes to the file, as JSON, the seconds of each stage and of the rest. Ends with the
    command's SystemExit."""
    stages = Stages()
    for stage, module, path in STAGES:
        owner: Any = importlib.import_module(module)
        *classes, name = path.split(".")
        for part in classes:
            owner = getattr(owner, part)
        setattr(owner, name, stages.noted(stage, getattr(owner, name)))
    from rigwright.cli import program

    sys.argv = ["rigwright", *words]
    try:
        program.main()
    finally:
        rest = time.process_time() - sum(stages.seconds.values())
        file.write_text(json.dumps({**stages.seconds, REST: rest}))
