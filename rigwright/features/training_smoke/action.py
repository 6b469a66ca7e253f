"""The actions of `invoke train.smoke` on one host: look whether it may train, then train and check what that showed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rigwright.checks import ranked
from rigwright.core.host_result import HostResult
from rigwright.core.typed_json import typed
from rigwright.engine.events import ActivityStarted
from rigwright.engine.host_run import HostRun
from rigwright.engine.report import CheckResult, FactsResult
from rigwright.facts import system
from rigwright.facts.gpu import gpus as gpu
from rigwright.features.training_smoke import facts as training_smoke
from rigwright.features.training_smoke.facts import DatedFigures, SmokeFigures
from rigwright.features.training_smoke.run import SmokeOptions
from rigwright.history import History


def earlier_speeds(past: History, machine: int | None) -> tuple[DatedFigures, ...]:
    """The speeds of earlier trainings of a machine, oldest first. Raises HistoryError."""
    found: list[DatedFigures] = []
    for one in past.every(machine, training_smoke.trained.name):
        try:
            figures = typed(one.value, tuple[SmokeFigures, ...])
        except ValueError:
            continue  # another version wrote it
        found += [DatedFigures(one.last_seen.isoformat(), one.run, each) for each in figures]
    return tuple(found)


def look(run: HostRun, options: SmokeOptions) -> Iterator[HostResult]:
    """Reads what is in force. Raises HostError where the host may not or cannot train now."""
    from rigwright.features.training_smoke import run as engine

    engine.refuse(run, options, run.bound.desired.of_features.get("training"))
    wanted = (system.simulated, gpu.gpus)
    run.read_unknown(wanted)
    known = run.store.known
    yield FactsResult({fact.name: known[fact] for fact in wanted if fact in known})


def smoke_host(
    run: HostRun, options: SmokeOptions, before: Mapping[str, tuple[DatedFigures, ...]]
) -> Iterator[HostResult]:
    """Trains, then runs the checks of the playbook. `before`: by host the speeds of earlier trainings. Raises
    HostError, Unreachable."""
    from rigwright.engine import verify
    from rigwright.features.training_smoke import run as engine

    run.tell(ActivityStarted(run.host.name, "training"))
    run.store.forget()
    yield engine.trained(run, options, run.bound.desired.of_features.get("training"))
    run.tell(ActivityStarted(run.host.name, "checking"))
    checks = verify.answerable(run.bound.checks, run, tested=False)
    remembered = {"smoke_before": before.get(run.host.name, ())}
    yield CheckResult(ranked(verify.CheckEvaluation(run, checks, remembered).findings()))
