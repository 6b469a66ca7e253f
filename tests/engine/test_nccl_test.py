"""When the peer-to-peer test does not run, the finding says why, and the machine is not called fit."""

from __future__ import annotations

from typing import Any

import pytest

from rigwright.checks import problems
from rigwright.core.command import Result
from rigwright.engine.p2p import nccl_test
from rigwright.engine.p2p.nccl_test import NcclTestOptions
from rigwright.engine.p2p.wheels import NoWheels
from rigwright.facts import Unreadable, system
from rigwright.facts.gpu import gpus as gpu, mig
from rigwright.facts.gpu.gpus import GpuMode, Process
from rigwright.facts.nccl.p2p_test import tested
from rigwright.facts.own_programs import at_work
from tests.host_runs import host_run
from tests.test_cases import case_named

IDLE: dict[Any, Any] = {gpu.processes: (), gpu.holders: (), at_work: (), mig.modes: ()}
BUSY = {gpu.holders: (Process(4711, "python3"),)}
LACKS = Unreadable("the peer-to-peer test left no document")
OPTIONAL = NcclTestOptions(quick=True, optional=True)


def no_wheels(*_: Any) -> Any:
    raise NoWheels("no driver is loaded, and the test needs one", "invoke provision")


def late(*_: Any) -> Any:
    raise LACKS


@pytest.mark.parametrize("options", [NcclTestOptions(), NcclTestOptions(quick=True), OPTIONAL], ids=str)
@pytest.mark.parametrize(
    ("known", "answer", "says", "needed_by_nobody"),
    [
        (BUSY, late, "not run: the GPUs are in use by python3 (4711)", False),
        ({gpu.holders: Unreadable("cut")}, late, "not run: cannot read which processes use the GPUs (cut)", False),
        ({}, late, "not run: the peer-to-peer test left no document", False),
        ({}, no_wheels, "not run: no driver is loaded, and the test needs one", True),
        (
            {mig.modes: (GpuMode("", "0000:02:00.0", "A100", True, True),)},  # type: ignore[arg-type]
            late, "not run: MIG is on on 0000:02:00.0, and its instances have no peer access and no NCCL between them",
            None,
        ),
    ],
)  # fmt: skip
def test_a_test_that_could_not_run_proves_nothing(
    options: NcclTestOptions, known: dict[Any, Any], answer: Any, says: str, needed_by_nobody: bool | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """`needed_by_nobody`: whether it is only a note where other programs test NCCL, or the inventory wants no test;
    None: a note in any case, as it has nothing to test."""
    run = host_run(lambda _: Result(1, b""))
    run.store.known.update({**IDLE, **known})
    monkeypatch.setattr(nccl_test, "_run_once", answer)
    (finding,) = nccl_test.test(run, options).not_run
    note = needed_by_nobody is None or (needed_by_nobody and options.optional)
    assert (finding.seen, finding.verdict) == (says, "info" if note else "unknown")
    verdict = problems.judge(problems.problems((finding,)), (finding,))
    assert verdict
    assert verdict.sentence.startswith("Fit" if note else f"Not proved: peer-to-peer test: {says[:60]}")


@pytest.mark.parametrize(("options", "verdict"), [(NcclTestOptions(quick=True), "unknown"), (OPTIONAL, "info")])
def test_a_host_without_the_libraries(options: NcclTestOptions, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = case_named("checks", "p2p.ran", "no_library")["facts"]["nccl.tested"]
    monkeypatch.setattr(nccl_test, "_run_once", lambda *_: tested.parse(Result(0, text.encode())))
    monkeypatch.setattr(nccl_test, "libraries", lambda *_: [])
    run = host_run(lambda _: Result(1, b""))
    run.store.known.update({**IDLE, system.simulated: ""})
    (finding,) = nccl_test.test(run, options).not_run
    assert (finding.seen[:36], finding.verdict) == ("not run: on the host libcudart.so.12", verdict)
    assert finding.fix == "invoke verify --tags p2p with --wheels fetch, or --wheels DIR"
