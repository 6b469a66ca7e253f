"""The commands that record on a host what was there before a run, that the run changes units, and that it ended without an error."""

from __future__ import annotations

from collections.abc import Sequence

from rigwright.core.change import Change
from rigwright.core.command import Command, script
from rigwright.core.control_characters import one_line
from rigwright.core.secrets import redacted
from rigwright.facts.run_recording import RECORD

_UNITS = """
own=/var/lib/rigwright/runs/${RIGWRIGHT_RUN:-none}/record/own-units
[ ! -e "$own" ] || { printf '\\n' && printf '%s\\n' "$@"; } >>"$own" && sync "$own"
"""
_SAID = """
logger -t rigwright -- "run ${RIGWRIGHT_RUN:-none} begins the step '$1'" 2>/dev/null || :
"""
_DONE = """
logger -t rigwright -- "run ${RIGWRIGHT_RUN:-none}: all its steps are done" 2>/dev/null || :
record=/var/lib/rigwright/runs/${RIGWRIGHT_RUN:-none}/record
[ ! -d "$record" ] || { : >"$record/done" && sync "$record/done" "$record"; } || :
"""


def before(step: str, changes: Sequence[Change], *, first: bool) -> tuple[Command, ...]:
    """The commands that run before the changes of a step: with `first` what is on the host is recorded, once in a run; then the units of the
    changes; the system log gets the name of the step.

    A host that has no room for the record is not changed.
    """
    units = list(dict.fromkeys(unit for change in changes for unit in change.units))
    record = (script(RECORD, timeout_s=120),) if first else ()
    told = script(_SAID, redacted(one_line(step))[:200], timeout_s=30)
    return (*record, *((script(_UNITS, *units, timeout_s=30),) if units else ()), told)


def done() -> Command:
    """The command that records that this run ended without an error. It never fails."""
    return script(_DONE, timeout_s=30)
