"""Removes what a boot that is tried once puts on a host."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.core.change import Change, Note
from rigwright.core.command import Command, script
from rigwright.core.errors import HostError
from rigwright.facts import Facts
from rigwright.facts.boot import trial as state
from rigwright.operations import operation

BLOCK = f"""
set -e; umask 022
file={state.CUSTOM} new={state.CUSTOM}.rigwright
[ ! -L "$file" ] || {{ echo "$file is a link" >&2; exit 1; }}
cat >"$new.block"
: >"$new"
if [ -e "$file" ]; then
  begins=$(grep -c '^{state.BEGIN}$' "$file" || :) ends=$(grep -c '^{state.END}$' "$file" || :)
  [ "$begins" = "$ends" ] && [ "$begins" -le 1 ] || {{ echo "$file has only a part of rigwright's block" >&2; exit 1; }}
  cp -p "$file" "$new"
  sed '/^{state.BEGIN}$/,/^{state.END}$/d' "$file" >"$new"
  # The newline that an earlier block added to the end of the owner's last line.
  ! tail -n 2 "$file" | grep -qxF '# one newline before this block' || truncate -s -1 "$new"
fi
if [ -s "$new.block" ]; then
  if [ -s "$new" ] && [ -n "$(tail -c 1 "$new")" ]; then
    echo >>"$new"; sed '$i # one newline before this block' "$new.block" >>"$new"
  else cat "$new.block" >>"$new"; fi
fi
rm -f "$new.block"
[ ! -s "$new" ] || grub-script-check "$new" || {{ rm -f "$new"; exit 1; }}
if [ -s "$new" ] || {{ [ -e "$file" ] && [ "$begins" = 0 ]; }}; then
  sync "$new"; mv -fT "$new" "$file"
else rm -f "$file" "$new"; fi
sync /boot/grub
"""
"""Replaces rigwright's block at the end of custom.cfg, or removes it if stdin is empty; the owner's lines stay."""
CLEAR = f"""
grub-editenv /boot/grub/grubenv unset next_entry
sync
rm -f /boot/{state.KEPT} /boot/{state.KEPT}.new
if [ -e {state.UNIT} ]; then
  systemctl stop rigwright-trial.service 2>/dev/null
  rm -f {state.UNIT}
  [ ! -d /run/systemd/system ] || systemctl daemon-reload
fi
rm -f {state.WATCH}; rmdir /etc/rigwright 2>/dev/null
rm -rf {state.FOLDER}
[ -z "$1" ] || rm -f {state.OUTCOME}
[ -z "$2" ] || [ "$(cat /proc/sys/kernel/panic)" != 60 ] || echo "$2" >/proc/sys/kernel/panic 2>/dev/null
sync; :
"""
"""Removes everything else of a trial. $1: the trial was healthy; $2: the owner's kernel.panic."""


def taken_away() -> tuple[Command, ...]:
    """The commands that remove everything of a trial from the host, so that grub.cfg's own default boots."""
    return (script(BLOCK), script(CLEAR, "", ""))


@operation()
def removed(facts: Facts) -> Iterator[Change | Note]:
    """No boot entry, unit or file of a boot that is tried once is on the host; grub.cfg's own default boots next.
    Raises HostError while such a boot runs."""
    trial = facts(state.trial)
    if trial is None:
        return
    if trial.stage == "running":
        problem = f"this boot is the trial of run {trial.run}, which nobody has confirmed"
        fix = "invoke provision; or wait until the host has gone back by itself; then run the same command again"
        raise HostError("boot", problem, "a boot that is permanent", fix)
    yield Note("grub.cfg's own default boots next, which was not tried: look at it before you reboot", warn=True)
    subject = f"boot entries of run {trial.run or '?'}"
    yield Change("remove", subject, "what ran before is the default", "", taken_away())
