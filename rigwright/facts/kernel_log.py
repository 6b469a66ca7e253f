"""The kernel log of this boot: lines about GPUs, IOMMU, memory errors and modules."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Result, script
from rigwright.core.schema import bus_id
from rigwright.facts import Fact, Unavailable

_SCRIPT = """
pick() { awk '
  /EDAC|mce: |MCE: |[[]Hardware Error]|IO_PAGE_FAULT|[Ff]ault [Rr]eason/ {
    errors[m % 500] = $0; error_at[m++ % 500] = NR; next}
  /iommu|DMAR|AMD-Vi/ && early++ < 200 {print; next}
  /NVRM|[Nn]vidia|nouveau|NovaCore|module with unavailable key|unsigned module|blocked for more than|LOCKUP/ ||
  /soft lockup|BAR ?[0-9]/ {
    kept[n % 4000] = $0; kept_at[n++ % 4000] = NR
  }
  END {
    i = n > 4000 ? n - 4000 : 0; j = m > 500 ? m - 500 : 0
    while (i < n || j < m)
      if (j == m || (i < n && kept_at[i % 4000] < error_at[j % 500])) print kept[i++ % 4000]
      else print errors[j++ % 500]
    exit NR == 0
  }'
}
journalctl -k -b -q --no-pager -o short-iso 2>/dev/null | pick && exit
dmesg >/dev/null 2>&1 || { echo "neither journalctl -k nor dmesg has a kernel log" >&2; exit 1; }
{ dmesg --time-format iso 2>/dev/null || dmesg; } | pick; :
"""


_LONGEST_LINE = 2000
"""Characters of a line that are kept. The kernel's own lines have at most 1000."""


def _kernel(result: Result) -> tuple[str, ...]:
    if result.error_text and not result.stdout:
        raise Unavailable(host_text.lines(result.error_text)[-1])
    return tuple(line[:_LONGEST_LINE] for line in result.lines)


kernel = Fact("kernel_log.kernel", script(_SCRIPT, timeout_s=60, reads=True), _kernel)
"""The kernel log lines of this boot: the first 200 about the IOMMU, then, oldest first, the newest 4000 about GPUs,
modules and hung tasks, and the newest 500 about memory errors, machine checks and accesses refused by the IOMMU."""


class XidLine(Struct, frozen=True):
    """An error that the driver logged: bus id (0000:3b:00.0), Xid code, and the line from the word NVRM on.

    `minute`: when, in the host's time (2026-11-22 14:05); "" if the log has no dates."""

    bus_id: str
    code: int
    text: str
    minute: str = ""


_FATAL_SXID = lazy_re.compile(r"SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+), Fatal\b")
_MINUTE = lazy_re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d):")
_XID = lazy_re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.([0-9a-fA-F]))?\): (\d+)")


def xids(lines: tuple[str, ...]) -> tuple[XidLine, ...]:
    """The Xids in kernel log lines, in order, without the SXids of NVSwitches."""
    xid_lines = []
    for line in lines:
        if "Xid" in line and (match := _XID.search(line)):
            minute = " ".join(date.groups()) if (date := _MINUTE.match(line)) else ""
            at, code = bus_id(f"{match[1]}.{match[2] or 0}"), host_text.integer(match[3])
            xid_lines.append(XidLine(at, code, line[match.start() :], minute))
    return tuple(xid_lines)


def fatal_sxids(lines: tuple[str, ...]) -> tuple[XidLine, ...]:
    """The fatal SXids of NVSwitches in kernel log lines, in order."""
    return tuple(
        XidLine(bus_id(match[1]), host_text.integer(match[2]), line[match.start() :])
        for line in lines
        if "SXid" in line and (match := _FATAL_SXID.search(line))
    )


class HardwareError(Struct, frozen=True):
    """An error of the main memory, or a machine check. `part`: the memory module or the processor, "" if unknown."""

    of_memory: bool
    corrected: bool
    part: str
    text: str


_EDAC = lazy_re.compile(r"EDAC MC\d+: \d+ (CE|UE)\b(?:.*? on (\S+))?")
_UNCORRECTED_BIT = 61
"""The bit of a machine check's status for an error that was not corrected (Intel's manual, IA32_MCi_STATUS.UC)."""
_MACHINE_CHECK = lazy_re.compile(
    r"\[Hardware Error\]: (?:(CPU \d+): Machine Check\b.*? Bank \d+: ([0-9a-f]{16})"
    r"|(Corrected|Uncorrected|Deferred|System Fatal)\b)"
)


def hardware_errors(lines: tuple[str, ...]) -> tuple[HardwareError, ...]:
    """The errors of the main memory and the machine checks in kernel log lines, in order, as the EDAC drivers, the
    machine check handler and its decoder for AMD processors print them."""
    errors = []
    for line in lines:
        if "EDAC MC" in line and (match := _EDAC.search(line)):
            errors.append(HardwareError(True, match[1] == "CE", match[2] or "", line[match.start() :]))
        elif (at := line.find("[Hardware Error]: ")) >= 0 and (match := _MACHINE_CHECK.match(line, at)):
            raw, word = match[2], match[3]
            corrected = not host_text.integer(raw, 16) >> _UNCORRECTED_BIT & 1 if raw else word == "Corrected"
            errors.append(HardwareError(False, corrected, match[1] or "", line[match.start() :]))
    return tuple(errors)


class PcieRecord(Struct, frozen=True):
    """An error of a PCIe device that the firmware recorded (CPER): the bus id of the port or device, what it is (`root
    port`), the severity (`fatal`), and the bus below a port ("41", "" for a device)."""

    bus_id: str
    port: str
    severity: str
    bus_below: str = ""

    @property
    def level(self) -> Literal["warn", "fail"]:
        """Whether it is a warning, because the error was corrected, or a failure."""
        return "warn" if self.severity == "corrected" else "fail"

    @property
    def text(self) -> str:
        """The record in words: `fatal PCIe error of the root port 0000:40:01.1, above bus 41`."""
        below = f", above bus {self.bus_below}" if self.bus_below else ""
        return f"{self.severity} PCIe error of the {self.port or 'device'} {self.bus_id}{below}"


_RECORD = lazy_re.compile(
    r"\[Hardware Error\]:\s{1,8}(?:event severity: (?P<event>\w{1,20})|Error \d{1,4}, type: (?P<severity>\w{1,20})"
    r"|section_type: (?P<section>\w{1,20})|port_type: \d{1,2}, (?P<port>[\w /-]{1,60})"
    r"|device_id: (?P<device>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
    r"|secondary_bus: 0x(?P<bus>[0-9a-fA-F]{2})\b)"
)


def pcie_records(lines: tuple[str, ...]) -> tuple[PcieRecord, ...]:
    """The PCIe errors in the firmware's records (BERT, GHES, ERST) that kernel log lines show, in order."""
    records: list[PcieRecord] = []
    section = severity = port = ""
    for line in lines:
        match = _RECORD.search(line) if "[Hardware Error]:" in line else None
        if not match:
            continue
        name, value = match.lastgroup, match[match.lastgroup or 0]
        if name in ("event", "severity"):
            section, severity = "", value
        elif name == "section":
            section, port = value, ""
        elif section == "PCIe" and name == "port":
            port = value.strip()
        elif section == "PCIe" and name == "device":
            records.append(PcieRecord(bus_id(value), port, severity or "unknown"))
        elif section == "PCIe" and name == "bus" and records and int(value, 16):
            records[-1] = replace(records[-1], bus_below=value.lower())
    return tuple(records)


class IommuFault(Struct, frozen=True):
    """An access of a device that the IOMMU refused. `bus_id`: 0000:3b:00.0, "" if unknown."""

    bus_id: str
    text: str


_PLACE = r"((?:[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
_AMD_FAULT = lazy_re.compile(rf"(?:{_PLACE}: )?AMD-Vi: Event logged \[IO_PAGE_FAULT\b(?: device={_PLACE})?")
_INTEL_FAULT = lazy_re.compile(rf"DMAR: \[(?:DMA|INTR)[^\]]{{0,40}}\] Request device \[{_PLACE}\]")


def iommu_faults(lines: tuple[str, ...]) -> tuple[IommuFault, ...]:
    """The accesses that the IOMMU of an AMD or Intel processor refused, from kernel log lines, in order."""
    faults = []
    for line in lines:
        about = "AMD-Vi: " in line or "DMAR: " in line  # ten times as fast as a search
        if about and (match := _AMD_FAULT.search(line) or _INTEL_FAULT.search(line)):
            place = next((part for part in match.groups() if part), "")
            full = place if place.count(":") != 1 else f"0000:{place}"
            faults.append(IommuFault(bus_id(full) if full else "", line[match.start() :]))
    return tuple(faults)
