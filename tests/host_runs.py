"""A run on a host that a function answers for."""

from __future__ import annotations

import threading
from typing import Any

from rigwright.engine.host_run import HostRun, Options, RunState
from rigwright.engine.playbook import BoundPlaybook
from rigwright.engine.report import HostReport
from rigwright.inventory.model import Host
from tests.ssh.fake_transport import FakeTransport


def host_run(
    answers: Any,
    run_id: str = "RUN",
    host: Host | None = None,
    tell: Any = None,
    bound: BoundPlaybook | None = None,
    report: HostReport | None = None,
    **options: Any,
) -> HostRun:
    """Returns a run. `answers`: the transport, or what a FakeTransport takes. `tell` gets the events."""
    transport = FakeTransport(answers) if callable(answers) or isinstance(answers, dict) else answers
    state = RunState(threading.Semaphore())
    sink = tell or (lambda _event: None)
    bound = bound or BoundPlaybook(host or Host("h", (), {}), (), ())
    run = HostRun(bound, transport, Options(run_id, **options), sink, state)
    run.report = report or run.report
    return run
