"""Finds the problems in a pasted text: what one or several programs printed, one after the other.

The text is read once, line by line, with bounded memory. The first reader that knows a line takes it; lines of no
program that is known here are counted, so that an answer says how much of the text it is about.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import BinaryIO, Protocol

from msgspec import Struct
from msgspec.structs import replace

from rigwright import catalogue
from rigwright.catalogue.consequences import follows
from rigwright.catalogue.symptoms import Cause
from rigwright.checks import Finding, of_symptom
from rigwright.core import lazy_re
from rigwright.core.control_characters import one_line
from rigwright.core.errors import UsageError
from rigwright.core.numbers import count
from rigwright.facts import kernel_log
from rigwright.features.explain import smi_checks as judge
from rigwright.features.explain.ipmi_text import IpmiReader
from rigwright.features.explain.line_kinds import ERROR, KINDS, NO_ERROR, SILENT
from rigwright.features.explain.log_search import Hit, LogSearch
from rigwright.features.explain.lshw_text import LshwReader
from rigwright.features.explain.lspci_text import LspciReader
from rigwright.features.explain.module_builds import ModuleBuilds
from rigwright.features.explain.peer_bandwidth_text import PeerBandwidthReader
from rigwright.features.explain.smi_text import QueryGpu, QueryReader, Table, TableReader
from rigwright.features.explain.topology_text import TopologyReader

BLOCK_BYTES = 1 << 20
LONGEST_LINE = 4096
"""Characters of a line that are read; its other characters are ignored."""
SHORTEST_LINE = 6
"""Bytes; shorter lines say nothing of a GPU."""
_BATCH = 2000
_SEEN_SHAPES = 50_000
_SAME_SHAPE = 3
_MOST_FINDINGS = 500
_MOST_LINES = 500
"""The number of lines of each sort that are kept: not understood, unknown errors, records of the firmware."""


class Problem(Struct, frozen=True):
    """A problem in the text.

    `key`: a symptom, `Xid 13`, or "". `line`: the number of the first line with it. `after`: the number from 1 of the
    problem that may have caused it, or 0. `codes`: the meaning of numbers in the message, each with its source.
    `causes`: possible causes, each with whether the text shows it; those come first.
    """

    key: str
    title: str
    level: str
    line: int
    seen: str
    cause: str
    fix: str
    source: str = ""
    after: int = 0
    codes: tuple[tuple[str, str], ...] = ()
    causes: tuple[tuple[Cause, bool], ...] = ()


class PastedText(Struct, frozen=True):
    """The contents of a text. `parts`: its kinds, in words. `problems`: causes before their consequences, worst first.
    `normal`: messages of the catalogue that are no problem. `notes`: other facts that are no problems.

    `unread`: lines of no kind that is known, with their numbers, without those that differ only in long numbers;
    `unread_count`: how many there are with those, at least. `errors`: lines with an error that the catalogue does not
    know. Of both the first 500 are kept.
    """

    lines: int
    parts: tuple[str, ...]
    problems: tuple[Problem, ...]
    normal: tuple[Problem, ...]
    notes: tuple[str, ...]
    unread: tuple[tuple[int, str], ...]
    unread_count: int
    errors: tuple[tuple[int, str], ...]


def read(stream: BinaryIO, today: datetime.date, start: bytes = b"") -> PastedText:
    """Reads a text to its end. `start`: the bytes of it that were read before. Raises UsageError for an empty text, and
    for bytes that are no text."""
    reading = _Reading(today)
    lines = 0
    blocks = iter(lambda: stream.read(BLOCK_BYTES), b"")
    for lines, line in _lines(chain([start] if start else [], blocks), stream):
        reading.feed(lines, line)
    reading.end()
    if not reading.has_text:
        raise UsageError("explain", "stdin is empty", "the text of a log", "sudo dmesg | invoke explain -")
    unread, unread_count = reading.unread()
    return PastedText(
        lines, reading.parts(), _ordered(reading.problems()), tuple(reading.normal()), tuple(reading.notes()),
        unread, unread_count, reading.errors(),
    )  # fmt: skip


_ESCAPE_SEQUENCE = lazy_re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def _lines(blocks: Iterable[bytes], stream: BinaryIO) -> Iterator[tuple[int, str]]:
    """The lines of the blocks of a stream with their numbers, without escape sequences of a terminal, cut to
    LONGEST_LINE characters.

    Beyond the first hundred, lines of fewer than SHORTEST_LINE bytes are left out. The last one may be empty.
    """
    rest, first, number = b"", True, 0
    for block in blocks:
        if block.endswith(b"\r"):
            block += stream.read(1)
        if first:
            _insist_on_text(block)
            first = False
        *lines, rest = (rest + block).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest = rest[:LONGEST_LINE]
        for line in lines:
            number += 1
            if len(line) >= SHORTEST_LINE or number < 100:
                yield number, _decoded(line)
    yield number + bool(rest), _decoded(rest)


def _decoded(line: bytes) -> str:
    text = line[:LONGEST_LINE].decode("utf-8", "replace")
    return _ESCAPE_SEQUENCE.sub("", text) if "\x1b" in text else text


_TEXT_BYTES = bytes({*range(32, 256), 7, 8, 9, 10, 12, 13, 27} - {127})


def _insist_on_text(block: bytes) -> None:
    start = block[:65536]
    other = len(start.translate(None, _TEXT_BYTES))
    broken = start.decode("utf-8", "replace").count("\ufffd")
    if other * 10 > len(start) or broken * 4 > len(start):
        fix = "a journal: journalctl -k | invoke explain -; a compressed log: zcat FILE | invoke explain -"
        raise UsageError("explain", "stdin is no text: most of its bytes are binary", "a log in UTF-8", fix)


_OF_KERNEL = ("dkms.kernel_too_new", "dkms.gpl_symbol", "dkms.objtool_error", "dkms.build_failed")
"""Symptoms of a module that does not build for a kernel."""
_VARIABLE = lazy_re.compile(r"\d+[.:]\d[\d.:]*|(?:0x)?[0-9a-fA-F]{4,}")
_GPU_AT = lazy_re.compile(
    r"(?:\bnvidia|NVRM: GPU(?: at PCI)?|Xid \(PCI)[ :]+[0-9a-fA-F]{4,8}:([0-9a-fA-F]{2}):[0-9a-fA-F]{2}"
)
"""A GPU that the kernel log names; the group is its bus."""


class Reader(Protocol):
    """Reads what one program printed, from all lines of a text."""

    is_searched: bool
    """Whether messages in the last line may be those of a GPU."""

    def feed(self, number: int, line: str) -> bool:
        """Whether the next line is part of what the program printed."""

    def parts(self) -> Iterator[str]:
        """What was read, in words; nothing if the text has no such part."""

    def findings(self) -> Iterator[tuple[int, Finding]]:
        """The problems in it, and remarks (info), each with its line."""


class _Reading:
    """The state of the reading. Of lines that differ only in long numbers, three are searched."""

    def __init__(self, today: datetime.date) -> None:
        self.has_text = False
        self._today = today
        self._search = LogSearch()
        self._table, self._query = TableReader(), QueryReader()
        self._readers: tuple[Reader, ...] = (
            TopologyReader(), PeerBandwidthReader(), LspciReader(), LshwReader(), IpmiReader(),
        )  # fmt: skip
        self._tracebacks = _Tracebacks()
        self._module_builds = ModuleBuilds()
        self._batch: list[tuple[int, str]] = []
        self._shapes: Counter[str] = Counter()
        self._kinds: dict[str, None] = {}
        self._findings: dict[tuple[str, str, str], tuple[int, Finding]] = {}
        self._gpus: Counter[str] = Counter()
        self._gpu_buses: set[str] = set()
        self._versions: dict[tuple[str, str], None] = {}
        self._unread: dict[str, tuple[int, str]] = {}
        self._unread_counts: Counter[str] = Counter()
        self._errors: dict[int, str] = {}
        self._records: list[tuple[int, str]] = []

    def feed(self, number: int, line: str) -> None:
        """Reads the next line."""
        line = line.removeprefix("> ")  # a quotation
        if not line or line.isspace():
            return
        self.has_text = True
        if "xid" in line.lower():
            self._search.count_xid(number, line)
        if "[Hardware Error]:" in line and len(self._records) < _MOST_LINES:
            self._records.append((number, line))
        in_traceback = self._tracebacks.feed(number, line)
        is_table, table = self._table.feed(number, line)
        if table:
            self._end_table(table)
        if is_table:
            if "Driver Version" in line:
                self._batch.append((number, line))
            return
        if gpu := self._query.feed(number, line):
            self._end_gpu(gpu)
        reader = None
        if not self._query.is_open:
            reader = next((reader for reader in self._readers if reader.feed(number, line)), None)
        if reader and not reader.is_searched:
            return
        shape = _VARIABLE.sub("#", line)
        self._shapes[shape] += 1
        if self._shapes[shape] > _SAME_SHAPE:
            if shape in self._unread:
                self._unread_counts[shape] += 1
            return
        if len(self._shapes) > _SEEN_SHAPES:
            self._shapes.clear()
        if not (reader or self._query.is_open or in_traceback):
            self._sort(number, line, shape)
        self._batch.append((number, line))
        if len(self._batch) >= _BATCH:
            self._search_batch()

    def _sort(self, number: int, line: str, shape: str) -> None:
        """Notes the kind of a line that is no part of the output of a known program, and whether it is an error."""
        if kind := next((kind for kind, pattern in KINDS if pattern.search(line)), ""):
            self._kinds[kind] = None
            if len(self._errors) < _MOST_LINES and ERROR.search(line):
                self._errors[number] = line
        elif not SILENT.search(line):
            if len(self._unread) < _MOST_LINES:
                self._unread.setdefault(shape, (number, line))
            self._unread_counts[shape if shape in self._unread else ""] += 1
        if "nvidia" in line or "linux" in line or "kernel " in line or "Linux" in line:
            self._module_builds.feed(line)
        if ("NVRM" in line or "nvidia " in line) and (gpu := _GPU_AT.search(line)):
            self._gpu_buses.add(gpu[1].lower())

    def end(self) -> None:
        """Reads the incomplete parts at the end of the text."""
        if table := self._table.end():
            self._end_table(table)
        if gpu := self._query.end():
            self._end_gpu(gpu)
        self._search_batch()
        for reader in self._readers:
            for line, finding in reader.findings():
                self._keep(line, [finding])
        for record in dict.fromkeys(kernel_log.pcie_records(tuple(line for _, line in self._records))):
            below = " (a GPU of this text)" if record.bus_below in self._gpu_buses else ""
            seen = f"{record.text}{below}"
            finding = of_symptom("pcie.record", record.bus_id, seen, "", "host", verdict=record.level)
            self._keep(self._records[0][0], [finding])

    def _search_batch(self) -> None:
        if self._batch:
            self._search.feed(self._batch)
            self._batch = []

    def _end_table(self, table: Table) -> None:
        self._gpus["nvidia-smi"] = max(self._gpus["nvidia-smi"], len(table.rows))
        self._versions[table.driver, table.cuda] = None
        for row in table.rows:
            self._keep(row.line, judge.of_row(row, table))

    def _end_gpu(self, gpu: QueryGpu) -> None:
        self._gpus["nvidia-smi -q"] += 1
        self._versions[self._query.driver, self._query.cuda] = None
        self._keep(gpu.line, judge.of_query(gpu))

    def _keep(self, line: int, findings: Iterable[Finding]) -> None:
        for finding in findings:
            key = (finding.symptom, finding.cause, finding.subject)
            if key not in self._findings and len(self._findings) < _MOST_FINDINGS:
                self._findings[key] = (line, finding)

    def parts(self) -> tuple[str, ...]:
        """The kinds of text that were read, in words."""
        smi = [f"{kind} of {count(number, 'GPU')}" for kind, number in self._gpus.items() if number]
        if "nvidia-smi" in self._gpus and not self._gpus["nvidia-smi"]:
            smi.append("nvidia-smi without a GPU")
        read = (part for reader in self._readers for part in reader.parts())
        traceback = ["a Python traceback"] if self._tracebacks.ends else []
        return (*smi, *read, *self._kinds, *traceback)

    def unread(self) -> tuple[tuple[tuple[int, str], ...], int]:
        """The lines of no known kind and without a message of the catalogue, of equal ones the first; and the number of
        all."""
        lines = self._without_message(dict(self._unread.values()))
        shapes = [shape for shape, line in self._unread.items() if line in lines]
        return lines, self._unread_counts[""] + sum(self._unread_counts[shape] for shape in shapes)

    def errors(self) -> tuple[tuple[int, str], ...]:
        """The lines with an error that the catalogue does not know."""
        return self._without_message({n: line for n, line in self._errors.items() if not NO_ERROR.search(line)})

    def _without_message(self, lines: dict[int, str]) -> tuple[tuple[int, str], ...]:
        known = {n for hit in self._search.symptoms.values() for n in range(hit.line, min(hit.last, hit.line + 50) + 1)}
        known |= {hit.line for hit in self._search.xids.values()}
        return tuple(
            (number, line)
            for number, line in lines.items()
            if number not in known and not catalogue.symptoms_in(line) and not catalogue.xids_in(line)
        )

    def problems(self) -> list[Problem]:
        """All problems, in the order of the lines."""
        problems = [*self._from_findings("fail", "warn", "unknown"), *self._from_xids(), *self._from_tracebacks()]
        problems += self._from_symptoms({problem.key for problem in problems})
        telling = [problem for problem in problems if _rank(problem) != "wrapper"] or problems
        return sorted(telling, key=lambda problem: problem.line)

    def normal(self) -> Iterator[Problem]:
        """The messages of the catalogue that are no problem."""
        return self._from_symptoms({finding.symptom for _, finding in self._findings.values()}, normal=True)

    def _from_symptoms(self, other: set[str], normal: bool = False) -> Iterator[Problem]:
        """The symptoms of the log search without `other` keys."""
        for key, hit in self._search.symptoms.items():
            symptom = catalogue.all_symptoms()[key]
            if key not in other and (symptom.level == "info") == normal:
                yield self._of_symptom(symptom, hit)

    def _of_symptom(self, symptom: catalogue.Symptom, hit: Hit) -> Problem:
        times = next((xid.count for xid in self._search.xids.values() if xid.line == hit.line), 1)
        causes = sorted(((cause, cause in self._search.causes) for cause in symptom.causes), key=lambda row: not row[1])
        fix, known = symptom.fix, catalogue.xids()
        if symptom.key in _OF_KERNEL and (advice := self._module_builds.advice(self._today)):
            fix = f"{advice}; {fix}"
        codes = [
            (f"Xid {code}, {known[code].name}: {known[code].meaning} {_steps(known[code])}", catalogue.xid_source())
            for code in catalogue.xids_in(hit.text)
            if code in known
        ]
        if symptom.key.startswith("gpu.init_"):
            codes += [(text, catalogue.init_failure_source()) for text in catalogue.init_failures_in(hit.text)]
        return Problem(
            symptom.key, symptom.title, symptom.level, hit.line, _quoted(hit.line, hit.text, times),
            symptom.cause, fix, symptom.source, codes=tuple(codes), causes=tuple(causes),
        )  # fmt: skip

    def _from_findings(self, *verdicts: str) -> Iterator[Problem]:
        groups: dict[tuple[str, str], list[tuple[int, Finding]]] = {}
        for line, finding in self._findings.values():
            if finding.verdict in verdicts:
                groups.setdefault((finding.symptom, finding.cause), []).append((line, finding))
        for (key, cause), members in groups.items():
            line, first = members[0]
            symptom = catalogue.all_symptoms().get(key)
            title, source = (
                (symptom.title, symptom.source) if symptom else (first.seen[:1].upper() + first.seen[1:], "")
            )
            seen = _in_one_line([finding for _, finding in members])
            causes = symptom.causes_in(" ".join(finding.seen for _, finding in members)) if symptom else ()
            fix = first.fix.partition(f"; invoke explain {key} lists")[0]  # which stand in `causes`
            yield Problem(key, title, first.verdict, line, seen, cause, fix, source, causes=causes)

    def _from_xids(self) -> Iterator[Problem]:
        codes: dict[int, list[Hit]] = {}
        for (_, code), hit in self._search.xids.items():
            codes.setdefault(code, []).append(hit)
        for code, hits in codes.items():
            if not any(symptom.key in self._search.symptoms for symptom in catalogue.symptoms_in(hits[0].text)):
                yield _of_xid(code, hits)

    def _from_tracebacks(self) -> Iterator[Problem]:
        for text, number in self._tracebacks.ends.items():
            if not catalogue.symptoms_in(text):
                cause = "the catalogue does not know this text"
                fix = "the lines above it name the place in the program; earlier errors in the same log come first"
                title = f"A Python program ended with {text.partition(':')[0][:60]}"
                yield Problem("traceback", title, "warn", number, text, cause, fix)

    def notes(self) -> Iterator[str]:
        """Properties of GPUs, and versions."""
        for problem in self._from_findings("info"):
            yield f"{problem.seen}. {problem.cause}" if problem.cause else problem.seen
        for driver, cuda in list(self._versions)[:3]:
            yield from judge.of_versions(driver, cuda, self._today)


class _Tracebacks:
    """The last lines of Python tracebacks: `ends` has their numbers by text, of up to twenty texts."""

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}
        self._column = -1

    def feed(self, number: int, line: str) -> bool:
        """Reads the next line. Returns whether it is part of a traceback."""
        if "Traceback (most recent call last)" in line:
            self._column = line.index("Traceback")
            return True
        if self._column < 0:
            return False
        text = line[self._column :]
        if text[:1] not in ("", " ", "\t"):
            self._column = -1
            if re.match(r"[A-Za-z_][\w.]*(?::|$)", text) and len(self.ends) < 20:
                self.ends.setdefault(text, number)
                return True
            return False
        return True


def _in_one_line(findings: Sequence[Finding]) -> str:
    """The findings of one cause, in one line: `GPU 0, GPU 1: persistence mode is off`."""
    subjects: dict[str, list[str]] = {}
    for finding in findings:
        subjects.setdefault(finding.seen, []).append(finding.subject or "the GPU")
    texts = []
    for seen, names in list(subjects.items())[:4]:
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        texts.append(f"{', '.join(names[:8])}{more}: {seen}")
    return "; ".join(texts) + (f"; and {len(subjects) - 4} more" if len(subjects) > 4 else "")


def _of_xid(code: int, hits: Sequence[Hit]) -> Problem:
    level, source = "warn", ""
    cause, fix = "a code that the catalogue does not describe", "look at the lines around it"
    if known := catalogue.xids().get(code):
        level = "fail" if known.action not in ("ignore", "follow_other") and not known.application else "warn"
        cause = known.meaning + (" Mostly the program, not the GPU." if known.application else "")
        fix, source = _steps(known), catalogue.xid_source()
    key, line = f"Xid {code}", hits[0].line
    seen = _quoted(line, hits[0].text, sum(hit.count for hit in hits))
    return Problem(key, key, level, line, seen, cause, fix, source)


def _steps(known: catalogue.Xid) -> str:
    """What to do after an Xid."""
    return "; ".join((*known.first_steps, known.do)) + (f"; if it comes again: {known.again}" if known.again else "")


def _quoted(number: int, text: str, times: int) -> str:
    more = f" ({times} times)" if times > 1 else ""
    return f"line {number}: {one_line(text)[:160]}{more}"


def _ordered(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """The problems, each before its possible consequences; failures before warnings, then by line.

    A traceback that the catalogue does not know may be a consequence of every failure.
    """
    parents: dict[int, int] = {}
    for at, effect in enumerate(problems):
        causes = [
            other
            for other, cause in enumerate(problems)
            if other != at and _may_follow(effect, cause) and not _may_follow(cause, effect)
        ]
        if causes:
            parents[at] = min(causes, key=lambda other: problems[other].level != "fail")

    def below(at: int) -> list[int]:
        return [at, *(inner for child, parent in parents.items() if parent == at for inner in below(child))]

    trees = [below(at) for at in range(len(problems)) if at not in parents]
    trees.sort(key=lambda tree: (not any(problems[at].level == "fail" for at in tree), problems[tree[0]].line))
    order = [at for tree in trees for at in tree]
    places = {at: number for number, at in enumerate(order, 1)}
    return tuple(replace(problems[at], after=places[parents[at]] if at in parents else 0) for at in order)


def _may_follow(effect: Problem, cause: Problem) -> bool:
    if effect.key == "traceback":
        return cause.level == "fail" and cause.key != "traceback"
    return follows(effect.key, cause.key) or (
        _rank(effect) == "consequence"
        and _rank(cause) == "cause"
        and cause.level == "fail"
        and _kind(cause) in {_kind(effect), "driver", "boot", "hardware", "power"}
    )


def _rank(problem: Problem) -> str:
    symptom = catalogue.all_symptoms().get(problem.key)
    return symptom.rank if symptom else "cause"


def _kind(problem: Problem) -> str:
    symptom = catalogue.all_symptoms().get(problem.key)
    return symptom.kind if symptom else ""
