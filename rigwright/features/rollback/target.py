"""The run that a rollback undoes, and the files that it restores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from rigwright.core.change import Action, Change
from rigwright.core.command import Command, script
from rigwright.core.errors import HostError
from rigwright.core.shortening import first_of
from rigwright.driver.old_kernels import boot_room
from rigwright.facts import Facts, past_runs, run_record, system
from rigwright.facts.run_record import LISTS, MARKS, Run, WrittenFile
from rigwright.operations._run_recording import KEEP, KEPT_RUNS
from rigwright.operations.file import ENTER

_WHERE = "rollback"
_LIST = "invoke rollback --host NAME --list shows the runs that this host remembers"

_TOWARD = """
record=/var/lib/rigwright/runs/${RIGWRIGHT_RUN:-none}/record
[ ! -d "$record" ] || [ -e "$record/to" ] || [ "$1" = "$RIGWRIGHT_RUN" ] ||
  { echo "$1" >"$record/to.new" && sync "$record/to.new" && mv "$record/to.new" "$record/to" && sync "$record"; }
"""

_PUT_BACK = f"""{ENTER}{KEEP}
path=$1 kind=$2 mode=$3 owner=$4 sha=$5 source=$6 mark=$7 name=${{1##*/}}
[ -z "$mark" ] || {{ mkdir -p -m 755 {MARKS} && : >"{MARKS}/$mark" && sync "{MARKS}/$mark" {MARKS}; }} || exit 1
if [ "$kind" != absent ]; then enter "${{path%/*}}" make || exit 1; else
  [ -e "${{path%/*}}/" ] || exit 0
  enter "${{path%/*}}" || exit 1
fi
kept "./$name" "$path" && wrote "$(printf '%s\\t%s\\t%s\\t%s\\t%s' "$kind" "$mode" "$owner" "$sha" "$path")" || exit 1
if [ -f "./$name" ] && [ -n "${{RIGWRIGHT_RUN:-}}" ]; then
  keep="/var/lib/rigwright/runs/$RIGWRIGHT_RUN/before${{path%/*}}"
  (umask 077; mkdir -p -- "$keep") && cp -an -- "./$name" "$keep/" || exit 1
fi
if [ "$kind" = absent ]; then
  rm -f -- "./$name" || exit 1
  folder=${{path%/*}}
  case $folder in */rigwright) rm -rf ./__pycache__; cd / && rmdir -- "$folder" 2>/dev/null;; esac
else
  from=/var/lib/rigwright/runs/$source$path
  new=$(mktemp -d ./.rigwright.XXXXXX) || exit 1
  here=$(pwd -P)
  cd -P -- "$new" && inside "$here" "${{new#./}}" || exit 1
  cp -a -- "$from" content && if [ "$kind" = file ]; then
    [ "$(sha256sum <content | cut -c 1-64)" = "$sha" ] && chown -- "$owner" content && chmod -- "$mode" content &&
      touch content && sync -- content
  else [ "$(readlink -- content | sha256sum | cut -c 1-64)" = "$sha" ] && chown -h -- "$owner" content; fi &&
    mv -fT -- content "../$name"
  code=$?
  cd -P .. && rm -rf -- "$new"
  [ $code = 0 ] || {{ echo "E: $from is not what the record of that run says" >&2; exit 1; }}
fi
[ "$path" = /var/lib/rigwright/files ] || exit 0
cd /var/lib/rigwright/originals 2>/dev/null || exit 0
find . ! -type d | sed 's/^\\.//' | while read -r old; do
  grep -qxF -e "$old" /var/lib/rigwright/files 2>/dev/null || rm -f -- ".$old"
done
find . -depth -type d -empty -delete; :
"""
"""Restores or removes a file. The present file is recorded for the next rollback. An original that no list contains any
more is deleted, or the next run would keep an old one."""


def target(facts: Facts, to: str) -> tuple[Run, tuple[Run, ...]]:
    """The run before which to go back, and the runs from it on; without `to` the last run.

    If the last run is a rollback, its target is used: one that did not end continues, and after one that ended there is
    nothing to do. A rollback as `to` means the first of the rollbacks that it continued. Raises HostError if the host
    has no record of the run, a damaged one, or one of another installation.
    """
    runs = facts(run_record.runs)
    if not runs:
        expected = (
            "a run that changed it and was recorded; rigwright has recorded runs since the version that has rollback"
        )
        problem = f"the host has no record of {f'run {to}' if to else 'a run that changed it'}"
        raise HostError(_WHERE, problem, expected, "invoke remove takes away what rigwright put on the host")
    chosen = past_runs.beginning(runs, _run_named(runs, to or runs[-1].to or runs[-1].run))
    since = tuple(run for run in runs if run.number >= chosen.number or (not run.number and run.run > chosen.run))
    _require_usable(runs, chosen, since)
    return chosen, since


def _require_usable(runs: Sequence[Run], chosen: Run, since: Sequence[Run]) -> None:
    """Raises HostError unless the records of all runs from the chosen one on exist, are complete, and are of this
    installation."""
    later = next((run.run for run in _usable(runs) if run.number > chosen.number), "")
    instead = f"--to {later}, a later run; or " if later else ""
    if strangers := [run.run for run in since if run.sound and not run.here]:
        problem = (
            f"{_runs_text(strangers)} {'was' if len(strangers) == 1 else 'were'} recorded under another machine-id"
        )
        fix = f"{instead}if the disk was copied, or its machine-id made anew: invoke rollback --host NAME --adopt"
        raise HostError(_WHERE, problem, "records of this installation of the system", fix)
    if broken := [run for run in since if not run.sound]:
        form = broken[0].about.get("format", run_record.FORMAT)
        problem = f"the record of run {broken[0].run} is damaged or not complete"
        fix = f"{instead}invoke remove takes away what rigwright put on the host"
        if form != run_record.FORMAT:
            problem = f"the record of run {broken[0].run} has the form {form[:20]}, of another version of rigwright"
            fix = f"the version that wrote it; or {fix}"
        raise HostError(_WHERE, problem, f"a record as it was written, of form {run_record.FORMAT}", fix)
    if [run.number for run in since] != list(range(chosen.number, chosen.number + len(since))):
        problem = f"records of runs after {chosen.run} are gone"
        raise HostError(_WHERE, problem, "the records of all runs since then", f"{instead}{_LIST}")
    if chosen.half:
        problem = f"dpkg was in the middle of {', '.join(chosen.half[:4])} when run {chosen.run} began"
        earlier = [run.run for run in runs if run.here and run.sound and run.number < chosen.number]
        fix = f"--to {earlier[-1]}, the run before it" if earlier else f"{instead}{_LIST}"
        raise HostError(_WHERE, problem, "a state to which a host can go back", fix)


def _usable(runs: Sequence[Run]) -> list[Run]:
    """The last runs that the host can undo, oldest first."""
    usable: list[Run] = []
    for run in reversed(runs):
        follows = not usable or run.number == usable[0].number - 1
        if not (run.here and run.sound and follows) or any(run.run < each.run for each in runs if not each.number):
            break
        usable.insert(0, run)
    return usable


def _runs_text(names: Sequence[str]) -> str:
    """`run A`, `runs A, B and 3 more`."""
    return f"run{'' if len(names) == 1 else 's'} {first_of(names, 3)}"


def _run_named(runs: Sequence[Run], to: str) -> Run:
    matching = [run for run in runs if run.run == to] or [run for run in runs if run.run.startswith(to)]
    if len(matching) != 1:
        problem = (
            f"{to} is the beginning of {len(matching)} runs" if matching else f"the host has no record of run {to}"
        )
        expected = f"one of {', '.join(run.run for run in runs[-6:])}"
        raise HostError("--to", problem, expected, f"{_LIST}; it keeps the last {KEPT_RUNS}")
    return matching[0]


def require_room(facts: Facts, least_mib: int, *folders: str) -> None:
    """Raises HostError before the first change if one of these folders of system.ROOM has less free space."""
    free = facts(system.free_mib)
    for folder in folders:
        if free[folder] < least_mib:
            problem = f"{folder} has {free[folder]} MiB free, so the host could not go back to the end"
            fix = boot_room(facts) if folder == "/boot" else f"df -h {folder}; sudo apt-get clean"
            raise HostError(_WHERE, problem, f"{least_mib} MiB", f"{fix}; then the same command")


def toward(run: Run, changes: Iterable[Change]) -> Iterator[Change]:
    """The changes; before the first one, the present run is recorded as a rollback to `run`."""
    for number, change in enumerate(changes):
        commands = change.commands if number else (script(_TOWARD, run.run), *change.commands)
        yield replace(change, commands=commands)


def differing(facts: Facts, run: Run) -> list[WrittenFile]:
    """The files of rigwright that differ from those before the run and can be restored."""
    return [file for file in facts(run_record.written(run.number)).files if _differs(file) and not obstacle(file)]


def obstacle(file: WrittenFile) -> str:
    """Why a file that differs cannot be restored; "" if it can."""
    if not _differs(file):
        return ""
    if not file.ours:
        return "somebody changed it since: it is left as it is"
    if file.was.kind == "other":
        return "no file stood there before"
    if file.was.kind != "absent" and not file.kept_in:
        return "the record does not have its content: it is left as it is"
    return ""


def _differs(file: WrittenFile) -> bool:
    if file.path in LISTS:
        return (file.was.kind, file.was.sha256) != (file.now.kind, file.now.sha256)
    return file.was != file.now


def put_back(file: WrittenFile, mark: str = "") -> Command:
    """The command that restores a path. `mark`: the work that this makes necessary, which is noted before."""
    was = file.was
    state = (was.kind, was.mode or "-", was.owner or "-", was.sha256 or "-")
    return script(_PUT_BACK, file.path, *state, file.kept_in, mark, timeout_s=120)


def unmark(mark: str) -> Command:
    """The command that deletes a mark after its work is done."""
    return script(f'rm -f -- "{MARKS}/$1"; rmdir {MARKS} 2>/dev/null; :', mark)


def change_of(file: WrittenFile, mark: str = "") -> Change:
    """The change that restores a path."""
    action: Action = "remove" if file.was.kind == "absent" else "add" if file.now.kind == "absent" else "change"
    before = "" if file.now.kind == "absent" else "as a later run wrote it"
    after = "" if file.was.kind == "absent" else f"as before, mode {file.was.mode}"
    return Change(action, file.path, before, after, (put_back(file, mark),))
