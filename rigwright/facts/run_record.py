r"""What a run recorded on a host before its first change, and what it then did: the source of a rollback.

/var/lib/rigwright/runs/RUN/record has `about` (number, time, machine, boot), `packages`, `automatic`, `units`, `gpus`
and `locks` from before the run, with their digests in `digests`; `files`, a line for each path, and the old files under
`before/`. The run adds to `wrote` (a line for each file, before it is written), `own-packages` and `own-units`. `done`:
the run ended without an error. `to`: the run before which a rollback goes back. `try`: the process and the change of a
`try` that is not decided. `adopted`: the machine-id of another installation whose owner says that the record is its.

Of a file that other users cannot read, `files` has only the digest. If rigwright replaces it, `file.present` keeps it
in RUN/before/, which only root can read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Sized
from typing import Any

from msgspec import Struct

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Result, script
from rigwright.core.control_characters import one_line
from rigwright.core.host_folders import STATE
from rigwright.facts import Fact
from rigwright.facts.apt.dpkg import LISTED
from rigwright.facts.gpu import gpus
from rigwright.facts.gpu.gpus import Gpu, Locks

LISTS = (f"{STATE}/files", f"{STATE}/holds", f"{STATE}/packages")
"""rigwright's own lists of what it put on the host."""

TEXTS = "about packages automatic units gpus locks"
"""The files of a record whose digests are in it."""

STATE_OF = r"""
state() {  # FILE PATH: KIND MODE OWNER SHA256 PATH of what stands there
  if [ -L "$1" ]; then printf 'link\t777\t%s\t%s\t%s\n' "$(stat -c %u:%g -- "$1")" \
    "$(readlink -- "$1" | sha256sum | cut -c 1-64)" "$2"
  elif [ -f "$1" ]; then printf 'file\t%s\t%s\t%s\n' "$(stat --printf '%a\t%u:%g' -- "$1")" \
    "$(sha256sum <"$1" | cut -c 1-64)" "$2"
  elif [ -e "$1" ]; then printf 'other\t-\t-\t-\t%s\n' "$2"
  else printf 'absent\t-\t-\t-\t%s\n' "$2"; fi
}
"""
"""Shell function: `state FILE PATH` prints KIND MODE OWNER SHA256 PATH of what is there."""

MOST_RUNS, MOST_WRITTEN, MOST_MOVED, MOST_UNITS = 200, 2000, 5000, 200
"""Runs, files, packages and units of an answer."""

FORMAT = "1"
"""The version of the form of records."""

_RUN_ID = lazy_re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,63}")
_PACKAGE = lazy_re.compile(r"[a-z0-9][a-z0-9+.-]{0,200}(:[a-z0-9-]{1,20})?")
_VERSION = lazy_re.compile(r"[0-9A-Za-z][0-9A-Za-z.+:~-]{0,200}")
_UNIT = lazy_re.compile(r"[A-Za-z0-9@:_.\\-]{1,255}")
_DIGEST = lazy_re.compile(r"[0-9a-f]{64}|-")


class Run(Struct, frozen=True):
    """The record of a run that changed the host. `number` counts runs; `time` is UTC by the host's clock.

    `here`: this installation of the system wrote it, or its owner has adopted it. `sound`: its digests are right.
    `done`: the run ended without an error. `to`: the run before which a rollback goes back. `half`: packages that dpkg
    had not finished when it began. `tried`: the change of a `try` that is not decided, `tried_by` its process
    (engine/run_owner.py).
    """

    run: str
    number: int
    time: str
    here: bool
    sound: bool
    done: bool
    to: str = ""
    half: tuple[str, ...] = ()
    tried: str = ""
    tried_by: str = ""
    about: dict[str, str] = {}


_EACH = """
runs=/var/lib/rigwright/runs; echo "records $(sha256sum </etc/machine-id 2>/dev/null | cut -c 1-64)"
cd "$runs" 2>/dev/null || exit 0
each() { ls -1 2>/dev/null | head -n 200 | while read -r run; do
  [ -d "./$run/record" ] && [ ! -L "./$run" ] && echo "$run"; done; }
"""
_LIST = (
    _EACH
    + f"""
each | while read -r run; do (
  cd "./$run/record" || exit
  printf 'run\\t%s\\n' "$run"
  head -c 8192 about 2>/dev/null | tr -d '\\000' | sed -n 's/^\\([a-z]*\\) /about\\t\\1\\t/p'
  [ "$(cut -c 67- digests 2>/dev/null | paste -sd' ')" = "{TEXTS}" ] && sha256sum --status -c digests 2>/dev/null &&
    echo sound
  [ ! -e done ] || echo done
  for file in to try adopted; do
    [ ! -f "$file" ] || printf '%s\\t%s\\n' "$file" "$(head -c 1200 "$file" | tr -d '\\000' | head -n 1)"
  done
  awk -F '\\t' '$4 ~ /^(half-|unpacked)/ && n++ < 20 {{print "half\\t" $1}}' packages 2>/dev/null
) done; :
"""
)


def _runs(result: Result) -> tuple[Run, ...]:
    head, *lines = result.lines
    if not head.startswith("records"):
        raise ValueError("no list of records")
    machine = head.partition(" ")[2]
    records: list[dict[str, list[str]]] = []
    for line in lines:
        kind, *words = line.split("\t", 2)
        if kind == "run":
            records.append({"run": words})
        elif not records or kind not in ("about", "sound", "done", "to", "try", "adopted", "half"):
            raise ValueError(f"{line[:80]!r} is no line of it")
        else:
            records[-1].setdefault(kind, []).append("\t".join(words))
    _require_few(records, MOST_RUNS, "runs")
    return tuple(sorted((_run(record, machine) for record in records), key=lambda run: (run.number, run.run)))


def _require_few(items: Sized, most: int, what: str) -> None:
    """Raises ValueError for more than `most`, because each would be a line of the plan."""
    if len(items) > most:
        raise ValueError(f"{len(items)} {what}, not up to {most}")


def _run(lines: dict[str, list[str]], machine: str) -> Run:
    about = {key: one_line(value)[:4096] for key, _, value in (line.partition("\t") for line in lines.get("about", []))}
    name, number, to = lines["run"][0], about.get("number", ""), lines.get("to", [""])[0]
    numbered = run_id(name) and bool(re.fullmatch("[0-9]{1,9}", number))
    sound = numbered and about.get("format") == FORMAT and "sound" in lines and (not to or run_id(to))
    half = tuple(word for word in lines.get("half", []) if _PACKAGE.fullmatch(word))
    by, _, tried = lines.get("try", [""])[0].partition("\t")
    here = machine in (about.get("machine"), *lines.get("adopted", ()))
    return Run(
        one_line(name)[:64], int(number) if numbered else 0, about.get("time", "")[:20], here, sound, "done" in lines,
        to if run_id(to) else "", half, one_line(tried)[:200], one_line(by)[:800], about,
    )  # fmt: skip


runs = Fact("run_record.runs", script(_LIST, timeout_s=60, reads=True), _runs)
"""The recorded runs that changed the host, the first one first."""


def from_plain(rows: Sequence[dict[str, Any]]) -> tuple[Run, ...]:
    """The runs from their JSON types."""
    return tuple(Run(**{**row, "half": tuple(row["half"])}) for row in rows)


def run_id(text: str) -> bool:
    """Whether a text has the form of a run's id."""
    return bool(_RUN_ID.fullmatch(text))


class State(Struct, frozen=True):
    """What is at a path. `kind`: absent, file, link, other. `owner`: UID:GID. `sha256`: of the content of a file or the
    target of a link."""

    kind: str
    mode: str = ""
    owner: str = ""
    sha256: str = ""


class WrittenFile(Struct, frozen=True):
    """A path that runs wrote: its state before the first of them, recorded by `run`, and now. `kept_in`: the folder
    below runs/ with the old content, "" without it. `ours`: a run put there what is there now."""

    path: str
    run: str
    was: State
    now: State
    kept_in: str
    ours: bool


class Written(Struct, frozen=True):
    """The files that runs wrote, and the number of unreadable lines of their records."""

    files: tuple[WrittenFile, ...]
    unreadable: int = 0


_SINCE = """
since() {  # NUMBER: the runs from that number on, the first one first
  each | while read -r run; do
    n=$(sed -n 's/^number \\([0-9]\\{1,9\\}\\)$/\\1/p' "./$run/record/about" 2>/dev/null | head -n 1)
    [ "${n:-0}" -ge "$1" ] && echo "$n $run"
  done | sort -n | cut -d' ' -f 2-
}
"""
_FILES = (
    STATE_OF
    + _EACH
    + _SINCE
    + """
for run in $(since "$1"); do
  for name in files wrote; do
    [ ! -f "./$run/record/$name" ] || head -c 262144 "./$run/record/$name" | tr -d '\\000' | grep . |
      while read -r line; do printf '%s\\t%s\\t%s\\n' "$name" "$run" "$line"; done
  done
done
{ printf '%s\n' @LISTS@; for run in $(since "$1"); do cut -f 5- "./$run/record/wrote" 2>/dev/null; done; } |
  grep '^/' | sort -u | head -n 2000 | while read -r path; do
  printf 'now\\t-\\t'; state "$path" "$path"
  for run in $(since "$1"); do
    for kept in "$run/record/before" "$run/before"; do
      if [ -L "./$kept$path" ] || [ -f "./$kept$path" ]; then
        printf 'kept\\t%s\\t' "$kept"; state "./$kept$path" "$path"
      fi
    done
  done
done; :
""".replace("@LISTS@", " ".join(LISTS))
)


def _state_line(words: list[str]) -> tuple[str, State] | None:
    """The path and state of a line; None for a damaged line."""
    if len(words) != 5 or not words[4].startswith("/") or not _DIGEST.fullmatch(words[3]):
        return None
    kind, mode, owner, digest, path = words
    if kind in ("absent", "other"):
        return path, State(kind)
    if kind not in ("file", "link") or not re.fullmatch("[0-7]{1,4}", mode) or digest == "-":
        return None
    if not re.fullmatch(r"[0-9]{1,10}:[0-9]{1,10}", owner) or "\0" in path:
        return None
    return path, State(kind, mode.zfill(4), owner, digest)


def written(number: int) -> Fact[Written]:
    """The files that the runs from a number on wrote."""
    return Fact(f"run_record.written({number})", script(_FILES, str(number), timeout_s=60, reads=True), _written)


def _written(result: Result) -> Written:
    head, *lines = result.lines
    if not head.startswith("records"):
        raise ValueError("no list of files")
    first: dict[str, tuple[str, State]] = {}
    put: dict[str, set[State]] = {}
    now: dict[str, State] = {}
    kept: dict[str, dict[str, str]] = {}
    unreadable = 0
    for line in lines:
        kind, place, *words = line.split("\t", 6)
        path_and_state = _state_line(words)
        if path_and_state is None or kind not in ("files", "wrote", "now", "kept"):
            unreadable += 1
            continue
        path, state = path_and_state
        if kind == "files":
            first.setdefault(path, (place, state))
        elif kind == "wrote":
            put.setdefault(path, set()).add(state)
        elif kind == "now":
            now[path] = state
        elif re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,63}/(record/)?before", place):
            kept.setdefault(path, {}).setdefault(state.sha256, place)
    _require_few(put, MOST_WRITTEN, "files")
    files = []
    for path in sorted((put.keys() | set(LISTS)) & first.keys() & now.keys()):
        (run, was), present = first[path], now[path]
        ours = path in LISTS or (present.kind, present.sha256) in {(state.kind, state.sha256) for state in put[path]}
        files.append(WrittenFile(path, run, was, present, kept.get(path, {}).get(was.sha256, ""), ours))
    return Written(tuple(files), unreadable + len(put.keys() - first.keys()))


class MovedPackage(Struct, frozen=True):
    """A package that runs changed. "" as `was` or `now`: not installed.

    `was_left`, `now_left`: only its configuration files are there. `half`: dpkg has not finished it. `held` and
    `automatic` (apt counts it as installed for others): before and now.
    """

    name: str
    was: str
    now: str
    was_left: bool = False
    now_left: bool = False
    half: bool = False
    held: tuple[bool, bool] = (False, False)
    automatic: tuple[bool, bool] = (False, False)


class Packages(Struct, frozen=True):
    """The packages of runs that are not as before them, and the number of packages that others changed since."""

    moved: tuple[MovedPackage, ...]
    others: int = 0


_PACKAGES = (
    _EACH
    + LISTED
    + _SINCE
    + """
d=$(mktemp -d -p /run rigwright.XXXXXX) && trap 'rm -rf "$d"' EXIT || exit 1
listed >"$d/now" && [ -s "$d/now" ] && marked >"$d/marked" || exit 1
for run in $(since "$1"); do
  head -c 1048576 "./$run/record/own-packages" 2>/dev/null | tr -d '\\000'
  [ ! -e "./$run/record/apt-before" ] ||
    LC_ALL=C comm -3 "./$run/record/apt-before" "$d/marked" | sed 's/^\\t//' | cut -f 1
done | sort -u >"$d/own"
{ cat /var/lib/rigwright/holds; for run in $(since "$1"); do cat "./$run/record/before/var/lib/rigwright/holds"
  done; } 2>/dev/null |
  head -c 1048576 | tr -d '\\000' | grep . | sort -u >"$d/holds"
automatic >"$d/automatic"
awk -F '\\t' -v d="$d" '
  FILENAME == d "/own" {own[$1]; next}
  FILENAME == d "/holds" {holds[$1]; next}
  FILENAME == d "/automatic" {auto_now[$1]; next}
  FILENAME ~ /automatic$/ {auto_was[$1]; next}
  FILENAME ~ /packages$/ {version[$1] = $2; want[$1] = $3; status[$1] = $4; all[$1]; next}
  {version_now[$1] = $2; want_now[$1] = $3; status_now[$1] = $4; all[$1]}
  END {
    for (name in all) {
      moved = version[name] != version_now[name] || status[name] != status_now[name]
      held = (want[name] == "hold") != (want_now[name] == "hold")
      automatic = (name in auto_was) != (name in auto_now)
      if (moved && !(name in own)) others++
      if ((name in own) && (moved || held || (automatic && status[name] == "installed")) || ((name in holds) && held))
        print "package\\t" name "\\t" version[name] "\\t" status[name] "\\t" version_now[name] "\\t" \\
          status_now[name] "\\t" \\
          (want[name] == "hold") (want_now[name] == "hold") (name in auto_was) (name in auto_now) \\
          ((name in own) && moved)
    }
    print "others\\t" others + 0
  }' "$d/own" "$d/holds" "$d/automatic" "./$2/record/automatic" "./$2/record/packages" "$d/now"
"""
)
_GONE = ("", "not-installed")
_THERE = ("installed", "triggers-awaited", "triggers-pending")


def packages(run: str, number: int) -> Fact[Packages]:
    """The changes of packages by `run`, whose number is `number`, and later runs, compared with its record."""
    return Fact(f"run_record.packages({run})", script(_PACKAGES, str(number), run, timeout_s=60), _packages)


def _packages(result: Result) -> Packages:
    if result.code != 0:
        raise ValueError(result.error_text or "no list of packages")
    head, *lines = result.lines
    if not head.startswith("records") or not lines or not lines[-1].startswith("others\t"):
        raise ValueError("no list of packages")
    _require_few(lines, MOST_MOVED, "packages")
    moved = []
    for line in lines[:-1]:
        kind, name, was, status, now, status_now, flags = line.split("\t")
        right = kind == "package" and _PACKAGE.fullmatch(name) and re.fullmatch("[01]{5}", flags)
        if not right or any(version and not _VERSION.fullmatch(version) for version in (was, now)):
            raise ValueError(f"{line[:80]!r} is no package")
        held_was, held_now, auto_was, auto_now, own = (flag == "1" for flag in flags)
        was_there, now_there = status in _THERE, status_now not in (*_GONE, "config-files")
        if not own:  # only its hold or its mark differs
            was, now, was_there, now_there = now, now, status_now in _THERE, status_now in _THERE
        left = status == "config-files", status_now == "config-files"
        half = status_now not in (*_GONE, *_THERE, "config-files")
        versions = was if was_there else "", now if now_there else ""
        moved.append(MovedPackage(name, *versions, *left, half, (held_was, held_now), (auto_was, auto_now)))
    others = host_text.integer(lines[-1].partition("\t")[2])
    return Packages(tuple(sorted(moved, key=lambda package: package.name)), others)


class MovedUnit(Struct, frozen=True):
    """A unit that runs enabled, disabled, started or stopped, before them and now. `there`: systemd has it now."""

    name: str
    was_enabled: bool
    was_active: bool
    enabled: bool
    active: bool
    there: bool
    masked: bool = False


_UNITS = (
    _EACH
    + _SINCE
    + """
for run in $(since "$1"); do head -c 65536 "./$run/record/own-units" 2>/dev/null | tr -d '\\000'; done |
  grep -xE '[A-Za-z0-9@:_.\\-]{1,255}' | sort -u | head -n 200 |
while read -r unit; do
  printf 'unit\\t%s\\t%s\\t%s\\t%s\\n' "$unit" \\
    "$(awk -v unit="$unit" '$1 == "file" && $2 == unit {print $3}' "./$2/record/units" | head -n 1)" \\
    "$(awk -v unit="$unit" '$1 == "unit" && $2 == unit {print $3}' "./$2/record/units" | head -n 1)" \\
    "$(systemctl show -p LoadState,ActiveState,UnitFileState -- "$unit" 2>/dev/null |
      sort | cut -d= -f 2 | paste -sd' ')"
done; :
"""
)


def units(run: str, number: int) -> Fact[tuple[MovedUnit, ...]]:
    """The units whose state `run`, whose number is `number`, and later runs changed, also those that are as before."""
    return Fact(f"run_record.units({run})", script(_UNITS, str(number), run, timeout_s=60, reads=True), _units)


def _units(result: Result) -> tuple[MovedUnit, ...]:
    head, *lines = result.lines
    if not head.startswith("records"):
        raise ValueError("no list of units")
    _require_few(lines, MOST_UNITS, "units")
    units = []
    for line in lines:
        kind, name, enabled, active, now = line.split("\t")
        states = now.split(" ")
        if kind != "unit" or not _UNIT.fullmatch(name) or name.startswith("-") or len(states) != 3:
            raise ValueError(f"{line[:80]!r} is no unit")
        active_now, load, enabled_now = states
        before = enabled == "enabled", active in _ACTIVE
        after = enabled_now == "enabled", active_now in _ACTIVE
        units.append(MovedUnit(name, *before, *after, load == "loaded", load == "masked"))
    return tuple(units)


_ACTIVE = ("active", "reloading", "activating")


class RecordedLimits(Struct, frozen=True):
    """The limits of the GPUs that a run recorded before its first change; () without a loaded driver."""

    gpus: tuple[Gpu, ...]
    locks: Locks


_LIMITS = """
cd "/var/lib/rigwright/runs/$1/record" 2>/dev/null || exit 1
echo "boot $(sed -n 's/^boot //p' about | head -n 1)"; head -c 65536 locks | tr -d '\\000'
echo; echo --gpus; head -c 262144 gpus
"""


def limits(run: str) -> Fact[RecordedLimits]:
    """The limits in force before a run."""

    def parse(result: Result) -> RecordedLimits:
        if result.code != 0:
            raise ValueError(result.error_text or "no record")
        head, _, rows = result.text.partition("\n--gpus\n")
        first, *lines = host_text.lines(head)
        locks: Locks = {}
        for line in filter(str.strip, lines):
            uuid, kind, low, high, boot, _load, code = line.split()
            if boot == first.partition(" ")[2] and code == "0" and kind in ("graphics", "memory"):
                locks[uuid, kind] = (host_text.integer(low), host_text.integer(high))
        return RecordedLimits(gpus.gpus.parse(Result(0, rows.encode())) if rows.strip() else (), locks)

    return Fact(f"run_record.limits({run})", script(_LIMITS, run, reads=True), parse)


MARKS = f"{STATE}/rollback"
"""The folder with a file for each work that remains after a rollback of files: apt-lists, linker, initramfs, grub,
units."""

pending = Fact(
    "run_record.pending",
    script(f"ls {MARKS} 2>/dev/null; :", reads=True),
    lambda result: frozenset(word for word in result.text.split() if re.fullmatch("[a-z-]{1,20}", word)),
)
"""The works of MARKS."""
