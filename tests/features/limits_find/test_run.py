"""The plan of a sweep over limits: ranges, groups of models, notes and what is refused; and a GPU that is lost in the
middle."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rigwright.core.command import Result
from rigwright.core.errors import HostError, UsageError
from rigwright.engine import host_variables
from rigwright.engine.host_run import HostRun, Options, RunState, no_events
from rigwright.engine.playbook import BoundPlaybook
from rigwright.facts import Fact, Unavailable, pci, system
from rigwright.facts.gpu import gpus as gpu
from rigwright.facts.gpu.gpus import ClockPair, Gpu, Process
from rigwright.facts.nccl.document import Versions
from rigwright.facts.nccl.load import LoadedGpu
from rigwright.facts.own_programs import OwnProgram, at_work
from rigwright.facts.pci import PciGpu
from rigwright.features.limits_find import run as limits_sweep
from rigwright.features.limits_find.facts import LostGpu, SweepDocument, left
from rigwright.features.limits_find.options import LimitsFindOptions
from rigwright.features.limits_find.points import SweepPlan
from rigwright.inventory.model import Host
from tests.ssh.fake_transport import FakeTransport

HOST = Host("rig", (), {})


def card(
    number: int, name: str = "NVIDIA GeForce RTX 3090", watts: tuple[float, ...] = (285, 100, 350, 350), **more: Any
) -> Gpu:
    """Returns a GPU; `watts`: the limit in force, the lowest, the highest and the default one."""
    limit, low, high, default = watts
    made = Gpu(number, f"GPU-{number}", f"0000:0{number + 1}:00.0", name, True, limit, low, high, default, None, None)
    return replace(made, **more)


GTX = card(2, "NVIDIA GeForce GTX 1070", (151, 75.5, 170, 151))
DEFAULT = ClockPair(877, 1312)
V100 = card(
    3, "Tesla V100-SXM2-16GB", (300, 150, 300, 300), application_clocks=DEFAULT, default_application_clocks=DEFAULT
)
IDS = {"NVIDIA GeForce RTX 3090": "2204", "NVIDIA GeForce GTX 1070": "1b81", "Tesla V100-SXM2-16GB": "1db1"}


class Run(HostRun):
    """A run of a host whose facts are given."""

    def __init__(self, cards: Sequence[Gpu], facts: dict[Fact[Any], Any]) -> None:
        bound = BoundPlaybook(HOST, (), ())
        super().__init__(bound, FakeTransport({}), Options("1"), no_events, RunState(threading.BoundedSemaphore()))
        devices = tuple(PciGpu(each.bus_id, IDS.get(each.name, "ffff"), "nvidia") for each in cards)
        self.values: dict[Fact[Any], Any] = {
            gpu.gpus: tuple(cards), gpu.locked: {}, gpu.processes: (), gpu.holders: (), at_work: (), left: False,
            pci.gpus: devices, system.simulated: "", gpu.supported_clocks: Unavailable("no clocks"), **facts,
        }  # fmt: skip

    def read(self, facts: Sequence[Fact[Any]]) -> None:
        self.store.known.update({fact: self.values.get(fact, Unavailable("not given")) for fact in facts})


def planned(cards: Sequence[Gpu], facts: dict[Fact[Any], Any] | None = None, **options: Any) -> SweepPlan:
    variables = host_variables.of_host(HOST, Path("/nowhere"))
    return limits_sweep.plan(Run(cards, facts or {}), variables, LimitsFindOptions(**options))


def test_gpus_of_several_models_have_a_range_each() -> None:
    """Within the limits that all boards of a model support, up to the lowest default."""
    plan = planned([card(0), card(1, watts=(285, 105, 350, 320)), GTX], points=3)
    assert plan.sweep.groups == {"rtx-3090": "2 x NVIDIA GeForce RTX 3090", "gtx-1070": "1 x NVIDIA GeForce GTX 1070"}
    assert [tuple(point.limits.values()) for point in plan.sweep.points] == [(105, 76), (210, 115), (320, 151)]
    watts = {"GPU-0": 210, "GPU-1": 210, "GPU-2": 115}
    assert plan.rules[1] == {uuid: {"power_limit_w": value} for uuid, value in watts.items()}
    assert plan.all_gpus
    assert plan.sweep.before == {"GPU-0": 285, "GPU-1": 285, "GPU-2": 151}


@pytest.mark.parametrize(
    ("cards", "groups", "note"),
    [
        (
            [card(0), card(1, "NVIDIA T600", power_min_w=None)],
            ["rtx-3090"],
            "the power limit of NVIDIA T600 at 0000:02:00.0 cannot be set; it computes along as it is",
        ),
        (
            [replace(V100, application_clocks=ClockPair(877, 1005))],
            ["v100-sxm2-16gb"],
            "Tesla V100-SXM2-16GB: the clock limit in force, 1005 MHz, stays, and every point is measured with it;"
            " --clocks measures the clocks",
        ),
    ],
)
def test_the_plan_has_notes(cards: list[Gpu], groups: list[str], note: str) -> None:
    plan = planned(cards, points=3)
    assert list(plan.sweep.groups) == groups
    assert plan.notes == (note,)
    assert plan.all_gpus == (len(cards) == 1), "limits of some GPUs are exceptions by model in the inventory"


def test_a_sweep_of_clocks_uses_those_that_the_gpu_lists() -> None:
    listed = {"GPU-3": tuple(ClockPair(877, mhz) for mhz in (135, 757, 765, 1005, 1290, 1530))}
    plan = planned([V100], {gpu.supported_clocks: listed}, clocks=True, points=3)
    assert [point.limits for point in plan.sweep.points] == [{"v100-sxm2-16gb": mhz} for mhz in (765, 1005, 1530)]
    assert plan.rules[0] == {"GPU-3": {"application_clocks": {"memory_mhz": 877, "graphics_mhz": 765}}}
    assert "the power limit in force, 300 W, stays" in plan.notes[0]


@pytest.mark.parametrize(
    ("cards", "options", "where", "found"),
    [
        ([card(0)], {"lowest": 90}, "--lowest", "90 W is outside of what NVIDIA GeForce RTX 3090 takes"),
        ([card(0)], {"highest": 400}, "--highest", "400 W is outside of what NVIDIA GeForce RTX 3090 takes"),
        ([card(0)], {"lowest": 300, "highest": 200}, "--lowest", "300 is not below 200 W"),
        ([card(0), GTX], {"lowest": 160}, "--lowest", "160 W is outside of what NVIDIA GeForce GTX 1070 takes"),
        ([card(0, power_min_w=None)], {}, "rig", "no GPU reports a range for its power limit"),
        ([card(0)], {"clocks": True}, "rig", "no GPU reports a range for its graphics clocks"),
        ([card(0), card(1, lost="GPU is lost")], {}, "rig", "GPU 0000:02:00.0 cannot be reached: GPU is lost"),
    ],
)
def test_what_is_refused(cards: list[Gpu], options: dict[str, Any], where: str, found: str) -> None:
    with pytest.raises((UsageError, HostError)) as caught:
        planned(cards, **options)
    assert caught.value.where == where
    assert found in caught.value.found


def test_gpus_in_use_are_refused_and_a_program_of_rigwright_is_named_with_its_end() -> None:
    with pytest.raises(HostError, match=r"in use by train.py \(4711\), and beside their work"):
        planned([card(0)], {gpu.processes: (Process(4711, "train.py"),)})
    owner = "20261126-1403 ada@desk-2c.40 4711 99 rig"
    program = OwnProgram("rigwright-p2p", "stress", owner, "", 60, 900, None, "", (4711,))
    with pytest.raises(HostError) as caught:
        planned([card(0)], {gpu.processes: (Process(4711, "python3"), Process(5, "train.py")), at_work: (program,)})
    assert re.fullmatch(
        r"the GPUs are in use by the stress of \d\d:\d\d \(run 20261126-1403 by ada@desk\), which ends by \d\d:\d\d"
        r" \(900 s\), train.py \(5\), and beside their work a sweep says nothing",
        caught.value.found,
    )


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, "an earlier sweep ended without its limits put back; that is done now"),
        (75, ""),
        (1, "an earlier sweep ended without its limits put back, and they cannot be now: GPU-0: lost"),
    ],
)
def test_limits_that_an_earlier_sweep_left(code: int, said: str) -> None:
    """They are put back before the limits of before are read; while that sweep is at work nothing is done."""
    run = Run([card(0)], {left: True})
    notes: list[str] = []
    run.tell = lambda event: notes.append(getattr(event, "text", ""))
    run.transport = FakeTransport(lambda _cmd: Result(code, b"", b"not put back:\nGPU-0: lost"))  # type: ignore[assignment]
    try:
        limits_sweep.plan(run, host_variables.of_host(HOST, Path("/nowhere")), LimitsFindOptions())
    except HostError as error:
        notes.append(error.found)
    assert notes == ([said] if said else [])


def test_a_lost_gpu_is_named_with_its_point_and_the_fix() -> None:
    gpus = tuple(LoadedGpu(at, f"0000:0{at + 1}:00.0", f"GPU-{at}a08792fa", "RTX 3090") for at in range(3))
    lost = LostGpu(1, "point 3 of 7, 225 W", "GPU 1 no longer works: cudaSetDevice: error 719")
    document = SweepDocument(
        gpus, (), (lost,), ("GPU-1a08792fa: lost",), schema=1, outcome="failed", started="", seconds=9.0,
        versions=Versions(None, None, None, None), libraries={}, errors=(), left_behind=(),
    )  # fmt: skip
    error = limits_sweep.lost("rig", document)
    assert error.found == (
        "GPU 0000:02:00.0 (GPU-1a08792f) was lost at point 3 of 7, 225 W: GPU 1 no longer works: cudaSetDevice:"
        " error 719; the limits of the others are as before"
    )
    assert "invoke verify --host rig" in error.fix
    assert "--highest below that limit" in error.fix
