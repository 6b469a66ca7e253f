"""The shell script of pcie.functions: AER's counts and BAR1 without a process for each file."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rigwright.facts import pcie


@pytest.mark.parametrize(
    ("files", "total"),
    [
        (["RxErr 3\nTOTAL_ERR_COR 12\n"], "12"),
        (["DLP 0\nTOTAL_ERR_NONFATAL 2\n", "TOTAL_ERR_FATAL 5\n"], "7"),
        (["TOTAL_ERR_COR 0\n"], "0"),
        (["RxErr 3\n"], "-"),
        ([None], "-"),
        ([None, "TOTAL_ERR_FATAL 5\n"], "5"),
        (["TOTAL_ERR_COR x\n"], "0"),
    ],
)
def test_errors_are_counted(tmp_path: Path, files: list[str | None], total: str) -> None:
    paths = [tmp_path / str(number) for number in range(len(files))]
    for path, text in zip(paths, files, strict=True):
        if text is not None:
            path.write_text(text)
    assert _run(f'{_function("count")}\nerrors=; count "$@"; echo "$errors"\n', *paths) == f"|{total}\n"


_NONE = f"0x{0:016x} 0x{0:016x} 0x{0:016x}"


def _region(start: int, size: int, flags: int) -> str:
    return f"0x{start:016x} 0x{start + size - 1:016x} 0x{flags:016x}"


@pytest.mark.parametrize(
    ("rows", "bar1"),
    [
        # V100: registers of 32 bits, so BAR1 is the second row
        ([_region(0x92000000, 16 << 20, 0x40200), _region(0x38 << 40, 16 << 30, 0x14220C)],
         _region(0x38 << 40, 16 << 30, 0x14220C)),
        # H200: registers of 64 bits take two rows
        ([_region(0x104 << 36, 16 << 20, 0x14220C), _NONE, _region(0x100 << 36, 256 << 30, 0x14220C)],
         _region(0x100 << 36, 256 << 30, 0x14220C)),
        ([_region(0x92000000, 16 << 20, 0x40200), _NONE, _NONE], _NONE),
        ([_region(0x104 << 36, 16 << 20, 0x14220C), _NONE, _NONE], _NONE),
        ([], ""),
        (None, ""),
    ],
)  # fmt: skip
def test_bar1_is_the_region_after_the_registers(tmp_path: Path, rows: list[str] | None, bar1: str) -> None:
    path = tmp_path / "resource"
    if rows is not None:
        path.write_text("".join(f"{row}\n" for row in rows))
    assert _run(f'{_function("bar1")}\nbar1 "$1"; echo "$bar"\n', path) == f"{bar1}\n"


def _function(name: str) -> str:
    """Returns a shell function of the script."""
    found = re.search(rf"^{name}\(\) \{{$.*?^\}}$", pcie.functions.command.argv[2], re.MULTILINE | re.DOTALL)
    assert found
    return found[0]


def _run(program: str, *paths: Path) -> str:
    """Returns what a shell program prints; it must not print errors."""
    done = subprocess.run(["sh", "-c", program, "sh", *paths], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout
