"""Attack 15: answers that need minutes of this process, or all of its memory, and stop the threads of the other
hosts."""

from __future__ import annotations

import ast
import datetime
import functools
import gzip
import importlib
import importlib.util
import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rigwright import catalogue
from rigwright.catalogue.symptoms import _FLAGS, SEARCHED_CHARACTERS, _compiled, searched_part
from rigwright.catalogue.topics import topics
from rigwright.checks import problems
from rigwright.core import command_failures, host_text
from rigwright.core.command import Result
from rigwright.facts import Fact, Unreadable, kernel_log, machine, parsed
from rigwright.facts.gpu import health as gpu_health, nvidia_smi
from rigwright.facts.nccl import p2p_test as nccl
from rigwright.features.explain.pasted_text import read
from rigwright.ssh import batch_script
from tests import test_cases
from tests.machine_speed import slowness, within
from tests.paths import files
from tests.security.worst_cases import worst_cases

SIZE = host_text.ANSWER_BYTES
LINE = host_text.LINE_CHARACTERS
MOST_S = 1.0
MOST_PASTED_S = 2.0
"""The longest processor time of reading a pasted text of SIZE, which no other host waits for."""
MOST_STOP_S = 0.1
"""The longest processor time in which other threads do not run."""


def _seconds(act: Callable[[], object]) -> float:
    """The processor time that a function takes, on a machine of usual speed. What is over MOST_S is taken again, twice
    at most: with the caches and the memory of the machine full of the work of others it was three times as long, and an
    answer that is really slow stays slow."""
    taken = MOST_S
    for _ in range(3):
        begin = time.thread_time()
        act()
        taken = time.thread_time() - begin
        if taken < MOST_S:
            break
    return taken if taken < MOST_S else taken / slowness()


def _long(before: str, again: str, size: int = SIZE) -> str:
    """A text of that size: lines of the greatest length, each of which begins with `before` and goes on with
    `again`."""
    line = (before + again * (LINE // len(again) + 1))[: LINE - 1] + "\n"
    return (line * (size // len(line) + 1))[:size]


FACTS = sorted({case.tested for case in test_cases.cases("facts")})


@functools.cache
def _answer(name: str) -> tuple[Any, Result]:
    """A fact, and the longest of the answers in its cases that it understands."""
    made = []
    for case in (case for case in test_cases.cases("facts") if case.tested == name):
        fact = test_cases.fact_of(case)
        result = test_cases.result_of(case.content["answer"], fact.name)
        known = "value" in case.content and len(result.stdout) < LINE
        made.append((known, len(result.stdout), case.title, fact, result))
    return max(made, key=lambda row: row[:3])[3:]


def _texts(name: str, answer: str) -> dict[str, Callable[[int], str]]:
    """Functions that make hostile answers of a length: the answer with a line that is cut and lengthened, and the worst
    cases of every pattern in the module of the fact, alone and below the first line of the answer."""
    lines = answer.split("\n")
    made: dict[str, Callable[[int], str]] = {
        "empty lines": lambda size: "\n" * size,
        "the answer again and again": lambda size: _repeated(answer, size),
    }
    chosen = {0, len(lines) // 2, max(range(len(lines)), key=lambda at: len(lines[at]))}
    for number in chosen:
        for at in {len(lines[number]) // 2, len(lines[number])}:
            for again in {" ", "0", "a", lines[number] or "-"}:

                def lengthened(size: int, number: int = number, at: int = at, again: str = again) -> str:
                    line = (lines[number][:at] + again * (LINE // len(again)))[: LINE - 1]
                    return _repeated("\n".join([*lines[:number], line, *lines[number + 1 :], ""]), size)

                made[f"line {number} from {at} {again[:20]!r}"] = lengthened
    for before, again in KNOWN.get(name, ()):
        made[f"known {before[-30:]!r} {again[:30]!r}"] = lambda size, before=before, again=again: (
            before + again * (size // len(again))
        )  # type: ignore[misc]
    for pattern in _patterns(_module(name)):
        for before, again in sorted(worst_cases(pattern)):
            made[f"{before[-30:]!r} {again[:30]!r}"] = lambda size, before=before, again=again: _long(
                before, again, size
            )  # type: ignore[misc]
            made[f"below the first line {before[-30:]!r} {again[:30]!r}"] = lambda size, before=before, again=again: (
                lines[0] + "\n" + _long(before, again, size)
            )[
                # type: ignore[misc]
                :size
            ]
    return made


_SHOW = "--key\n--madison\na | 1 | s\n--show\nPackage: linux-modules-nvidia-535-a\nVersion: 1\n"
KNOWN = {
    "dpkg.next_upgrade": (("", "Inst a [\n"),),
    "apt_history.moved": (("Start-Date: 1\nInstall: ", "a"), ("Start-Date: 1\nInstall: ", "a (1), ")),
    "apt_archive.offered": (
        (f"{_SHOW}Provides: ", "nvidia-dkms-"), (f"{_SHOW}Depends: ", "nvidia-000a"),
        (f"{_SHOW}Depends: ", "linux-modules-nvidia-000-0.0."), (_SHOW, "\n\n"),
    ),
    "gpu_health.cards": (("", "<nvidia_smi_log>"), ("<nvidia_smi_log>", "<gpu id='0'>")),
    "grub.grub": (("parses=yes\n", "\n"), ("parses=yes\n", "menuentry 'a' {\n")),
}  # fmt: skip
"""Answers that once took minutes."""


def _repeated(text: str, size: int) -> str:
    return ((text.rstrip("\n") + "\n\n") * (size // (len(text) + 1) + 1))[:size]


def _module(name: str) -> str:
    """The module of the fact with this name."""
    thing = test_cases.facts_by_name()[name]
    return str(thing.parse.__module__ if isinstance(thing, Fact) else thing.__module__)


@functools.cache
def _patterns(module: str) -> tuple[str, ...]:
    """The regular expressions of a module of facts that do not depend on a value of the run."""
    loaded = importlib.import_module(module)
    found = []
    for node in ast.walk(ast.parse(Path(str(loaded.__file__)).read_text())):
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).startswith("re.")
            and node.args
            and isinstance(node.args[0], (ast.Constant, ast.JoinedStr))
        ):
            found.append(eval(compile(ast.Expression(node.args[0]), module, "eval"), vars(loaded)))
    return tuple(found)


@pytest.mark.parametrize("name", FACTS)
def test_no_answer_takes_a_fact_longer_than_a_second(name: str) -> None:
    fact, result = _answer(name)

    def seconds(text: str) -> float:
        answer = replace(result, stdout=text.encode("utf-8", "replace"))
        return _seconds(lambda: parsed(fact, answer))

    texts = _texts(name, result.text)
    taken = {label: seconds(made(SIZE // 64)) for label, made in texts.items()}
    for label in sorted(taken, key=lambda label: -taken[label])[:1]:
        assert taken[label] < MOST_S, label
        assert seconds(texts[label](SIZE)) < MOST_S, label


def _stop(act: Callable[[], object]) -> float:
    """The longest processor time between two calls or returns while a function acts: a call of C lets no other thread
    run before its end."""
    longest, last = 0.0, time.thread_time()

    def look(*_: object) -> None:
        nonlocal longest, last
        now = time.thread_time()
        longest, last = max(longest, now - last), now

    sys.setprofile(look)
    try:
        act()
    finally:
        sys.setprofile(None)
    return longest


@pytest.mark.parametrize(
    "name",
    ["dpkg.next_upgrade", "apt_history.moved", "kernel_log.kernel", "gpu_health.cards", "machine.machine", "grub.grub"],
)
def test_other_threads_go_on_during_a_long_answer(name: str) -> None:
    fact, result = _answer(name)
    texts = [
        _long("", "a "),
        _long("", "[0],"),
        (result.text.strip("\n") + "\n") * (SIZE // (len(result.text) + 1)),
        "[" * SIZE,
        "<a>" * (SIZE // 3),
    ]

    def act() -> None:
        for text in texts:
            parsed(fact, replace(result, stdout=text.encode()))

    assert within(min(_stop(act) for _ in range(3)), MOST_STOP_S)


PATTERNS = {
    f"{key}: {pattern[:60]}": pattern
    for key, symptom in catalogue.all_symptoms().items()
    for pattern in (
        *symptom.patterns,
        *symptom.only_with,
        *(each for cause in symptom.causes for each in cause.shown_by),
    )
}


@pytest.mark.nightly
def test_no_text_takes_a_symptom_longer_than_a_second() -> None:
    slow = {}
    for name, pattern in PATTERNS.items():
        for before, again in sorted(worst_cases(pattern, _FLAGS)):
            for size in (SEARCHED_CHARACTERS // 16, SEARCHED_CHARACTERS):  # most need no longer text to be told
                text = searched_part(_long(before, again, size))
                seconds = _seconds(lambda text=text, pattern=pattern: _compiled(pattern).search(text))
                if seconds < 0.002:
                    break
            if (
                seconds > MOST_S
                and _seconds(lambda text=text, pattern=pattern: _compiled(pattern).search(text)) > MOST_S
            ):
                slow[name] = (before, again, round(seconds, 2))
    assert not slow
    every = "\n".join(text for symptom in catalogue.all_symptoms().values() for text in symptom.texts)
    for text in ((every * (SIZE // len(every) + 1))[:SIZE], _long("", " "), _long("Xid", " ")):
        assert _seconds(lambda text=text: catalogue.symptoms_in(text)) < MOST_S
        assert _seconds(lambda text=text: catalogue.xids_in(text)) < MOST_S
    for topic in topics().values():
        assert (
            _seconds(lambda topic=topic: topic.is_meant("stuck " * 66)) < MOST_S / 10
        )  # explain takes longer texts for logs


LINES = [
    "[Hardware Error]: CPU 0: Machine Check", "DMAR: [DMA Read", "SXid (PCI:0", "NVRM: Xid (PCI:0000:3b:00",
    "EDAC MC0: 1 CE on ", "| 0 a ", "| 0  A On", "| P0", "| [", "| N/A",
    "NVIDIA-SMI 5 ", "    ", "GPU 0", "Link 0: ", "key : ", "0000:3b:00.0 ", "a/", "'/", "E: ",
    "Errors were encountered while processing:", "  *-display", "Device=0 CAN", "00:01.0 PCI bridge: ", "GPU0 GPU1 ",
    "GPU0 X ", "a,b", "a | b", "root@host:", "(a) b", "[Hardware Error]: device_id: ", "Linux a ", "Nov 22 10:00:00 a ",
    "P2P=Enabled Bandwidth", "   GPU 0 ", "       vendor: ", "  11 ", "Warning",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_no_line_of_a_log_takes_longer_than_a_second(line: str) -> None:
    for again in (line, " "):
        text = _long(line, again)
        lines = kernel_log.kernel.parse(Result(0, text.encode()))

        def pasted(text: str = text) -> None:
            short = "a\n" + "\n".join(text[at : at + 4000] for at in range(0, len(text), 4000))
            read(io.BytesIO(short.encode()), datetime.date(2026, 11, 22))

        parsers: tuple[Callable[[], object], ...] = (
            lambda text=text: command_failures.failure_in(text), lambda text=text: nvidia_smi.lost(text),
            lambda lines=lines: problems._NAMED.findall("\n".join(lines)),
            lambda lines=lines: kernel_log.xids(lines), lambda lines=lines: kernel_log.fatal_sxids(lines),
            lambda lines=lines: kernel_log.hardware_errors(lines), lambda lines=lines: kernel_log.pcie_records(lines),
            lambda lines=lines: kernel_log.iommu_faults(lines),
        )  # fmt: skip
        assert max(map(_seconds, parsers)) < MOST_S
        assert within(_seconds(pasted), MOST_PASTED_S)


@pytest.mark.parametrize(
    ("read", "text", "found"),
    [
        (host_text.json_value, "[" * 100_000, "nested deeper than 64 levels"),
        (host_text.json_value, "[" * 70 + "]" * 70, "nested deeper than 64 levels"),
        (host_text.json_value, "[" + "0," * 1_000_000 + "0]", "more than 200000 values"),
        (host_text.json_value, "1" * 1_000_000, "more than 18 digits"),
        (host_text.json_value, "1e999", "is no number"),
        (host_text.json_value, "[NaN]", "is no number"),
        (host_text.xml, "<a>" * 100 + "</a>" * 100, "nested deeper than 64 levels"),
        (host_text.xml, "<a>" * 190_000 + "</a>" * 190_000, "nested deeper than 64 levels"),
        (host_text.xml, "<a>" * 390_000, "cannot be read"),
        (host_text.xml, "<a>" + "<b/>" * 1_000_000 + "</a>", "more than 200000 elements"),
        (host_text.xml, '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "an entity"),
        (host_text.lines, "\n" * 100_001, "more than 100000 lines"),
        (host_text.lines, "x" * 65_537, "more than 65536 characters"),
        (host_text.integer, "9" * 1_000_000, "more than 18 digits"),
    ],
)  # fmt: skip
def test_every_limit_is_named(read: Callable[[str], object], text: str, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        read(text)


def test_a_line_ends_with_a_newline_only() -> None:
    assert host_text.lines("a\u2028b\x0bc\x85d\n\ne\n") == ["a\u2028b\x0bc\x85d", "", "e"]


def test_facts_read_through_the_one_bounded_reader() -> None:
    for path in files("rigwright/facts/*.py", "rigwright/features/*/facts.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                found = f"{path.name}:{node.lineno} {ast.unparse(node)}"
                assert node.attr != "splitlines", found
                assert found.split()[1] not in (
                    "json.loads",
                    "ElementTree.fromstring",
                    "gzip.decompress",
                    "lzma.decompress",
                    "zlib.decompress",
                ), found


def test_a_long_error_output_is_cut_in_the_middle_and_says_so() -> None:
    errors = b"first\n" + b"x" * (1 << 20) + b"\nlast"
    answer = b"N codes 1\n0.o 2\n0.e %d\nN data\nok%s\nN end\n" % (len(errors), errors)
    (result,) = batch_script.results(answer, "N", 1)
    assert result.error_text.startswith("first")
    assert result.error_text.endswith("last")
    assert "bytes omitted" in result.error_text
    assert len(result.stderr) < host_text.ERROR_BYTES + 100


def test_what_a_host_compresses_is_not_unpacked_without_a_limit() -> None:
    import base64

    from rigwright.facts import pcie

    head = b"==> /sys/bus/pci/devices/0000:00:01.0/config <==\n"
    bomb = base64.b64encode(gzip.compress(head + b"\0" * (64 << 20))).decode()
    began = time.thread_time()
    assert pcie._spaces(bomb) == {"0000:00:01.0": b"\0" * 4096}
    assert within(time.thread_time() - began, 0.5)


def test_refusals_name_the_fact() -> None:
    deep = Result(0, b'[{"a":' * 50_000)
    assert "nested" in str(parsed(nccl.tested, deep))
    lshw = Result(0, b"1048576\n1\n8\n" + b"[" * 100_000)
    assert isinstance(parsed(machine.machine, lshw), Unreadable)
    assert "gpu_health.cards" in str(
        parsed(gpu_health.cards, Result(0, b"<nvidia_smi_log>" + b"<a>" * 1000 + b"</nvidia_smi_log>"))
    )
