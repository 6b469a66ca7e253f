"""Mistakes in the files of the catalogue: each is an error with the file, the line, and what is wrong."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from rigwright import catalogue
from rigwright.catalogue import advisories, cards, devices, loader, recovery_actions, symptoms, topics
from rigwright.catalogue.consequences import check_consequences
from rigwright.catalogue.init_failures import init_failures_in
from rigwright.core.errors import InputError

SYMPTOM = """\
symptoms:
  disk.full:
    title: The disk is full
    kind: tooling
    level: fail
    patterns:
      - 'No space left'
    texts:
      - "write: No space left on device"
    cause: Logs.
    fix: df -h
    source: ours
"""
XID = """\
sources: {name: a, meaning: b, action: c}
actions: {reset: do it}
xids:
  "79":
    name: GONE
    meaning: Gone.
    action: reset
"""
STEP = """\
sources: {level: a, cause: a, fix: a}
actions:
  Reset:
    level: fail
    cause: An error.
    fix: sudo reboot
"""
FAILURE = """\
sources: {name: a, meaning: b}
stages:
  "0x22": {name: ATTACH, meaning: attached}
statuses:
  "0x56": {name: NOT_SUPPORTED, meaning: unsupported}
"""
PAGE = """\
title: Fans
names: [fan]
patterns: ['.*fan.*loud.*']
texts: ["the fan is loud"]
lines:
  - {text: They turn., source: seen}
see: [invoke verify]
"""
OTHER_PAGE = "title: Heat\nnames: [airflow]\nlines:\n  - {text: a, source: b}\nsee: []\n"
SAMPLES = {
    "symptoms.yml": SYMPTOM,
    "xids.yml": XID,
    "recovery_actions.yml": STEP,
    "init_failures.yml": FAILURE,
    "consequences.yml": "consequences:\n  nccl.timeout: {after: [gpu.off_bus], source: a}\n",
    "topics/fans.yml": PAGE,
}
"""Files that are replaced by a short one; of the others the catalogue's own is changed."""


def _forget() -> None:
    """Forgets everything that was read from the catalogue."""
    for info in pkgutil.iter_modules(catalogue.__path__):
        for value in vars(import_module(f"rigwright.catalogue.{info.name}")).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields the folder of a catalogue like ours, whose files the test replaces."""
    for path in loader.FOLDER.rglob("*"):
        if path.suffix in (".yml", ".csv"):
            place = tmp_path / path.relative_to(loader.FOLDER)
            place.parent.mkdir(exist_ok=True)
            place.symlink_to(path)
    monkeypatch.setattr(loader, "FOLDER", tmp_path)
    _forget()
    yield tmp_path
    _forget()


def _replace(folder: Path, file: str, old: str, new: str) -> list[str]:
    """Replaces a part of a file, in which it occurs once; returns the lines of the file after that."""
    if file.startswith("topics/"):
        for path in (folder / "topics").iterdir():
            path.unlink()
        (folder / "topics/heat.yml").write_text(OTHER_PAGE, encoding="utf-8")
    before = SAMPLES.get(file) or (folder / file).read_text(encoding="utf-8")
    text, count = re.subn(old, lambda _: new, before)
    assert count == 1, f"{count} times {old}"
    (folder / file).unlink(missing_ok=True)
    (folder / file).write_text(text, encoding="utf-8")
    return text.splitlines()


READ: dict[str, Callable[[], object]] = {
    "advisories.yml": advisories.advisories,
    "consequences.yml": check_consequences,
    "cuda.yml": catalogue.toolkits,
    "devices.csv": devices.all_devices,
    "drivers.yml": catalogue.branches,
    "gpus/t4.yml": catalogue.models,
    "init_failures.yml": lambda: init_failures_in("RmInitAdapter failed! (0x22:0x56:1)"),
    "recovery_actions.yml": recovery_actions.all_recovery_actions,
    "releases.csv": catalogue.release_table,
    "symptoms.yml": symptoms.check_symptoms,
    "topics/fans.yml": topics.check_conflicts,
    "xids.yml": catalogue.xids,
}


@pytest.mark.parametrize("file", SAMPLES)
def test_the_samples_are_read(folder: Path, file: str) -> None:
    _replace(folder, file, r"\A", "")
    assert READ[file]() is None or READ[file]()


JULY = "    title: GPU display driver, July 2025"
T4 = "name: Tesla T4"  # the first key: an error about the whole file has its line
TEXTS = '    texts:\n      - "write: No space left on device"\n'
ROW = "driver,580.178.04,"
# The file, a regular expression, what is put in its place, how the line with the mistake begins, words of the message.


@pytest.mark.parametrize(
    ("file", "old", "new", "at", "words"),
    [
        ("advisories.yml", r' {4}source: "\S+/5670.md"\n', "", JULY, "'advisories.5670' lacks source"),
        ("advisories.yml", r'"https://\S+/5670.md"', '""', JULY, "source ''"),
        ("advisories.yml", r'"https://\S+/5670.md"', "NVIDIA", JULY, "source 'NVIDIA'"),
        ("advisories.yml", "date: 2025-07-24", "date: July 2025", "    date: July 2025", "'July 2025'"),
        ("advisories.yml", '"570": "570.172.08"', '"570": "580.172.08"', JULY, "580.172.08 in branch 570"),
        ("advisories.yml", '"570": "570.172.08"', '"570": 570.172', '    fixed: {"535": "535.261.03"', "570.172"),
        ("advisories.yml", '"570": "570.17', '"R570": "570.17', '    fixed: {"535": "535.261.03"', "'R570' is no"),
        ("advisories.yml", "  fixed: the bulletin's", "  fixd: the bulletin's", "    fixed: ", "'fixed' has no source"),
        ("consequences.yml", "timeout", "timeuot", 2, "did you mean 'nccl.timeout'"),
        ("consequences.yml", "off_bus", "of_bus", 2, "did you mean 'gpu.off_bus'"),
        ("consequences.yml", "gpu.off_bus", "eccc.", 2, "'eccc.'"),
        ("consequences.yml", "nccl.timeout", '"Xid 7"', 2, "'Xid 7'"),
        ("consequences.yml", ", source: a", "", 2, "lacks source"),
        ("cuda.yml", "8793F200}", "8793F20}", "    debian13:", "'02182E60104FCDC26EAE1B8597A5D4CB8793F20'"),
        ("cuda.yml", '  "12.1":', '  "12-1":', '  "12-1"', "no version"),
        ("cuda.yml", "  dropped: NVIDIA", "  droped: NVIDIA", '  "12.0"', "'dropped' has no source"),
        ("devices.csv", "# driver 580.178.04", "# driver", 1, "no driver version"),
        ("devices.csv", "1eb8,Tesla T4,,yes,yes", "1eb8,Tesla T4,,yes", "1eb8,", "the row '1eb8,Tesla T4,,yes'"),
        ("devices.csv", "1eb8,Tesla T4,", "2684,Tesla T4,", "2684,NVIDIA", "the row '2684,"),
        ("drivers.yml", '  "530": {kind: new feature,', '  "530": {kind: newer,', '  "530"', "'newer'"),
        ("drivers.yml", "eol: 2023-06-24", "eol: 2023-06", '  "530"', "'2023-06'"),
        ("drivers.yml", r"last_for: \[Kepler]", "last_for: [Keppler]", "    last_for:", "did you mean 'Kepler'"),
        ("drivers.yml", '  "530": {k', '  "r530": {k', '  "r530"', "no driver branch"),
        (
            "drivers.yml",
            '{"530.30.02": "6.2",',
            '{"530.30.02": 6.2,',
            '    builds_to_kernel: {"530',
            "530.30.02' is 6.2",
        ),
        ("gpus/t4.yml", "\narchitecture: ", "\narchitekture: ", "architekture:", "did you mean 'architecture'"),
        ("gpus/t4.yml", "max: 70}", "maximum: 70}", "power_w:", "unknown key of 'power_w' 'maximum'"),
        ("gpus/t4.yml", "\nmemory_mib: 15360", "\nmemory_mib: 15360 MiB", "memory_mib:", "'15360 MiB'"),
        ("gpus/t4.yml", "\nmemory_mib: 15360", "\nmemory_mib: 16", T4, "memory_mib 16"),
        ("gpus/t4.yml", "gb_s: 320", "gb_s: 0.32", T4, "memory_bandwidth_gb_s 0.32"),
        ("gpus/t4.yml", "default: 70,", "default: 350 W,", "power_w:", "'power_w.default' is '350 W'"),
        ("gpus/t4.yml", "min: 60,", "min: 75,", "power_w:", "75.0, 70.0, 70.0"),
        ("gpus/t4.yml", "pcie: granted", "pcie: allowed", "p2p:", "'p2p.pcie' is 'allowed'"),
        ("gpus/t4.yml", "state: P8", "state: P9", "idle:", "'idle.state' is 'P9'"),
        ("gpus/t4.yml", "\nfirst_branch: 410", "\nfirst_branch: '410'", "first_branch:", "'first_branch' is '410'"),
        ("gpus/t4.yml", '"1eb8"', '"1EB8", "1eb8"', "pci_ids:", "'1EB8' is no PCI device id"),
        ("gpus/t4.yml", '"1eb8"', '"1eb8", "2684"', "pci_ids:", "PCI id 2684 is also in catalogue/gpus/rtx-4090.yml"),
        ("gpus/t4.yml", r"memory: \[5001, 405]", "memory: [405, 5001]", "  memory:", "highest first"),
        ("gpus/t4.yml", "\nsources:", "\nkey: t4\nsources:", "key:", "unknown key 'key'"),
        ("gpus/t4.yml", "\n  p2p: ", "\n  peers: ", "  peers:", "a source of 'peers', which is no key here"),
        ("gpus/t4.yml", "\ntensor_cores: .*", "", T4, "lacks tensor_cores"),
        *(
            ("gpus/t4.yml", rf"\n  {key}: .*", "", f"{key}:", f"'{key}' has no source")
            for key in ("memory_mib", "tensor_cores", "power_w", "clocks_mhz", "idle", "first_branch")
        ),
        ("init_failures.yml", '"0x56"', '"0x5G"', 5, "'0x5G' is no code"),
        ("init_failures.yml", "meaning: unsupported", "meening: unsupported", 5, "'meening' has no source"),
        ("init_failures.yml", ", meaning: b", "", 3, "'meaning' has no source"),
        ("init_failures.yml", ", meaning: attached", "", 3, "lacks meaning"),
        ("recovery_actions.yml", "level: fail", "level: bad", 4, "bad"),
        ("recovery_actions.yml", "    fix: sudo reboot\n", "", 4, "lacks fix"),
        ("recovery_actions.yml", "level: a, ", "", 4, "'level' has no source"),
        ("recovery_actions.yml", "fix: sudo", "fixx: sudo", 6, "fixx"),
        ("releases.csv", r"# read \S+", "# read", 1, "no date"),
        ("releases.csv", r"# read \S+", "# read 2026-02-30", 1, "no date"),
        ("releases.csv", r"\A(?s:.*)\Z", "", 1, "no date"),
        ("releases.csv", f"{ROW}2026-08-03,", f"{ROW}2026-8-3,", ROW, f"the row '{ROW}2026-8-3,"),
        ("releases.csv", f"{ROW}2026-08-03,", f"{ROW}2026-08-33,", ROW, "2026-08-33"),
        ("releases.csv", f"{ROW}2026-08-03,,", f"{ROW}2026-08-03,newest,", ROW, "newest"),
        ("releases.csv", ROW, "driver,580,", "driver,580,", "driver,580,"),
        ("releases.csv", ROW, "drivers,580.178.04,", "drivers,", "drivers,"),
        ("releases.csv", ROW, "driver,580.173.02,", "driver,580.173.02,2026-08-03", "driver,580.173.02,"),
        ("releases.csv", f"{ROW}2026-08-03,,,.*", f"{ROW}2026-08-03,,", ROW, f"the row '{ROW}"),
        ("releases.csv", f"{ROW}2026-08-03,,,.*", f"{ROW}2026-08-03,,, ", ROW, f"the row '{ROW}"),
        ("symptoms.yml", "'No space left'", "'No space (left'", 7, "unterminated subpattern"),
        ("symptoms.yml", '"write: .*"', '"all is well"', 9, "no pattern of 'disk.full' finds this text"),
        ("symptoms.yml", TEXTS, "    texts: []\n", 8, "'disk.full' has no texts"),
        ("symptoms.yml", ":\n.*'No space left'\n", ": []\n", 6, "'disk.full' has no patterns"),
        ("symptoms.yml", TEXTS, "", 3, "lacks texts"),
        ("symptoms.yml", "kind: tooling", "kind: tool", 4, "did you mean 'tooling'"),
        ("symptoms.yml", "level: fail", "level: bad", 5, "'symptoms.disk.full.level' is 'bad'"),
        ("symptoms.yml", "\\Z", "    key: x\n", 13, "the row's name is the key"),
        ("symptoms.yml", "'No space left'", "'No space left|full'", 7, "has no word that each match contains"),
        ("symptoms.yml", "level: fail", "level: fail\n    rank: wrap", 6, "did you mean 'wrapper'"),
        ("symptoms.yml", "\\Z", "    causes: [{cause: a, fix: b}]\n", 13, "lacks see"),
        ("symptoms.yml", "\\Z", "    causes: [{cause: a, see: b, fix: c, shown_by: ['(x']}]\n", 13, "unterminated"),
        ("topics/fans.yml", r"names: \[fan]", "name: [fan]", 2, "unknown key 'name'"),
        ("topics/fans.yml", "title: Fans\n", "title: Fans\nkey: fans\n", 2, "the file's name is the key"),
        ("topics/fans.yml", r"'\.\*fan.*'", "'(fan'", 3, "a regular expression"),
        ("topics/fans.yml", "is loud", "is quiet", 4, "no pattern of 'fans' matches this text"),
        ("topics/fans.yml", ", source: seen", "", 6, "'lines' lacks source"),
        ("topics/fans.yml", r"\{.*seen}", "\n  - ".join(["{text: a, source: b}"] * 15), 5, "a page of 17 lines"),
        ("topics/fans.yml", "loud.*'", "loud.*', '.*library version mismatch'", 3, "of 'driver.mismatch'"),
        ("topics/fans.yml", r"\[fan]", "[fan, driver.mismatch]", 2, "of 'driver.mismatch'"),
        ("topics/fans.yml", r"\[fan]", "[fan, Airflow]", 2, "'Airflow' is also 'airflow' of 'heat'"),
        ("topics/fans.yml", "loud.*'", "loud.*', 'air.*'", 3, "'air.*' is also 'airflow' of 'heat'"),
        ("xids.yml", "action: reset", "action: resett", 7, "did you mean 'reset'"),
        ("xids.yml", '"79":', '"79a":', 4, "'79a' is no Xid"),
        ("xids.yml", "    meaning: Gone.\n", "", 5, "lacks meaning"),
        ("xids.yml", "    name: GONE\n", "    name: GONE\n    again: x\n", 6, "'again' has no source"),
        ("xids.yml", "meaning: b, ", "", 6, "'meaning' has no source"),
        ("xids.yml", "\\Z", "    code: 3\n", 8, "'code' has no source"),
    ],
)
def test_a_mistake_is_named_by_line(folder: Path, file: str, old: str, new: str, at: str | int, words: str) -> None:
    lines = _replace(folder, file, old, new)
    with pytest.raises(InputError) as caught:
        READ[file]()
    line = at if isinstance(at, int) else next(n for n, text in enumerate(lines, 1) if text.startswith(at))
    assert caught.value.where == f"catalogue/{file}:{line}"
    assert words in str(caught.value)


@pytest.mark.parametrize("read", [lambda: catalogue.model("t4"), lambda: catalogue.model_of("1eb8")])
def test_a_model_alone_is_checked_too(folder: Path, read: Callable[[], object]) -> None:
    _replace(folder, "gpus/t4.yml", "\narchitecture: ", "\narchitekture: ")
    with pytest.raises(InputError, match="did you mean 'architecture'"):
        read()


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        (
            "chips.yml",
            "1b80-1bff], architecture: Pascal",
            "1b80-1bff], architecture: Volta",
            "gtx-1070.yml says Pascal",
        ),
        ("chips.yml", r'0", first_branch: 570}\n  GB203', '1", first_branch: 570}\n  GB203', "rtx-5090.yml says Black"),
        ("chips.yml", "26ff], architecture: Ada", "26ff], architecture: Blackwell", "and open module of 2684"),
        ("chips.yml", "11bf], architecture: Kepler", "11bf], architecture: Turing", "of 1180, which is a GK104"),
        ("gpus/k80.yml", "last_branch: 470", "last_branch: 580", "last_branch 580 of 102d"),
        ("gpus/k80.yml", "last_branch: 470", "last_branch: null", "last_branch none of 102d"),
        ("gpus/gtx-1070.yml", "last_branch: 580", "last_branch: 470", "that 580 still drives it"),
        ("gpus/b200.yml", r"\[open]", "[open, proprietary]", "module_flavours open, proprietary of 2901"),
        ("gpus/gtx-1070.yml", r"\[proprietary]", "[proprietary, open]", "module_flavours open, proprietary of 1b81"),
        ("gpus/rtx-3070.yml", '"2484", "2488"', '"2484", "2482"', "says NVIDIA GeForce RTX 3070 Ti"),
        (
            "gpus/rtx-4090.yml",
            "e: NVIDIA GeForce RTX 4090",
            "e: NVIDIA GeForce RTX 4080",
            "name NVIDIA GeForce RTX 4080",
        ),
        ("gpus/t4.yml", "name: Tesla T4", "name: NVIDIA T4", ""),  # the maker's prefix may differ
    ],
)
def test_a_disagreement_with_nvidias_list_is_reported(folder: Path, file: str, old: str, new: str, words: str) -> None:
    _replace(folder, file, old, new)
    sentences = (cards if file == "chips.yml" else devices).disagreements()
    assert bool(sentences) == bool(words)
    assert any(words in sentence for sentence in sentences) == bool(words)
