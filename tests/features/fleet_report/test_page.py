"""The fleet page has all data of the document, equal items once, and no scripts or external resources."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from rigwright.features.fleet_report import (
    machine_tiles as fleet_tiles,
    page as fleet_page,
    plots,
    problems as fleet_attention,
)
from rigwright.report import json_document as document
from rigwright.report.html.host_page import HostView, view
from tests.report import fleet_documents as made
from tests.report.html.test_host_page import HOSTILE, Parsed
from tests.report.run_documents import finding


def parsed(document: dict[str, Any]) -> Parsed:
    """The parsed page; asserts that it is well formed and has no scripts."""
    page = Parsed(fleet_page.page(document))
    assert "script" not in page.tags
    assert_well_formed(page)
    return page


def assert_well_formed(found: Parsed) -> None:
    """Asserts correct nesting, no external resources, and existing targets of all links."""
    assert found.wrong == []
    assert not {"iframe", "img", "object", "embed", "base", "form"} & set(found.tags)
    assert [name for _, name, _ in found.attributes if name.startswith("on")] == []
    assert [value for value in found.values("href") if not value.startswith(("#", "data:,"))] == []
    ids = found.values("id")
    assert len(ids) == len(set(ids))
    assert {value[1:] for value in found.values("href") if value.startswith("#")} <= set(ids)


def views(document: dict[str, Any]) -> list[HostView]:
    """Returns the hosts of a document as the page's view objects."""
    return [view(name, f"host-{number}", one, document) for number, (name, one) in enumerate(document["hosts"].items())]


def test_forty_machines() -> None:
    found = parsed(made.a_fleet(40))
    assert "40 machines: 33 as expected, 2 unreachable, 1 with a lost GPU, 3 drifting, 1 with warnings" in found.text
    for words in ("86 °C node-06 SXM2-1", "181 of 182 1 does not answer", "15 of 16 GPUs of this model in v100 have the expected value", "GPU is lost",
                  "since the last report", "driver 535", "ended 144 days ago", "18 machines", "kernel : 5.15.0-130-generic → 6.8.0-71-generic",
                  "All of node-40"):  # fmt: skip
        assert words in found.text, words
    assert found.text.count("Last answered") == 2
    assert len([one for one in found.values("class") if one.startswith("machine-card")]) == 40


def test_a_machine_whose_checks_could_not_be_answered_is_not_proved() -> None:
    document = made.a_fleet(2)
    host = document["hosts"]["node-01"]
    host |= {
        "status": "failed",
        "findings": [finding("unknown", "lshw", check="machine.displays", seen="not installed")],
    }
    assert "2 machines: 1 as expected, 1 not proved" in parsed(document).text


def test_a_report_without_a_past() -> None:
    document = made.a_fleet(6)
    for name in ("node-02", "node-05"):
        document["hosts"][name]["fleet"] = None
    found = parsed(document)
    assert "6 machines: 3 as expected" in found.text
    assert "Last answered" not in found.text
    host = made.a_node(1)
    host["fleet"] |= {"since": None, "was": "", "readings": {}}
    found = parsed(made.a_document(a=host))
    assert "The history has no earlier report of these machines." in found.text
    assert "svg" not in found.tags
    assert "No problems: every machine agrees with its playbook" in found.text


def test_equal_findings_stand_once_with_all_their_hosts() -> None:
    entries = fleet_attention.problems(views(made.a_fleet(40)))
    assert [(one.check, one.title, [where.name for where in one.hosts]) for one in entries] == [
        ("unreachable", "Does not answer", ["node-05", "node-31"]),
        ("its peers", "kernel", ["node-14", "node-23"]),
        ("its peers", "power limit, W", ["node-03"]),
        ("playbook", "power", ["node-03"]),
        ("GPUs", "GPU missing", ["node-21"]),
        ("warning", "86 C under load, hotter than its peers, expected about 71 C", ["node-06"]),
    ]
    assert entries[3].hosts[0].places == "SXM2-2 0000:07:00.0"


def test_many_differences_from_the_playbook_are_one_entry() -> None:
    wrong = [finding("fail", f"Step {number}: a file", check="plan") for number in range(9)]
    document = made.a_document(a=made.a_node(1, findings=wrong), b=made.a_node(4, findings=wrong))
    (entry,) = fleet_attention.problems(views(document))
    assert entry.title == "9 differences from the playbook"
    assert entry.seen.startswith("Step 0, Step 1")
    assert [one.name for one in entry.hosts] == ["a", "b"]
    assert parsed(document).text.count("Step 8: a file") == 2  # in the card of each


def test_machines_that_were_never_provisioned_are_one_card_and_one_problem() -> None:
    wrong = [finding("fail", f"Step {number}: a file", check="plan", seen="not there") for number in range(9)]
    document = made.a_document(a=made.a_node(1), b=made.a_node(4, findings=wrong), c=made.a_node(7, findings=wrong))
    for name in ("b", "c"):
        document["hosts"][name]["machine"]["driver"] = ""
    (entry,) = fleet_attention.problems(views(document))
    assert (entry.check, [where.name for where in entry.hosts]) == ("never provisioned", ["b", "c"])
    found = parsed(document)
    assert "3 machines: 1 as expected, 2 never provisioned" in found.text
    assert found.text.count("Step 8: a file") == 0
    assert len([one for one in found.values("class") if one.startswith("machine-card")]) == 2


def test_a_lost_gpu_is_one_problem_after_hosts_that_do_not_answer() -> None:
    at = "SXM2-3 0000:08:00.0"
    seen = {"seen": "GPU is lost", "symptom": "gpu.off_bus"}
    lost = [finding("fail", at, check=check, **seen) for check in ("gpu.answering", "pcie.links")]
    drift = [finding("fail", "Step: a file", check="plan")]
    document = made.a_document(a=made.a_node(1, findings=lost), b=made.a_node(4, findings=drift), c=made.a_node(7))
    made.away(document["hosts"]["c"])
    entries = fleet_attention.problems(views(document))
    assert [(one.check, one.title, one.hosts[0].places) for one in entries] == [
        ("unreachable", "Does not answer", ""), ("hardware", "GPU lost", "SXM2-3"), ("playbook", "Step: a file", ""),
    ]  # fmt: skip
    assert "Do not use SXM2-3: lost" in parsed(document).text
    document = made.a_document(**{name: made.a_node(3, findings=lost[:1]) for name in ("a", "b", "c")})
    assert "3 machines: GPU lost" in parsed(document).text


def test_a_value_that_differs_from_the_past_and_the_peers_stands_once() -> None:
    was = finding("fail", "kernel", check="fleet.past", seen="6.8.0-71", expected="6.8.0-60", source="past")
    peers = finding("fail", "kernel", check="fleet.peers", seen="6.8.0-71", expected="5.15.0-130", cause="7 of 9 have it", source="peers")  # fmt: skip
    text = parsed(made.a_document(a=made.a_node(3, findings=[was, peers]))).text
    assert "Not as configured: kernel: 6.8.0-71, expected 6.8.0-60 (past), 5.15.0-130 (peers) " in text
    text = parsed(made.a_document(a=made.a_node(3, findings=[was, {**peers, "expected": "6.8.0-60"}]))).text
    assert "Not as configured: kernel: 6.8.0-71, expected 6.8.0-60 " in text


def test_what_follows_from_a_lost_gpu_is_no_problem_of_its_own() -> None:
    host = made.a_node(3)
    gpu = host["machine"]["gpus"][2]
    gpu |= {"answers": False, "lost": "GPU is lost"}
    lost = {"seen": "GPU is lost", "cause": "the GPU fell off the bus", "fix": "sudo poweroff; reseat it"}
    host["findings"] = [
        finding("fail", f"SXM2-3 {gpu['bus_id']}", check="gpu.answering", symptom="gpu.off_bus", **lost),
        finding("unknown", "Limits in force", check="plan", seen="the GPU cannot be reached", cause=lost["cause"]),
        finding("fail", f"{gpu['bus_id']} GPU-0b5a32cc", check="fleet.gpus", seen="missing", cause="it fell off the bus, or was removed"),
        finding("fail", "0000:99:00.0 GPU-11111111", check="fleet.gpus", seen="missing", cause="it fell off the bus, or was removed"),
    ]  # fmt: skip
    document = made.a_document(a=host, b=made.a_node(6))
    assert [(one.check, one.title) for one in fleet_attention.problems(views(document))] == [("hardware", "GPU lost"), ("GPUs", "GPU missing")]  # fmt: skip
    assert "Fix sudo poweroff reseat it" in parsed(document).text


def test_what_changed_since_the_report_before() -> None:
    document = made.a_fleet(2)
    document["hosts"]["node-02"]["fleet"]["since"] = None
    (change,) = fleet_attention.changes(views(document))
    assert (change.title, [where.name for where in change.hosts]) == ("for the first time in a report", ["node-02"])
    turns = fleet_attention.changes(views(made.a_fleet(40)))
    assert [(one.kind, one.title, len(one.hosts)) for one in turns] == [
        ("worse", "no longer answers", 2), ("worse", "power", 1), ("other", "kernel", 2), ("better", "Xids", 1),
    ]  # fmt: skip
    host = made.a_node(1)
    change = {"subject": "driver", "before": "535.1", "after": "580.1", "run": "r1"}
    host["fleet"] |= {"was": "unreachable", "became": [change]}
    found = parsed(made.a_document(a=host))
    assert "answers again" in found.text
    assert "driver : 535.1 → 580.1 by rigwright" in found.text


@pytest.mark.parametrize(
    "document",
    [
        made.a_document(),
        {**made.a_document(1), "error": {"where": "--host", "found": "no host", "expected": "a", "fix": "b"}},
        made.a_document(3, a=made.a_node(1, status="not_attempted", machine=None, fleet=None)),
        made.a_document(0, a=made.a_node(1, machine={"gpus": []})),
    ],
    ids=["no hosts", "an error", "not attempted", "no GPUs"],
)
def test_what_is_missing_is_left_out(document: dict[str, Any]) -> None:
    parsed(json.loads(json.dumps(document)))


def test_every_text_of_a_host_is_only_text() -> None:
    fleet = made.a_fleet(40)
    fleet["hosts"] = {f"{HOSTILE}{name}": made.hostile(one, HOSTILE) for name, one in fleet["hosts"].items()}
    fleet |= {"run": HOSTILE, "inventory": HOSTILE, "playbook": HOSTILE}
    fleet["error"] = {"where": HOSTILE, "found": HOSTILE, "expected": HOSTILE, "fix": HOSTILE}
    text = fleet_page.page(fleet)
    assert "<script>alert(1)</script>" in parsed(fleet).text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800]", text)
    assert text.encode()


def test_the_json_of_it_steers_nothing_either_and_says_the_same() -> None:
    fleet = made.a_fleet(2)
    poison = HOSTILE + "\x9b31m\x7f"
    fleet["hosts"] = {f"{HOSTILE}{name}": made.hostile(one, poison) for name, one in fleet["hosts"].items()}
    text = document.dumps(fleet)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800]", text)
    assert text.encode()
    assert json.loads(text) == fleet


def test_a_browser_reads_it_again_only_where_that_is_wanted() -> None:
    assert 'http-equiv="refresh" content="300"' in fleet_page.page(made.a_fleet(2), 300)
    assert 'http-equiv="refresh"' not in fleet_page.page(made.a_fleet(2))


def test_machines_of_a_group_stand_together() -> None:
    document = made.a_fleet(9)
    machines = fleet_page.by_group([fleet_tiles.machine(one, 0, 1) for one in views(document)])
    groups = [one.group for one in machines]
    assert len(set(groups)) == 3
    assert groups == sorted(groups, key=groups.index)


@pytest.mark.parametrize(
    ("subject", "title", "places"),
    [
        ("0000:06:00.0 GPU-531aad71 vbios", "vbios", "0000:06:00.0 GPU-531aad71"),
        ("SXM2-1 0000:06:00.0 GPU-531aad71", "GPU", "SXM2-1 0000:06:00.0 GPU-531aad71"),
        ("0000:06:00.0 GPU-531aad71 (serial 0320682532638)", "GPU", "0000:06:00.0 GPU-531aad71 (serial 0320682532638)"),
        ("0000:06:00.0 GPU-531aad71 memory mib", "memory, MiB", "0000:06:00.0 GPU-531aad71"),
        ("machine memory gib", "machine memory gib", ""),
        ("", "", ""),
    ],
)
def test_places_are_taken_out_of_a_subject(subject: str, title: str, places: str) -> None:
    assert fleet_attention.split(subject, {"SXM2-1"}) == (title, places)


@pytest.mark.parametrize(
    ("days", "words"),
    [(None, ""), (0, "today"), (1, "in 1 day"), (-1, "1 day ago"), (-144, "144 days ago"), (900, "in 2.5 years")],
)
def test_how_long_is_left(days: int | None, words: str) -> None:
    assert fleet_attention.time_left(days) == words


@pytest.mark.parametrize(("seconds", "words"), [(0, "1 min"), (2400, "40 min"), (18000, "5 hours"), (604800, "7 days")])
def test_how_long_ago_a_plot_begins(seconds: float, words: str) -> None:
    assert fleet_page.span(seconds) == words


# The plots


def test_the_slots_of_a_plot() -> None:
    (found,) = plots.slots([[(25.0, 1.0), (75.0, 2.0), (200.0, 3.0)]], 0.0, 100.0)
    assert (found[0], found[13]) == (None, None)
    assert (found[14], found[41], found[42], found[-1]) == (1.0, 1.0, 2.0, 2.0)
    lost, other = plots.slots([[(0.0, 40.0)], [(0.0, 41.0), (50.0, 42.0)]], 0.0, 100.0)
    assert (lost[0], lost[27], lost[28], lost[-1]) == (40.0, 40.0, None, None)
    assert other[-1] == 42.0
    week = 7 * 86400.0
    (found,) = plots.slots([[(0.0, 40.0)]], 0.0, week)
    assert [value for value in found if value is not None] == [40.0] * 11
    daily = [(day * 86400.0, 40.0) for day in range(8)]
    assert None not in plots.slots([daily], 0.0, week)[0]


def test_the_band_of_temperatures_and_the_sum_of_powers() -> None:
    found = plots.spread([[[(0.0, 31.0), (100.0, 40.0)]], [[(0.0, 35.0), (100.0, 62.0)]]], 0.0, 100.0, 87.0)
    assert found is not None
    assert (found.low, found.high, found.now, found.limit) == (30.0, 70.0, 62.0, None)
    assert found.words == "last 62, at most 62"
    assert found.line.startswith("M0 46L")
    assert (found.x, found.y) == (plots.WIDTH, 13.6)
    hot = plots.spread([[[(0.0, 80.0), (100.0, 88.0)]]], 0.0, 100.0, 87.0)
    assert hot is not None
    assert hot.limit == pytest.approx(plots.BOTTOM - (plots.BOTTOM - plots.TOP) * 7 / 20, abs=0.1)
    week = 7 * 86400.0
    found = plots.spread([[[(0.0, 40.0), (week, 50.0)]]], 0.0, week)
    assert found is not None
    assert found.line.count("M") == found.area.count("Z") == 2
    assert found.line.endswith("M236 28L240 28")
    found = plots.total([[[(0.0, 40.0), (100.0, 200.0)]], [[(50.0, 100.0)]]], 0.0, 100.0, 400.0)
    assert found is not None
    assert (found.low, found.high, found.now) == (0.0, 400.0, 300.0)
    assert found.limit == plots.TOP
    assert found.area.endswith("Z")
    assert plots.spread([[[(100.0, 40.0)], [(100.0, 41.0)]]], 100.0, 100.0) is None
    assert plots.total([], 0.0, 100.0) is None


def test_a_gpu_that_does_not_tell() -> None:
    host = made.a_node(1)
    figures = ("temperature_c", "power_w", "utilization_percent", "memory_used_mib")
    host["machine"]["gpus"][0] |= dict.fromkeys(figures)
    document = made.a_document(a=host)
    first = fleet_tiles.machine(views(document)[0], 0, 1).gpus[0]
    assert (first.values, first.words) == ({}, "PCIE-1 GPU-00000001: no values")
    parsed(document)
