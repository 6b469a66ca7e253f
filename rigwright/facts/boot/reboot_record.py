"""The host's record of a reboot without effect, and a checksum of everything that the next boot reads."""

from __future__ import annotations

import re

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.command import Command, Result, script
from rigwright.core.control_characters import one_line
from rigwright.core.host_folders import STATE
from rigwright.facts import Fact

FILE = f"{STATE}/reboot-in-vain"
MOST_CHARACTERS = 600

_CHECKSUM = """
checksum() {
  {
    cat /boot/grub/grub.cfg
    find -L /boot -maxdepth 1 -type f \\( -name 'vmlinuz-*' -o -name 'initrd.img-*' \\) -printf '%p %s %T@\\n' | sort
    find /lib/modules /usr/lib/modules -name '*nvidia*.ko*' -printf '%p %s %T@\\n' | sort
    find /etc/modprobe.d /etc/modules-load.d /etc/modules /lib/modprobe.d /usr/lib/modprobe.d -type f \\
      -exec sha256sum {} + | sort
    for file in /sys/firmware/efi/efivars/SecureBoot-* /sys/firmware/efi/efivars/MokListRT-*; do
      [ -r "$file" ] && cat "$file"
    done
  } 2>/dev/null | sha256sum | cut -c 1-64
}
"""
_READ = f"""{_CHECKSUM}
[ -e {FILE} ] || {{ echo none; exit 0; }}
checksum; head -c 4000 {FILE}
"""
_WRITE = f"""{_CHECKSUM}
mkdir -p -m 755 {STATE}
{{ checksum; date -u +%FT%TZ; printf '%s\\n' "$1"; }} >{FILE}.new && sync {FILE}.new && mv -T {FILE}.new {FILE}
"""


class InVain(Struct, frozen=True):
    """A reboot that had no effect: its time in UTC (2026-11-22 11:24) and its reasons. `same`: the next boot would read
    the same kernel, initramfs, modules and settings."""

    at: str
    reasons: str
    same: bool


def _in_vain(result: Result) -> InVain | None:
    lines = host_text.lines(result.text)
    if result.code != 0 or lines == ["none"]:
        return None
    if len(lines) < 4 or not all(re.fullmatch("[0-9a-f]{64}", line) for line in lines[:2]):
        return None  # a damaged record causes only another reboot
    when = lines[2] if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", lines[2]) else ""
    at = f"{when[:10]} {when[11:16]} UTC" if when else "an unknown time"
    return InVain(at, one_line(lines[3])[:MOST_CHARACTERS], lines[0] == lines[1])


in_vain: Fact[InVain | None] = Fact("reboot_record.in_vain", script(_READ, reads=True), _in_vain)
"""The last reboot of rigwright that had no effect; None without one."""


def write(reasons: str) -> Command:
    """The command that records on the host that a reboot for these reasons did not help."""
    return script(_WRITE, one_line(reasons)[:MOST_CHARACTERS], timeout_s=60)


def forget() -> Command:
    """The command that removes the record, before another reboot."""
    return script(f"rm -f {FILE}")
