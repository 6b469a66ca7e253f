"""The kernel log of this boot: lines about GPUs, IOMMU and modules."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rigwright.core.command import Result, script
from rigwright.core.schema import bus_id
from rigwright.facts import Fact, Unavailable

_SCRIPT = """
if journalctl -k -b -q --no-pager -n 1 2>/dev/null | grep -q .; then journalctl -k -b -q --no-pager -o short-iso
elif dmesg >/dev/null 2>&1; then dmesg --time-format iso 2>/dev/null || dmesg
else echo "neither journalctl -k nor dmesg has a kernel log" >&2; exit 1
fi | awk '
  /iommu|DMAR|AMD-Vi/ && early++ < 200 {print; next}
  /NVRM|[Nn]vidia|nouveau|NovaCore|module with unavailable key|unsigned module|blocked for more than|LOCKUP|soft lockup|BAR ?[0-9]/ {
    kept[n++ % 4000] = $0
  }
  END {for (at = n > 4000 ? n - 4000 : 0; at < n; at++) print kept[at % 4000]}'
"""


def _kernel(result: Result) -> tuple[str, ...]:
    if result.error_text and not result.stdout:
        raise Unavailable(result.error_text.splitlines()[-1])
    return tuple(result.text.splitlines())


kernel = Fact("kernel_log.kernel", script(_SCRIPT, timeout_s=60), _kernel)
"""The kernel log lines of this boot about GPUs, IOMMU, modules and hung tasks, oldest first; the newest 4000."""


@dataclass(frozen=True)
class XidLine:
    """An error that the driver logged: bus id (0000:3b:00.0), Xid code, and the line from the word NVRM on."""

    bus_id: str
    code: int
    text: str


_FATAL_SXID = re.compile(r"SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+), Fatal\b")
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.([0-9a-fA-F]))?\): (\d+)")


def xids(lines: tuple[str, ...]) -> tuple[XidLine, ...]:
    """The Xids in kernel log lines, in order, without the SXids of NVSwitches."""
    matches = ((_XID.search(line), line) for line in lines)
    return tuple(
        XidLine(bus_id(f"{match[1]}.{match[2] or 0}"), int(match[3]), line[match.start() :])
        for match, line in matches
        if match
    )


def fatal_sxids(lines: tuple[str, ...]) -> tuple[XidLine, ...]:
    """The fatal SXids of NVSwitches in kernel log lines, in order."""
    matches = ((_FATAL_SXID.search(line), line) for line in lines)
    return tuple(XidLine(bus_id(match[1]), int(match[2]), line[match.start() :]) for match, line in matches if match)
