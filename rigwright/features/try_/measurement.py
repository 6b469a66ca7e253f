"""Measures a host for a comparison: the quick peer-to-peer test, then a short load in rounds, and what is in force
meanwhile."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from statistics import fmean

from msgspec import Struct
from msgspec.structs import replace

from rigwright.checks import Finding
from rigwright.core.errors import HostError
from rigwright.core.gpu_labels import SHORT_UUID
from rigwright.engine import onhost_program
from rigwright.engine.gpu_use import gpu_use
from rigwright.engine.host_run import HostRun
from rigwright.engine.onhost_program import OnhostProgram
from rigwright.engine.p2p import nccl_test, wheels as wheel_copy
from rigwright.engine.p2p.nccl_test import NcclTestOptions
from rigwright.engine.report import FAILS
from rigwright.facts import Unavailable, Unreadable, driver, kernel, system
from rigwright.facts.gpu import gpus as gpu
from rigwright.facts.gpu.figures import CONDITIONS
from rigwright.facts.nccl import load as nccl_load
from rigwright.facts.nccl.document import Mistake
from rigwright.facts.nccl.load import Load, Round
from rigwright.facts.nccl.p2p_test import CopyResult, Document, SendRecvResult
from rigwright.features.try_.attempt import FOLLOWS, Measurement

NAME = "load"
PROCESSES = 2
ROUND_LIMIT_S = 15
LONGEST = 300
"""Characters of an error that are kept."""
SIMULATED_ROUND_S = 1.0
"""The clock of a simulated GPU has nothing to settle; on a real one a round has the length that nccl_load.py gives
it."""


class MeasurementOptions(Struct, frozen=True):
    """`wheels`: a source of libraries, as in NcclTestOptions. `rounds`: counted rounds of each of PROCESSES
    processes."""

    wheels: str = ""
    rounds: int = 3


def measure_host(run: HostRun, options: MeasurementOptions) -> Measurement:
    """Measures the host; what could not be measured is in `missing`. Only copied libraries stay on the host.

    Raises HostError while processes use the GPUs, and Unreachable.
    """
    run.store.forget()
    at = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    if use := gpu_use(run):
        problem, fix = f"{use}, and beside their work a measurement says nothing", "wait for their end, or end them"
        raise HostError(run.host.name, problem, "idle GPUs", f"{fix}; then the same command again")
    run.read(CONDITIONS)
    quick = NcclTestOptions(quick=True, wheels=options.wheels)
    tested = nccl_test.test(run, quick)
    missing = {finding.subject: finding.seen for finding in tested.not_run}
    document = tested.document
    if document is None:
        return Measurement(at, conditions(run, document), missing=missing)
    load = None
    if document.outcome == "could not run":
        missing["peer-to-peer test"] = _words(document.errors)
    else:
        load = _load(run, replace(quick, quick=False), options.rounds, document, missing)
    outcomes = results(document)
    failures = {name: outcome for name, outcome in outcomes.items() if outcome != "ok"}
    passed, values = len(outcomes) - len(failures), rounds(load) if load else {}
    return Measurement(at, conditions(run, document), passed, failures, transport(document), values, missing)


def with_findings(measurement: Measurement, findings: Sequence[Finding]) -> Measurement:
    """The measurement with the failed ones of these findings."""
    wrong = {f"{finding.check} {finding.subject}": finding.seen for finding in findings if finding.verdict in FAILS}
    return replace(measurement, wrong=wrong)


def parts_that_fail(document: Document) -> list[str]:
    """The parts of the load that hang or fail in the peer-to-peer test already."""
    parts: dict[str, Sequence[CopyResult | SendRecvResult | None]] = {
        "copies": [pair.bytes for pair in document.pairs],
        "collective": [pair.collective for pair in document.pairs],
    }
    without = [part for part, tests in parts.items() if any(one is not None and one.ok is False for one in tests)]
    summed = document.all_reduce
    if summed is not None and summed.ok is not True and "collective" not in without and len(document.gpus) > 1:
        without.append("collective")
    return without


def _load(
    run: HostRun, options: NcclTestOptions, rounds: int, document: Document, missing: dict[str, str]
) -> Load | None:
    """Runs the load with the libraries of the peer-to-peer test; None when it could not run. Adds to `missing` what it
    could not measure. Raises HostError, Unreachable."""
    without = parts_that_fail(document)
    copied = any(path.startswith(onhost_program.LIBRARIES) for path in document.libraries.values())
    try:
        load = None if copied else _run_once(run, rounds, without, ())
        if load is None or (load.outcome == "could not run" and any(one.where == "libraries" for one in load.errors)):
            folders = nccl_test.libraries(run, options)
            load = _run_once(run, rounds, without, folders) if folders or load is None else load
    except (wheel_copy.NoWheels, Unavailable, Unreadable) as error:
        missing[NAME] = str(error)
        return None
    if load.outcome == "could not run":
        missing[NAME] = _words(load.errors)
        return None
    missing |= {f"{NAME}: {part}": FOLLOWS for part in without}
    missing |= {f"{NAME}: {error.where[:60]}": error.what[:LONGEST] for error in load.errors}
    return load


def _run_once(run: HostRun, rounds: int, without: Sequence[str], folders: Sequence[str]) -> Load:
    limit_s = 90 + PROCESSES * (rounds + 1) * ROUND_LIMIT_S
    words = ["--timeout-s", str(limit_s), "--processes", str(PROCESSES), "--rounds", str(rounds)]
    words += ["--round-s", str(SIMULATED_ROUND_S)] if run.value(system.simulated) else []
    words += ["--without", ",".join(without)] if without else []
    program = OnhostProgram("nccl_load.py", words, limit_s, NAME, folders)
    onhost_program.run_and_read(run, program, nccl_load.measured)
    return run.store(nccl_load.measured)


def _words(errors: Sequence[Mistake]) -> str:
    return errors[0].what[:LONGEST] if errors else "no reason was given"


# --- what a document says


def results(document: Document) -> dict[str, str]:
    """The outcomes of the peer-to-peer test, by what was tested. What CUDA refuses is not one."""
    outcomes: dict[str, str] = {}
    for card in document.gpus:
        if card.own is not None:
            outcomes[f"GPU {card.index}, its own memory"] = card.own.outcome
    for pair in document.pairs:
        tests: dict[str, CopyResult | SendRecvResult | None]
        tests = {"copy": pair.bytes, "copy through the host": pair.staged, "NCCL": pair.collective}
        for name, result in tests.items():
            if result is not None and result.outcome != "refused":
                outcomes[f"GPU {pair.start} to {pair.end}, {name}"] = result.outcome
    if document.all_reduce is not None:
        outcomes["NCCL all-reduce"] = document.all_reduce.outcome
    return outcomes


def transport(document: Document) -> str:
    """How NCCL connected the pairs: `P2P`, `SHM`, or several with their numbers of pairs; "" when that is not known."""
    kinds = [pair.collective.kind for pair in document.pairs if pair.collective and pair.collective.kind]
    counted = {kind: kinds.count(kind) for kind in kinds}
    return next(iter(counted)) if len(counted) == 1 else ", ".join(f"{kind} ({n} pairs)" for kind, n in counted.items())


def conditions(run: HostRun, document: Document | None) -> dict[str, str]:
    """What is in force on the host, as far as it is known: the texts by name."""
    every = {fact: run.store.known.get(fact) for fact in CONDITIONS}
    known = {fact: value for fact, value in every.items() if value and not isinstance(value, Exception)}
    texts: dict[str, str] = {}
    if version := known.get(driver.loaded_version):
        texts["driver"] = str(version)
    if version := known.get(system.running_kernel):
        texts["kernel"] = str(version)
    if line := known.get(kernel.command_line):
        words = [word for word in str(line).split() if not word.startswith(("BOOT_IMAGE=", "root="))]
        texts["kernel command line"] = " ".join(words)
    if firmware := known.get(system.firmware):
        texts["firmware"] = " ".join(word for word in (firmware.vendor, firmware.version, firmware.date) if word)
    cards = known.get(gpu.gpus) or ()
    texts["power limits"] = _same_or_each([f"{card.power_limit_w:g} W" for card in cards if card.power_limit_w])
    clocks = [card.application_clocks for card in cards if card.application_clocks]
    texts["application clocks"] = _same_or_each([f"{pair.memory_mhz},{pair.graphics_mhz} MHz" for pair in clocks])
    texts["GPUs"] = ", ".join(f"{card.bus_id} {card.uuid[:SHORT_UUID]}" for card in cards)
    if document is not None:
        texts["NCCL"], texts["CUDA runtime"] = document.versions.nccl or "", document.versions.cuda_runtime or ""
    return {name: text for name, text in texts.items() if text}


def _same_or_each(texts: Sequence[str]) -> str:
    return texts[0] if len(set(texts)) == 1 else ", ".join(texts)


def rounds(load: Load) -> dict[str, tuple[float, ...]]:
    """The values of each quantity of QUANTITIES that every counted round has."""
    values: dict[str, list[float]] = {}
    for measured in load.rounds:
        for name, value in _values(measured).items():
            values.setdefault(name, []).append(round(value, 4))
    return {name: tuple(values) for name, values in values.items()}


def _values(measured: Round) -> dict[str, float]:
    values: dict[str, float] = {}
    if measured.tflops:
        values["products"] = sum(measured.tflops)
        if len(measured.tflops) > 1:
            values["slowest_gpu"] = min(measured.tflops)
    if measured.copies:
        speeds = [pair.gb_s for pair in measured.copies]
        values |= {"copies": fmean(speeds), "slowest_copy": min(speeds)}
    if measured.all_reduce_gb_s is not None:
        values["all_reduce"] = measured.all_reduce_gb_s
    sensors = measured.sensors or ()
    clocks, powers, temperatures = (
        [value for sensor in sensors if (value := getattr(sensor, name)) is not None]
        for name in ("clock_mhz", "power_w", "temperature_c")
    )
    if clocks:
        values["clock"] = min(clocks)
    if powers:
        values["power"] = sum(powers)
    if temperatures:
        values["temperature"] = max(temperatures)
    if powers and measured.tflops and sum(powers):
        values["per_watt"] = 1000 * sum(measured.tflops) / sum(powers)
    return values
