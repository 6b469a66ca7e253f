"""The 12 V rail of the simulated machine (lab/simulators/nvml/supply.c), against what the owner of servbadge
measured."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from lab.hardware.board import board_conf, model
from lab.hardware.hw_state import parse
from lab.hardware.rigfile import describe
from rigwright.core.errors import InputError
from tests.paths import ROOT

SOURCE = ROOT / "lab/simulators/nvml/supply.c"


class Rail(ctypes.Structure):
    """struct rail_model."""

    _fields_ = [
        ("open_v", ctypes.c_double),
        ("supplies", ctypes.c_int),
        ("rating_w", ctypes.c_double * 8),
        ("ohms", ctypes.c_double * 8),
        ("step_ohms", ctypes.c_double * 8),
    ]


class State(ctypes.Structure):
    """struct rail_state."""

    _fields_ = [
        *((name, ctypes.c_double) for name in ("volts", "amps", "earlier", "lowest_v")),
        ("tripped", ctypes.c_uint),
        ("begun", ctypes.c_uint),
    ]


Volts = Callable[..., list[float]]


@pytest.fixture(scope="module")
def volts(tmp_path_factory: pytest.TempPathFactory) -> Volts:
    """Returns a function: the voltage of servbadge's rail after each of these loads, with so many supplies."""
    built = tmp_path_factory.mktemp("supply") / "supply.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", str(built), str(SOURCE)], check=True, timeout=60)
    library, board = ctypes.CDLL(str(built)), rails("servbadge")

    def after(*loads_w: float, supplies: int = 3, joint_ohms: float = 0) -> list[float]:
        rail, state = Rail(int(board["rail0.open_mv"]) / 1000, 3), State()
        for at in range(supplies):
            rail.rating_w[at] = float(board[f"supply{at}.rating_w"])
            rail.ohms[at] = int(board[f"supply{at}.uohm"]) / 1e6 + (joint_ohms if not at else 0)
            rail.step_ohms[at] = int(board[f"supply{at}.step_uohm"]) / 1e6 + (joint_ohms if not at else 0)
        seen = []
        for load_w in loads_w:
            library.rail_step(ctypes.byref(rail), ctypes.c_double(load_w), ctypes.byref(state))
            seen.append(state.volts)
        return seen

    return after


def rails(rig: str) -> dict[str, str]:
    """Returns the lines of board.conf."""
    described = describe(rig)
    return parse(board_conf(described, {gpu["model"]: model(gpu["model"]) for gpu in described["gpus"]}))


def test_the_rail_sags_as_its_owner_measured(volts: Volts) -> None:
    assert volts(1600)[-1] == pytest.approx(12.06, abs=0.03)
    assert volts(1100, supplies=2)[-1] == pytest.approx(12.0, abs=0.15)  # 11.85 with joints that were not yet good
    assert volts(1600, supplies=2, joint_ohms=0.02)[-1] == pytest.approx(11.7, abs=0.15)
    assert volts(100)[-1] > 12.3


def test_a_machine_without_rails_and_one_with_a_wrong_position(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    assert "rails" not in rails("dgx-2")
    text = (ROOT / "lab/hardware/rigs/servbadge.yml").read_text()
    (tmp_path / "servbadge.yml").write_text(text.replace("SXM2-4, base]", "SXM2-5, base]"))
    monkeypatch.setattr("lab.hardware.rigfile.RIGS", tmp_path)
    with pytest.raises(InputError, match="a rail feeds 'SXM2-5'"):
        describe("servbadge")
