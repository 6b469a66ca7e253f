"""Scratch directories of a host in /var/cache/rigwright, for files that facts need during a run, such as package lists.

A script locks the directory that it uses, and leaves a mark of its run in it. At its end a run removes its marks, those
of runs that have ended early, and directories without a mark.
"""

from __future__ import annotations

from rigwright.core.command import Command, script
from rigwright.facts import Fact

FOLDER = "/var/cache/rigwright"
MARK_MINUTES = 1440
"""The age of a mark from which its run counts as ended."""

USE = f"""
scratch() {{
  d={FOLDER}/$1 n=0
  while [ $n -lt 30 ]; do
    n=$((n + 1))
    [ ! -L "{FOLDER}" ] && [ ! -L "$d" ] || return 1
    mkdir -p "$d/users" && {{ umask 077; command exec 9>"$d/lock"; open=$?; umask 022; }} && [ $open = 0 ] || continue
    flock -w 280 9 || return 1
    [ "$d/lock" -ef /proc/self/fd/9 ] || continue
    printf '%s\\n' "$RIGWRIGHT_OWNER" >"$d/users/${{RIGWRIGHT_RUN:-none}}"
    return
  done
  return 1
}}
"""
"""Shell function: `scratch NAME` makes that directory, sets `d` to its path, locks it and marks it as used by this run.
A directory that another run removes meanwhile is made again."""

_TIDY = f"""
mine=$1; shift
for d in {FOLDER}/*; do
  case $d in *.gone) rm -rf "$d"; continue;; esac
  [ -d "$d" ] && [ ! -L "$d" ] || {{ [ ! -e "$d" ] || rm -f "$d"; continue; }}
  (
    command exec 9>>"$d/lock" && flock -w 20 9 && [ "$d/lock" -ef /proc/self/fd/9 ] || exit
    rm -f "$d/users/$mine"
    find "$d/users" -type f -mmin +{MARK_MINUTES} -delete 2>/dev/null
    left=
    for mark in "$d"/users/*; do
      [ -f "$mark" ] || continue
      owner=$(head -c 300 "$mark" | head -n 1)
      for ended; do [ "$owner" != "$ended" ] || {{ rm -f "$mark"; owner=; break; }}; done
      [ ! -e "$mark" ] || {{ left=1; printf '%s\\n' "$owner"; }}
    done
    [ -n "$left" ] || {{ rm -rf "$d.gone" && mv -T "$d" "$d.gone" && rm -rf "$d.gone"; }}
  ) 9>&-
done
rmdir {FOLDER} 2>/dev/null
exit 0
"""

_LEFT = f'for d in {FOLDER}/*; do [ -e "$d" ] && {{ echo left; exit; }}; done; :'
left: Fact[bool] = Fact("scratch.left", script(_LEFT, reads=True), lambda result: bool(result.stdout))
"""Whether the host has scratch directories of any run."""


def tidy(run_id: str, ended: tuple[str, ...] = ()) -> Command:
    """The command that removes the marks of a run and of owners that have `ended`, and directories without a mark.

    It prints the owners whose marks stay. It waits 20 s for a directory that is in use, and then leaves it.
    """
    return script(_TIDY, run_id, *ended, timeout_s=60)
