"""The search of a long log: the texts that decide whether a pattern is tried, matches across parts, and the count of
Xids."""

from __future__ import annotations

import re

import pytest

from rigwright import catalogue
from rigwright.catalogue.symptoms import literal
from rigwright.features.explain.log_search import LogSearch

PATTERNS = [
    pytest.param(symptom, pattern, id=f"{key}-{at}")
    for key, symptom in catalogue.all_symptoms().items()
    for at, pattern in enumerate(symptom.patterns)
]


@pytest.mark.parametrize(("symptom", "pattern"), PATTERNS)
def test_every_pattern_has_a_text_that_its_matches_contain(symptom: catalogue.Symptom, pattern: str) -> None:
    text = literal(pattern)
    assert len(text) >= 3, "a pattern without such a text is tried on the whole of every log"
    for example in symptom.texts:
        for match in re.finditer(pattern, example, re.IGNORECASE | re.MULTILINE):
            assert text in match[0].lower()


def _numbered(text: str, first: int = 1) -> list[tuple[int, str]]:
    return list(enumerate(text.splitlines(), first))


def test_a_match_may_begin_in_the_part_before() -> None:
    search = LogSearch()
    search.feed(_numbered("Start-Date: 2026-11-01  06:12:51\nCommandline: /usr/bin/unattended-upgrade"))
    assert not search.symptoms
    search.feed(_numbered("Upgrade: libnvidia-compute-535:amd64 (535.1, 535.2)", 3))
    assert [(key, hit.line) for key, hit in search.symptoms.items()] == [("driver.moved_by_itself", 2)]


def test_only_the_first_match_of_a_symptom_is_kept() -> None:
    search = LogSearch()
    line = "GPU has fallen off the bus"
    search.feed([(7, "nothing"), (9, f"first {line}"), (11, line)])
    search.feed([(12, line)])
    assert (search.symptoms["gpu.off_bus"].line, search.symptoms["gpu.off_bus"].text) == (9, f"first {line}")


def test_xids_are_counted_by_bus_and_code() -> None:
    search = LogSearch()
    for number, line in enumerate(
        [
            "NVRM: Xid (PCI:0000:3B:00): 31, pid=1",
            "NVRM: Xid (PCI:0000:3b:00): 31, pid=2",
            "kernel: NVRM: Xid (0000:03:00): 31, Ch 00000010",
            "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 200, Fatal",
            "NVRM: Xid (PCI:0000:3b:00): 20034, more digits",
        ],
        1,
    ):
        search.count_xid(number, line)
    assert {key: (hit.line, hit.count) for key, hit in search.xids.items()} == {
        ("0000:3b:00", 31): (1, 2),
        ("0000:03:00", 31): (3, 1),
    }


def test_the_number_of_xids_is_bounded() -> None:
    search = LogSearch()
    for number in range(1000):
        search.count_xid(number, f"NVRM: Xid (PCI:0000:{number % 256:02x}:00): {number // 256 + 1}, x")
    assert len(search.xids) == 64
