"""Builds, starts and controls the FUSE daemon of the lab (kernelfs.h): one for all hosts, mounted at .lab/run/kernel.

Without FUSE the lab works with limits: no /dev/kmsg, and every user can read the whole PCI configuration space.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from lab.base.paths import CACHE, CHECKOUT, HOSTS, RUN, TAG, folder
from lab.base.programs import run
from lab.host import cgroups
from lab.host.disk import unmount
from rigwright.core.errors import HostError

GROUP = "_kernel"
"""The daemon's control group. No host can have this name."""
MOUNT = RUN / "kernel"
FOLDER = "kernel"
"""Name of the host's part of the mount, in the folder of the host's hardware."""
START_S = 15.0
_SOURCES = Path(__file__).resolve().parent
_CONTROL = MOUNT / "control"
_FLAGS = ("-O1", "-g0", "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror")

Record = tuple[int, str]
"""Priority as in syslog (3: error, 4: warning, 6: information) and text."""


def up(say: Callable[[str], None]) -> bool:
    """Starts the daemon if it does not answer; removes a mount that a crash left.

    Returns False and passes one message to `say` if FUSE cannot be used.
    """
    if available():
        return True
    stop()
    log = RUN / "kernel.log"
    try:
        binary = _built()
        folder(MOUNT)
        log.write_text("")
        with log.open("ab") as out:
            argv = ["setsid", "--fork", sys.executable, "-m", "lab.simulators.kernelfs.serve", str(binary)]
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
    except OSError:  # the mount exists but the daemon does not run
        return False


def stop() -> None:
    """Stops the daemon and unmounts its file system."""
    cgroups.kill(GROUP)
    cgroups.remove(GROUP)
    unmount(MOUNT)


def reset(name: str, zero_s: int) -> None:
    """Empties the kernel log of a host at boot.

    `zero_s`: the machine's monotonic clock at the start of the boot, in seconds.
    """
    if available():
        _CONTROL.write_text(f"reset {name} {zero_s}")


def forget(name: str) -> None:
    """Removes a host from the daemon."""
    if available():
        _CONTROL.write_text(f"forget {name}")


def log(name: str, records: Iterable[Record]) -> None:
    """Adds records to a host's kernel log."""
    klog = MOUNT / name / "klog"
    if available() and klog.exists():
        descriptor = os.open(klog, os.O_WRONLY)
        try:
            for priority, text in records:
                os.write(descriptor, f"<{priority}>{text}".encode())
        finally:
            os.close(descriptor)


def _built() -> Path:
    """Returns the path of the program, compiled once per content of its sources."""
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
    """Enters the control group and replaces this process with the daemon."""
    cgroups.enter(GROUP)
    os.execv(binary, [binary, str(MOUNT), str(HOSTS), TAG])


if __name__ == "__main__":
    main(*sys.argv[1:])
