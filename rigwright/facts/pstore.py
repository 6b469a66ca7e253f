"""The last words of a kernel that panicked: the records that pstore kept since a list of them was written.

A panic leaves nothing in the journal. The kernel hands its last lines to a backend of pstore: UEFI variables
(efi_pstore), the firmware's error log (erst), or memory that survives a reset (ramoops). After the next boot they are
files in /sys/fs/pstore, from which systemd-pstore.service moves them to /var/lib/systemd/pstore.
"""

from __future__ import annotations

from msgspec import Struct

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Result, script
from rigwright.core.control_characters import one_line
from rigwright.core.host_folders import STATE
from rigwright.facts import Fact

LISTED = f"{STATE}/trial/panic-records"
"""The list, on the host, of the records that were there before a trial: their digests."""
PLACES = ("/sys/fs/pstore", "/var/lib/systemd/pstore")

# dmesg.txt, which systemd-pstore joins from records, is no record: it is new although its records are old.
_FOUND = f"find {' '.join(PLACES)} -type f -name 'dmesg-*' -exec sha256sum {{}} + 2>/dev/null || :"
LIST = f"""
rm -f {LISTED} {LISTED}.new {LISTED}.all
if timeout 60 sh -c "{_FOUND}" >{LISTED}.all; then
  cut -c 1-64 {LISTED}.all >{LISTED}.new; sync {LISTED}.new; mv -f {LISTED}.new {LISTED}
fi
rm -f {LISTED}.all
"""
"""Writes the list. Nothing tells old records from new ones by a clock: that of a host may be wrong before it has a
network."""

_MOST_RECORDS, _MOST_BYTES = 64, 16_000
_READ = f"""
case $(cat /sys/module/pstore/parameters/backend 2>/dev/null) in ''|'(null)') ;; *) echo "backend $(head -c 60 /sys/module/pstore/parameters/backend)" ;; esac
[ ! -d /sys/firmware/efi ] || echo uefi
! grep -qE '^(efi_pstore|ramoops) ' /proc/modules || echo module
[ -e {LISTED} ] || {{ echo unlisted; exit 0; }}
timeout 60 sh -c "{_FOUND}" | grep -v -F -f {LISTED} | head -n {_MOST_RECORDS} | while read -r sum path; do
  echo "record $sum"
  head -c {_MOST_BYTES} "$path" | tr -d '\\000' | sed 's/^/ /'; echo
done; :
"""


class Records(Struct, frozen=True):
    """What pstore kept since the list was written.

    `backend`: that of the kernel that runs, "" for none; `is_module`: it is a module, so it keeps nothing of a panic
    before it is loaded; `uefi`: the firmware is UEFI, which has a place for it. `is_listed`: a list tells which records
    are new; without one there are none. `line`: what the kernel said of its end; "" if nothing was kept. `lines`: what
    it said up to that, the last line is `line`.
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
"""Lines that name people and what they ran, as the journal's are left out (watch.sh)."""
_MOST_LINES, _LONGEST = 8, 300


def _records(result: Result) -> Records:
    said: dict[str, str] = {}
    records: dict[str, list[str]] = {}
    body: list[str] | None = None
    for text in host_text.lines(result.text):
        if text.startswith(" "):
            if body is not None:
                body.append(text[1:])
            continue
        name, _, value = text.partition(" ")
        body = None
        if name == "record":
            body = records.setdefault(value, []) if value not in records else None
        elif name:
            said[name] = value
    lines = _last_words(list(records.values()))
    return Records(
        one_line(said.get("backend", ""))[:40], "module" in said, "uefi" in said, "unlisted" not in said,
        lines[-1] if lines else "", lines,
    )  # fmt: skip


def _last_words(records: list[list[str]]) -> tuple[str, ...]:
    """The kernel's lines up to the one about its end, of the latest panic; of the latest other error if there is no
    panic."""
    parts: dict[tuple[bool, int], list[tuple[int, list[str]]]] = {}
    for record in records:
        head = _HEAD.match(record[0]) if record else None
        if head:
            parts.setdefault((head[1] == "Panic", int(head[2])), []).append((int(head[3] or 1), record[1:]))
    if not parts:
        return ()
    # The first part is the end of the log, the last part its beginning.
    joined = [line for _, part in sorted(parts[max(parts)], key=lambda part: -part[0]) for line in part]
    said = [one_line(_PREFIX.sub("", line))[:_LONGEST] for line in joined if line.strip() and not _PRIVATE.search(line)]
    for pattern in (_PANIC, _ERROR):
        found = [number for number, line in enumerate(said) if pattern.search(line)]
        if found:
            # After "end Kernel panic" the line is there again.
            return tuple(said[max(0, found[0] + 1 - _MOST_LINES) : found[0] + 1])
    return tuple(said[-_MOST_LINES:])


records = Fact("pstore.records", script(_READ, timeout_s=150), _records)
"""The records of panics since the list was written."""
