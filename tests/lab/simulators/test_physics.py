"""The physics of a simulated GPU (lab/simulators/nvml/physics.c): power, clock and heat, for every model of the
catalogue."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lab.hardware.board import GPUS, model, of_model
from tests.paths import ROOT

SOURCE = ROOT / "lab/simulators/nvml/physics.c"
MODELS = sorted(path.stem for path in GPUS.glob("*.yml"))
POWER_CAP, SW_THERMAL, HW_THERMAL = 0x4, 0x20, 0x40


def _doubles(names: str) -> list[tuple[str, type[ctypes.c_double]]]:
    return [(name, ctypes.c_double) for name in names.split()]


class Model(ctypes.Structure):
    """struct gpu_model."""

    _fields_ = _doubles(
        "idle_w full_w default_w max_mhz min_mhz step_mhz idle_c full_c memory_full_c gpu_max_c slowdown_c "
        "memory_max_c fan_idle"
    )


class Inputs(ctypes.Structure):
    """struct gpu_inputs."""

    _fields_ = [
        ("busy", ctypes.c_int),
        ("brake", ctypes.c_int),
        *_doubles("effort limit_w target_mhz fan_percent inlet_c"),
    ]


class State(ctypes.Structure):
    """struct gpu_physics."""

    _fields_ = [
        *_doubles("demand_w core_c memory_rise_c power_w clock_mhz fan_percent energy_j"),
        ("recent_w", ctypes.c_double * 10),
        *((name, ctypes.c_uint) for name in ("recent_at", "reasons", "lost", "unused")),
    ]


@dataclass
class Gpu:
    """One GPU and its state. Keys of its model may be given as `temp__full`."""

    library: ctypes.CDLL
    name: str
    given: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        values = of_model(self.name, model(self.name)) | {
            key.replace("__", "."): value for key, value in self.given.items()
        }

        def of(key: str, default: float = 0) -> float:
            return float(values.get(key) or default)

        watts = {name: of(f"power.{name}_mw") / 1000 for name in ("idle", "full", "default")}
        self.model = Model(
            watts["idle"], watts["full"], watts["default"], of("clock.graphics_max"), of("clock.graphics_min"), 7.5,
            of("temp.idle"), of("temp.full"), of("temp.memory_full", of("temp.full")), of("temp.gpu_max"),
            of("temp.slowdown"), of("temp.memory_throttle", of("temp.memory_max")), of("fan_idle", 30),
        )  # fmt: skip
        self.inputs = Inputs(0, 0, 1.0, watts["default"], self.model.max_mhz, -1.0, 22.0)
        self.shutdown_c = of("temp.shutdown")
        self.state = State()
        self.library.physics_rest(ctypes.byref(self.model), ctypes.byref(self.inputs), ctypes.byref(self.state))

    def runs(self, seconds: float, effort: float = 1.0) -> Gpu:
        """Is under load for that long, or without effort idle."""
        self.inputs.busy, self.inputs.effort = int(effort > 0), effort
        for _ in range(round(10 * seconds)):
            self.library.physics_step(
                ctypes.byref(self.model), ctypes.byref(self.inputs), ctypes.byref(self.state),
                ctypes.c_double(0.1), ctypes.c_double(0.1),
            )  # fmt: skip
        return self

    def limited(self, watts: float) -> Gpu:
        self.inputs.limit_w = watts
        return self


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Gpu]:
    built = tmp_path_factory.mktemp("physics") / "physics.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", str(built), str(SOURCE)], check=True, timeout=60)
    library = ctypes.CDLL(str(built))
    return lambda name, **given: Gpu(library, name, given)


def speed(one: Gpu, watts: float) -> float:
    """Returns the clock at a limit, after a minute: products are as fast as their clock."""
    return float(one.limited(watts).runs(60).state.clock_mhz)


def test_a_limit_costs_what_owners_measured(gpu: Callable[..., Gpu]) -> None:
    v100, turing = gpu("v100-sxm2-16gb"), gpu("rtx-2080-ti")
    full, limited = speed(v100, 300), speed(v100, 200)
    cost = 100 * (1 - limited / full)
    assert cost == pytest.approx(15, abs=1)  # the owner of servbadge
    assert v100.state.power_w == pytest.approx(200, abs=2)
    full, limited = speed(turing, 250), speed(turing, 200)
    assert 100 * (1 - limited / full) == pytest.approx(7, abs=2)  # four in a cluster, BERT


def test_a_load_in_step_peaks_above_its_limit_and_keeps_it_on_average(gpu: Callable[..., Gpu]) -> None:
    v100, seen = gpu("v100-sxm2-16gb").limited(200), []
    for _ in range(20):
        for effort in (1.0,) * 4 + (0.1,) * 3:
            seen.append(v100.runs(0.1, effort).state.power_w)
    assert max(seen[70:]) > 250  # servbadge: over 300 W with a limit of 200 W
    assert sum(seen[70:]) / len(seen[70:]) <= 202
    seconds = [sum(seen[at : at + 10]) / 10 for at in range(70, 130)]
    assert max(seconds) < max(seen[70:]) - 25  # the average of a second does not show them
    v100.inputs.target_mhz = 1005
    assert max(v100.runs(0.1, effort).state.power_w for effort in (0.1, 0.1, 0.1, 1.0, 1.0)) <= 200


def test_heat_rises_over_minutes_and_falls_with_the_fans(gpu: Callable[..., Gpu]) -> None:
    card = gpu("rtx-3090")
    temperatures = [card.runs(30).state.core_c for _ in range(10)]
    assert temperatures == sorted(temperatures)
    assert temperatures[0] < 50
    assert temperatures[-1] == pytest.approx(70, abs=1)  # the owner of rig-3090
    assert card.state.core_c + card.state.memory_rise_c == pytest.approx(104, abs=2)
    usual = card.state.fan_percent
    card.inputs.fan_percent = 100.0
    assert usual < 70
    assert card.runs(300).state.core_c < 62
    assert card.runs(600, 0).state.core_c == pytest.approx(25, abs=2)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_safe_in_all_circumstances(gpu: Callable[..., Gpu], name: str) -> None:
    sound = gpu(name).runs(600)
    assert not sound.state.reasons & ~POWER_CAP
    assert sound.state.power_w <= sound.model.default_w * 1.01
    assert sound.state.core_c < (sound.model.gpu_max_c or sound.model.slowdown_c)
    still = gpu(name)
    still.inputs.fan_percent = 0.0
    still.runs(1200)
    assert still.state.reasons & (SW_THERMAL | HW_THERMAL), still.state.core_c
    assert still.state.core_c < still.shutdown_c
    assert still.state.clock_mhz < 0.8 * sound.state.clock_mhz
    loose = gpu(name, temp__full=1000)
    assert loose.runs(1200).state.reasons & HW_THERMAL
    assert loose.state.core_c < loose.shutdown_c
    assert loose.runs(1200, 0).state.core_c == pytest.approx(loose.model.idle_c, abs=1)


def test_hot_memory_lowers_the_clock_though_the_core_is_cool(gpu: Callable[..., Gpu]) -> None:
    sound, hot = gpu("v100-sxm2-16gb").runs(600), gpu("v100-sxm2-16gb", temp__memory_full=100).runs(600)
    assert hot.state.reasons & SW_THERMAL
    assert hot.state.clock_mhz < sound.state.clock_mhz
    assert hot.state.core_c < hot.model.gpu_max_c
    assert 80 < hot.state.core_c + hot.state.memory_rise_c < 86
    sound.inputs.inlet_c = 32.0
    assert sound.runs(600).state.core_c == pytest.approx(70, abs=1), "the air of a hot room adds to the heat"


def test_the_source_needs_nothing_but_numbers() -> None:
    """A pure function: no file, no clock of the machine."""
    included = [line for line in Path(SOURCE).read_text().splitlines() if line.startswith("#include")]
    assert included == ["#include <string.h>", '#include "physics.h"']
