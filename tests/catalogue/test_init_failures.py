"""The numbers of `RmInitAdapter failed!`: their names, and errors in the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rigwright.catalogue import init_failures, loader
from rigwright.catalogue.init_failures import init_failures_in
from rigwright.catalogue.symptoms import symptoms_in
from rigwright.core.errors import InputError


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ("0x22:0x56:894", ["stage 0x22 GPUMGR_ATTACH_GPU", "status 0x56 NV_ERR_NOT_SUPPORTED"]),
        ("0x24:0x72:1603", ["stage 0x24 STATE_INIT", "status 0x72 NV_ERR_MEMORY_ERROR"]),
        ("0x62:0x65:2028", ["(GSP) was started", "NV_ERR_TIMEOUT: the GPU did not answer in time"]),
        ("0x62:0xf:2477", ["status 0x0f NV_ERR_GPU_IS_LOST"]),
        ("0X62:0X1A:1", ["status 0x1a NV_ERR_INSUFFICIENT_RESOURCES"]),
        ("0x26:0xffff:1172", ["stage 0x26, which the catalogue does not describe", "status 0xffff NV_ERR_GENERIC"]),
        ("0x25:0xffffffff:1039", ["status 0xffffffff, which the catalogue does not describe"]),
    ],
)
def test_the_numbers_are_named(numbers: str, words: list[str]) -> None:
    (sentence,) = init_failures_in(f"NVRM: GPU 0000:0b:00.0: RmInitAdapter failed! ({numbers})")
    for word in words:
        assert word in sentence


def test_each_failure_is_named_once_and_eight_at_most() -> None:
    assert init_failures_in("no line") == ()
    assert len(init_failures_in("RmInitAdapter failed! (0x22:0x56:1)\n" * 3)) == 1
    many = "".join(f"RmInitAdapter failed! (0x22:{number:#x}:1)\n" for number in range(200))
    assert len(init_failures_in(many)) == 8


@pytest.mark.parametrize("stage", ["0x11", "0x22", "0x24", "0x25", "0x26", "0x31", "0x61", "0x62"])
@pytest.mark.parametrize(
    "status", ["0xb", "0xf", "0x1a", "0x1c", "0x25", "0x3f", "0x40", "0x45", "0x56", "0x65", "0x72", "0xffff"]
)
def test_each_pair_of_numbers_has_one_symptom(stage: str, status: str) -> None:
    found = [one.key for one in symptoms_in(f"NVRM: GPU 0000:0b:00.0: RmInitAdapter failed! ({stage}:{status}:1)")]
    assert found
    assert not any(key.startswith("flavour.") for key in found)
    if stage not in ("0x31", "0x61"):
        assert len(found) == 1


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields an empty catalogue folder that replaces ours; the test writes it."""
    monkeypatch.setattr(loader, "FOLDER", tmp_path)
    init_failures._table.cache_clear()
    yield tmp_path
    init_failures._table.cache_clear()


GOOD = """\
sources: {name: a, meaning: b}
stages:
  "0x22": {name: ATTACH, meaning: attached}
statuses:
  "0x56": {name: NOT_SUPPORTED, meaning: unsupported}
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ('"0x56"', '"0x5G"', 5, "'0x5G' is no code"),
        ("meaning: unsupported", "meening: unsupported", 5, "'meening' has no source"),
        (", meaning: b", "", 3, "'meaning' has no source"),
        ("{name: ATTACH, meaning: attached}", "{name: ATTACH}", 3, "lacks meaning"),
    ],
)
def test_a_bad_row_is_named_by_line(folder: Path, old: str, new: str, line: int, words: str) -> None:
    (folder / "init_failures.yml").write_text(GOOD, encoding="utf-8")
    assert init_failures_in("RmInitAdapter failed! (0x22:0x56:1)")
    init_failures._table.cache_clear()
    (folder / "init_failures.yml").write_text(GOOD.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        init_failures_in("RmInitAdapter failed! (0x22:0x56:1)")
    assert caught.value.where == f"catalogue/init_failures.yml:{line}"
    assert words in str(caught.value)
