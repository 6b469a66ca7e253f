"""Boots of something new that fail: another kernel, kernel parameter or NVIDIA module than when a fault of lab/faults
was injected.

The host remembers in its nvram what it ran then, and how a boot of anything else fails. A boot of the same again is as
it was.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from lab.hardware import hw_state
from lab.host.disk import Host

FAILS, WORDS, MODULES = "new.fails", "new.words", "new.modules"
KINDS = (
    "panic", "no-root", "emergency", "no-network", "no-ssh", "no-gpus", "hang", "late-sudo", "no-sudo", "no-key",
    "other-address",
)  # fmt: skip
_IGNORED = re.compile(r"(BOOT_IMAGE|panic|systemd\.wants|module_blacklist)=.*|rigwright\.\w+=.*|quiet|splash|\d")
"""Words that change nothing in how the simulated machine works."""


def remember(host: Host, kind: str) -> None:
    """Makes every boot fail that differs from what runs now; an empty kind makes none fail."""
    line = host.folder / "cmdline"
    words, modules = "", ""
    if kind:
        words, modules = " ".join(sorted(_words(line.read_text() if line.is_file() else ""))), _modules(host.root)
    hw_state.edit(host.hw, nvram={FAILS: kind, WORDS: words, MODULES: modules})


def failure(host: Host, command_line: str) -> str:
    """Returns how a boot with this command line fails, one of KINDS; "" when it is what ran before, or there is no
    fault."""
    held = hw_state.read(host.hw, hw_state.NVRAM)
    kind = held.get(FAILS, "")
    if not kind:
        return ""
    barred = [
        name for word in command_line.split() if word.startswith("module_blacklist=") for name in word[17:].split(",")
    ]
    same_modules = "nvidia" in barred or held.get(MODULES, "") == _modules(host.root)
    return "" if same_modules and set(held.get(WORDS, "").split()) == _words(command_line) else kind


def parameters(kind: str) -> list[str]:
    """Returns the words that systemd gets more for a boot that fails in this way."""
    return {
        "emergency": ["systemd.unit=emergency.target"],
        "no-ssh": ["systemd.mask=ssh.service", "systemd.mask=ssh.socket"],
    }.get(kind, [])


def hidden(kind: str) -> dict[str, int]:
    """Returns the files that are empty in a boot that fails in this way, and for how many seconds; 0 for the whole
    boot."""
    rule, keys = "/etc/sudoers.d/90-cloud-init-users", "/home/ubuntu/.ssh/authorized_keys"
    return {"late-sudo": {rule: 25}, "no-sudo": {rule: 0}, "no-key": {keys: 0}}.get(kind, {})


def _words(command_line: str) -> set[str]:
    return {word for word in command_line.split() if not _IGNORED.fullmatch(word)}


def _modules(root: Path) -> str:
    """Returns a digest of the NVIDIA modules on the disk, of all kernels."""
    whole = hashlib.sha256()
    for path in sorted(root.glob("lib/modules/*/updates/dkms/nvidia*.ko*")) + sorted(
        root.glob("lib/modules/*/kernel/nvidia*/*.ko*")
    ):
        whole.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return whole.hexdigest()[:16]
