"""The report page has all data of the document as text, and no scripts or external resources."""

from __future__ import annotations

import html.parser
import itertools
import json
import re
from typing import Any

import pytest

from rigwright.core.process.program_name import as_typed
from rigwright.facts.gpu.health import Card, Errors
from rigwright.report.html import gpu_cards, p2p_matrix, scaling_plot, topology
from rigwright.report.html.host_page import page
from tests.paths import ROOT
from tests.report import run_documents as made
from tests.report.run_documents import a_document, a_host, a_machine, finding, known

HOSTILE = "\x1b]0;x\x07<script>alert(1)</script>'\"&\u202e\ud800"


class Parsed(html.parser.HTMLParser):
    """A page's tags, attributes, ids and text; `wrong` has the tags that are not well nested."""

    VOID = ("meta", "link", "br", "path", "rect", "circle", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.wrong: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.wrong += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self) -> str:
        """The visible text, with each run of whitespace as one space."""
        return " ".join(" ".join(self.texts).split())

    def values(self, name: str) -> list[str]:
        """Returns all values of an attribute."""
        return [value for _, key, value in self.attributes if key == name]


def parsed(*documents: dict[str, Any]) -> Parsed:
    """Parses the page of these documents; asserts that it is well nested and has no scripts or external resources."""
    found = Parsed(page(documents))
    assert found.wrong == []
    assert not {"script", "iframe", "img", "object", "embed", "base", "form"} & set(found.tags)
    assert [name for _, name, _ in found.attributes if name.startswith("on")] == []
    assert [
        value for name in ("href", "src") for value in found.values(name) if not value.startswith(("#", "data:,"))
    ] == []
    ids = found.values("id")
    assert len(ids) == len(set(ids))
    assert {value[1:] for value in found.values("href") if value.startswith("#")} <= set(ids)
    return found


def test_one_host_that_is_well() -> None:
    found = parsed(a_document(servbadge=made.healthy()))
    assert "Everything is as expected." in found.text
    assert "verify servbadge: Fit for work: 1 check holds – rigwright" in found.text
    assert "2026-11-21 10:15:00" in found.text
    assert ("html", "lang", "en") in found.attributes
    for words in ("All-reduce over 4 GPUs: 126 GB/s", "GPU-00000000-0000-4000-8000-000000000003", "40 W of 200 W",
                  "The rig: 3.92 times with 4 GPUs"):  # fmt: skip
        assert words in found.text


def test_findings_come_in_the_order_of_their_weight() -> None:
    document = a_document(code=2, servbadge=made.broken())
    found = parsed(document)
    places = [found.text.index(f"{sign} {word} ") for sign, word in (("✗", "failed SXM2-1: 1 NVLink, expected"),
        ("?", "unknown SXM2-4:"), ("!", "warning SXM2-3:"), ("i", "PyTorch"))]  # fmt: skip
    assert places == sorted(places)
    for words in ("Expected 2 NVLinks (by the rig)", "Cause a badly seated module", "Fix power off, reseat SXM2-2",
                  "✗ Not fit for work: SXM2-1: 1 NVLink, expected 2 NVLinks", "1 passed", "✗ wrong data",
                  "✗ hang"):  # fmt: skip
        assert words in found.text


def test_every_text_of_a_host_is_only_text() -> None:
    host = made.broken()

    def poisoned(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: poisoned(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [poisoned(inner, key) for inner in value]
        kept = ("verdict", "bus_id", "from", "to", "host_bridge", "outcome", "event", "kind", "status", "uuid")
        return HOSTILE if isinstance(value, str) and key not in kept else value

    host = poisoned(host)
    error = {"where": HOSTILE, "found": HOSTILE, "expected": HOSTILE, "fix": HOSTILE}
    change = {"step": HOSTILE, "action": "add", "subject": HOSTILE, "before": HOSTILE, "after": HOSTILE,
              "leads_to": HOSTILE, "done": True}  # fmt: skip
    step = {"name": HOSTILE, "status": "ok", "reason": HOSTILE, "notes": [HOSTILE]}
    host |= {"error": error, "changes": [change], "steps": [step], "simulated": HOSTILE}
    document = a_document(**{HOSTILE: host, "other": made.unreachable()})
    document |= {"error": error, "run": HOSTILE, "command": HOSTILE}
    text = page([document])
    found = parsed(document)
    assert "<script>alert(1)</script>" in found.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800]", text)
    assert text.encode()


def test_several_hosts_and_runs_are_one_page_with_an_index() -> None:
    hosts = {"a": made.healthy(), "b": made.broken(), "c": made.switched(), "d": made.unreachable()}
    found = parsed(a_document(code=3, **hosts))
    assert "verify of 4 hosts – rigwright" in found.text
    assert [value for value in found.values("href") if value.startswith("#host")].count("#host-4") == 1
    assert "? Not known: the host does not answer" in found.text
    assert "connection refused" in found.text
    assert "All of a" in found.text
    found = parsed(a_document(a=made.healthy()), a_document(b=made.unreachable()))
    assert "2 hosts" in found.text


@pytest.mark.parametrize(
    "document",
    [
        a_document(),
        a_document(x={"status": "failed", "error": None, "findings": []}),
        a_document(x=a_host(machine=a_machine(made.without_driver()), p2p=None)),
        a_document(x=a_host(machine=a_machine(known((), ()), None),
                            p2p={"pairs": [], "gpus": [], "outcome": "could not run"})),
        a_document("accept", x=made.switched()),
        {**a_document(), "error": {"where": "--host", "found": "no host", "expected": "", "fix": ""}},
    ],
    ids=["no hosts", "few keys", "no driver", "no GPUs", "sixteen", "error"],
)  # fmt: skip
def test_what_is_missing_is_left_out(document: dict[str, Any]) -> None:
    parsed(json.loads(json.dumps(document)))


def test_a_machine_without_a_driver_shows_its_bus() -> None:
    found = parsed(a_document(x=a_host(machine=a_machine(made.without_driver()))))
    assert "gpu_health.cards: nvidia-smi is not installed" in found.text
    assert found.text.count("none from the driver") == 4
    assert "CPU 1" in found.text


def test_what_was_judged_of_p2p_is_among_the_findings_once() -> None:
    host = made.healthy()
    judged = finding("fail", "0 to 1", seen="hang")
    host["p2p"]["judged"] = [judged, finding("warn", "1 to 2", seen="slow")]
    host["findings"].append(judged)
    found = parsed(a_document(x=host))
    assert (found.text.count("failed 0 to 1:"), found.text.count("warning 1 to 2:")) == (1, 1)


def test_an_acceptance_sheet_can_be_signed_and_weighs_each_flaw() -> None:
    found = parsed(a_document("accept", servbadge=made.healthy()))
    for words in ("Acceptance sheet", "Sign-off", "accepted with remarks", "Signature", "Serial 0320682532600"):
        assert words in found.text
    assert "Sign-off" not in parsed(a_document(servbadge=made.healthy())).text
    assert "No flaw found." in parsed(a_document("accept", x=made.healthy())).text
    text = parsed(a_document("accept", code=2, x=made.broken())).text
    assert "✗ serious flaw SXM2-1:" in text
    assert "! minor flaw SXM2-3:" in text


def test_a_sheet_has_what_the_last_stress_measured_or_the_command_that_does() -> None:
    host = made.healthy()
    text = parsed(a_document("accept", servbadge={**host, "measured": made.stressed(host, without=1)})).text
    assert text.count("Stressed 2026-05-12, power limit 200 W, driver 535.261.03") == 3
    assert text.count("FP32 13.4 TFLOPS, 85% of its model's figure") == 3
    assert text.count("Memory speed 742 GB/s, 82% of its model's figure") == 3
    assert text.count("Host link 12.6 GB/s to it, 12.4 GB/s from it") == 3
    assert text.count("Highest 211 W, 71 °C, memory 74 °C") == 3
    assert "invoke stress" not in text
    none = parsed(a_document("accept", servbadge={**host, "measured": []})).text
    command = as_typed("invoke stress --host servbadge")
    assert f"No speed under full load is known. {command} measures it." in none
    assert "full load" not in parsed(a_document(servbadge=host)).text, "verify does not look it up"


def test_without_a_figure_of_the_model_a_speed_has_no_share() -> None:
    host = made.healthy()
    rows = made.stressed(host, power_limit_w=None, memory_gb_s=None, to_device_gb_s=None, core_max_c=None, driver="")
    bare = [{**row, "shares": {}} for row in rows]
    text = parsed(a_document("accept", servbadge={**host, "measured": bare})).text
    assert "Stressed 2026-05-12 FP32 13.4 TFLOPS FP16 98.4 TFLOPS FP64 6.6 TFLOPS Host link 12.4 GB/s from it" in text
    assert "Highest 211 W, memory 74 °C" in text


def test_changes_and_times_of_a_run() -> None:
    step = {"name": "Driver held", "status": "changed", "reason": "", "notes": ["source: cuda"]}
    done = {"event": "step_done", "step": "Driver held", "status": "changed", "reason": "", "seconds": 75.2}
    event = {"at_s": 1.0, **done}
    change = {"step": "Driver held", "action": "run", "subject": "apt-mark hold", "before": "", "after": "10 held",
              "disruptive": False, "leads_to": "reboot", "done": True}  # fmt: skip
    host = a_host(status="changed", steps=[step], events=[event], changes=[change], rebooted=True, seconds=200.0)
    found = parsed(a_document("provision", x=host))
    for words in ("changed; 3 min 20 s, 2 round trips, rebooted; 1 of 1 changes made and proved", "run apt-mark hold",
                  "leads to: reboot", "✓ yes", "changed, 1 min 15 s", "source: cuda"):  # fmt: skip
        assert words in found.text


def test_the_page_is_small_and_asks_for_nothing() -> None:
    text = page([a_document(x=made.healthy())])
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme: dark" in style
    assert "@media print" in style
    assert "default-src 'none'" in text
    size = len(page([a_document(x=made.switched())]).encode())
    assert 20_000 < size < 250_000


# The matrix


def test_the_matrix() -> None:
    p2p = made.broken()["p2p"]
    first, second, third = p2p_matrix.matrices(p2p, {made.bus_id(0): "SXM2-1"})
    assert first.names == ("SXM2-1", "GPU 1", "GPU 2", "GPU 3")
    rows = [[cell and (cell.text, cell.way, cell.kind) for cell in cells] for _, cells in first.rows]
    assert rows[0] == [None, ("44", "P2P", "ok"), ("wrong data", "", "wrong"), ("44", "P2P", "ok")]
    assert rows[1][2] == ("hang", "", "wrong")
    assert rows[2][0] == ("0.79", "SHM", "ok")
    assert rows[3][0] == ("–", "", "none")
    heats = {cell.text: cell.heat for _, cells in first.rows for cell in cells if cell}
    assert heats["44"] == 100
    assert 0 < heats["0.79"] < 50
    assert "copies" in second.caption
    assert "NCCL_P2P_DISABLE" in third.caption


def test_pairs_that_were_not_tried() -> None:
    p2p = made.a_p2p(2)
    p2p["pairs"] = [{"from": 0, "to": 1, "bytes": {"ok": None, "outcome": "refused", "error": "no peer access"}}]
    (only,) = p2p_matrix.matrices(p2p, {})
    (_, first), (_, second) = only.rows
    assert first[1]
    assert (first[1].text, first[1].kind) == ("no", "refused")
    assert second[0]
    assert second[0].title == "GPU 1 to GPU 0: not tested"
    assert p2p_matrix.matrices({}, {}) == []


def test_what_was_not_measured_alone_is_in_parentheses() -> None:
    host = made.healthy()
    for pair in host["p2p"]["pairs"]:
        if {pair["from"], pair["to"]} != {0, 1}:
            for result in (pair["bytes"], pair["collective"]):
                result.update(gb_s=None, latency_us=None, round_gb_s=43.1)
    nccl = p2p_matrix.matrices(host["p2p"], {})[0]
    _, alone, beside, _ = nccl.rows[0][1]
    assert alone
    assert beside
    assert (alone.text, beside.text) == ("44", "(43)")
    assert beside.title == "GPU 0 to GPU 2: 43.1 GB/s in its round, not measured alone; P2P/direct pointer"
    assert beside.heat > 90
    text = page([made.a_document(h=host)])
    assert "44 GB/s by P2P; 43 GB/s by P2P in rounds" in text
    assert "(48): not measured alone" in text


# The drawing


def _boxes(found: topology.Drawing | None) -> dict[str, topology.Box]:
    assert found
    return {box.bus_id or box.title: box for box in found.boxes}


def test_the_drawing_of_a_tree() -> None:
    found = topology.drawn(made.healthy()["machine"])
    boxes = _boxes(found)
    assert found
    assert {"CPU 0", "CPU 1"} <= set(boxes)
    gpus = [boxes[made.bus_id(number)] for number in range(4)]
    assert len({box.y for box in gpus}) == 1
    assert all(a.x + a.width < b.x for a, b in itertools.pairwise(gpus))
    assert boxes["CPU 0"].x == gpus[0].x
    assert boxes["CPU 0"].x + boxes["CPU 0"].width == gpus[1].x + gpus[1].width
    assert [line.label for line in found.lines if line.kind == "nvlink"] == ["2"] * 6
    assert all(
        box.x >= 0 and box.x + box.width <= found.width and box.y + topology.HEIGHT <= found.height
        for box in found.boxes
    )


def test_missing_links_and_lost_gpus_are_drawn_so() -> None:
    found = topology.drawn(made.broken()["machine"])
    assert found
    assert _boxes(found)[made.bus_id(3)].kind == "gpu lost"
    assert [line.label for line in found.lines if line.kind == "down"] == ["1 of 2"]
    assert "SXM2-1 06:00.0 to SXM2-2 07:00.0: 1 of 2 NVLinks" in found.words


def test_nvswitches_are_one_bar_between_two_rows_of_gpus() -> None:
    found = topology.drawn(made.switched()["machine"])
    assert found
    assert "6 NVSwitches" in _boxes(found)
    assert [line.label for line in found.lines if line.kind == "nvlink"] == ["6"] * 16
    found = topology.drawn(made.switched()["machine"])
    assert found
    assert found.width < 900
    boxes = _boxes(found)
    rows = sorted({boxes[made.bus_id(number)].y for number in range(16)})
    assert len(rows) == 2
    assert boxes["CPU 0"].y < rows[0] < boxes["6 NVSwitches"].y < rows[1] < boxes["CPU 1"].y
    for a, b in itertools.combinations(found.boxes, 2):
        apart = (a.x + a.width <= b.x, b.x + b.width <= a.x, a.y + topology.HEIGHT <= b.y, b.y + topology.HEIGHT <= a.y)
        assert any(apart), (a, b)


def test_links_within_and_between_two_rows() -> None:
    """Arcs are on the side away from the processors; a link from one row to the other is a straight line."""
    facts = known(tuple(map(made.a_card, range(12))), made.links(12, 1))
    found = topology.drawn(a_machine(facts, None))
    assert found
    boxes = _boxes(found)
    upper, lower = (boxes[made.bus_id(number)].y for number in (0, 11))
    links = [line for line in found.lines if line.kind == "nvlink"]
    assert len(links) == 66
    assert sum("L" in line.path for line in links) == 36
    assert all(upper + topology.HEIGHT < line.y < lower for line in links)


def test_gpus_that_no_bus_shows_are_drawn_beside() -> None:
    facts = known((made.a_card(0), made.a_card(1)))
    facts[made.topology.places] = facts[made.topology.places][:1]
    assert "not on the bus" in _boxes(topology.drawn(a_machine(facts, None)))
    assert topology.drawn(a_machine(known((), ()), None)) is None


# The plot and the cards


def test_the_plot() -> None:
    found = scaling_plot.plotted(made.a_p2p(4)["scaling"], {"gpus": 4, "speed_up": 3.92})
    assert found
    assert [point.label for point in found.points] == ["0.98", "1.96", "2.94", "3.92"]
    assert found.expected
    assert (found.expected.x, found.expected.y) == (found.points[3].x, found.points[3].y)
    assert scaling_plot.plotted(made.a_p2p(1)["scaling"], None) is None
    hang = [{"gpus": 1, "speed_up": 1.0}, {"gpus": 2, "speed_up": None, "error": "hang"}]
    assert scaling_plot.plotted(hang, None) is None
    sixteen = scaling_plot.plotted(made.a_p2p(16)["scaling"], {"gpus": 32, "speed_up": 30})
    assert sixteen
    assert sixteen.expected is None
    assert [tick.label for tick in sixteen.ticks_x] == ["1", "4", "8", "12", "16"]


def _rows(
    card: Card, p2p: dict[str, Any] | None = None, limits: dict[str, Any] | None = None
) -> dict[str, tuple[str, str]]:
    machine = a_machine(known((card, made.a_card(1))), None)
    found = gpu_cards.groups(machine["gpus"][0], machine, p2p or {}, limits or {})
    return {row.label: (row.text, row.kind) for group in found for row in group.rows}


def test_a_card_in_words() -> None:
    rows = _rows(made.a_card(0), made.a_p2p(3))
    assert rows["Temperature"] == ("33 °C (slows down at 87), memory 31 °C", "")
    assert rows["Power"] == ("40 W of 200 W (range 150 to 300)", "")
    assert rows["PCIe"] == ("x16, Gen3 now", "")
    assert rows["NVLinks"] == ("2 up, 25.8 GB/s per link and direction", "")
    assert rows["Own memory"] == ("370 GB/s", "")
    assert rows["NCCL to peers"] == ("44 GB/s by P2P", "")
    assert "Recovery" not in rows
    newer = _rows(made.a_card(0, slowdown_c=None, tlimit_c=46, slowdown_tlimit_c=-2), made.a_p2p(3))
    assert newer["Temperature"] == ("33 °C (46 below its limit), memory 31 °C", "")
    past = _rows(made.a_card(0, slowdown_c=None, tlimit_c=-2, slowdown_tlimit_c=-2), made.a_p2p(3))
    assert past["Temperature"] == ("33 °C (2 past its limit), memory 31 °C", "")


def test_a_worn_card_in_words() -> None:
    worn = made.a_card(
        0, width=1, generation=1, generation_max=4, generation_host=3, replays=12, ecc=False, ecc_next_boot=True,
        ecc_ever=Errors(None, 2), retired_double_bit=1, retirement_pending=True, remapped_uncorrected=3,
        remap_pending=True,
        remap_failed=True, recovery_action="Drain P2P", unread=("gpu_temp: Unknown Error",), temperature_c=None,
    )  # fmt: skip
    drift = {"power": {"drift": True, "in_force": "300 W", "expected": "200 W"}}
    rows = _rows(worn, made.broken()["p2p"], drift)
    assert rows["PCIe"] == ("x1 of x16, Gen1 now, at most Gen3", "warn")
    assert rows["Replays"] == ("12 since the driver was loaded", "warn")
    assert rows["ECC"] == ("off, on after the next boot", "warn")
    assert rows["Errors ever"] == ("2 uncorrected, ? corrected", "warn")
    assert rows["Retired pages"] == ("0 for single-bit errors, 1 for double-bit errors", "warn")
    assert rows["Remapped rows"] == ("3 uncorrected, 0 corrected", "warn")
    assert rows["Retirement"] == ("waits for a reboot", "fail")
    assert rows["Recovery"] == ("the driver asks for: Drain P2P", "fail")
    assert rows["Remapping"][1] == "fail"
    assert rows["Power limit"] == ("300 W, expected 200 W", "fail")
    assert rows["NCCL to peers"] == ("44 GB/s by P2P; 1 wrong", "fail")
    assert rows["Not readable"] == ("gpu_temp: Unknown Error", "warn")
    assert "Temperature" not in rows


# The machine in the document


def test_ends_of_nvlinks_are_pairs() -> None:
    good = a_machine(known(tuple(map(made.a_card, range(4)))))
    assert [(one["up"], one["down"], one["expected"]) for one in good["nvlinks"]] == [(2, 0, 2)] * 6
    lost = (*map(made.a_card, range(3)), Card(made.bus_id(3), "", "", lost="GPU is lost"))
    ends = tuple(one for one in made.links(4) if one.uuid != made.uuid(3))
    seen = a_machine(known(lost, ends))
    assert [(one["from"], one["to"], one["up"]) for one in seen["nvlinks"]][2] == (made.bus_id(0), made.bus_id(3), 2)
    assert [one["up"] for one in seen["nvlinks"]] == [2] * 6
    gone = a_machine(known(lost, ()))
    assert [(one["up"], one["expected"]) for one in gone["nvlinks"]] == [(0, 2)] * 6
    assert a_machine(made.without_driver())["nvlinks"] == []


def test_no_template_lies_about_unused() -> None:
    folder = ROOT / "templates" / "report"
    texts = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.j2")}
    used = {name for text in texts.values() for name in re.findall(r'(?:include|from) "([^"]+)"', text)}
    assert set(texts) - used == {"page.html.j2", "fleet.html.j2", "power.html.j2"}


def test_lost_gpus_and_many_cards_are_one_entry() -> None:
    found = parsed(a_document(code=2, dgx=made.all_lost()))
    sentence = "Do not use SXM3-0, SXM3-1, SXM3-2 and 13 more: lost"
    assert f"verify dgx: {sentence} – rigwright" in found.text
    assert found.text.count("reseat it") == 1
    assert "Evidence: 16 findings" in found.text
    assert "16 GPUs without a problem" in parsed(a_document(x=made.switched())).text
    assert "GPUs without a problem" not in parsed(a_document("accept", x=made.switched())).text
    assert "GPUs without a problem" not in parsed(a_document(x=made.healthy())).text


def test_commands_of_a_document_are_marked_as_such() -> None:
    """The document has them as its reader types them, which no rule for commands knows."""
    host = made.one_lost()
    host["problems"] = [
        {"title": "SXM2-3: lost", "steps": [{"command": ".venv/bin/invoke explain x", "text": "lists causes"}]}
    ]
    text = page([a_document(code=2, servbadge=host)])
    assert "<code>.venv/bin/invoke explain x</code> lists causes" in text
