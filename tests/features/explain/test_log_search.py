"""The search of a long log: the text that each pattern needs, matches across parts, and the count of Xids."""

from __future__ import annotations

import re

import pytest

from rigwright import catalogue
from rigwright.catalogue.symptoms import literal
from rigwright.features.explain.log_search import LogSearch


@pytest.mark.parametrize("key", list(catalogue.all_symptoms()))
def test_every_pattern_has_a_text_that_its_matches_contain(key: str) -> None:
    symptom = catalogue.all_symptoms()[key]
    for pattern in symptom.patterns:
        text = literal(pattern)
        assert len(text) >= 3, "a pattern without such a text is tried on the whole of every log"
        for example in symptom.texts:
            for match in re.finditer(pattern, example, re.IGNORECASE | re.MULTILINE):
                assert text in match[0].lower()


def test_a_match_may_begin_in_the_part_before() -> None:
    search = LogSearch()
    search.feed([(1, "Start-Date: 2026-11-01  06:12:51"), (2, "Commandline: /usr/bin/unattended-upgrade")])
    assert not search.symptoms
    search.feed([(3, "Upgrade: libnvidia-compute-535:amd64 (535.1, 535.2)")])
    assert [(key, hit.line) for key, hit in search.symptoms.items()] == [("driver.moved_by_itself", 2)]


def test_only_the_first_match_of_a_symptom_is_kept() -> None:
    search = LogSearch()
    line = "GPU has fallen off the bus"
    search.feed([(7, "nothing"), (9, f"first {line}"), (11, line)])
    search.feed([(12, line)])
    assert (search.symptoms["gpu.off_bus"].line, search.symptoms["gpu.off_bus"].text) == (9, f"first {line}")


def test_xids_are_counted_by_bus_and_code() -> None:
    search = LogSearch()
    lines = (
        "NVRM: Xid (PCI:0000:3B:00): 31, pid=1",
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=2",
        "kernel: NVRM: Xid (0000:03:00): 31, Ch 00000010",
        "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 200, Fatal",
        "NVRM: Xid (PCI:0000:3b:00): 20034, more digits",
    )
    for number, line in enumerate(lines, 1):
        search.count_xid(number, line)
    counts = {key: (hit.line, hit.count) for key, hit in search.xids.items()}
    assert counts == {("0000:3b:00", 31): (1, 2), ("0000:03:00", 31): (3, 1)}


def test_the_number_of_xids_is_bounded() -> None:
    search = LogSearch()
    for number in range(1000):
        search.count_xid(number, f"NVRM: Xid (PCI:0000:{number % 256:02x}:00): {number // 256 + 1}, x")
    assert len(search.xids) == 64
