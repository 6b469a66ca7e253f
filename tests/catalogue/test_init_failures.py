"""The numbers of `RmInitAdapter failed!`: their names, and errors in the table."""

from __future__ import annotations

import pytest

from rigwright.catalogue.init_failures import init_failures_in
from rigwright.catalogue.symptoms import symptoms_in


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
