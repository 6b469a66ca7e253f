"""The page of a large fleet: small, by cause, with a list that works without a script and cards that only a script
unpacks."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from typing import Any

import pytest

from rigwright.features.fleet_report import page as fleet_page, problems as fleet_attention
from tests.features.fleet_report.test_page import assert_well_formed, views
from tests.report import fleet_documents as made
from tests.report.html.test_host_page import HOSTILE, Parsed
from tests.report.run_documents import finding

COUNT = 120


def large() -> dict[str, Any]:
    """Returns a fleet of COUNT machines; 31 have the same warning with other figures, and 24 do not answer."""
    fleet = made.a_document(2, **{f"node-{number:03}": made.a_node(number) for number in range(1, COUNT + 1)})
    wrong = finding("fail", "kernel", check="fleet.peers", seen="6.8", expected="5.15", source="peers")
    fleet["hosts"]["node-003"] |= {"findings": [wrong], "status": "failed"}
    hot = 0
    for number, (name, host) in enumerate(fleet["hosts"].items()):
        if number % 5 == 4:
            made.away(host)
            refused = f"connection refused ({host['address']}, port 22)"
            host["error"] |= {"where": name, "found": refused, "fix": f"ssh {name}"}
        elif number % 3 == 0 and hot < 31:
            hot += 1
            gpu = host["machine"]["gpus"][0]
            warn = finding("warn", f"{gpu['position']} {gpu['bus_id']}", check="health.heat", seen=f"{84 + number % 7} C under load", cause="dust", fix=f"clean {name}")  # fmt: skip
            host["findings"] = [warn]
    return fleet


class Page(Parsed):
    """A page with its scripts: `data` and the program; `cards`: the unpacked ones, in the order of the rows."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.html = fleet_page.page(document)
        self.data_text, self.program = re.findall(r"<script[^>]*>(.*?)</script>", self.html, re.DOTALL)
        self.data = json.loads(self.data_text)
        super().__init__(self.html)
        packs = (zlib.decompress(base64.b64decode(pack), -15).decode() for pack in self.data["packs"])
        self.cards = [card for pack in packs for card in pack.split("\0")]
        self.rows = re.findall(r'<details class="row" id="([\w-]+)"[^>]*><summary[^>]*>(.*?)</summary>', self.html)


@pytest.fixture(scope="module")
def page() -> Page:
    """Returns the page of a large fleet."""
    return Page(large())


def test_the_page_is_well_nested_and_runs_only_its_own_script(page: Page) -> None:
    assert_well_formed(page)
    assert page.values("src") == []
    digest = base64.b64encode(hashlib.sha256(page.program.encode()).digest()).decode()
    policy = next(value for value in page.values("content") if "default-src" in value)
    sources = f"style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    assert policy == f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"


def test_a_small_fleet_has_no_script() -> None:
    text = fleet_page.page(made.a_fleet(fleet_page.CARDS))
    assert "<script" not in text
    assert "script-src" not in text


def test_every_machine_has_a_row_sorted_by_what_is_wrong_and_a_card(page: Page) -> None:
    assert len(page.rows) == len(page.cards) == len(page.data["words"]) == len(page.data["gpus"]) == COUNT
    for (_, row), card in zip(page.rows, page.cards, strict=True):
        name = re.findall(r"<b>(.*?)</b>", row)[0]
        assert f">{name}</h3>" in card
        assert Parsed(card).wrong == []
        assert " id=" not in card.partition(">")[0], "the row has the id"
    signs = [re.findall(r"<i><b>(.)</b>", row)[0] for _, row in page.rows]
    assert signs == sorted(signs, key="✗?!✓".index)
    assert set(signs) == set("✗?!✓")


def test_findings_of_one_cause_stand_once(page: Page) -> None:
    assert "31 machines: 84 to 90 C under load" in page.text
    assert "24 machines: Does not answer" in page.text
    entries = fleet_attention.problems(views(large()))
    (away,) = (one for one in entries if one.check == "unreachable")
    assert (len(away.hosts), away.seen, away.fix) == (24, "connection refused (ADDRESS, port 22)", "ssh HOST")
    (hot,) = (one for one in entries if one.title.startswith("84 to 90 C"))
    assert (hot.fix, str(hot.steps[0]) if hot.steps else "") in {("clean HOST", ""), ("clean HOST", "clean HOST")}


def test_the_machines_of_a_cause_can_be_shown_alone(page: Page) -> None:
    number = next(
        name for name, value in ((v, t) for (_, k, v), (_, k2, t) in zip(page.attributes, page.attributes[1:], strict=False) if (k, k2) == ("data-cause", "data-title")) if value.startswith("84 to 90 C")
    )  # fmt: skip
    assert len(page.data["causes"][number]) == 31
    for at in page.data["causes"][number]:
        assert "C under load" in page.data["words"][at]


def test_filters_count_all_machines_and_the_search_finds_serials(page: Page) -> None:
    counts: dict[str, int] = {}
    for column in zip(*page.data["values"], strict=True):
        assert all(isinstance(value, list) for value in column)
    for text in re.findall(r"<option value=\"\d+\">(.*?)</option>", page.html):
        name, _, number = text.rpartition(" (")
        counts[name] = int(number[:-1])
    assert counts["v100"] + counts["rtx"] + counts["a100"] == COUNT
    assert counts["unreachable"] == 24
    at = next(number for number, (_, row) in enumerate(page.rows) if "node-002" in row)
    assert "GPU-00000002" in page.data["words"][at]
    assert "192.0.2.2" in page.data["words"][at]


def test_a_machine_costs_little() -> None:
    """The goal for 1000 machines is 3 MB."""
    few, many = (len(fleet_page.page(made.a_fleet(count)).encode()) for count in (100, 300))
    assert (many - few) / 200 < 2500
    assert many + 700 * (many - few) / 200 < 3_000_000


def test_every_text_of_a_host_is_only_text() -> None:
    fleet = large()
    poison = f"{HOSTILE}</script><script>alert(2)</script>\u2028"
    fleet["hosts"] = {f"{poison}{name}": made.hostile(one, poison) for name, one in fleet["hosts"].items()}
    found = Page(fleet)
    assert found.wrong == []
    assert found.tags.count("script") == 2
    assert "<" not in found.data_text
    for text in (found.html, json.dumps(found.data, ensure_ascii=False), *found.cards):
        assert not re.search("[\x01-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800]", text)
    for card in found.cards:
        assert "script" not in Parsed(card).tags
