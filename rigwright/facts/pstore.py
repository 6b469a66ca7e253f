"""The last lines of a kernel that panicked: the records that pstore kept since a list of them was written.

A panic leaves nothing in the journal. The kernel gives its last lines to a backend of pstore: UEFI variables
(efi_pstore), the firmware's error log (erst), or memory that survives a reset (ramoops). After the next boot they are
files in /sys/fs/pstore, which systemd-pstore.service moves to /var/lib/systemd/pstore.
"""

from __future__ import annotations

from msgspec import Struct

from rigwright.core import lazy_re
from rigwright.core.command import Result, script
from rigwright.core.control_characters import one_line
from rigwright.core.host_folders import STATE
from rigwright.facts import Fact, kernel_log

LISTED = f"{STATE}/trial/panic-records"
"""The file on the host with the digests of the records from before a trial."""
PLACES = ("/sys/fs/pstore", "/var/lib/systemd/pstore")

# dmesg.txt, which systemd-pstore joins from records, is no record: it is new although its records are old.
_FIND = f"find {' '.join(PLACES)} -type f -name 'dmesg-*' -exec sha256sum {{}} + 2>/dev/null || :"
LIST = f"""
rm -f {LISTED} {LISTED}.new {LISTED}.all
if timeout 60 sh -c "{_FIND}" >{LISTED}.all; then
  cut -c 1-64 {LISTED}.all >{LISTED}.new; sync {LISTED}.new; mv -f {LISTED}.new {LISTED}
fi
rm -f {LISTED}.all
"""
"""Writes the list. Times cannot distinguish old records from new ones, because a host's clock may be wrong at boot."""

_MOST_RECORDS, _MOST_BYTES = 64, 16_000
_READ = f"""
case $(cat /sys/module/pstore/parameters/backend 2>/dev/null) in ''|'(null)') ;;
  *) echo "backend $(head -c 60 /sys/module/pstore/parameters/backend)" ;; esac
[ ! -d /sys/firmware/efi ] || echo uefi
! grep -qE '^(efi_pstore|ramoops) ' /proc/modules || echo module
[ -e {LISTED} ] || {{ echo unlisted; exit 0; }}
timeout 60 sh -c "{_FIND}" | grep -v -F -f {LISTED} | head -n {_MOST_RECORDS} | while read -r sum path; do
  echo "record $sum"
  head -c {_MOST_BYTES} "$path" | tr -d '\\000' | sed 's/^/ /'; echo
done; :
"""


class Records(Struct, frozen=True):
    """What pstore kept since the list was written.

    `backend`: of the running kernel, "" without one; `is_module`: it is a module, so it keeps nothing of a panic before
    it is loaded; `uefi`: the firmware is UEFI, which can keep records. `is_listed`: a list exists; without it no record
    counts as new. `lines`: the kernel's last lines; `line`: the last of them, about the end; "" without a record.
    """

    backend: str
    is_module: bool
    uefi: bool
    is_listed: bool
    line: str
    lines: tuple[str, ...]


_HEAD = lazy_re.compile(r"(Panic|Oops|Emergency)#(\d{1,6})(?: Part(\d{1,6}))?")
_PANIC = lazy_re.compile(r"Kernel panic - not syncing")
_ERROR = lazy_re.compile(
    r"(?:BUG|Oops|Unable to handle kernel|general protection fault|Internal error|kernel BUG at)\b"
)
_PREFIX = lazy_re.compile(r"^<\d{1,3}>")
_PRIVATE = lazy_re.compile(r"\baudit(?:\(|:)|\b(?:sudo|su|sshd|sshd-session|systemd-logind)\[")
"""Lines with names of people and their commands, which watch.sh leaves out of the journal's lines, too."""
_DETAIL = lazy_re.compile(
    r"\[Hardware Error\]:\s+(?:version|command|slot|class_code|vendor_id|bridge|aer_\w+|TLP Header)\b"
)
"""Lines of a record of the firmware that do not name a device."""
_MOST_LINES, _LONGEST = 8, 300


def _records(result: Result) -> Records:
    values: dict[str, str] = {}
    records: dict[str, list[str]] = {}
    body: list[str] = []
    for text in result.lines:
        name, _, value = text.partition(" ")
        if text.startswith(" "):
            body.append(text[1:])
        elif name == "record":
            body = []
            records.setdefault(value, body)
        elif name:
            values[name], body = value, []
    lines = _last_lines(list(records.values()))
    backend = one_line(values.get("backend", ""))[:40]
    flags = ("module" in values, "uefi" in values, "unlisted" not in values)
    return Records(backend, *flags, lines[-1] if lines else "", lines)


def _last_lines(records: list[list[str]]) -> tuple[str, ...]:
    """The kernel's lines up to the one about its end, of the latest panic, otherwise of the latest other error."""
    parts: dict[tuple[bool, int], list[tuple[int, list[str]]]] = {}
    for record in records:
        head = _HEAD.match(record[0]) if record else None
        if head:
            parts.setdefault((head[1] == "Panic", int(head[2])), []).append((int(head[3] or 1), record[1:]))
    if not parts:
        return ()
    # The first part is the end of the log, the last part its beginning.
    joined = [line for _, part in sorted(parts[max(parts)], key=lambda part: -part[0]) for line in part]
    failed = next(iter(kernel_log.pcie_records(tuple(joined))), None)
    joined = [line for line in joined if line.strip() and not _PRIVATE.search(line) and not _DETAIL.search(line)]
    lines = [one_line(_PREFIX.sub("", line))[:_LONGEST] for line in joined]
    for pattern in (_PANIC, _ERROR):
        end = next((number for number, line in enumerate(lines, 1) if pattern.search(line)), 0)
        if end:  # the first one: after "end Kernel panic" the line is there again
            last = f"{lines[end - 1]} ({failed.text})" if failed else lines[end - 1]
            return (*lines[max(0, end - _MOST_LINES) : end - 1], last)
    return tuple(lines[-_MOST_LINES:])


records = Fact("pstore.records", script(_READ, timeout_s=150), _records)
"""The records of panics since the list was written."""
