"""Commands that record on a host what was there before a run, the units that it changes, whether it is a `try`, how it
ended, and which records of another machine-id are of this installation."""

from __future__ import annotations

from collections.abc import Sequence

from rigwright.core.change import Change
from rigwright.core.command import Command, script
from rigwright.core.control_characters import one_line
from rigwright.core.secrets import redacted
from rigwright.operations._run_recording import RECORD

_UNITS = """
own=/var/lib/rigwright/runs/${RIGWRIGHT_RUN:-none}/record/own-units
[ ! -e "$own" ] || { printf '\\n' && printf '%s\\n' "$@"; } >>"$own" && sync "$own"
"""
_LOG = """
logger -t rigwright -- "run ${RIGWRIGHT_RUN:-none} begins the step '$1'" 2>/dev/null || :
"""
_DONE = """
run=${1:-${RIGWRIGHT_RUN:-none}}; record=/var/lib/rigwright/runs/$run/record
logger -t rigwright -- "run $run: all its steps are done" 2>/dev/null || :
[ ! -d "$record" ] || { : >"$record/done" && sync "$record/done" "$record"; } || :
"""
_TRY = """
record=/var/lib/rigwright/runs/${RIGWRIGHT_RUN:-none}/record
[ -e "$record/try" ] ||
  { printf '%s\\t%s\\n' "${RIGWRIGHT_OWNER:-}" "$1" >"$record/try" && sync "$record/try" "$record"; }
"""
_DECIDED = """
record=/var/lib/rigwright/runs/$1/record
[ ! -e "$record/try" ] || { rm -f -- "$record/try" && sync "$record"; }
"""
_ADOPTION = """
cd /var/lib/rigwright/runs && machine=$(sha256sum </etc/machine-id | cut -c 1-64) || exit 1
for run; do
  printf '%s\\n' "$machine" >"./$run/record/adopted.new" && sync "./$run/record/adopted.new" &&
    mv "./$run/record/adopted.new" "./$run/record/adopted" && sync "./$run/record" || exit 1
done
"""


def before(step: str, changes: Sequence[Change], *, first: bool, tried: str = "") -> tuple[Command, ...]:
    """The commands that run before the changes of a step: with `first` what is on the host is recorded, once in a run;
    then the units of the changes; the system log gets the name of the step. `tried`: the change of a `try`, until
    `decision` says that somebody has decided on it.

    A host that has no room for the record is not changed.
    """
    units = list(dict.fromkeys(unit for change in changes for unit in change.units))
    record = (script(RECORD, timeout_s=120),) if first else ()
    if first and tried:
        record = (*record, script(_TRY, redacted(one_line(tried))[:200], timeout_s=30))
    log = script(_LOG, redacted(one_line(step))[:200], timeout_s=30)
    return (*record, *((script(_UNITS, *units, timeout_s=30),) if units else ()), log)


def done(run: str = "") -> Command:
    """The command that records that a run, without `run` this one, ended without an error. It never fails."""
    return script(_DONE, run, timeout_s=30)


def decision(run: str) -> Command:
    """The command that records that the change of a `try` is kept or taken back."""
    return script(_DECIDED, run, timeout_s=30)


def adoption(runs: Sequence[str]) -> Command:
    """The command that records that these runs changed this installation, though under another machine-id."""
    return script(_ADOPTION, *runs, timeout_s=60)
