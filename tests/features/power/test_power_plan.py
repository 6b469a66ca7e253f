"""The power plan: verdicts that match owners' observations, manual calculations, monotonicity, the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace
from rich.console import Console

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.core.errors import InputError, UsageError
from rigwright.core.process import prompt
from rigwright.features.power import power_plan, table as report
from rigwright.features.power.budget import VERDICTS, budget, circuits
from rigwright.features.power.draw import Setting, cost, draw, setting_of
from rigwright.features.power.plan import Plan, missing, plan
from tests.cli.run_command import run_command
from tests.end_to_end import fork_server
from tests.paths import ROOT

V100, RTX_3090, TI = (catalogue.model(key) for key in ("v100-sxm2-16gb", "rtx-3090", "rtx-2080-ti"))


def _rig(name: str, supplies: str = "") -> Rig:
    found = catalogue.rig(name, "a test")
    return power_plan.supplied(found, supplies) if supplies else found


def _plan(name: str, supplies: str = "", setting: Setting | None = None, price: float | None = None) -> Plan:
    rig = _rig(name, supplies)
    return plan(rig, "a test", setting or setting_of(rig.limits), price)


def _texts(plan: Plan) -> str:
    return "\n".join(reason.text for load in plan.chosen.loads for reason in load.reasons)


# --- observations of owners


@pytest.mark.parametrize(
    ("supplies", "setting", "verdict", "words"),
    [
        ("2x1100", None, "does not fit", "ramping together step up by 800 W, 36 %"),
        ("3x1100", None, "fits", ""),
        ("2x1100", Setting(200), "does not fit", "ramping together"),  # a power limit alone did not help
        ("2x1100", Setting(200, 1005), "tight", "no redundancy"),  # used for training; GPUs dropped now and then
        ("3x1100", Setting(200, 1005), "fits", ""),
    ],
)
def test_servbadge(supplies: str, setting: Setting | None, verdict: str, words: str) -> None:
    rig = _rig("servbadge", supplies)
    found = plan(rig, "a test", setting)
    assert found.chosen.verdict == verdict
    assert words in _texts(found)


def test_three_supplies_carry_servbadge_without_limits() -> None:
    (load,) = _plan("servbadge").full.loads
    assert (load.steady_w, load.peak_w, load.ramp_w) == (1600, 1800, 800)
    assert (load.margin_w, load.peak_margin_w) == (3300 - 1600, 3300 - 1800)
    (joint,) = load.joints
    assert (joint.count, joint.rated_a) == (3, 60)
    assert joint.steady_a == pytest.approx(1600 / 12 / 3)
    assert joint.peak_a == pytest.approx(1800 / 12 / 3)


def test_rig_3090() -> None:
    found = _plan("rig-3090")
    two, one = found.chosen.loads
    assert two.circuit.positions == ("PCIE-1", "PCIE-2")
    assert (two.steady_w, two.margin_w) == (2 * 285, 180)
    assert (two.peak_w, two.verdict) == (1200, "tight")
    assert "spikes of both at once do not fit: 1200 W on 750 W" in _texts(found)
    assert (one.circuit.positions, one.base_w) == (("PCIE-3",), 250)
    assert found.cost.percent == 3
    assert any(option.budget.verdict == "fits" and option.budget.setting.graphics_mhz for option in found.options)


def test_full_power_leaves_six_gpus_none_to_spare() -> None:
    found = _plan("servbadge-6gpu")
    assert (found.full.verdict, found.chosen.verdict) == ("tight", "fits")


@pytest.mark.parametrize("name", catalogue.all_rigs())
def test_every_rig_gives_a_plan_or_says_what_is_missing(name: str) -> None:
    rig = _rig(name)
    if not rig.supplies:
        with pytest.raises(InputError, match="names no supplies") as caught:
            _plan(name)
        assert "supplies: [{watts: 1600}]" in caught.value.expected
        rig = _rig(name, "4x3000")
    found = plan(rig, "a test", setting_of(rig.limits), 0.3)
    json.dumps(report.document(found), allow_nan=False)
    console = Console(file=None, record=True, width=80, force_terminal=True)
    with console.capture() as shown:
        report.show(console, found)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.get())
    assert [line for line in plain.splitlines() if len(line) > 80] == []


# --- calculated by hand


def test_a_draw() -> None:
    full, limited, both = (draw(V100, one) for one in (Setting(), Setting(200), Setting(200, 1005)))
    assert (full.steady_w, full.peak_w, full.ramp_w, full.idle_w, full.assumed) == (300, 350, 200, 40, ())
    assert (limited.steady_w, limited.peak_w, limited.ramp_w) == (200, 350, 200)
    assert (both.steady_w, both.peak_w, both.ramp_w) == pytest.approx((200, 200, 200 * 200 / 350))
    spiky = draw(RTX_3090)
    assert (spiky.peak_w, spiky.ramp_w) == (600, 1.2 * 350 - 175)
    guessed = draw(TI)
    assert guessed.peak_w == 1.2 * 250
    assert "peak of NVIDIA GeForce RTX 2080 Ti: 300 W, 1.2 times its default" in guessed.assumed


@pytest.mark.parametrize(
    ("model", "setting", "words"),
    [
        (V100, Setting(200), "about 15 %"),
        (V100, Setting(200, 1005), "about 13 %"),
        (V100, Setting(150), "at least 15 %"),
        (V100, Setting(250), "at most 13 %"),
        (V100, Setting(300, 1530), "no speed"),
        (TI, Setting(200), "about 7 %"),
        (RTX_3090, Setting(285), "about 3 %"),
        (catalogue.model("t4"), Setting(60), "unknown"),
    ],
)
def test_speed(model: catalogue.Model, setting: Setting, words: str) -> None:
    assert words in str(cost(model, setting))


def test_a_day() -> None:
    found = _plan("servbadge", price=0.30)
    assert found.cost_per_day(found.full.steady_w) == pytest.approx(1600 / 0.9 * 24 / 1000 * 0.30)
    assert found.full.idle_w == 4 * 40 + 400 / 2
    assert _plan("servbadge").cost_per_day(100) is None


def test_what_is_typed() -> None:
    assert report.to_type(_rig("servbadge"), Setting(200, 1005))[-1].endswith("{memory_mhz: 877, graphics_mhz: 1005}")
    assert report.to_type(_rig("rig-3090"), Setting(285, 1440))[2:] == [
        "  power_limit_w: 285",
        "  locked_graphics_mhz: [210, 1440]",
    ]
    assert report.to_type(_rig("servbadge"), Setting()) == []


def test_what_is_recommended_is_what_it_says() -> None:
    for name, supplies in (("servbadge", "2x1100"), ("rig-3090", ""), ("rtx-2080ti", "2x1600"), ("desktop", "550")):
        found = _plan(name, supplies)
        for option in found.options:
            again = plan(_rig(name, supplies), "a test", option.budget.setting)
            assert again.chosen.verdict == option.budget.verdict != "does not fit"


# --- properties of any machine

NAMES = st.sampled_from(["servbadge", "rig-3090", "rtx-2080ti", "desktop", "mixed-30", "dgx-2"])
limits = st.none() | st.integers(100, 300)
clocks = st.none() | st.integers(210, 1400)


@settings(max_examples=80, deadline=None)
@given(NAMES, st.integers(1, 6), st.integers(300, 4000), st.integers(0, 2000), limits, clocks)
def test_more_watts_are_never_worse(
    name: str, count: int, watts: int, more: int, limit: int | None, mhz: int | None
) -> None:
    def verdict(count: int, watts: int) -> int:
        rig = power_plan.supplied(replace(_rig(name), supplies=()), f"{count}x{watts}")
        return VERDICTS.index(budget(rig, circuits(rig, "a test"), Setting(limit, mhz)).verdict)

    assert verdict(count, watts + more) <= verdict(count, watts)
    assert verdict(count + 1, watts) <= verdict(count, watts)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(catalogue.gpu_keys()), st.integers(50, 700), st.integers(0, 300), clocks, st.integers(0, 800))
def test_lower_limits_never_raise_the_draw(key: str, limit: int, less: int, mhz: int | None, lower: int) -> None:
    model = catalogue.model(key)
    here = draw(model, Setting(limit + less, mhz))
    for other in (Setting(limit, mhz), Setting(limit + less, max(1, (mhz or 3200) - lower))):
        there = draw(model, other)
        assert there.steady_w <= here.steady_w + 1e-9
        assert there.peak_w <= here.peak_w + 1e-9
        assert there.ramp_w <= here.ramp_w + 1e-9
    assert here.peak_w >= here.steady_w > 0


# --- power supplies and their loads

OWN = """\
title: Mine
gpus: {PCIE-1: rtx-3090, PCIE-2: rtx-3090}
driver: "580"
cuda: "13.0"
p2p: {path: measure}
sources: {supplies: planned, base_load_w: planned, limits: planned}
"""


def _file(folder: Path, text: str) -> Path:
    path = folder / "mine.yml"
    path.write_text(OWN + text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("supplies: [{watts: 750, feeds: [PCIE-1, PCIE-2]}]", "no supply feeds base"),
        ("supplies: [{watts: 750, feeds: [PCIE-1, PCIE-9]}, {watts: 750}]", "a supply feeds 'PCIE-9'"),
        ("supplies: [{watts: 750, feeds: [PCIE-1]}, {watts: 750, feeds: [PCIE-1, base]}]", "two supplies feed PCIE-1"),
        ("supplies: [{watts: 750, feeds: [PCIE-1, PCIE-1]}, {watts: 750}]", "feeds PCIE-1, PCIE-1"),
        ("supplies: [{watts: 750, count: 0}]", "count 0"),
        ("supplies: [{watts: 750, count: 2}]", "does not say which of its supplies feeds what"),
        ("supplies: [{watts: 750W}]", "'supplies.watts' is '750W'"),
        ("limits: {power_limit: 285}", "did you mean 'power_limit_w'"),
        ("limits: {power_limit_w: 285W}", "'limits.power_limit_w' is '285W'"),
        ("limits: {power_limit_w: 50}\nsupplies: [{watts: 750}]", "50 W is outside what NVIDIA GeForce RTX 3090"),
        ("boards: [", "valid YAML"),
        ("", "does not say the watts of its power supplies (one of 1400 W would fit)"),
    ],
)
def test_a_broken_file_is_one_message(tmp_path: Path, text: str, words: str) -> None:
    done = _invoke("power.plan", "--rig", str(_file(tmp_path, text + "\n")))
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert done.stderr.count("error ") == 1
    assert "Traceback" not in done.stderr


def test_a_supply_without_feeds_feeds_the_rest(tmp_path: Path) -> None:
    _file(tmp_path, "supplies: [{watts: 850, feeds: [PCIE-2]}, {watts: 1000}]\n")
    rig = catalogue.rig("mine", "a test", tmp_path)
    found = circuits(rig, "a test")
    assert [(one.positions, one.base) for one in found] == [(("PCIE-2",), False), (("PCIE-1",), True)]


@pytest.mark.parametrize(
    ("text", "todo"),
    [("2x1100W", "--supplies 2x1100"), ("2 x 1100 W", "--supplies 2 x 1100"), ("many", ""), ("0x1100", ""), ("2x7", ""), ("2x1100+", "")],
)  # fmt: skip
def test_supplies_that_are_none(text: str, todo: str) -> None:
    with pytest.raises(UsageError) as caught:
        power_plan.supplied(_rig("servbadge"), text)
    assert (caught.value.where, caught.value.fix) == ("--supplies", todo)


def test_other_supplies_keep_what_they_feed() -> None:
    two = _rig("rig-3090", "1200+850").supplies
    assert [(one.watts, one.feeds) for one in two] == [(1200, ("PCIE-1", "PCIE-2")), (850, ("PCIE-3", "base"))]
    assert (_rig("servbadge", "2x1400").supplies[0].connectors, _rig("a100", "1600").supplies[0].shared) == (2, False)


# --- the command


def _invoke(*words: str) -> subprocess.CompletedProcess[str]:
    return fork_server.shared().run(words, os.environ, 60)


def test_on_the_command_line() -> None:
    done = _invoke(
        "power.plan", "--rig", "servbadge", "--supplies", "2x1100", "--limits-w", "200", "--price-per-kwh", "0.30"
    )
    assert done.returncode == 2, done.stderr
    for words in ("Without limits: does not fit", "+800 W", "12.80 at 0.30 per kWh", "66.7 A", "application_clocks"):
        assert words in done.stdout
    assert [line for line in done.stdout.splitlines() if len(line) > 80 or "\x1b" in line or not line.isascii()] == []


def test_a_host_of_the_inventory() -> None:
    done = _invoke("power.plan", "--host", "servbadge", "--json", "-")
    made = json.loads(done.stdout)
    assert (done.returncode, made["command"], made["exit_code"], made["error"]) == (0, "power.plan", 0, None)
    assert made["power"]["verdict"] == "fits"
    assert made["power"]["with_limits"]["graphics_mhz"] == 1005
    assert made["power"]["without_limits"]["supplies"][0]["connectors"][0]["steady_a"] == 44.4
    text = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    wanted = {*made["power"], *made["power"]["with_limits"], *made["power"]["with_limits"]["supplies"][0]}
    assert [key for key in wanted if f"`{key}`" not in text] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no machine is named"),
        (["--rig", "servbadge", "--host", "servbadge"], "both --rig and --host"),
        (["--rig", "servbage"], "did you mean 'servbadge'"),
        (["--rig", "no/such.yml"], "no/such.yml is not there"),
        (["--rig", "rigwright/catalogue"], "is no file that ends with .yml"),
        (["--rig", "a100"], "a100 does not say the watts of its power supplies"),
        (["--rig", "servbadge", "--limits-w", "200W"], "--limits-w 200"),
        (["--rig", "servbadge", "--limits-w", "100"], "150 to 300 W"),
        (["--rig", "servbadge", "--clocks-mhz", "9999"], "135 to 1530 MHz"),
        (["--rig", "desktop", "--supplies", "550", "--clocks-mhz", "1000"], "the clocks of NVIDIA GeForce GTX 1060 6GB at PCIE-2"),
        (["--rig", "servbadge", "--price-per-kwh", "0,30"], "--price-per-kwh 0.30"),
        (["--host", "nobody"], "nobody"),
    ],
)  # fmt: skip
def test_bad_input(words: list[str], message: str) -> None:
    done = _invoke("power.plan", *words, "--json", "-")
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    made = json.loads(done.stdout)
    assert (made["exit_code"], made["power"], bool(made["error"]["found"])) == (1, None, True)


# --- numbers that a rig lacks


SECOND_HAND = """\
title: Two cards that no file describes
gpus: {PCIE-1: "10de:1b82", PCIE-2: "10de:2187"}
driver: "580"
cuda: "12.9"
p2p: {path: measure}
sources: {gpus: the owner, supplies: the owner, gpu_power_w: the owner, base_load_w: the owner}
"""


def _second_hand(folder: Path, text: str = "") -> Path:
    path = folder / "mine.yml"
    path.write_text(SECOND_HAND + text, encoding="utf-8")
    return path


def test_a_card_of_unknown_idle_draw_draws_its_limit_under_load() -> None:
    gtx_1060 = draw(catalogue.model("gtx-1060-6gb"))
    assert (gtx_1060.steady_w, gtx_1060.idle_w) == (120, 12)


def test_what_a_rig_lacks_is_named_with_its_flags(tmp_path: Path) -> None:
    desktop = _invoke("power.plan", "--rig", "desktop")
    assert desktop.returncode == 1
    assert "desktop does not say the watts of its power supplies (one of 650 W would fit)" in desktop.stderr
    assert "--supplies 1x650, or in the rig's file supplies: [{watts: 650}]" in desktop.stderr
    assert "--base-load-w" in desktop.stderr
    drafted = _invoke("power.plan", "--rig", str(_second_hand(tmp_path)))
    assert drafted.returncode == 1
    assert (
        "the default power limit of NVIDIA GeForce GTX 1070 Ti at PCIE-1, NVIDIA GeForce GTX 1650 SUPER"
        in drafted.stderr
    )
    assert "--gpu-power-w PCIE-1=WATTS,PCIE-2=WATTS --supplies 1xWATTS" in drafted.stderr
    assert "gpu_power_w: {PCIE-1: WATTS, PCIE-2: WATTS}" in drafted.stderr


def test_the_smallest_supply_that_is_named_fits_and_a_smaller_one_does_not() -> None:
    (lacks,) = missing(_rig("desktop"), None)
    assert lacks.flag == "--supplies 1x650"
    assert [_plan("desktop", f"1x{watts}").chosen.verdict for watts in (600, 650)] == ["tight", "fits"]


def test_with_the_flags_it_answers(tmp_path: Path) -> None:
    words = ["--rig", str(_second_hand(tmp_path)), "--gpu-power-w", "PCIE-1=180,PCIE-2=100", "--supplies", "1x650"]
    done = _invoke("power.plan", *words, "--base-load-w", "120", "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["power"]
    assert (found["without_limits"]["steady_w"], found["verdict"]) == (180 + 100 + 120, "fits")
    in_file = _second_hand(
        tmp_path, "gpu_power_w: {PCIE-1: 180, PCIE-2: 100}\nbase_load_w: 120\nsupplies: [{watts: 650}]\n"
    )
    again = _invoke("power.plan", "--rig", str(in_file), "--json", "-")
    assert json.loads(again.stdout)["power"]["without_limits"]["steady_w"] == 400


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("PCIE-3=100", "'PCIE-3' is no position of mine"),
        ("PCIE-1=", "'PCIE-1=' is no power of a GPU"),
        ("PCIE-1=5", "'PCIE-1=5' is no power of a GPU"),
        ("PCIE-1=180,x", "'x' is no power of a GPU"),
    ],
)
def test_bad_watts_of_a_gpu(tmp_path: Path, text: str, found: str) -> None:
    with pytest.raises(UsageError) as caught:
        power_plan.gpu_powered(catalogue.rig("mine", "a test", _second_hand(tmp_path).parent), text)
    assert found in caught.value.found


def test_watts_without_a_position_are_of_every_gpu_of_unknown_power(tmp_path: Path) -> None:
    rig = catalogue.rig("mine", "a test", _second_hand(tmp_path).parent)
    assert power_plan.gpu_powered(rig, "150W").gpu_power_w == {"PCIE-1": 150, "PCIE-2": 150}


@pytest.mark.parametrize(
    ("text", "words"),
    [("gpu_power_w: {PCIE-9: 100}", "unknown position 'PCIE-9'"), ("gpu_power_w: {PCIE-1: 9}", "gpu_power_w 9")],
)
def test_a_wrong_power_in_the_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        catalogue.rig("mine", "a test", _second_hand(tmp_path, text + "\n").parent)


def test_at_a_terminal_it_asks_for_each_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["nothing", "180", "100", "1x650", ""])
    asked: list[str] = []

    def answer(question: str) -> str:
        asked.append(question)
        return next(answers)

    monkeypatch.setattr(prompt, "on_terminal", lambda: True)
    monkeypatch.setattr(prompt, "answer", answer)
    assert run_command("power.plan", rig=str(_second_hand(tmp_path))) == 0
    assert asked[0] == asked[1]  # after an answer that is no number
    assert len(asked) == 5
    assert "GTX 1070 Ti at PCIE-1" in asked[0]
    assert "GTX 1650 SUPER at PCIE-2" in asked[2]
    assert "does not say the watts of its power supplies" in asked[3]
    assert "rest of the machine" in asked[4]


def test_no_answer_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(prompt, "on_terminal", lambda: True)
    monkeypatch.setattr(prompt, "answer", lambda _question: "")
    assert run_command("power.plan", rig=str(_second_hand(tmp_path))) == 1
    assert "--gpu-power-w" in capsys.readouterr().err
