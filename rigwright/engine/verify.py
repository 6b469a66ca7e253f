"""The checks of a host: evaluated in rounds, their findings, and the baseline for the next run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from rigwright.checks import Finding, of_symptom, unknown
from rigwright.core.errors import HostError
from rigwright.engine import jobs, own_programs
from rigwright.engine.host_run import HostRun
from rigwright.engine.parameters import inject
from rigwright.engine.plan import MAX_ROUNDS, PlannedStep
from rigwright.engine.playbook import Check
from rigwright.facts import Fact, Missing, Unavailable, Unreadable
from rigwright.facts.apt import dpkg
from rigwright.facts.gpu import health as gpu_health
from rigwright.facts.machine import Past
from rigwright.facts.own_programs import at_work


class CheckEvaluation:
    """Evaluates checks in rounds, as their facts become known. A check that has ended is not evaluated again.

    `remembered`: values of parameters that no task can give (NOT_OF_TASKS), by name, beside `earlier`.
    """

    def __init__(self, run: HostRun, checks: Sequence[Check], remembered: Mapping[str, Any] | None = None) -> None:
        self._run = run
        self.checks = tuple(checks)
        self._remembered = dict(remembered or {})
        self._ended: dict[int, tuple[Finding, ...]] = {}

    def evaluate(self) -> tuple[Fact[Any], ...]:
        """Evaluates the checks that have not ended; returns the facts that they lack.

        A check whose facts are unavailable or unreadable ends with the finding `unknown`.
        """
        missing: dict[Fact[Any], None] = {}
        injected = {"earlier": self._run.earlier, **self._remembered}
        for number, check in enumerate(self.checks):
            if number in self._ended:
                continue
            given = inject(check.function, check.parameters, injected)
            try:
                self._ended[number] = self._findings(check, given)
            except Missing as error:
                missing.update(dict.fromkeys(error.facts))
            except (Unavailable, Unreadable, HostError) as reason:
                self._ended[number] = (unknown(check.check, check.name, str(reason).splitlines()[0], reason.fix),)
        return tuple(missing)

    def _findings(self, check: Check, given: Mapping[str, Any]) -> tuple[Finding, ...]:
        """The findings of a check; hosts have them in common where it is given nothing of the host alone."""
        if given.keys() != check.parameters.keys():
            return tuple(check.function(self._run.store, **given))
        results = self._run.state.results
        return results.of(check, self._run.store, lambda facts: tuple(check.function(facts, **given)))

    def findings(self) -> tuple[Finding, ...]:
        """The findings of all checks, in the order of the checks; reads the facts that they lack. Raises
        Unreachable."""
        for _ in range(MAX_ROUNDS + 1):
            missing = self.evaluate()
            if not missing:
                return tuple(finding for number in sorted(self._ended) for finding in self._ended[number])
            self._run.read(missing)
        raise RuntimeError("checks whose facts never settle")


def answerable(checks: Sequence[Check], run: HostRun, *, tested: bool) -> tuple[Check, ...]:
    """The checks that can be evaluated in this run.

    `tested`: the peer-to-peer test has run; active checks need it. A check that needs the fact of a program needs that
    program to have run. A check that another one replaces is left out.
    """
    known = run.store.known
    able = [
        check
        for check in checks
        if (tested or not check.declared.active) and (check.declared.needs is None or check.declared.needs in known)
    ]
    replaced = {check.declared.replaces for check in able}
    return tuple(check for check in able if check.function not in replaced)


def left_at_work(run: HostRun) -> tuple[Finding, ...]:
    """A failed finding for each job of an interrupted run that holds the packages' lock; () when nothing holds it."""
    holders = run.store.known.get(dpkg.lock_holders)
    if not isinstance(holders, tuple) or not holders:
        return ()
    run.read_unknown((at_work,))
    return tuple(
        of_symptom("run.interrupted", "an interrupted run", f"at work is {own_programs.in_words(job)}", "", "host")
        for job in jobs.leftovers(own_programs.known(run))
    )


def baseline(run: HostRun, findings: Sequence[Finding], *, accept: bool) -> Past | None:
    """What the next run compares this host with; None: the recorded baseline stays.

    A machine that has lost something becomes the baseline only with `accept`, so that every verify reports the loss.
    """
    from rigwright.checks import machine
    from rigwright.checks.health import loaded_c as loaded

    if any(finding.source == "past" and finding.verdict == "fail" for finding in findings) and not accept:
        return None
    if run.match.undecided:
        return None
    try:
        here = machine.now(run.store)
    except (Missing, Unavailable, Unreadable):
        return None  # no check read these facts, or the host gave no answer
    samples = run.store.known.get(gpu_health.cards)
    hot = any(finding.symptom == "thermal.one_hotter" for finding in findings)
    loaded_c = loaded(samples) if isinstance(samples, tuple) and not hot else {}
    earlier_c = (run.earlier.loaded_c if run.earlier else None) or {}
    return replace(here, loaded_c={**earlier_c, **loaded_c})


def drift(planned: Sequence[PlannedStep]) -> tuple[Finding, ...]:
    """A failed finding for each change that a step still needs, an unknown one for each step that cannot be planned,
    and a warning for each setting of others that works against a step."""
    findings: list[Finding] = []
    for planned_step in planned:
        name = planned_step.step.name
        for change in planned_step.changes:
            subject, seen = f"{name}: {change.subject}", change.before or "not there"
            finding = Finding(subject, "fail", seen, change.after, "", "invoke provision", "inventory", check="plan")
            findings.append(finding)
        for note in planned_step.notes:
            if note.foreign:
                seen, _, todo = note.text.rpartition(": ")
                findings.append(Finding(name, "warn", seen, "", "", todo, "host", check="plan"))
        if planned_step.status in ("unknown", "failed"):
            missing = unknown("plan", name, planned_step.reason)
            findings.append(replace(missing, fix=planned_step.fix or missing.fix))
    return tuple(findings)
