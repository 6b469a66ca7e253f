"""Many hosts at once: one worker each from a bounded pool, nothing shared but the rule that reboots go one at a time."""

from __future__ import annotations

import concurrent.futures
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from rigwright.apply import Emit, HostRun, Options, Outcome, Reboots
from rigwright.checks import Finding, ranked
from rigwright.errors import HostError, RigwrightError, Unreachable
from rigwright.events import Event
from rigwright.facts import os as system
from rigwright.hosts import Host
from rigwright.plan import Planned
from rigwright.playbook import Bound, Check
from rigwright.shell import Secret
from rigwright.transport import to

if TYPE_CHECKING:
    from rigwright.facts.p2p import Document
    from rigwright.p2p import Asked

HostStatus = Literal["ok", "pending", "changed", "failed", "unreachable", "not_attempted"]
WORKERS = 32


@dataclass
class HostReport:
    """What a run knows of one host at its end."""

    host: Host
    status: HostStatus = "not_attempted"
    error: RigwrightError | None = None
    planned: tuple[Planned, ...] = ()
    outcome: Outcome | None = None
    findings: tuple[Finding, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    machine: dict[str, Any] | None = None
    events: list[tuple[float, Event]] = field(default_factory=list)
    p2p: Document | None = None
    simulated: str = ""
    round_trips: int = 0
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """What this host alone makes of the command's exit code."""
        if self.error is not None:
            return self.error.exit_code
        return 2 if self.status in ("pending", "failed") else 0


@dataclass
class Work:
    """A host with its steps, its open connection and its report."""

    bound: Bound
    run: HostRun
    report: HostReport
    not_tested: tuple[Finding, ...] = ()

    @property
    def checks(self) -> list[Check]:
        """The checks that can be answered: those of the peer-to-peer test only once it has run."""
        return [one for one in self.bound.checks if self.report.p2p is not None or not active(one)]


def prepare(
    bound: Sequence[Bound], options: Options, emit: Emit, ask_password: Callable[[str], str] | None = None
) -> list[Work]:
    """The work of a run; nothing is connected yet."""
    reboots = Reboots(threading.Lock())
    environment = {"RIGWRIGHT_RUN": options.run_id}
    passwords: dict[str, Secret] = {}
    asking = threading.Lock()

    def ask(name: str) -> str:
        with asking:
            if name not in passwords and ask_password:
                passwords[name] = Secret(ask_password(name))
        return passwords[name].reveal()

    asker = ask if ask_password else None
    begun = time.monotonic()

    def work(one: Bound) -> Work:
        report = HostReport(one.host)

        def record(event: Event) -> None:
            report.events.append((time.monotonic() - begun, event))
            emit(event)

        return Work(one, HostRun(one.host, to(one.host, environment, asker), options, record, reboots), report)

    return [work(one) for one in bound]


def on_all(work: Sequence[Work], act: Callable[[Work], None], meanwhile: Callable[[], object] = int) -> None:
    """`act` has run once for every host that is not in error, side by side; a host's own failure stands in its report.

    `meanwhile` runs in this thread while the first hosts answer.
    """

    def guarded(one: Work) -> None:
        started = time.monotonic()
        try:
            act(one)
        except Unreachable as error:
            one.report.status, one.report.error = "unreachable", error
        except RigwrightError as error:
            one.report.status, one.report.error = "failed", error
        except Exception as error:  # a bug of ours must not take the other hosts with it
            traceback.print_exc()
            found = f"a bug in rigwright ({type(error).__name__}: {error})"
            one.report.error = HostError(
                one.bound.host.name, found, "a run without one", "report it with the lines above"
            )
            one.report.status = "failed"
        finally:
            one.report.seconds += time.monotonic() - started
            one.report.round_trips = one.run.transport.round_trips

    alive = [one for one in work if one.report.error is None]
    with concurrent.futures.ThreadPoolExecutor(max_workers=min(WORKERS, max(1, len(alive)))) as pool:
        futures = [pool.submit(guarded, one) for one in alive]
        try:
            meanwhile()
            for future in futures:
                future.result()
        except KeyboardInterrupt:
            for one in work:
                one.run.transport.abandon()
            raise


def connect(one: Work) -> None:
    """The host is connected to and has said whether it is simulated."""
    one.run.transport.connect()


def look(one: Work) -> None:
    """The report holds the plan, steps that failed among it."""
    one.report.planned = one.run.planned(one.bound.steps)
    one.report.simulated = str(one.run.value(system.simulated))


def plan(one: Work) -> None:
    """The report holds the plan; its status is ok or pending. Raises the first step's error."""
    look(one)
    failed = next((step for step in one.report.planned if step.error is not None), None)
    if failed is not None and failed.error is not None:
        raise failed.error
    wanting = any(step.status in ("pending", "unknown") for step in one.report.planned)
    one.report.status = "pending" if wanting else "ok"


def apply(one: Work) -> None:
    """What the plan wanted is so and proved. Raises what stopped it."""
    if one.report.status != "pending":
        return
    outcome = one.run.apply(one.bound.steps, one.report.planned)
    one.report.outcome = outcome
    if outcome.error is not None:
        raise outcome.error
    one.report.status = "changed"


def check(one: Work) -> None:
    """The report holds the findings of the checks; one that fails or is unknown makes the status failed."""
    if not one.checks and not one.not_tested:
        return
    from rigwright import verify

    one.report.findings = ranked(_found(one))
    if any(finding.verdict in ("fail", "unknown") for finding in one.report.findings):
        one.report.status = "failed"
    verify.remember(one.run, one.report.findings, accept=True)


def check_all(one: Work) -> None:
    """As `check`, and every step that is not so is a finding that fails: what `verify` means."""
    from rigwright import verify

    pending = verify.drift(one.report.planned)
    one.report.findings = ranked((*_found(one), *pending))
    bad = any(finding.verdict in ("fail", "unknown") for finding in one.report.findings)
    one.report.status = "failed" if bad else "ok"
    verify.remember(one.run, one.report.findings, accept=False)


def _found(one: Work) -> tuple[Finding, ...]:
    from rigwright import verify

    return (*verify.findings(one.run, one.checks), *one.not_tested)


def active(check: Check) -> bool:
    """Whether a check judges what the peer-to-peer test did to the GPUs, in place of what can be read at any time."""
    return check.check.startswith("p2p.")


def test(one: Work, asked: Asked) -> None:
    """The peer-to-peer test has run, where the playbook has a check of it; else the findings say why not."""
    if not any(active(check) for check in one.bound.checks):
        return
    from rigwright import p2p
    from rigwright.facts import p2p as peers

    if asked.wheels == p2p.AS_THE_INVENTORY_SAYS:
        said = _wheels(one)
        asked = replace(asked, wheels="" if said == "none" else said)
    refused = p2p.test(one.run, asked)
    one.not_tested = (refused,) if refused else ()
    one.report.p2p = None if refused else one.run.store(peers.tested)


DRIVING = ("driver.", "fabric.", "reboot.", "kernel.", "grub.")
"""Operations after which the GPUs may reach each other in another way than before."""


def test_after(one: Work, asked: Asked) -> None:
    """As `test`, where this run changed the driver or what it stands on; a run that changed nothing tests nothing.

    Not on a host whose `p2p_wheels` is none.
    """
    done = one.report.outcome.done if one.report.outcome else {}
    changed = {step.operation for step in one.bound.steps if step.key in done}
    if any(operation.startswith(DRIVING) for operation in changed) and _wheels(one) != "none":
        test(one, asked)


def _wheels(one: Work) -> str:
    return str(one.bound.host.variables.get("p2p_wheels") or "fetch")


def keep(one: Work) -> None:
    """The report holds what is known of the facts that the history keeps."""
    known = one.run.store.known.items()
    one.report.kept = {
        fact.name: fact.kept(value) for fact, value in known if fact.kept and not isinstance(value, Exception)
    }


def close(work: Sequence[Work]) -> None:
    """No connection is left open; the reports hold what is known of the facts that the history keeps."""
    for one in work:
        keep(one)
        one.run.transport.close()
