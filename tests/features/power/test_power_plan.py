"""The power plan: verdicts that match owners' observations, manual calculations, monotonicity, the command line."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

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
    rig = catalogue.rig(name, "a test")
    return power_plan.with_supplies(rig, supplies) if supplies else rig


def _plan(name: str, supplies: str = "", price: float | None = None) -> Plan:
    rig = _rig(name, supplies)
    return plan(rig, "a test", setting_of(rig.limits), price)


def _reasons(plan: Plan) -> str:
    return "\n".join(reason.text for load in plan.chosen.loads for reason in load.reasons)


# --- observations of owners


@pytest.mark.parametrize(
    ("name", "supplies", "setting", "verdict", "words"),
    [
        ("servbadge", "2x1100", None, "does not fit", "ramping together step up by 800 W, 73 % of 1100 W"),
        ("servbadge", "3x1100", None, "fits", ""),
        ("servbadge", "2x1100", Setting(200), "does not fit", "ramping together"),  # a power limit alone did not help
        ("servbadge", "2x1100", Setting(200, 1005), "does not fit", "1200 W steady on 1100 W"),  # nor did both limits
        ("servbadge", "2x1100", Setting(None, 907), "tight", "100 % of 1100 W"),
        ("servbadge", "3x1100", Setting(200, 1005), "fits", ""),
        ("servbadge-6gpu", "", None, "tight", ""),
        ("servbadge-6gpu", "", setting_of(catalogue.rig("servbadge-6gpu", "a test").limits), "fits", ""),
    ],
)
def test_observed_verdicts(name: str, supplies: str, setting: Setting | None, verdict: str, words: str) -> None:
    made = plan(_rig(name, supplies), "a test", setting)
    assert made.chosen.verdict == verdict
    assert words in _reasons(made)


@pytest.mark.parametrize("setting", [None, Setting(200), Setting(200, 1005)])
@pytest.mark.parametrize("width", [80, 120])
def test_two_supplies_in_parallel_do_not_fit_with_any_limit(setting: Setting | None, width: int) -> None:
    """GPUs dropped out also with limits of clock and power; the third supply solved it."""
    made = plan(_rig("servbadge", "2x1100"), "a test", setting)
    assert (made.options, made.best) == ((), Setting()), "no limit is known to help"
    assert all("3 x 1100 W on one rail in place of 2 x 1100 W on one rail: fits" in text for text in made.larger)
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as shown:
        report.show(console, made)
    text = " ".join(shown.get().split())
    assert text.count("GPUs of servbadge fell off the bus with two supplies, also with limited clocks and power") == 1
    assert "To type" not in text


@pytest.mark.parametrize("setting", [None, Setting(200), Setting(None, 1305)])
def test_a_limit_within_5_percent_of_full_speed_is_no_option(setting: Setting | None) -> None:
    """1515 of 1530 MHz changes nothing that anybody could measure."""
    for supplies in ("2x1100", *(f"1x{watts}" for watts in range(500, 3000, 50))):
        for option in plan(_rig("servbadge", supplies), "a test", setting).options:
            limit_w, mhz = option.budget.setting.power_limit_w, option.budget.setting.graphics_mhz
            assert (limit_w or 0) <= 0.95 * 300
            assert (mhz or 0) <= 0.95 * 1530


PLUGS = """\
title: Mine
gpus: {SXM2-1: v100-sxm2-16gb, SXM2-2: v100-sxm2-16gb, SXM2-3: v100-sxm2-16gb, SXM2-4: v100-sxm2-16gb}
base_load_w: 400
driver: "535"
cuda: "12.2"
p2p: {path: measure}
sources: {gpus: planned, supplies: planned, base_load_w: planned}
supplies:
"""


@pytest.mark.parametrize(
    ("supply", "option"),
    [
        ("watts: 1100, count: 3, shared: true, connector: banana, connector_a: 15, connectors: 3",
         "XT60 of 60 A in place of each banana of 15 A, or 4 cables with a banana each"),
        ("watts: 1100, count: 2, shared: true, connector: banana, connector_a: 15, connectors: 2",
         "3 x 1100 W on one rail in place of 2 x 1100 W on one rail, with XT60 of 60 A in place of each banana of 15 A,"
         " or 4 cables with a banana each"),
        ("watts: 3000, connector: XT60, connector_a: 60, connectors: 2", "XT90 of 90 A in place of each XT60 of 60 A"),
        ("watts: 3000, volts: 5, connector: M5, connector_a: 60", "7 cables with a M5 each in place of one"),
    ],
)  # fmt: skip
def test_a_weak_plug_is_replaced_by_a_stronger_one(tmp_path: Path, supply: str, option: str) -> None:
    """Plugs of 15 A lost voltage on servbadge; an XT60 cured it, not a dozen supplies."""
    _file(tmp_path, f"  - {{{supply}}}", PLUGS)
    made = plan(catalogue.rig("mine", "a test", tmp_path), "a test", None)
    assert made.chosen.verdict == "does not fit"
    (text,) = made.larger
    assert f"supply 1: {option}" in text


def test_three_supplies_carry_servbadge_without_limits() -> None:
    (load,) = _plan("servbadge").full.loads
    assert (load.steady_w, load.peak_w, load.ramp_w) == (1600, 1800, 800)
    assert (load.margin_w, load.peak_margin_w) == (2200 - 1600, 2200 - 1800), "what two of them carry counts"
    (joint,) = load.joints
    assert (joint.count, joint.rated_a) == (3, 60)
    assert (joint.steady_a, joint.peak_a) == pytest.approx((1600 / 12 / 3, 1800 / 12 / 3))


def test_rig_3090() -> None:
    made = _plan("rig-3090")
    two, one = made.chosen.loads
    assert two.circuit.positions == ("PCIE-1", "PCIE-2")
    assert (two.steady_w, two.margin_w, two.peak_w, two.verdict) == (2 * 285, 180, 1200, "tight")
    assert "spikes of both at once do not fit: 1200 W on 750 W" in _reasons(made)
    assert (one.circuit.positions, one.base_w) == (("PCIE-3",), 250)
    assert made.cost.percent == 3
    assert any(option.budget.verdict == "fits" and option.budget.setting.graphics_mhz for option in made.options)


@pytest.mark.parametrize("name", catalogue.all_rigs())
def test_every_rig_gives_a_plan_or_says_what_is_missing(name: str) -> None:
    rig = _rig(name)
    if not rig.supplies:
        with pytest.raises(InputError, match="names no supplies") as caught:
            _plan(name)
        assert "supplies: [{watts: 1600}]" in caught.value.expected
        rig = _rig(name, "4x3000")
    made = plan(rig, "a test", setting_of(rig.limits), 0.3)
    json.dumps(report.document(made), allow_nan=False)
    console = Console(width=80, force_terminal=True, color_system=None)
    with console.capture() as shown:
        report.show(console, made)
    assert [line for line in shown.get().splitlines() if len(line) > 80] == []


# --- calculated by hand


def test_a_draw() -> None:
    full, limited, both = (draw(V100, setting) for setting in (Setting(), Setting(200), Setting(200, 1005)))
    assert (full.steady_w, full.peak_w, full.ramp_w, full.idle_w, full.assumed) == (300, 350, 200, 40, ())
    assert (limited.steady_w, limited.peak_w, limited.ramp_w) == (200, 350, 200)
    assert (both.steady_w, both.peak_w, both.ramp_w) == pytest.approx((200, 200, 200 * 200 / 350))
    spiky = draw(RTX_3090)
    assert (spiky.peak_w, spiky.ramp_w) == (600, 1.2 * 350 - 175)
    assumed = draw(TI)
    assert assumed.peak_w == 1.2 * 250
    assert "peak of NVIDIA GeForce RTX 2080 Ti: 300 W, 1.2 times its default" in assumed.assumed
    gtx_1060 = draw(catalogue.model("gtx-1060-6gb"))
    assert (gtx_1060.steady_w, gtx_1060.idle_w) == (120, 12)


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
    made = _plan("servbadge", price=0.30)
    assert made.cost_per_day(made.full.steady_w) == pytest.approx(1600 / 0.9 * 24 / 1000 * 0.30)
    assert made.full.idle_w == 4 * 40 + 400 / 2
    assert _plan("servbadge").cost_per_day(100) is None


def test_the_lines_for_the_inventory() -> None:
    assert report.to_type(_rig("servbadge"), Setting(200, 1005))[-1].endswith("{memory_mhz: 877, graphics_mhz: 1005}")
    lines = report.to_type(_rig("rig-3090"), Setting(285, 1440))
    assert lines[2:] == ["  power_limit_w: 285", "  locked_graphics_mhz: [210, 1440]"]
    assert report.to_type(_rig("servbadge"), Setting()) == []


@pytest.mark.parametrize(
    ("name", "supplies"),
    [("servbadge", "2x1100"), ("rig-3090", ""), ("rtx-2080ti", "2x1600"), ("desktop", "550")],
)
def test_an_alternative_has_the_verdict_of_its_own_plan(name: str, supplies: str) -> None:
    for option in _plan(name, supplies).options:
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
        rig = power_plan.with_supplies(replace(_rig(name), supplies=()), f"{count}x{watts}")
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
        for name in ("steady_w", "peak_w", "ramp_w"):
            assert getattr(there, name) <= getattr(here, name) + 1e-9
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
SECOND_HAND = """\
title: Two cards that no file describes
gpus: {PCIE-1: "10de:1b82", PCIE-2: "10de:2187"}
driver: "580"
cuda: "12.9"
p2p: {path: measure}
sources: {gpus: the owner, supplies: the owner, gpu_power_w: the owner, base_load_w: the owner}
"""


def _file(folder: Path, text: str = "", begin: str = SECOND_HAND) -> str:
    path = folder / "mine.yml"
    path.write_text(begin + text + "\n", encoding="utf-8")
    return str(path)


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
    done = _invoke("--rig", _file(tmp_path, text, OWN))
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert done.stderr.count("error ") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("2x1100W", "--supplies 2x1100"),
        ("2 x 1100 W", "--supplies 2 x 1100"),
        *((text, "") for text in ("many", "0x1100", "2x7", "2x1100+")),
    ],
)
def test_wrong_supplies(text: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        power_plan.with_supplies(_rig("servbadge"), text)
    assert (caught.value.where, caught.value.fix) == ("--supplies", fix)


def test_supplies_and_their_loads(tmp_path: Path) -> None:
    """A supply without `feeds` feeds the rest; other supplies keep the loads of those that they replace."""
    _file(tmp_path, "supplies: [{watts: 850, feeds: [PCIE-2]}, {watts: 1000}]", OWN)
    on = circuits(catalogue.rig("mine", "a test", tmp_path), "a test")
    assert [(circuit.positions, circuit.base) for circuit in on] == [(("PCIE-2",), False), (("PCIE-1",), True)]
    two = _rig("rig-3090", "1200+850").supplies
    assert [(supply.watts, supply.feeds) for supply in two] == [(1200, ("PCIE-1", "PCIE-2")), (850, ("PCIE-3", "base"))]
    assert (_rig("servbadge", "2x1400").supplies[0].connectors, _rig("a100", "1600").supplies[0].shared) == (2, False)


# --- the command


def _invoke(*words: str) -> subprocess.CompletedProcess[str]:
    return fork_server.shared().run(("power.plan", *words), os.environ, 60)


def _document(*words: str, code: int = 0) -> dict[str, Any]:
    done = _invoke(*words, "--json", "-")
    assert done.returncode == code, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_on_the_command_line() -> None:
    done = _invoke("--rig", "servbadge", "--supplies", "2x1100", "--limits-w", "200", "--price-per-kwh", "0.30")
    assert done.returncode == 2, done.stderr
    for words in ("Without limits: does not fit", "+800 W", "12.80 at 0.30 per kWh", "66.7 A", "in place of 2 x 1100"):
        assert words in done.stdout
    assert [line for line in done.stdout.splitlines() if len(line) > 80 or "\x1b" in line or not line.isascii()] == []


def test_a_host_of_the_inventory() -> None:
    made = _document("--host", "servbadge")
    assert (made["command"], made["exit_code"], made["error"]) == ("power.plan", 0, None)
    assert made["power"]["verdict"] == "fits"
    assert made["power"]["with_limits"]["graphics_mhz"] == 1005
    assert made["power"]["without_limits"]["supplies"][0]["connectors"][0]["steady_a"] == 44.4
    text = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    wanted = {*made["power"], *made["power"]["with_limits"], *made["power"]["with_limits"]["supplies"][0]}
    assert [key for key in wanted if f"`{key}`" not in text] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "no machine is named"),
        ("--rig servbadge --host servbadge", "both --rig and --host"),
        ("--rig servbage", "did you mean 'servbadge'"),
        ("--rig no/such.yml", "no/such.yml is not there"),
        ("--rig rigwright/catalogue", "is no file that ends with .yml"),
        ("--rig a100", "a100 does not say the watts of its power supplies"),
        ("--rig servbadge --limits-w 200W", "--limits-w 200"),
        ("--rig servbadge --limits-w 100", "150 to 300 W"),
        ("--rig servbadge --clocks-mhz 9999", "135 to 1530 MHz"),
        ("--rig desktop --supplies 550 --clocks-mhz 1000", "the clocks of NVIDIA GeForce GTX 1060 6GB at PCIE-2"),
        ("--rig servbadge --price-per-kwh 0,30", "--price-per-kwh 0.30"),
        ("--host nobody", "nobody"),
    ],
)
def test_bad_input(words: str, message: str) -> None:
    done = _invoke(*words.split(), "--json", "-")
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    made = json.loads(done.stdout)
    assert (made["exit_code"], made["power"], bool(made["error"]["found"])) == (1, None, True)


# --- the mains circuit


CIRCUIT = "circuit: {amps: 16, volts: 230, hosts: [a, b, c]}"


def _inventory(folder: Path, circuit: str, hosts: str = "a: {rig: servbadge}, b: {rig: rig-3090}, c: {}") -> str:
    path = folder / "hosts.yml"
    path.write_text(f"gpu:\n  vars:\n    {circuit}\n  hosts: {{{hosts}}}\n", encoding="utf-8")
    return str(path)


def test_hosts_on_one_circuit_are_added_up(tmp_path: Path) -> None:
    """At the wall and at 230 V: four V100 without limits 7.7 A; three 3090 without limits 6.3 A."""
    three = "a: {rig: servbadge}, b: {rig: rig-3090}, c: {rig: servbadge}"
    circuit = _document("--host", "a", "--inventory", _inventory(tmp_path, CIRCUIT, three), code=2)["power"]["circuit"]
    assert circuit["hosts"] == {"a": 7.7, "b": 6.3, "c": 7.7}
    assert (circuit["verdict"], circuit["steady_a"], circuit["amps"], circuit["volts"]) == (
        "does not fit",
        21.7,
        16,
        230,
    )
    done = _invoke("--host", "a", "--inventory", _inventory(tmp_path, CIRCUIT, three))
    shown = " ".join(done.stdout.split())
    assert "Mains circuit of a, b, c: does not fit steady 21.7 A, 136 % of 16 A at 230 V" in shown
    assert "on another circuit" not in shown, "14.1 of 16 A are more than 80 %"
    limits = three.replace("rig-3090}", "rig-3090, limits: {power_limit_w: 200}}")
    done = _invoke("--host", "a", "--clocks-mhz", "1005", "--inventory", _inventory(tmp_path, CIRCUIT, limits))
    assert "a on another circuit: 11.8 A remain on this one" in " ".join(done.stdout.split())


def test_a_host_of_unknown_power_is_not_called_fit(tmp_path: Path) -> None:
    power = _document("--host", "a", "--inventory", _inventory(tmp_path, CIRCUIT.replace("b, ", "")))["power"]
    assert (power["verdict"], power["circuit"]["hosts"]) == ("tight", {"a": 7.7, "c": None})


@pytest.mark.parametrize(
    ("circuit", "words"),
    [
        ("circuit: {amps: 0, volts: 230, hosts: [a]}", "amps 0"),
        ("circuit: {amps: 16, volts: 12, hosts: [a]}", "volts 12"),
        ("circuit: {amps: 16, volts: 230, hosts: []}", "hosts []"),
        ("circuit: {amps: 16, volts: 230, hosts: [a, a]}", "hosts ['a', 'a']"),
        ("circuit: {amps: 16, volts: 230}", "hosts"),
        ("circuit: {amps: sixteen, volts: 230, hosts: [a]}", "sixteen"),
        ("circuit: {amps: 16, volt: 230, hosts: [a]}", "did you mean 'volts'"),
        ("circuit: {amps: 16, volts: 230, hosts: [a, bb]}", "'bb' is no host of the inventory; did you mean"),
        ("circuit: {amps: 16, volts: 230, hosts: [b]}", "circuit.hosts does not name a"),
    ],
)
def test_a_wrong_circuit_is_refused_with_its_line(tmp_path: Path, circuit: str, words: str) -> None:
    hosts = "a: {rig: servbadge}, b: {rig: rig-3090}, bbb: {}"
    done = _invoke("--host", "a", "--inventory", _inventory(tmp_path, circuit, hosts))
    assert done.returncode == 1
    assert "hosts.yml:3" in done.stderr
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


# --- numbers that a rig lacks


def test_the_lacking_numbers_are_named_with_their_flags(tmp_path: Path) -> None:
    for rig, texts in {
        "desktop": (
            "desktop does not say the watts of its power supplies (one of 650 W would fit)",
            "--supplies 1x650, or in the rig's file supplies: [{watts: 650}]",
            "--base-load-w",
        ),
        _file(tmp_path): (
            "the default power limit of NVIDIA GeForce GTX 1070 Ti at PCIE-1, NVIDIA GeForce GTX 1650 SUPER",
            "--gpu-power-w PCIE-1=WATTS,PCIE-2=WATTS --supplies 1xWATTS",
            "gpu_power_w: {PCIE-1: WATTS, PCIE-2: WATTS}",
        ),
    }.items():
        done = _invoke("--rig", rig)
        assert done.returncode == 1
        assert [text for text in texts if text not in done.stderr] == []
    (number,) = missing(_rig("desktop"), None)
    assert number.flag == "--supplies 1x650"
    assert [_plan("desktop", f"1x{watts}").chosen.verdict for watts in (600, 650)] == ["tight", "fits"]


def test_numbers_from_flags_and_from_the_file_count_alike(tmp_path: Path) -> None:
    flags = ["--gpu-power-w", "PCIE-1=180,PCIE-2=100", "--supplies", "1x650", "--base-load-w", "120"]
    power = _document("--rig", _file(tmp_path), *flags)["power"]
    assert (power["without_limits"]["steady_w"], power["verdict"]) == (180 + 100 + 120, "fits")
    lines = "gpu_power_w: {PCIE-1: 180, PCIE-2: 100}\nbase_load_w: 120\nsupplies: [{watts: 650}]"
    assert _document("--rig", _file(tmp_path, lines))["power"]["without_limits"]["steady_w"] == 400


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("PCIE-3=100", "'PCIE-3' is no position of mine"),
        ("PCIE-1=", "'PCIE-1=' is no power of a GPU"),
        ("PCIE-1=5", "'PCIE-1=5' is no power of a GPU"),
        ("PCIE-1=180,x", "'x' is no power of a GPU"),
        ("150W", ""),
    ],
)
def test_watts_of_gpus(tmp_path: Path, text: str, message: str) -> None:
    _file(tmp_path)
    rig = catalogue.rig("mine", "a test", tmp_path)
    if not message:  # watts without a position are of every GPU of unknown power
        assert power_plan.with_gpu_power(rig, text).gpu_power_w == {"PCIE-1": 150, "PCIE-2": 150}
        return
    with pytest.raises(UsageError) as caught:
        power_plan.with_gpu_power(rig, text)
    assert message in caught.value.found


@pytest.mark.parametrize(
    ("text", "words"),
    [("gpu_power_w: {PCIE-9: 100}", "unknown position 'PCIE-9'"), ("gpu_power_w: {PCIE-1: 9}", "gpu_power_w 9")],
)
def test_a_wrong_power_in_the_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    _file(tmp_path, text)
    with pytest.raises(InputError, match=words):
        catalogue.rig("mine", "a test", tmp_path)


def test_a_terminal_asks_for_each_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter(["nothing", "180", "100", "1x650", "", ""])
    questions: list[str] = []
    monkeypatch.setattr(prompt, "on_terminal", lambda: True)
    monkeypatch.setattr(prompt, "answer", lambda question: questions.append(question) or next(answers))
    assert run_command("power.plan", rig=_file(tmp_path)) == 0
    assert questions[0] == questions[1]  # after an answer that is no number
    assert len(questions) == 5
    assert "GTX 1070 Ti at PCIE-1" in questions[0]
    assert "GTX 1650 SUPER at PCIE-2" in questions[2]
    assert "does not say the watts of its power supplies" in questions[3]
    assert "rest of the machine" in questions[4]
    assert run_command("power.plan", rig=_file(tmp_path)) == 1, "an empty answer ends it"
    assert "--gpu-power-w" in capsys.readouterr().err
