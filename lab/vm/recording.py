"""Recorded states of virtual machines: a machine that has booted once is saved with its memory, and others start from
there in seconds.

A recording fits only the same QEMU, device, options and image; a hash of them is part of its name. It belongs to one
host name, because the memory has the machine's serial number and keys: two machines never start from the same one.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from lab.base.paths import TAG, VM_CACHE, folder
from lab.base.programs import run
from lab.host import login
from lab.vm import hardware, machine
from lab.vm.machine import Machine
from lab.vm.qmp import Qmp
from rigwright.core.errors import HostError

RECORD_S, RESUME_S = 300.0, 120.0
MEMORY = "memory.zst"
KEPT = ("disk.qcow2", "variables.fd", "identity.tar")

FRESH = "fresh"
"""The state of a machine that has booted once, and no more."""

Say = Callable[[str], None]


def place(wanted: Machine, state: str = FRESH) -> Path:
    """Returns the folder of the recording that fits the machine, which may not exist yet. `state`: what was done on
    it."""
    version = run(["qemu-system-x86_64", "--version"]).stdout.splitlines()[0]
    options = "\0".join(machine.arguments(wanted, hardware.options(wanted)))
    for text in (str(wanted.folder), str(wanted.qmp.parent), TAG, f":{wanted.port}-"):
        options = options.replace(text, "")
    digest = hashlib.sha256("\0".join((version, wanted.image, hardware.fingerprint(), options)).encode()).hexdigest()[
        :16
    ]
    return VM_CACHE / f"recording-{wanted.name}-{state}-{digest}"


def record(running: Machine, target: Path, say: Say) -> None:
    """Saves a running machine's memory and disk in `target`, and switches the machine off."""
    partial = target.with_suffix(".partial")
    run(["rm", "-rf", "--one-file-system", partial, target], deadline=120)
    folder(partial.parent, 0o700)
    partial.mkdir(mode=0o700)
    say(f"{running.name}: recording its state in {target}")
    with Qmp(running.qmp) as qmp:
        qmp.execute("stop")
        qmp.execute("migrate", uri=f"exec:zstd -q -1 -T2 -o '{partial / MEMORY}'")
        status = lambda: str(qmp.execute("query-migrate")["status"])  # noqa: E731
        qmp.wait_for(status, {"completed"}, {"failed", "cancelled"}, RECORD_S)
    machine.cut(running.name)
    for path in running.folder.iterdir():
        if path.name in KEPT or path.name.startswith("ssh_host_"):
            shutil.copy2(path, partial / path.name)
    partial.rename(target)


def resume(made: Machine, say: Say) -> None:
    """Switches on a machine that was made from a recording: it goes on where the recorded one was, with the clock of
    now.

    Raises HostError when QEMU cannot read the state.
    """
    hardware.power_on(made, say, f"zstd -q -dc '{Path(made.recording) / MEMORY}'")
    with Qmp(made.qmp) as qmp:
        status = lambda: str(qmp.execute("query-status")["status"])  # noqa: E731
        qmp.wait_for(status, {"paused", "prelaunch", "postmigrate", "running"}, {"internal-error"}, RESUME_S)
        qmp.execute("cont")


def set_clock(made: Machine) -> None:
    """Sets the clock of a resumed machine, which stood still since its recording. Raises HostError when it cannot be
    set."""
    done = login.ssh(made, f"sudo date -u -s @{time.time():.0f}", deadline=120)
    if done.returncode:
        raise HostError(made.name, f"its clock cannot be set: {done.stderr.strip()}", "the time of now")
