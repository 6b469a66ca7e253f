"""The guard's decisions, with readings and a clock that the test gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

GPU, MEMORY, FAN = "gpu_temperature_c", "memory_temperature_c", "fan_rpm_min"
ALL = ["lower-limit", "stop", "power-off"]
THRESHOLDS = {GPU: {"above": 90, "for_s": 10}, MEMORY: {"for_s": 10}, FAN: {"below": 500, "for_s": 30}}


@pytest.fixture
def program(module: Callable[[str], Any]) -> Any:
    """Returns the module."""
    return module("guard_steps")


class Machine:
    """Steps with a clock: `reads` gives one reading of a sensor each second and keeps what is due, with its second."""

    def __init__(self, program: Any, steps: Iterable[str] = ALL, *, step_s: float = 60, up_s: float = 10_000) -> None:
        self.steps = program.Steps(THRESHOLDS, steps, step_s)
        self.now, self.up_s = 1000.0, up_s
        self.due: list[tuple[float, str]] = []
        self.why: list[str] = []

    def reads(self, seconds: int, value: object, key: tuple[str, str] = (GPU, "a"), own: object = None) -> None:
        """Gives the same reading for so many seconds; None: there is no reading."""
        for _ in range(seconds):
            given = {} if value is None else {key: (value, own)}
            for one in self.steps.look(self.now, self.up_s, given):
                self.due.append((self.now - 1000, one["event"]))
                self.why.append(one["why"])
            self.now, self.up_s = self.now + 1, self.up_s + 1


def test_the_steps_come_in_order_each_after_its_time(program: Any) -> None:
    machine = Machine(program)
    machine.reads(300, 95)
    assert machine.due == [(10, "lower-limit"), (70, "stop"), (130, "power-off")]
    assert machine.why[0] == "GPU a at 95 C (limit 90 C) for 10 s"


def test_a_threshold_that_is_left_for_one_reading_begins_again(program: Any) -> None:
    machine = Machine(program)
    for _ in range(20):
        machine.reads(9, 95)
        machine.reads(1, 89)
    assert machine.due == []
    machine.reads(15, 90)
    assert [event for _, event in machine.due] == ["lower-limit"], "the number itself reaches it"


def test_no_step_follows_when_the_first_has_helped(program: Any) -> None:
    machine = Machine(program)
    machine.reads(11, 95)
    machine.reads(700, 80)
    assert machine.due == [(10, "lower-limit"), (610, "calm")]
    machine.reads(11, 95)
    assert machine.due[-1] == (721, "lower-limit"), "the steps begin again from the first"


def test_heat_that_comes_back_goes_on_with_the_next_step_after_its_time(program: Any) -> None:
    machine = Machine(program)
    machine.reads(11, 95)
    machine.reads(100, 80)
    machine.reads(60, 95)
    assert machine.due == [(10, "lower-limit")], "59 s of the second time"
    machine.reads(1, 95)
    assert machine.due[-1] == (171, "stop")


@pytest.mark.parametrize("lost", [None, 0, 255, -1, 4, 131, "hung", True, float("nan")])
def test_a_lost_or_impossible_reading_powers_nothing_off(program: Any, lost: object) -> None:
    machine = Machine(program)
    machine.reads(120, 95)
    machine.reads(600, lost)
    assert machine.due[:2] == [(10, "lower-limit"), (70, "stop")]
    assert "power-off" not in [event for _, event in machine.due]
    machine.reads(60, 95)
    assert "power-off" not in [event for _, event in machine.due], "its time began again"


def test_a_short_gap_does_not_begin_the_time_again(program: Any) -> None:
    machine = Machine(program)
    machine.reads(5, 95)
    machine.reads(4, None)
    machine.reads(3, 95)
    assert machine.due == [(10, "lower-limit")]
    other = Machine(program)
    other.reads(5, 95)
    other.reads(6, None)
    other.reads(10, 95)
    assert other.due == []


def test_nothing_is_powered_off_in_the_first_minutes_of_a_boot(program: Any) -> None:
    machine = Machine(program, up_s=20)
    machine.reads(279, 95)
    assert machine.due == [(10, "lower-limit"), (70, "stop"), (130, "held-back")]
    assert "is not powered off before 300 s" in machine.why[-1]
    machine.reads(2, 95)
    assert machine.due[-1] == (280, "power-off")


@pytest.mark.parametrize(
    ("steps", "event"), [(["lower-limit"], "lower-limit"), ([], "over"), (["power-off"], "power-off")]
)
def test_it_ends_with_the_last_step_and_tells_once(program: Any, steps: list[str], event: str) -> None:
    machine = Machine(program, steps)
    machine.reads(3000, 99)
    assert machine.due == [(10, event)]


@pytest.mark.parametrize(
    ("own", "at"), [(None, 105), (85, 85), (20, 105), (500, 105)], ids=["none", "own", "too low", "too high"]
)
def test_without_a_number_the_limit_of_the_gpu_itself_counts(program: Any, own: object, at: int) -> None:
    machine = Machine(program, ["lower-limit"])
    machine.reads(30, at - 1, (MEMORY, "a"), own)
    assert machine.due == []
    machine.reads(11, at, (MEMORY, "a"), own)
    assert machine.due == [(40, "lower-limit")]


def test_a_fan_is_read_each_ten_seconds(program: Any) -> None:
    machine = Machine(program)
    machine.reads(1, 7000, (FAN, "FAN1"))
    for _ in range(30):
        machine.reads(1, 0, (FAN, "FAN1"))
        machine.reads(9, None)
    assert machine.due == [(31, "lower-limit"), (91, "stop"), (151, "power-off")]
    assert machine.why[0] == "fan FAN1 at 0 RPM (least 500) for 30 s"


def test_a_fan_that_was_never_seen_to_turn_powers_nothing_off(program: Any) -> None:
    machine = Machine(program)
    machine.reads(1000, 0, (FAN, "FAN1"))
    assert machine.due == [(30, "lower-limit"), (90, "stop"), (150, "held-back")]
    assert "was not seen to turn" in machine.why[-1]


def test_two_gpus_have_a_time_each(program: Any) -> None:
    machine = Machine(program)
    for number in range(20):
        machine.reads(1, 95, (GPU, "ab"[number % 2]))
    assert machine.due == [(10, "lower-limit")], "read every other second, which is often enough"
    assert machine.why == ["GPU a at 95 C (limit 90 C) for 10 s"]


def test_many_hot_gpus_are_one_sentence_and_a_fan_without_a_threshold_is_not_judged(program: Any) -> None:
    steps = program.Steps({GPU: THRESHOLDS[GPU]}, ["lower-limit"], 10)
    readings = {(GPU, f"{n:02}"): (95, None) for n in range(16)} | {(FAN, "FAN1"): (0, None)}
    (due,) = (one for now in range(12) for one in steps.look(float(now), 1e6, readings))
    assert due["why"].endswith("GPU 05 at 95 C (limit 90 C) for 10 s; and 10 more")
