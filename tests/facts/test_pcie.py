"""The shell script of pcie.functions: AER's counts without a process for each file."""

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
    counting = re.search(r"^count\(\) \{$.*?^\}$", pcie.functions.command.argv[2], re.MULTILINE | re.DOTALL)
    assert counting
    program = f'{counting[0]}\nerrors=; count "$@"; echo "$errors"\n'
    done = subprocess.run(["sh", "-c", program, "sh", *paths], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"|{total}\n", "")
