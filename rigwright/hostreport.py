"""What a run knows of one host at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rigwright.checks import Finding, Verdict
from rigwright.errors import RigwrightError
from rigwright.events import Event
from rigwright.hostrun import Outcome
from rigwright.hosts import Host
from rigwright.plan import Planned

if TYPE_CHECKING:
    from rigwright.facts.p2p import Document

FAILS: tuple[Verdict, ...] = ("fail", "unknown")
"""Verdicts that make a host one that failed."""

BAD: tuple[Verdict, ...] = (*FAILS, "warn")
"""Verdicts that somebody should look at, the worst first."""

HostStatus = Literal["ok", "pending", "changed", "failed", "unreachable", "not_attempted"]


@dataclass(frozen=True)
class Ran:
    """What became of a one-off command: its exit code (None: it did not end in time), and what it printed, `cut` when that was
    more than was wanted."""

    code: int | None
    output: str
    cut: bool = False


@dataclass
class HostReport:
    """What a run knows of one host at its end."""

    host: Host
    status: HostStatus = "not_attempted"
    error: RigwrightError | None = None
    planned: tuple[Planned, ...] = ()
    outcome: Outcome | None = None
    findings: tuple[Finding, ...] = ()
    not_tested: tuple[Finding, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    machine: dict[str, Any] | None = None
    fleet: dict[str, Any] | None = None
    events: list[tuple[float, Event]] = field(default_factory=list)
    p2p: Document | None = None
    ran: Ran | None = None
    simulated: str = ""
    round_trips: int = 0
    seconds: float = 0.0
    connecting_s: float = 0.0
    asking_s: float = 0.0

    @property
    def exit_code(self) -> int:
        """What this host alone makes of the command's exit code."""
        if self.error is not None:
            return self.error.exit_code
        if self.ran is not None:
            return 0 if self.ran.code == 0 else 1
        return 2 if self.status in ("pending", "failed") else 0

    @property
    def wrong(self) -> int:
        """How many findings make it a host that failed."""
        return sum(finding.verdict in FAILS for finding in self.findings)

    @property
    def passed(self) -> int:
        """How many findings are as wanted."""
        return sum(finding.verdict == "pass" for finding in self.findings)

    @property
    def bad(self) -> bool:
        """Whether something went wrong with this host: an error, or a check that failed."""
        return self.error is not None or self.status == "failed"
