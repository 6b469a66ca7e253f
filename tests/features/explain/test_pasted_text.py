"""What `explain -` says of pasted text, one case each; bad input; a log of 50 MB."""

from __future__ import annotations

import datetime
import io
import itertools
import random
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from rigwright import catalogue
from rigwright.core.errors import UsageError
from rigwright.core.yaml_source import load, only_keys
from rigwright.features.explain import pasted_table as table
from rigwright.features.explain.pasted_text import BLOCK_BYTES, LONGEST_LINE, PastedText, read
from tests.machine_speed import within
from tests.paths import CASES

TODAY = datetime.date(2026, 11, 22)
FILES = CASES / "pasted"
OFF_BUS = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
TABLE = load(FILES / "table_healthy.yml")["text"].encode()


def _read(text: str | bytes) -> PastedText:
    return read(io.BytesIO(text.encode() if isinstance(text, str) else text), TODAY)


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in sorted(FILES.glob("*.yml"))])
def test_pasted(path: Path) -> None:
    case = load(path)
    only_keys(case, ("text", "parts", "problems", "notes", "title", "unread", "errors"), "key of a case")
    text = _read(case["text"])
    assert list(text.parts) == case["parts"]
    for problem, row in zip(text.problems, case["problems"], strict=True):
        assert (problem.key, problem.after) == (row["key"], row["after"])
        assert row["seen"] in problem.seen
        assert problem.level == row.get("level", "fail")
        assert problem.fix
    notes = (*text.notes, *(f"{normal.seen}: {normal.title}" for normal in text.normal))
    for words in case["notes"]:
        assert any(words in note for note in notes), f"the notes are {notes}"
    assert case["notes"] or not notes
    assert (text.unread_count, len(text.errors)) == (case.get("unread", 0), case.get("errors", 0))
    if "title" in case:
        assert table.explanations(text)[0].title == case["title"]


@pytest.mark.parametrize("key", list(catalogue.all_symptoms()))
def test_every_symptom_is_found_in_a_log(key: str) -> None:
    symptom = catalogue.all_symptoms()[key]
    for example in symptom.texts:
        text = _read(f"Linux version 6.8.0-71-generic\n{example}\nusb 1-3: new high-speed USB device number 4\n")
        known = {problem.key for problem in text.problems}
        known |= {normal.key for normal in text.normal}
        assert key in known or example.lstrip().startswith("|"), example


def test_the_answer_as_text() -> None:
    log = f"{OFF_BUS}\n[Rank 0] Watchdog caught collective operation timeout\n"
    summary, first, second = table.explanations(_read(log))
    assert summary.title == "2 problems"
    assert summary.lines[0].text == "2 lines: a kernel log"
    assert first.title == "1. The GPU has fallen off the bus"
    assert second.title == "2. A collective of NCCL never finished (a consequence of 1)"
    assert [line.label for line in first.lines][:4] == ["symptom", "seen", "code", "cause"]
    assert first.lines[-1].label == "source"
    codes = table.explanations(_read("NVRM: GPU 0000:06:00.0: RmInitAdapter failed! (0x24:0x72:1603)\n"))[0]
    assert "NV_ERR_MEMORY_ERROR" in " ".join(line.text for line in codes.lines if line.label == "code")


HEALTHY = "NCCL version 2.21.5\n"


@pytest.mark.parametrize(
    ("text", "title", "labels"),
    [
        (HEALTHY, "Nothing is wrong in it that the catalogue knows", ["read"]),
        (f"{HEALTHY}Dear all\n", "Unknown: no fault that the catalogue knows, and 1 line not understood", ["not read"]),
        (
            f"{HEALTHY}[   9.100000] widget 0000:03:00.0: probe failed with error -5\n",
            "Unknown: no fault that the catalogue knows, and 1 line with an unknown error",
            ["unknown"],
        ),
        (f"{HEALTHY}{OFF_BUS}\nDear all\n", "1 problem", ["not read"]),
    ],
)
def test_nothing_is_wrong_only_with_a_text_that_was_understood_whole(text: str, title: str, labels: list[str]) -> None:
    summary = table.explanations(_read(text))[0]
    assert summary.title == title
    assert [line.label for line in summary.lines if line.label != "note"][-1:] == labels


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "stdin is empty"),
        (b"\n \n\t\n", "stdin is empty"),
        (b"\x7fELF" + bytes(range(256)) * 40, "stdin is no text"),
        ("NVRM: Xid".encode("utf-16"), "stdin is no text"),
        (b"\x1f\x8b\x08" + bytes((at * 37) % 256 for at in range(9000)), "stdin is no text"),
    ],
)
def test_what_is_no_log_gets_one_message(content: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        _read(content)


def test_control_characters_do_no_harm() -> None:
    log = b"\x1b[2Jkernel: \x1b]0;title\x07NVRM: Xid (PCI:0000:3b:00): 79, \x08\xc2\x9b31m\xe2\x80\xae\xff gone\n"
    log += b"RuntimeError\nTraceback (most recent call last):\n  x\nOSError: \x9b\xc2\x9b\x00 \x1bc\n"
    for explanation in table.explanations(_read(log)):
        for text in (explanation.title, *(line.text for line in explanation.lines)):
            assert text.isprintable(), repr(text)


def test_a_line_may_be_long_and_cross_blocks() -> None:
    end = f"\n{OFF_BUS}\r\n".encode()
    text = _read(b"x" * (3 * BLOCK_BYTES) + end)
    assert [(problem.key, problem.line) for problem in text.problems] == [("gpu.off_bus", 2)]
    assert max(len(problem.seen) for problem in text.problems) < LONGEST_LINE
    for cut in range(BLOCK_BYTES - 40, BLOCK_BYTES + 2, 7):
        assert [problem.line for problem in _read(b"x" * cut + end).problems] == [2]


def test_lines_are_numbered_with_any_line_end() -> None:
    for end in ("\n", "\r\n", "\r"):
        text = _read(end.join(["one", "", "two and more", OFF_BUS, ""]))
        assert [problem.line for problem in text.problems] == [4]


def _log(lines: Iterator[bytes], size: int) -> io.BytesIO:
    text = bytearray()
    while len(text) < size:
        text += next(lines)
    return io.BytesIO(text)


def _xids() -> Iterator[bytes]:
    line = b"[%9d.%06d] NVRM: Xid (PCI:0000:3b:00): 31, pid=%d, name=python3, Ch %08x, intr 00000000. MMU Fault: "
    for at in itertools.count():
        yield line % (at // 50, at % 50, at // 50, at) + b"ENGINE GRAPHICS\n"


def _training() -> Iterator[bytes]:
    for at in itertools.count(1):
        yield b"2026-11-22 10:%02d:00 step %d loss %.4f | %d tokens/s\n" % (at // 50 % 60, at // 50, 50 / at, at * 7)


def _random() -> Iterator[bytes]:
    chance = random.Random(1)
    while True:
        yield b"%x %x nvidia %x cuda error %x\n" % tuple(chance.getrandbits(70) for _ in range(4))


@pytest.mark.parametrize(
    ("lines", "size", "limit_s"),
    [
        pytest.param(_xids(), 50_000_000, 10, marks=pytest.mark.nightly, id="50 MB of Xids"),
        pytest.param(_xids(), 5_000_000, 2, id="xids"),
        pytest.param(itertools.repeat(TABLE), 5_000_000, 2, id="tables"),
        pytest.param(_training(), 5_000_000, 2, id="training"),
        pytest.param(_random(), 5_000_000, 2, id="random"),
    ],
)
def test_five_megabytes_of_a_log_are_read_within_two_seconds(lines: Iterator[bytes], size: int, limit_s: float) -> None:
    catalogue.all_symptoms()
    log = _log(lines, size)
    start = time.process_time()
    text = read(log, TODAY)
    assert within(time.process_time() - start, limit_s)
    assert text.lines > size / 200


@pytest.mark.nightly
def test_the_log_is_not_kept() -> None:
    catalogue.all_symptoms()
    log = _log(_xids(), 7_000_000)
    tracemalloc.start()
    read(log, TODAY)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6_500_000


def test_each_port_of_many_alike_records_is_named() -> None:
    head = "[1.300] [Hardware Error]: event severity: fatal\n[1.300] [Hardware Error]:   section_type: PCIe error\n"
    text = "".join(f"{head}[1.300] [Hardware Error]:   device_id: 0000:{at:02x}:01.1\n" for at in range(6))
    (problem,) = _read(text).problems
    assert all(f"0000:{at:02x}:01.1" in problem.seen for at in range(4))
    assert "and 2 more" in problem.seen


def test_healthy_lines_of_a_log_are_no_unknown_errors() -> None:
    text = _read(
        "[    0.100000] EXT4-fs (sda2): mounted filesystem with ordered data mode. Opts: errors=remount-ro\n"
        "[    0.200000] pcieport 0000:00:01.1: AER: enabled with IRQ 28\n"
        "[    0.300000] nvidia-uvm: Loaded the UVM driver, major device number 511.\n"
        "2026-11-22 10:00:00 INFO step 12: 0 errors\n"
    )
    assert (text.errors, text.unread, text.problems) == ((), (), ())
