"""Software problems of NCCL: settings left in files, stuck threads of the driver, and jobs that do not go on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from rigwright.catalogue import Rig
from rigwright.checks import Finding, check, of_symptom
from rigwright.core.numbers import count, duration
from rigwright.core.shortening import first_of
from rigwright.facts import Facts, driver
from rigwright.facts.gpu import gpus as gpu
from rigwright.facts.gpu.processes import Observation, ObservedGpu, ObservedProcess, observation
from rigwright.facts.nccl import p2p_test as nccl
from rigwright.facts.own_programs import at_work

IDLE_PERCENT = 1
"""A GPU that is at most so busy, and a process that uses at most so much of a processor, does nothing (assumed)."""
WAITS_BUSY_PERCENT = 99
"""A GPU that is so busy without use of its memory waits within a collective (assumed)."""
SILENT_S = 120
"""A training that wrote nothing for so long is silent (assumed)."""
FULL_PERCENT = 80
"""From this share of a CPU on a thread of the driver is stuck (assumed)."""


@check()
def clean(facts: Facts, *, rig: Rig | None = None) -> Iterator[Finding]:
    """No file that programs read at their start (nccl.conf, environment, profile.d, ...) disables a transport of NCCL.
    Other settings of NCCL are reported."""
    settings = facts(nccl.settings)
    for setting in settings:
        if setting.switches_off:
            seen = f"{setting.where} sets {setting.name}={setting.value}{_cost(rig)}"
            yield of_symptom("nccl.p2p_disabled_by_hand", setting.name, seen, "not set", "catalogue")
    rest = [f"{setting.name}={setting.value} ({setting.where})" for setting in settings if not setting.switches_off]
    if rest:
        yield Finding("NCCL's variables", "info", ", ".join(rest))
    if not settings:
        yield Finding("NCCL's variables", "pass", "none set")


def _cost(rig: Rig | None) -> str:
    """The bandwidth that a pair of GPUs of this rig loses, by the catalogue; "" if it has no measured figures."""
    figures = dict(rig.bandwidth_gb_s) if rig else {}
    host = figures.pop("host", None)
    lower = f"{host:g}" if host else "the speed of host memory"
    return f", which reduces {max(figures.values()):g} GB/s between two GPUs to {lower}" if figures else ""


@check()
def not_stalled(facts: Facts) -> Iterator[Finding]:
    """No kernel thread of the driver (nv_queue, irq/N-nvidia) uses a whole CPU, which stalls NCCL."""
    running, holders = facts.all(driver.busy_threads, gpu.holders)
    working = [entry for entry in holders if entry.works]
    busy = [entry for entry in running if entry.percent >= FULL_PERCENT]
    for entry in busy:
        names = ", ".join(sorted({holder.name for holder in working})) or "no program"
        seen = f"{entry.name} uses {entry.percent} % of a CPU, {names} on the GPUs"
        verdict = "fail" if working else "warn"
        yield of_symptom("nccl.stalled_queue", entry.name, seen, verdict=verdict)  # type: ignore[arg-type]
    if not busy:
        yield Finding("the driver's threads", "pass", "none is stuck")


JOBS = "jobs on the GPUs"


@check(needs=observation)
def jobs_work(facts: Facts) -> Iterator[Finding]:
    """The processes that use the GPUs work. A job on several GPUs, or on the only one, may hang if its GPUs and its
    processes do nothing, or if GPUs are busy and do not use their memory, as in a collective of NCCL that does not
    end. Only where a test did not run because the GPUs are in use."""
    seen, programs = facts.all(observation, at_work)
    own = {pid for program in programs for pid in program.pids}
    jobs = [job for job in seen.processes if job.works and job.pid not in own]
    if not jobs:
        yield Finding(JOBS, "pass", "none")
    alike: dict[str, list[ObservedProcess]] = {}
    for job in jobs:
        alike.setdefault(f"{JOBS}: {job.name} of {job.user}", []).append(job)
    for subject, group in alike.items():
        yield _of_job(subject if len(alike) > 1 else JOBS, group, seen)
    for job in jobs[:MOST_SHOWN]:
        yield Finding(f"{job.name} ({job.pid})", "info", _activity(job, seen.seconds))


def _of_job(subject: str, jobs: Sequence[ObservedProcess], seen: Observation) -> Finding:
    """The finding for the processes of one program and owner."""
    held = {uuid for job in jobs for uuid in job.gpus}
    gpus = [gpu for gpu in seen.gpus if gpu.uuid in held]
    rates = sorted(busy for gpu in gpus for busy in gpu.busy_percent if busy is not None)
    spent = sum(job.processor_percent for job in jobs)
    states = {_state(gpu) for gpu in gpus}
    who = _holders(jobs, len(held), len(seen.gpus))
    if states == {"idle"} and spent <= IDLE_PERCENT * len(jobs):
        how = "Idle"
    elif "waits" in states and states <= {"idle", "waits"}:
        how = "Busy without memory access" if len(states) == 1 else "Idle, or busy without memory access,"
    else:
        shown = dict.fromkeys(f"{busy:.0f}" for busy in (rates[:1] + rates[-1:]))
        how = f"{' to '.join(shown)} % busy" if rates else "how busy is not known"
        return Finding(subject, "info", f"{who}; {how}, with {spent:.0f} % of a processor")
    how += f" for {seen.seconds:.0f} s"
    if len(held) < min(2, len(seen.gpus)):
        return Finding(subject, "info", f"{who}. {how}")
    silent = [job.output_age_s for job in jobs if job.output_age_s is not None]
    how += f", silent for {duration(min(silent))}" if len(silent) == len(jobs) and min(silent) >= SILENT_S else ""
    pids = " ".join(str(job.pid) for job in jobs[:MOST_SHOWN])
    cause = (
        "the processes wait for each other: GPUs that do not reach each other, or one process that ended or is in "
        "another call; or it is no training, and waits for its user (a notebook, a server)"
    )
    fix = (
        f"sudo py-spy dump --pid {jobs[0].pid}, on the host, shows where it waits; sudo kill {pids}, which ends "
        "the job; then invoke verify, which then tests all pairs of GPUs"
    )
    return Finding(subject, "warn", f"{who}: training hangs? {how}", "", cause, fix)


def _state(gpu: ObservedGpu) -> Literal["idle", "waits", "works", "unknown"]:
    """What a GPU did in both readings."""
    busy = [percent for percent in gpu.busy_percent if percent is not None]
    memory = [percent for percent in gpu.memory_percent if percent is not None]
    if busy and max(busy) <= IDLE_PERCENT:
        return "idle"
    if busy and memory and min(busy) >= WAITS_BUSY_PERCENT and max(memory) <= IDLE_PERCENT:
        return "waits"
    return "works" if busy else "unknown"


MOST_SHOWN = 16
"""The most jobs that are shown each."""


def _holders(jobs: Sequence[ObservedProcess], held: int, there: int) -> str:
    """`4 processes of alice hold all 4 GPUs`."""
    owners = first_of(sorted({job.user for job in jobs}), 3)
    single = len(jobs) == 1
    who = f"{jobs[0].name} ({jobs[0].pid}) of {owners}" if single else f"{len(jobs)} processes of {owners}"
    gpus = f"{held} of {there} GPUs" if held < there else "the GPU" if there == 1 else f"all {there} GPUs"
    return f"{who} {'holds' if single else 'hold'} {gpus if there else 'GPUs'}"


def _activity(job: ObservedProcess, seconds: float) -> str:
    """What one process did while it was observed, in words."""
    waits = f"waits in {job.wait_channel}" if job.wait_channel else f"state {job.state}"
    output = f"last output {duration(job.output_age_s)} ago, " if job.output_age_s is not None else ""
    return (
        f"of {job.user}, started {duration(job.age_s)} ago, {job.processor_percent:.0f} % of a processor in "
        f"{seconds:.0f} s, {waits}, {output}{count(len(job.gpus), 'GPU')}: {job.command}"
    )
