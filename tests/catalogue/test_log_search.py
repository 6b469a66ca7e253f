"""The search of a long log: what a pattern requires, matches across parts, and the count of Xids."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigwright import catalogue
from rigwright.catalogue.log_search import LEAST_TEXT, LogSearch, required_texts

PATTERNS = [
    pytest.param(symptom, pattern, id=f"{key}-{at}")
    for key, symptom in catalogue.symptoms().items()
    for at, pattern in enumerate(symptom.patterns)
]


@pytest.mark.parametrize(
    ("expression", "texts"),
    [
        ("Driver/library version mismatch", ("driver/library version mismatch",)),
        (r"couldn't find libnvidia-ml\.so", ("couldn't find libnvidia-ml.so",)),
        (r"nvidia-smi: (?:command )?not found", ("nvidia-smi: ",)),
        (r"\bXid(?: \(PCI:[0-9a-f:.]+\))?:? ?79\b", ("xid",)),
        (r"\s(?:9\d|100)\s+\S+\s+(?:nv_queue|irq/\d+-nvidia)\b", ("nv_queue", "-nvidia")),
        (r"abc|defg", ("abc", "defg")),
        (r"abc|\d+", ()),
        (r"ab?c", ()),
        (r"abcd?", ("abc",)),
        (r"abc{0,2}", ()),
        (r"abcx{2}y", ("abcx",)),
        (r"ab+cdef", ("cdef",)),
        (r"[abc]+def", ("def",)),
        (r"[]x|]abc", ("abc",)),
        (r"(?<!Invalid )HW Power", ("hw power",)),
        (r"abc(?=defgh)", ("abc",)),
        (r"(abcdef)*ghi", ("ghi",)),
        (r"a\|bc", ("a|bc",)),
        (r"\d+", ()),
        ("", ()),
    ],
)
def test_what_a_pattern_requires(expression: str, texts: tuple[str, ...]) -> None:
    assert required_texts(expression) == texts


@pytest.mark.parametrize(("symptom", "pattern"), PATTERNS)
def test_every_pattern_requires_a_text_and_its_examples_have_it(symptom: catalogue.Symptom, pattern: str) -> None:
    texts = required_texts(pattern)
    assert texts, "a pattern that requires no text is tried on the whole of every log"
    assert all(len(text) >= LEAST_TEXT and text == text.lower() for text in texts)
    for example in symptom.texts:
        for match in re.finditer(pattern, example, re.IGNORECASE | re.MULTILINE):
            assert any(text in match[0].lower() for text in texts)


@given(st.from_regex(r"(?:abc|de[fg]h{1,2}|\(xyz\)?)(?:k|lmn)?", fullmatch=True))
def test_a_match_has_a_required_text(text: str) -> None:
    assert any(required in text for required in required_texts(r"(?:abc|de[fg]h{1,2}|\(xyz\)?)(?:k|lmn)?") or ("",))


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
