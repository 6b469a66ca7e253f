"""What a measurement takes from the documents of the peer-to-peer test and of the load."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rigwright.core.command import Result
from rigwright.facts import kernel, system
from rigwright.facts.nccl.document import Versions
from rigwright.facts.nccl.load import Load, Round, Sensors, Speed
from rigwright.facts.nccl.p2p_test import AllReduceResult, CopyResult, Counts, Document, Grant, Pair, SendRecvResult
from rigwright.features.try_ import measurement

VERSIONS = Versions("535.261.03", "12.2", "12.4", "2.21.5")


def document(**of_pair: Any) -> Document:
    pair = Pair(0, 1, Grant(True, None, None), **of_pair)
    return Document(
        1, True, "ok", "", 1.0, VERSIONS, {}, Counts(2, 2), (), (pair,), AllReduceResult(True, "ok"), (), None, (), (),
        (), ()
    )  # fmt: skip


def test_results_by_what_was_tested() -> None:
    hang, refused = CopyResult(False, "hang"), CopyResult(None, "refused")
    sent = SendRecvResult(True, "ok", kind="SHM")
    found = document(bytes=refused, staged=hang, collective=sent)
    assert measurement.results(found) == {
        "GPU 0 to 1, copy through the host": "hang", "GPU 0 to 1, NCCL": "ok", "NCCL all-reduce": "ok",
    }  # fmt: skip
    assert measurement.transport(found) == "SHM"


def test_what_hangs_already_is_left_out_of_the_load() -> None:
    hang = CopyResult(False, "hang")
    assert measurement.parts_that_fail(document(bytes=hang)) == ["copies"]
    sent = SendRecvResult(False, "hang")
    assert measurement.parts_that_fail(document(bytes=CopyResult(True, "ok"), collective=sent)) == ["collective"]
    assert measurement.parts_that_fail(document()) == []


def load(*rounds: Round) -> Load:
    return Load((), rounds, schema=1, outcome="ok", started="", seconds=1.0, versions=VERSIONS, libraries={}, errors=(),
                left_behind=())  # fmt: skip


def test_rounds_become_quantities_of_what_was_measured() -> None:
    sensors = (Sensors(1905, 300, 71, 4), Sensors(1800, 100, 60, None))
    one = Round(0, (30.0, 20.0), (Speed(0, 1, 10.0), Speed(1, 0, 20.0)), 11.5, sensors)
    assert measurement.rounds(load(one, one)) == {
        "products": (50.0, 50.0), "slowest_gpu": (20.0, 20.0), "copies": (15.0, 15.0), "slowest_copy": (10.0, 10.0),
        "all_reduce": (11.5, 11.5), "clock": (1800.0, 1800.0), "power": (400.0, 400.0), "temperature": (71.0, 71.0),
        "per_watt": (125.0, 125.0),
    }  # fmt: skip
    assert measurement.rounds(load(Round(0, (30.0,), None, None, None))) == {"products": (30.0,)}
    silent = (Sensors(None, None, None, None),)
    assert measurement.rounds(load(Round(0, None, None, None, silent))) == {}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("BOOT_IMAGE=/vmlinuz-6.8 root=UUID=1 ro iommu=pt", "ro iommu=pt"),
        ("ro panic=60 rigwright.trial=20261122-1 systemd.wants=rigwright-trial.service", "ro"),
    ],
)
def test_the_command_line_in_force_is_that_of_the_owner(line: str, words: str) -> None:
    """The words of a boot that was tried once stay until the next boot, and are no difference."""
    fact = kernel.command_line
    known = {fact: fact.parse(Result(0, line.encode())), system.running_kernel: "6.8.0"}
    run: Any = SimpleNamespace(store=SimpleNamespace(known=known))
    assert measurement.conditions(run, document()) == {
        "kernel": "6.8.0", "kernel command line": words, "NCCL": "2.21.5", "CUDA runtime": "12.4",
    }  # fmt: skip
