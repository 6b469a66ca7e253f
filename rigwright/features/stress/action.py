"""The actions of `invoke stress` on one host: look whether its GPUs are idle, then load them and run the checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rigwright.core.host_result import HostResult
from rigwright.engine.events import ActivityStarted
from rigwright.engine.host_run import HostRun
from rigwright.facts import system
from rigwright.facts.gpu.figures import CONDITIONS
from rigwright.features.stress.measured_before import Figures
from rigwright.fleet import actions


def look(run: HostRun) -> Iterator[HostResult]:
    """Reads the driver, kernel, firmware and GPUs. Raises HostError while processes use the GPUs, and with MIG on."""
    from rigwright.features.stress import run as stress

    stress.refuse_busy(run)
    run.read_unknown(CONDITIONS)
    yield actions.known_facts(run, (system.simulated, *CONDITIONS))


def stress_host(run: HostRun, seconds: float, wheels: str, before: Mapping[str, Figures]) -> Iterator[HostResult]:
    """Runs the stress, then the checks of the playbook. `before`: by host the figures of earlier stresses.

    Raises HostError, Unreachable.
    """
    from rigwright.features.stress import run as stress

    run.tell(ActivityStarted(run.host.name, "loading the GPUs"))
    run.store.forget()
    source = actions.source_of_wheels(run, wheels or "inventory")
    yield stress.load_gpus(run, seconds, "" if source == "none" else source)
    yield from actions.check_measured(run, figures_before=before.get(run.host.name, {}))
