"""The users of a host's GPUs, which decide the allowed changes."""

from __future__ import annotations

import pytest

from rigwright.core.errors import ConsentError
from rigwright.core.schema import BusId
from rigwright.engine.gpu_use import gpu_use, gpu_users, mig_use
from rigwright.facts import Unavailable, Unreadable
from rigwright.facts.gpu import gpus as gpu, mig
from rigwright.facts.gpu.gpus import GpuMode, Process
from rigwright.facts.gpu.processes import Observation, ObservedProcess, observation
from rigwright.facts.own_programs import at_work
from tests.host_runs import host_run

OWN = (Process(1, "nvidia-persiste"), Process(2, "nv-fabricmanage"), Process(3, "nv-hostengine"))


def busy(processes: object, holders: object) -> str:
    """Returns the users of the GPUs for these values of the two facts."""
    run = host_run({})
    run.store.known.update({gpu.processes: processes, gpu.holders: holders})
    return gpu_users(run)


def test_the_drivers_own_programs_are_nobodys_work() -> None:
    assert busy((), OWN) == ""
    assert busy(
        (Process(3, "/usr/bin/nv-hostengine"), Process(4, "/opt/nv/python3")), (*OWN, Process(5, "ollama"))
    ) == ("/opt/nv/python3 (4), ollama (5)")
    assert busy((Process(1, "[Not Found]"),), OWN) == ""


def test_without_a_driver_the_open_devices_tell() -> None:
    assert busy(Unavailable("no driver"), (Process(5, "python3"),)) == "python3 (5)"
    with pytest.raises(ConsentError) as caught:
        busy((), Unreadable("cut"))
    assert str(caught.value) == (
        "h: cannot read which processes use the GPUs (cut)\n"
        "  expected: idle GPUs\n"
        "  fix:      end the processes that use the GPUs; then the same command with --disrupt"
    )


def test_users_that_were_observed_are_named_with_their_owner_and_age() -> None:
    job = {"command": "", "state": "S", "wait_channel": "", "processor_percent": 0, "output_age_s": None, "gpus": ()}
    jobs = [ObservedProcess(pid, "python3", user="alice", age_s=600 + pid, **job) for pid in (4, 5)]  # type: ignore[arg-type]
    run = host_run({})
    run.store.known.update({
        gpu.processes: (), gpu.holders: (*OWN, *jobs, Process(6, "bash")), at_work: (),
        observation: Observation(1, 3, (), tuple(jobs)),
    })  # fmt: skip
    assert gpu_use(run) == "the GPUs are in use by python3 of alice for 10 minutes (4, 5), bash (6)"


def test_gpus_with_mig_on_are_named() -> None:
    def use(modes: object) -> str:
        run = host_run({})
        run.store.known[mig.modes] = modes
        return mig_use(run)

    split = [GpuMode("", BusId(f"0000:0{n}:00.0"), "A100", n > 1, n > 1) for n in (1, 2, 3)]
    assert use(tuple(split)) == "MIG is on on 0000:02:00.0 and 1 more"
    assert use(tuple(split[:1])) == use(Unavailable("nvidia-smi is not installed")) == ""
