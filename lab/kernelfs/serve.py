"""Owns the FUSE daemon of the lab (kernelfs.h): compiled once, mounted at .lab/run/kernel, one for all hosts.

Where FUSE cannot be used the lab goes on without: no /dev/kmsg, and PCI configuration spaces that everybody may read.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from lab import cgroups
from lab.host import unmount
from lab.paths import CACHE, CHECKOUT, HOSTS, RUN, TAG, folder
from lab.programs import run
from rigwright.errors import HostError

GROUP = "_kernel"
"""Its control group; no host can have this name."""
MOUNT = RUN / "kernel"
FOLDER = "kernel"
"""What a host sees of it, below its hardware's folder."""
START_S = 15.0
_SOURCES = Path(__file__).resolve().parent
_CONTROL = MOUNT / "control"
_FLAGS = ("-O1", "-g0", "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror")

Record = tuple[int, str]
"""Priority as in syslog (3 error, 4 warning, 6 information) and text."""


def up(say: Callable[[str], None]) -> bool:
    """The daemon serves; False, said in one message, where FUSE cannot be used. What a crash left mounted is gone first."""
    if available():
        return True
    stop()
    log = RUN / "kernel.log"
    try:
        binary = _built()
        folder(MOUNT)
        log.write_text("")
        with log.open("ab") as out:
            argv = ["setsid", "--fork", sys.executable, "-m", "lab.kernelfs.serve", str(binary)]
            subprocess.run(
                argv, cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=START_S, check=True
            )
        ends = time.monotonic() + START_S
        while not available():
            if log.stat().st_size or time.monotonic() > ends:
                raise HostError("lab", log.read_text(errors="replace").strip() or "no answer")
            time.sleep(0.01)
    except (HostError, OSError, subprocess.SubprocessError) as failed:
        stop()
        found = failed.found if isinstance(failed, HostError) else str(failed)
        say(f"No FUSE on this machine ({found}): hosts have no kernel log, and everybody may read PCI config files.")
        return False
    return True


def available() -> bool:
    """Whether the daemon answers."""
    try:
        return _CONTROL.exists()
    except OSError:  # its mount is there and it is not
        return False


def stop() -> None:
    """No daemon runs and nothing is mounted."""
    cgroups.kill(GROUP)
    cgroups.remove(GROUP)
    unmount(MOUNT)


def reset(name: str, zero_s: int) -> None:
    """The host boots: its log is empty; `zero_s` is the second of the machine's monotonic clock that is its zero."""
    if available():
        _CONTROL.write_text(f"reset {name} {zero_s}")


def forget(name: str) -> None:
    """Nothing is known of the host."""
    if available():
        _CONTROL.write_text(f"forget {name}")


def log(name: str, records: Iterable[Record]) -> None:
    """The host's kernel says this."""
    klog = MOUNT / name / "klog"
    if available() and klog.exists():
        descriptor = os.open(klog, os.O_WRONLY)
        try:
            for priority, text in records:
                os.write(descriptor, f"<{priority}>{text}".encode())
        finally:
            os.close(descriptor)


def _built() -> Path:
    """The program, compiled once per content of its sources."""
    digest = hashlib.sha256(repr(_FLAGS).encode())
    sources = sorted(_SOURCES.glob("*.c"))
    for path in [*sources, _SOURCES / "kernelfs.h"]:
        digest.update(path.read_bytes())
    binary = folder(CACHE) / "kernelfs" / digest.hexdigest()[:16]
    if not binary.exists():
        binary.parent.mkdir(exist_ok=True)
        fresh = binary.with_suffix(f".{os.getpid()}")
        run(["gcc", *_FLAGS, "-o", fresh, *sources])
        fresh.replace(binary)
    return binary


def main(binary: str) -> None:
    """Becomes the daemon, in its own control group."""
    cgroups.enter(GROUP)
    os.execv(binary, [binary, str(MOUNT), str(HOSTS), TAG])


if __name__ == "__main__":
    main(*sys.argv[1:])
