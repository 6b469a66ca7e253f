"""Judges NVIDIA's nccl-tests, which run with `verify --tags p2p --nccl-tests`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.checks import AGAIN, Finding, Source, Verdict, check, of_symptom, of_text
from rigwright.checks.environment import jobs_work
from rigwright.checks.p2p import FAR, hang, left_behind
from rigwright.core.schema import BusId
from rigwright.facts import Facts, driver, pci
from rigwright.facts.nccl import nccl_tests as nccl_programs
from rigwright.facts.nccl.nccl_tests import Run, Table

_BUILD = (
    "build them there: git clone https://github.com/NVIDIA/nccl-tests ~/nccl-tests && make -C ~/nccl-tests; "
    "or --nccl-tests=FOLDER"
)


@check(needs=nccl_programs.nccl_tests, follows=(jobs_work,))
def nccl_tests(facts: Facts, *, rig: Rig | None = None, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """NVIDIA's all_reduce_perf and sendrecv_perf finish in time on all GPUs, with correct data, over the rig's links
    and with its bandwidth. Only with --nccl-tests."""
    document, loaded, bus = facts.all(nccl_programs.nccl_tests, driver.loaded_version, pci.gpus)
    yield from left_behind(document.left_behind)
    absent = [run.program for run in document.runs if run.path is None]
    cause = f"looked in {', '.join(document.looked_in)}"
    if len(absent) == len(document.runs):
        seen = f"not run: no {' and no '.join(absent)} on the host"
        yield Finding("nccl-tests", "unknown", seen, "NVIDIA's programs", cause, _BUILD)
        return
    for name in absent:
        yield Finding(name, "unknown", "not run: it is not on the host", "NVIDIA's program", cause, _BUILD)
    linked = linked_ranks(rig, slots, [gpu.bus_id for gpu in bus])
    names = [model.name for gpu in bus if (model := catalogue.model_of(gpu.device_id))]
    for run in document.runs:
        if run.path is not None:
            finding = _failed(run, run.program, loaded, names) or past_nvlink(run, run.program, linked)
            yield finding or _measured(run, rig if document.gpus == len(rig.gpus if rig else ()) else None)


def _measured(run: Run, rig: Rig | None) -> Finding:
    """The finding for a program that ended, by its data and its speed."""
    try:
        table = nccl_programs.read_table(run.stdout)
    except ValueError as error:
        return Finding(run.program, "unknown", str(error), "a table", "", f"run {run.path} by hand")
    if not table.rows:
        return Finding(run.program, "unknown", "it printed no row", "a table", "", f"run {run.path} by hand")
    best = max(row.busbw_gb_s for row in table.rows)
    largest = table.rows[-1].size_bytes >> 20
    seen = f"{best:.4g} GB/s bus bandwidth, up to {largest} MiB{_by(run)}"
    if table.wrong is None:
        fix = "install a newer nccl-tests: this one does not compare data"
        return Finding(run.program, "warn", f"{seen}; data not compared", "data compared", "", fix)
    figure = rig.all_reduce_gb_s if rig and run.program == "all_reduce_perf" else None
    source: Source = "rig" if figure else ""
    verdict: Verdict = "warn" if figure and best < FAR * figure else "pass"
    fix = "look at the pairs of p2p.copies; else invoke limits --show"
    wanted = f"about {figure:g} GB/s" if figure else ""
    return Finding(run.program, verdict, f"{seen}; data right", wanted, "a slow pair, or low clocks", fix, source)


def _by(run: Run) -> str:
    ways = sorted({way.transport for way in run.transports.values()})
    return f", by {' and '.join(ways)}" if ways else ""


def _failed(run: Run, subject: str, loaded: str | None, gpu_names: Iterable[str]) -> Finding | None:
    """The finding for a failed run; None for a run without errors."""
    if run.outcome == "hang":
        seen = f"{run.error or 'no end'}{_reached(run)}{_by(run)}; killed"
        return hang(loaded, gpu_names, subject, seen, "an end")
    if run.outcome == "not run":
        return Finding(subject, "unknown", f"not run: {run.error}", "a run", "", AGAIN)
    table = _table(run)
    if table.wrong:
        first = next((row.size_bytes for row in table.rows if row.wrong), None)
        where = f", first at {first / (1 << 20):g} MiB" if first is not None else ""
        seen = f"{table.wrong} wrong values{where}{_by(run)}"
        return of_symptom("nccl.wrong_data", subject, seen, "the numbers that were sent")
    if run.outcome == "flood":
        return Finding(subject, "fail", "its output does not end; killed", "a table", "", f"run {run.path} by hand")
    if run.outcome == "done":
        return None
    how = f"signal {-run.code}" if run.code is not None and run.code < 0 else f"exit status {run.code}"
    library = re.search(r"error while loading shared libraries: (\S+?):", run.stderr)
    if library:
        fix = "sudo apt-get install libnccl2; or its folder into /etc/ld.so.conf.d, and sudo ldconfig"
        return Finding(subject, "unknown", f"not run: no {library[1]} for the loader", "a run", "", fix)
    return of_text(run.said, subject, f"{_last_words(run)} ({how})", "an end without an error")


def _table(run: Run) -> Table:
    """The table in the output of a failed run; empty if it cannot be read."""
    try:
        return nccl_programs.read_table(run.stdout)
    except ValueError:
        return Table((), None)


def _reached(run: Run) -> str:
    """The last size that a program completed before it hung."""
    if run.program not in ("all_reduce_perf", "sendrecv_perf"):
        return ""
    rows = _table(run).rows
    return f", {rows[-1].size_bytes >> 20} MiB was completed last" if rows else ", no size was completed"


def _last_words(run: Run) -> str:
    """The line of the output that says what failed."""
    lines = [line.strip() for line in run.said.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    named = [line for line in lines if re.search(r"\bfailure\b|\berror\b|Invalid number of GPUs", line, re.IGNORECASE)]
    return (named or lines[-1:] or ["no output"])[0][:200]


def linked_ranks(
    rig: Rig | None, slots: Mapping[BusId, str] | None, bus_ids: Sequence[str]
) -> frozenset[tuple[int, int]]:
    """The ordered pairs of ranks that NVLinks or an NVSwitch connect; ranks number the GPUs in the order of their bus
    ids."""
    if rig is None or len(rig.gpus) != len(bus_ids):
        return frozenset()
    known = [(slots or {}).get(BusId(bus), "") for bus in sorted(bus_ids)]
    order = known if all(known) else list(rig.gpus)
    joined = {frozenset((first, second)) for first, second, links in rig.pairs if links}
    pairs = permutations(range(len(order)), 2)
    return frozenset((a, b) for a, b in pairs if rig.nvswitches or frozenset((order[a], order[b])) in joined)


def past_nvlink(run: Run, subject: str, linked: frozenset[tuple[int, int]]) -> Finding | None:
    """The finding for pairs whose NVLinks NCCL does not use; None if it uses all."""
    past = [
        (ends, way)
        for ends, way in run.transports.items()
        if tuple(map(int, ends.split("-"))) in linked and way.kind in ("SHM", "NET")
    ]
    if not past:
        return None
    ends, way = past[0]
    more = f" and {len(past) - 1} more" if len(past) > 1 else ""
    seen = f"{way.transport} for the ranks {ends}{more}, not over the NVLinks"
    return of_symptom("nccl.p2p_off_nvlink", subject, seen, "P2P", "rig", verdict="fail")
