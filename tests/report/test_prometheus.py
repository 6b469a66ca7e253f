"""The metrics of a fleet follow Prometheus' text format and contain no sample twice."""

from __future__ import annotations

import datetime
import re
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from rigwright.core.control_characters import visible
from rigwright.report import prometheus
from tests.report import fleet_documents as made
from tests.report.html.test_host_page import HOSTILE

_SAMPLE = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\n"])*",?)*)\})? (\S+)'
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\n"])*)"')
_UNITS = ("_seconds", "_celsius", "_watts", "_ratio", "_bytes", "_hertz", "_total", "_lanes", "_info")
_PLAIN = ("exit_code", "host_up", "gpu_up", "drifting", "findings", "pending_changes", "became_different",
          "retired_pages",
          "remapped_rows")  # fmt: skip
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(text: str) -> Samples:
    """Returns the samples; asserts that each family is contiguous after its HELP and TYPE and no sample repeats."""
    assert text.endswith("\n")
    found: Samples = {}
    family, seen = "", set()
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            family = line.split(" ")[2]
            assert family not in seen
            seen.add(family)
            assert len(line.split(" ", 3)[3]) > 10
        elif line.startswith("# TYPE "):
            assert line.split(" ")[2:] in ([family, "gauge"], [family, "counter"])
            assert line.endswith("counter") == (family.endswith("_total"))
        else:
            match = _SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] == family
            labels = tuple(
                (key, value.replace("\\\\", "\0").replace("\\n", "\n").replace('\\"', '"').replace("\0", "\\"))
                for key, value in _LABEL.findall(match[2] or "")
            )
            assert (family, labels) not in found
            found[family, labels] = float(match[3])
    return found


def of(samples: Samples, family_: str, /, **labels: str) -> list[float]:
    """Returns the values of the samples of a family that have these labels."""
    return [
        value
        for (family, has), value in samples.items()
        if family == f"rigwright_{family_}" and set(labels.items()) <= set(has)
    ]


def test_a_fleet() -> None:
    found = read(prometheus.text(made.a_fleet(40, 3)))
    assert of(found, "report_time_seconds") == [made.ENDED.timestamp()]
    assert of(found, "report_duration_seconds") == [3.5]
    assert of(found, "report_exit_code") == [3.0]
    assert sum(of(found, "host_up")) == 38
    assert of(found, "host_up", host="node-05") == [0.0]
    assert of(found, "host_drifting", host="node-05") == []
    assert (of(found, "host_drifting", host="node-14"), of(found, "host_drifting", host="node-06")) == ([1.0], [0.0])
    assert of(found, "host_findings", host="node-03", verdict="fail") == [2.0]
    assert of(found, "host_became_different", host="node-14") == [1.0]
    assert of(found, "gpu_up", host="node-21") == [1.0, 1.0, 1.0, 0.0]
    assert len(of(found, "gpu_temperature_celsius", host="node-21")) == 3
    assert of(found, "gpu_temperature_celsius", host="node-06", uuid=made.uuid(6, 0)) == [86.0]
    assert of(found, "gpu_memory_errors_total", host="node-33", uuid=made.uuid(33, 1), kind="corrected") == [117.0]
    assert of(found, "gpu_memory_bytes", host="node-02") == [40960.0 * 1024 * 1024] * 8
    assert of(found, "gpu_utilization_ratio", host="node-01")[0] == pytest.approx(0.68)
    assert of(found, "gpu_graphics_clock_hertz", host="node-01")[0] == 135e6
    assert of(found, "gpu_full_load_ratio", host="node-03", uuid=made.uuid(3, 0), kind="fp32")[0] == pytest.approx(
        0.602, abs=1e-3
    )
    assert of(found, "gpu_full_load_ratio", host="node-04") == [], "nobody stressed it"
    ends = of(found, "host_end_of_life_time_seconds", host="node-03", kind="driver", name="driver 535")
    assert ends == [datetime.datetime(2026, 6, 30, tzinfo=datetime.timezone.utc).timestamp()]
    infos = [dict(labels) for family, labels in found if family == "rigwright_host_info"]
    assert infos[2] == {"host": "node-03", "address": "192.0.2.3", "board": "GIGABYTE T180-G20-ZB3 MT70-T18-00",
                        "system": "Ubuntu 22.04.5 LTS", "kernel": "5.15.0-130-generic", "driver": "535.261.03",
                        "rig": "servbadge"}  # fmt: skip


def test_every_family_is_there_with_its_unit() -> None:
    for name in prometheus.FAMILIES:
        assert name.startswith("rigwright_")
        assert name.endswith(_UNITS) or name.endswith(_PLAIN), name
    host = made.a_node(3)
    host["machine"]["gpus"][0] |= {"remapped_corrected": 1, "remapped_uncorrected": 0, "tlimit_c": 46}
    found = read(prometheus.text(made.a_document(a=host)))
    assert {family for family, _ in found} == set(prometheus.FAMILIES)


def test_labels_are_escaped_and_steer_nothing() -> None:
    fleet = made.a_fleet(6)
    name = 'a"b\\c\nd' + HOSTILE
    fleet["hosts"] = {name: made.hostile(fleet["hosts"]["node-03"], 'x"} 1\nevil{y="\\' + HOSTILE)}
    text = prometheus.text(fleet)
    found = read(text)
    assert "evil" not in {family for family, _ in found}
    (info,) = [dict(labels) for family, labels in found if family == "rigwright_host_info"]
    assert info["host"].startswith('a"b\\c\nd')
    assert info["kernel"].startswith('x"} 1\nevil{y="\\')
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800]", text)
    assert text.encode()


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=20), st.text(alphabet='\\"\n{},= a\x1b', max_size=20))
def test_a_label_comes_back_as_it_was_less_what_steers(name: str, kernel: str) -> None:
    host = made.a_node(1)
    host["machine"] |= {"kernel": kernel, "gpus": []}
    found = read(prometheus.text(made.a_document(**{name: host})))
    (info,) = [dict(labels) for family, labels in found if family == "rigwright_host_info"]
    assert (info["host"], info["kernel"]) == (visible(name), visible(kernel))


def test_a_gpu_that_is_told_twice_is_one_sample() -> None:
    host = made.a_node(3)
    host["machine"]["gpus"].append(dict(host["machine"]["gpus"][0]))
    found = read(prometheus.text(made.a_document(a=host)))
    assert len(of(found, "gpu_temperature_celsius")) == 4


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "warm", None, [1]])
def test_what_is_no_number_has_no_line(value: Any) -> None:
    assert prometheus._number(value) is None


@pytest.mark.parametrize(
    ("status", "error", "round_trips", "up"),
    [
        ("ok", False, 2, 1.0),
        ("failed", False, 2, 1.0),
        ("failed", True, 1, 1.0),  # sudo refused
        ("failed", True, 0, 0.0),  # the inventory names an unknown rig
        ("unreachable", True, 1, 0.0),  # connection lost during an answer
        ("not_attempted", False, 0, 0.0),
    ],
)
def test_a_host_is_up_that_was_asked_and_answered(status: str, error: bool, round_trips: int, up: float) -> None:
    document = made.a_fleet(2)
    said = {"where": "", "found": "", "expected": "", "fix": ""} if error else None
    document["hosts"]["node-01"] |= {"status": status, "error": said, "round_trips": round_trips}
    assert of(read(prometheus.text(document)), "host_up", host="node-01") == [up]


def test_no_hosts() -> None:
    found = read(prometheus.text(made.a_document(1)))
    assert of(found, "report_exit_code") == [1.0]
    assert len(found) == 3
