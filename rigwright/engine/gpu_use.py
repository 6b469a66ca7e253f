"""Who uses the GPUs of a host, and whether they are divided by MIG."""

from __future__ import annotations

from rigwright.core.errors import ConsentError
from rigwright.core.numbers import duration
from rigwright.core.shortening import first_of
from rigwright.engine import own_programs
from rigwright.engine.host_run import HostRun
from rigwright.facts import Unreadable
from rigwright.facts.gpu import gpus as gpu, mig
from rigwright.facts.gpu.processes import Observation, observation
from rigwright.facts.own_programs import at_work

MANY = 16
"""The most process ids of one program that a message names."""


def gpu_use(run: HostRun, continues: str = "") -> str:
    """`the GPUs are in use by python3 of alice for 9 minutes (4711, 4712)`, or why that cannot be read; "" for idle
    GPUs. `continues`: see `gpu_users`. Users are observed for some seconds, which is a fact of the run afterwards."""
    try:
        if users := gpu_users(run, continues):
            run.read_unknown((observation,))
            users = gpu_users(run, continues)
    except ConsentError as error:
        return error.found
    return users and f"the GPUs are in use by {users}"


def mig_use(run: HostRun) -> str:
    """`MIG is on on 0000:07:00.0 and 7 more`; "" if no GPU has it on, or if that cannot be read.

    A program sees one instance of such a GPU, and instances have neither peer access nor NCCL between them.
    """
    run.read_unknown((mig.modes,))
    modes = run.store.known[mig.modes]
    split = [mode.bus_id for mode in modes if mode.current] if isinstance(modes, tuple) else []
    more = f" and {len(split) - 1} more" if len(split) > 1 else ""
    return f"MIG is on on {split[0]}{more}" if split else ""


def gpu_users(run: HostRun, continues: str = "") -> str:
    """The processes that use a GPU, without the driver's own: `python3 (4711)`, with owner and age if they were
    observed; "" for idle GPUs.

    A program of rigwright is named with its run and its end. The program `continues` does not count if its command has
    ended: this command continues it. Raises ConsentError if the processes cannot be read.
    """
    facts = (gpu.processes, gpu.holders, at_work)
    run.read_unknown(facts)
    holders = run.store.known[gpu.holders]
    if isinstance(holders, Unreadable):
        found = f"cannot read which processes use the GPUs ({holders})"
        fix = "end the processes that use the GPUs; then the same command with --disrupt"
        raise ConsentError(run.host.name, found, "idle GPUs", fix)
    values = [value for fact in facts[:2] if isinstance(value := run.store.known[fact], tuple)]
    users: dict[int, gpu.Process] = {process.pid: process for processes in values for process in processes}
    own = {pid: program for program in own_programs.known(run) for pid in program.pids}
    observed = run.store.known.get(observation)
    about = {job.pid: job for job in observed.processes} if isinstance(observed, Observation) else {}
    pids_of: dict[str, list[str]] = {}
    for process in users.values():
        program, job = own.get(process.pid), about.get(process.pid)
        if program is not None and not (program.name == continues and own_programs.command_ended(program)):
            pids_of[own_programs.in_words(program)] = []
        elif program is None and process.works:
            name = f"{process.name} of {job.user} for {duration(job.age_s)}" if job else process.name
            pids_of.setdefault(name, []).append(str(process.pid))
    return ", ".join(f"{name} ({first_of(pids, MANY)})" if pids else name for name, pids in pids_of.items())
