"""Compiles and starts the management controller of a host (bmc.c), one process for each boot of a host with a rig."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from lab.simulators.cuda.build import NVML, STATE
from rigwright.core.errors import HostError

HERE = Path(__file__).resolve().parent
FLAGS = (
    "-D_GNU_SOURCE", "-O1", "-g0", "-std=gnu11", "-pthread", "-Wall", "-Wextra", "-Werror", '-DLIBRARY_VERSION="none"',
)  # fmt: skip


def built(cache: Path) -> Path:
    """Returns the path of the program, compiled once per content of its sources.

    Raises HostError with the compiler's output if compilation fails.
    """
    sources = [*sorted(HERE.glob("*.c")), *(NVML / f"{part}.c" for part in STATE)]
    digest = hashlib.sha256(repr(FLAGS).encode())
    for path in [*sources, *sorted(HERE.glob("*.h")), *sorted(NVML.glob("*.h"))]:
        digest.update(path.read_bytes())
    program = cache / "bmc" / digest.hexdigest()[:24]
    if program.exists():
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    fresh = program.with_suffix(f".{os.getpid()}")
    try:
        subprocess.run(
            ["gcc", *FLAGS, "-o", str(fresh), *map(str, sources)],
            capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
    except FileNotFoundError:
        raise HostError("bmc", "gcc is not there", "gcc", "apt-get install gcc libc6-dev") from None
    except subprocess.CalledProcessError as failed:
        raise HostError("bmc", f"gcc failed:\n{failed.stderr[-2000:]}") from None
    fresh.replace(program)
    return program


def start(name: str, hw: Path, zero_s: int, cache: Path) -> subprocess.Popen[bytes]:
    """Starts the controller of the host, which ends with the calling process and with the boot.

    `zero_s`: the machine's monotonic clock at the start of the boot, in seconds. Raises HostError.
    """
    report = [sys.executable, "-m", "lab.faults.brownout", name]
    return subprocess.Popen([built(cache), hw, f"{zero_s}000000000", *report], stdin=subprocess.DEVNULL)
