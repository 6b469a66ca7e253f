"""Libraries that are compiled here load with the C library of hosts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lab.simulators import guest_libc
from lab.simulators.cuda import build as cuda
from lab.simulators.nvml import build as nvml
from rigwright.core.errors import HostError


@pytest.mark.nightly
def test_the_libraries_need_no_newer_glibc_than_hosts_have(tmp_path: Path) -> None:
    """The compiler's own, on Debian 13 and Ubuntu 24.04, is newer than Debian 12's."""
    made = [nvml.build("535.261.03", tmp_path, tmp_path), cuda.build("cuda", "535.261.03", tmp_path, tmp_path)]
    assert all(guest_libc.needs(library) <= guest_libc.NEWEST for library in made)


def test_a_function_of_a_newer_glibc_is_named(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    library.write_bytes(b"\x7fELF\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.38\0")
    with pytest.raises(HostError) as refused:
        guest_libc.check(library, "libcuda.so.1")
    assert (refused.value.where, refused.value.found) == ("libcuda.so.1", "compiled here, it needs glibc 2.38")


@pytest.mark.parametrize("macro", ["C2X", "C23"])
def test_the_header_takes_back_what_a_newer_glibc_redirects(tmp_path: Path, macro: str) -> None:
    """A features.h as that of 2.39 and of 2.41, where this machine's own may be older."""
    (tmp_path / "features.h").write_text(f"#pragma once\n#define __GLIBC_USE_{macro}_STRTOL 1\n")
    (tmp_path / "a.c").write_text(
        f"#include <features.h>\n#if __GLIBC_USE_{macro}_STRTOL\n#error redirected\n#endif\nint one;\n"
    )
    argv = ["gcc", *guest_libc.INCLUDED, f"-I{tmp_path}", "-D_GNU_SOURCE", "-fsyntax-only", str(tmp_path / "a.c")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
