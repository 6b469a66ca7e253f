"""Which accelerator QEMU uses for virtual machines: KVM where a guest really runs under it, else software emulation.

That /dev/kvm opens says little: in a virtual machine without nested virtualisation, KVM may emulate a stock guest one
instruction at a time, and its firmware alone takes hours. So a firmware of 64 KiB (files/kvm-probe.S) runs first, with
the options that the machines get. The result is kept until the next boot of this machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from lab.base.paths import VM_CACHE, write
from rigwright.core.control_characters import one_line

PROBE = Path(__file__).parent / "files" / "kvm-probe.S"
STAGES = {
    "": "its first instruction",
    "r": "protected mode",
    "rp": "long mode",
    "rpl": "a timer interrupt",
}
"""What comes after each answer of the probe."""
DONE = "rplt"
PROBE_S = 8.0
KVM_DEVICE = Path("/dev/kvm")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
RESULT = VM_CACHE / "accelerator.json"


@dataclass(frozen=True)
class Accelerator:
    """`option`: the value of QEMU's -accel; `text`: what the user reads; `cpu`: the value of -cpu, "" for QEMU's
    default."""

    option: str
    text: str
    cpu: str = ""

    @property
    def options(self) -> list[str]:
        """QEMU's options."""
        return ["-accel", self.option, *(["-cpu", self.cpu] if self.cpu else [])]


KVM = (Accelerator("kvm", "KVM", "host"), Accelerator("kvm", "KVM"))
"""What is tried, in this order: with the processor's own properties, then with those of QEMU's default."""


def emulation(why: str) -> Accelerator:
    """Returns software emulation, with the reason why it is not KVM."""
    return Accelerator("tcg,tb-size=256,thread=multi", f"software emulation ({why})")


@lru_cache(maxsize=1)
def accelerator() -> Accelerator:
    """Returns KVM if a guest runs under it, else software emulation. Takes at most ten seconds, once for each boot of
    the machine."""
    if not os.access(KVM_DEVICE, os.R_OK | os.W_OK):
        missing = "no /dev/kvm" if not KVM_DEVICE.exists() else "no permission for /dev/kvm"
        return emulation(missing)
    inputs = repr((BOOT_ID.read_text(encoding="ascii"), PROBE.read_bytes(), KVM))
    key = hashlib.sha256(inputs.encode()).hexdigest()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(RESULT.read_text(encoding="utf-8"))
        if kept["key"] == key:
            return Accelerator(**kept["accelerator"])
    try:
        found = _tried()
    except (
        OSError,
        subprocess.SubprocessError,
    ) as error:  # no QEMU, no compiler: it is tried again when they are there
        return emulation(f"KVM was not tried, {one_line(str(error))[:200]}")
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            write(RESULT, json.dumps({"key": key, "accelerator": asdict(found)}) + "\n")
    return found


def _tried() -> Accelerator:
    """Returns the first of KVM under which a guest runs within PROBE_S for all, else software emulation. Raises as
    `failure`."""
    ends, why = time.monotonic() + PROBE_S, ""
    for one in KVM:
        left = ends - time.monotonic()
        if left > 1:
            why = failure(one, left)
        if not why:
            return one
    return emulation(f"KVM runs no guest here: {why}")


def failure(tried: Accelerator, deadline: float) -> str:
    """Runs the probe under an accelerator. Returns "" if a guest runs, else how far it came, in one line.

    Raises OSError or SubprocessError when QEMU or the compiler is missing or fails to start.
    """
    with tempfile.TemporaryDirectory(prefix="rigwright-probe-") as name:
        image, answer = Path(name) / "probe.bin", Path(name) / "answer"
        _assemble(image)
        words = _run(tried, image, answer, deadline)
        said = answer.read_text(encoding="latin-1") if answer.exists() else ""
    if said == DONE:
        return ""
    ended = f"no answer in {deadline:.0f} s" if words is None else f"QEMU ended, {words}"
    return f"{ended} before {STAGES.get(said, 'its end')}"


def _assemble(image: Path) -> None:
    """Writes the probe's firmware. Raises OSError without a compiler, CalledProcessError when it does not assemble."""
    made = image.with_suffix(".o")
    for argv in (
        ["gcc", "-c", "-o", str(made), str(PROBE)],
        ["ld", "-e", "0", "-Ttext=0", "--oformat=binary", "-o", str(image), str(made)],
    ):
        subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=True)


def _run(tried: Accelerator, image: Path, answer: Path, deadline: float) -> str | None:
    """Runs QEMU with the firmware. Returns the last line of its messages; None when it was killed at the deadline."""
    argv = [
        "qemu-system-x86_64",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-vga",
        "none",
        "-no-reboot",
        "-m",
        "16",
    ]
    argv += ["-machine", "q35", *tried.options, "-bios", str(image)]
    argv += ["-debugcon", f"file:{answer}", "-device", "isa-debug-exit,iobase=0xf4,iosize=4"]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return one_line(lines[-1])[:200] if lines else f"exit {done.returncode}"
