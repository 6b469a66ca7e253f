"""The lease of a host: only one run changes a host at a time.

The lease is a file on the host. Its first line is the owner: the run, the user and machine, the process, when that
started, the name of the host in the inventory, and the fencing token of the lease. Its second line says until when: the
boot id and the uptime at the last renewal, and the length in seconds. The host's wall clock and the controller's do not
count. A lease of an earlier boot counts from the start of this boot, so that its run, which may be waiting for the
boot, continues first.

The fencing token is one more than that of the last lease of this host, also after a reboot. Of two attempts at the same
work that with the greater token is the later one, and the host refuses the other, also when one process makes both. The
host's system log says who took it: `journalctl -t rigwright`. The host also keeps which runs the last holder continues
(`lease.continued`); these get no lease any more.

All scripts that change the lease or start a job hold the lock `lease.lock`, and compare the owner with its token while
they hold it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from msgspec import Struct

from rigwright.core import lazy_re
from rigwright.core.command import Command, Result, script
from rigwright.core.errors import HostError
from rigwright.core.host_folders import STATE
from rigwright.engine.run_owner import OWNER, has_ended, of_host, owner, person
from rigwright.facts import Fact
from rigwright.operations._run_recording import KEPT_RUNS
from rigwright.ssh.transport import Transport

EXPIRES_S = 600
"""A lease that was not renewed for so long has expired, unless one of its jobs still runs."""

MOST_CONTINUED = 100
"""So many earlier runs of a rollout are kept on a host."""

FILE = f"{STATE}/lease"
LOST = 77
"""The exit code of a script that found another owner."""
_HELD, _DAMAGED, _CONTINUED = 75, 78, 79

JOBS_AT_WORK = (
    "[ ! -d /run/systemd/system ] || systemctl list-units --plain --no-legend"
    " --state=running,activating,deactivating,reloading 'rigwright-job-*.service'"
)
"""Shell text that lists the jobs that run, none where systemd is not the init. A job that a shutdown ends is
`deactivating`."""

SHELL = f"""
set -f
file={FILE}
alone() {{
  mkdir -p -m 755 {STATE} && {{ umask 077; exec 9>>{STATE}/lease.lock; umask 022; }} || return 1
  flock -w 10 9 || {{ echo "another command has held {STATE}/lease.lock for 10 s" >&2; return 1; }}
}}
clock() {{
  read -r boot </proc/sys/kernel/random/boot_id && read -r up _ </proc/uptime && read -r init </proc/1/stat &&
    up=${{up%%.*}}
}}
held() {{
  owner= at_boot= at= length=
  [ -e "$file" ] || return 1
  {{ read -r owner && read -r at_boot at length; }} <"$file" 2>/dev/null
  case $at:$length in *[!0-9:]*|:*|*:|*:*:*|????????????????????*) return 1;; esac
}}
keep() {{
  (umask 077; printf '%s\\n%s %s %s\\n' "$1" "$boot" "$up" "$2" >"$file.new") &&
    sync "$file.new" && mv -f "$file.new" "$file"
}}
lost() {{ echo "$owner" >&2; exit {LOST}; }}
jobs_at_work() {{ {JOBS_AT_WORK} || echo unknown; }}
say() {{ logger -t rigwright -- "$1" 2>/dev/null || :; }}
"""
"""Shell functions. `alone` takes the lock, which no other user can open and hold; `clock` sets `boot` and `up`; `held`
reads the lease, and fails if there is none or it cannot be read; `keep OWNER LENGTH` writes it; `say TEXT` writes to
the system log where there is one. A systemd that does not answer counts as one that runs a job."""

_TAKE = f"""{SHELL}
since_boot() {{ set -- ${{init##*)}}; age=$((up - ${{20}} / 100)); [ $age -ge 0 ] || age=$up; }}
alone && clock || exit 1
if [ -e "$file.continued" ]; then
  while read -r by run; do [ "$run" != "${{1%% *}}" ] || {{ echo "$by"; exit {_CONTINUED}; }}; done <"$file.continued"
fi
if [ -e "$file" ]; then
  held || {{ head -c 200 "$file"; exit {_DAMAGED}; }}
  if [ "${{owner% *}}" != "$1" ] && [ "$owner" != "$2" ]; then
    since_boot; [ "$at_boot" = "$boot" ] && [ "$at" -le "$up" ] && age=$((up - at))
    busy=$(jobs_at_work)
    if [ "$age" -lt "$length" ] || [ -n "$busy" ]; then echo "$age $length ${{busy:+busy}} $owner"; exit {_HELD}; fi
  fi
fi
read -r token <"$file.token" 2>/dev/null || token=0
case $token in *[!0-9]*|0?*|''|????????????????*) token=0;; esac
token=$((token + 1))
if [ -n "$4" ]; then
  for run in $4; do echo "${{1%% *}} $run"; done >"$file.continued.new" &&
    mv -f "$file.continued.new" "$file.continued" || exit 1
fi
printf '%s\\n' "$token" >"$file.token.new" && sync "$file.token.new" && mv -f "$file.token.new" "$file.token" &&
  keep "$1 $token" "$3" || exit 1
say "run ${{1%% *}} changes this host as ${{1##* }} from now on (lease $token)"
echo "$token"
"""
_RENEW = f'{SHELL}\nalone && clock || exit 1; held; [ "$owner" = "$1" ] || lost; keep "$1" "$2"\n'
_RELEASE = f"""{SHELL}
alone || exit 1
held; [ "$owner" = "$1" ] && [ -z "$(jobs_at_work)" ] || exit 0
set +f
[ ! -f {STATE}/files ] || sed -n 's,^\\(/.*\\)/.*,\\1,p' {STATE}/files | sort -u | while read -r folder; do
  for half in "$folder"/.rigwright.??????; do [ ! -e "$half" ] || rm -rf -- "$half"; done
done
cd {STATE}/runs 2>/dev/null && for kind in record other; do
  ls -1t | while read -r run; do
    if [ -d "./$run/record" ]; then this=record; else this=other; fi
    [ "$this" != "$kind" ] || echo "$run"
  done | tail -n +{KEPT_RUNS + 1} | while read -r run; do grep -qsxF -e "$run" ./*/record/to || rm -rf -- "./$run"; done
done
rm -f "$file"
say "run ${{owner%% *}} has ended its work on this host"
"""

_QUIET_S = 60
_AWAIT_QUIET = f"""
n=0 quiet=0
while [ $quiet -lt 3 ]; do
  n=$((n+1)); [ $n -lt {_QUIET_S}0 ] || exit 1
  owner=$1; set --
  for process in /proc/[0-9]*; do [ ! -O "$process" ] || set -- "$@" "$process/environ"; done
  if grep -qszxF -e "RIGWRIGHT_OWNER=$owner" "$@"; then quiet=0; else quiet=$((quiet+1)); fi
  set -- "$owner"
  sleep 0.1
done
"""
"""Waits until no program runs that a command of this owner started. Its run has lost the lease, so it starts no
other. Only processes of the user who runs this count, root: any user can start a program with these words."""

_HELD_BY = lazy_re.compile(rf"(?P<age>\d{{1,9}}) (?P<length>\d{{1,9}}) (?P<busy>busy)? (?P<owner>{OWNER.pattern})\s*")


class Lease(Struct, frozen=True):
    """The lease of a host, as long as the host has `owner` in its file, whose last word is the fencing token
    `token`."""

    transport: Transport
    host: str
    owner: str
    token: int

    def renewal(self, limit_s: float = 0) -> Command:
        """A command that renews the lease, and fails when this run does not hold it.

        The lease then lasts for EXPIRES_S, or for `limit_s` seconds and a minute if that is longer.
        """
        return script(_RENEW, self.owner, str(max(EXPIRES_S, int(limit_s) + 60)), timeout_s=30)

    def require(self, renewed: Result) -> None:
        """Raises HostError unless this is the result of a renewal that succeeded."""
        if renewed.code == LOST:
            raise lost(self.host, renewed)
        if renewed.code != 0:
            raise _not_written(self.host, "renewed", renewed)

    def renew(self, limit_s: float = 0) -> None:
        """Renews the lease. Raises HostError when this run does not hold it, Unreachable."""
        self.require(self.transport.run([self.renewal(limit_s)])[0])

    def release(self, last: Command | None = None) -> None:
        """Releases the lease if this run holds it, after the command `last`, and deletes what older runs left: their
        records, and files that a cut left half written. While a job runs it stays, and ends with the job or later."""
        release = script(_RELEASE, self.owner, timeout_s=30)
        self.transport.run([release] if last is None else [last, release])


def is_left(owner_of_lease: str, host: str, runs: Collection[str]) -> bool:
    """Whether a lease may be taken at once: its holder was a process of this machine that has ended, or an attempt of
    one of these runs at the same host, which this run replaces. An attempt that still lives stops at its next
    command."""
    match = OWNER.fullmatch(owner_of_lease)
    ours = match is not None and match["run"] in runs and match["host"] == of_host(host)
    return ours or has_ended(owner_of_lease)


def take(transport: Transport, host: str, run_id: str, earlier_runs: Sequence[str] = ()) -> Lease:
    """Takes the host's lease for this run. Raises HostError with the run and the user who hold it.

    A lease has expired when it was not renewed for its length and no job is running, or when `is_left` says so of
    `earlier_runs`. One that cannot be read has not.
    """
    mine, left_by = owner(run_id, host), ""
    continued = " ".join(run for run in earlier_runs[-MOST_CONTINUED:] if run != run_id)
    for _ in range(2):
        answer = transport.run([script(_TAKE, mine, left_by, str(EXPIRES_S), continued, timeout_s=30)])[0]
        if answer.code == 0:
            token = _token(answer.text)
            if left_by:
                _await_quiet(transport, host, left_by)
            return Lease(transport, host, f"{mine} {token}", token)
        match = _HELD_BY.fullmatch(answer.text) if answer.code == _HELD else None
        if match is None:
            break
        if not is_left(match["owner"], host, earlier_runs):
            left = max(0, int(match["length"]) - int(match["age"]))
            why = "one of its jobs runs" if match["busy"] else f"its lease was renewed {match['age']} s ago"
            until = "its job ends" if match["busy"] else f"its lease expires, in {left} s unless it renews it"
            fix = f"wait until it is done, or until {until}; then run the same command"
            raise HostError(host, f"{_holder(match)} is changing it ({why})", "one run at a time", fix)
        left_by = match["owner"]
    if answer.code == _CONTINUED:
        problem = f"run {run_id} has ended: run {answer.text.strip()[:100]} continues its work on this host"
        fix = "nothing: what this run was to do is left to that one"
        raise HostError(host, problem, "the last run of the rollout", fix)
    if answer.code == _DAMAGED:
        problem = f"the lease {FILE} cannot be read: {answer.text.strip()[:80]!r}"
        raise HostError(host, problem, "the lines of a run", f"when no run changes {host}: sudo rm {FILE}, on the host")
    raise _not_written(host, "taken", answer)


def _await_quiet(transport: Transport, host: str, left_by: str) -> None:
    """Waits for the command of the last holder that may still run, because nobody waits for its end. Raises
    HostError."""
    match = OWNER.fullmatch(left_by)
    process = " ".join(match[part] for part in ("run", "user", "pid", "started")) if match else left_by
    answer = transport.run([script(_AWAIT_QUIET, process, timeout_s=_QUIET_S + 30)])[0]
    if answer.code != 0:
        by = _holder(match) if match else "another run"
        problem = f"a command of {by} still runs on it, for more than {_QUIET_S} s"
        raise HostError(host, problem, "the end of that command", "wait for it, then run the same command")


def _token(text: str) -> int:
    """The fencing token in the answer of the host; 0 without one."""
    match = re.search(r"^\d{1,16}$", text, re.MULTILINE)
    return int(match[0]) if match else 0


def _first_line(result: Result) -> str:
    if result.code != 0:
        raise ValueError(f"{FILE} cannot be read: {result.error_text[:200]}")
    return result.text.strip()[:500]


holder: Fact[str] = Fact(
    "lease.holder", script(f"[ ! -e {FILE} ] || head -n 1 {FILE} | head -c 500", reads=True), _first_line
)
"""The owner of the lease, which may be a run that was cut; "" for none."""


def lost(host: str, answer: Result) -> HostError:
    """The error for a script that ended with LOST: another run holds the lease."""
    fix = "wait until no other run changes it, then run the same command"
    match = OWNER.fullmatch(answer.error_text)
    problem = f"{_holder(match)} has taken this host" if match else "the lease of this run is gone, or cannot be read"
    return HostError(host, problem, "the lease of this run", fix)


def _holder(owner: re.Match[str]) -> str:
    """`run 20261122-0900 by ada@desk`: without the address and the processes of that machine."""
    return f"run {owner['run']} by {person(owner['user'])}"


def _not_written(host: str, what: str, answer: Result) -> HostError:
    reason = answer.error_text or answer.text.strip()[:200] or f"no answer (exit {answer.code})"
    return HostError(host, f"the lease cannot be {what}: {reason}", "a writable /var/lib", "df -h /var")
