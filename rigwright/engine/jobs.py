"""Long commands as detached jobs.

A job is a script in /var/lib/rigwright/runs/RUN/STEP that systemd runs outside the session. It has ended when its
result file exists; a lost connection and the end of the controller do not affect it. A job that a shutdown ends is
watched until the host has booted again, so that the error names the boot.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable

from rigwright.core import lazy_re
from rigwright.core.command import Command, Result, script, with_stdin
from rigwright.core.errors import HostError, Unreachable
from rigwright.core.host_folders import RUNS
from rigwright.core.numbers import count
from rigwright.engine import lease
from rigwright.facts import own_programs
from rigwright.facts.own_programs import JOB, OwnProgram
from rigwright.ssh.transport import Transport

LOG_BYTES = 1 << 20
"""The end of a job's output that is kept for its result."""
MOST_LINES, MOST_LINE_BYTES = 20_000, 4 << 20
"""At most so many lines, and bytes of them, are passed on while a job runs."""
RECONNECT_S, RECONNECT_EVERY_S, LOGIN_S = 600, 3, 15
QUIET_S = 120
"""After so long without output a line says that the job is still at work: DKMS prints nothing while it compiles."""
COLLECT_TENTHS_S = 5
"""Tenths of a second for which the output of a job is collected: each answer costs the host some twenty processes."""
_AGAIN = "run the same command again; it continues from there"
_START = f"""{lease.SHELL}{own_programs.BEGIN}
dir=$1 unit=$2 mine=$3 length=$4 token=$5 description=$6
alone && clock || exit 1
held; [ "$owner" = "$mine" ] || lost
[ "$(cat "$dir/token" 2>/dev/null)" != "$token" ] || exit 0
keep "$mine" "$length" || exit 1
set -e
mkdir -p -m 700 /var/lib/rigwright/runs && chmod 700 /var/lib/rigwright/runs && mkdir -p -m 700 "$dir"
cat >"$dir/script"; chmod 700 "$dir/script"
cat >"$dir/job" <<'END'
dir=$1; sh "$dir/script" >"$dir/log" 2>&1 </dev/null; code=$?
read boot </proc/sys/kernel/random/boot_id
echo "$code $boot" >"$dir/result.new" && sync "$dir/result.new" && mv "$dir/result.new" "$dir/result" && sync "$dir"
END
rm -f "$dir/result"; : >"$dir/log"; cat /proc/sys/kernel/random/boot_id >"$dir/boot"
sync "$dir/script" "$dir/job" "$dir/boot" "$dir" "${{dir%/*}}"
state=$(systemctl show -p SubState --value -- "$unit")
case $state in running|start*|stop*|final*) echo "the unit $unit is running already" >&2; exit 75;; esac
systemctl stop -- "$unit" 2>/dev/null || :; systemctl reset-failed -- "$unit" 2>/dev/null || :
echo "$token" >"$dir/token"
begin "$description" --unit="$unit" -p RemainAfterExit=yes -p IgnoreSIGPIPE=no -p TimeoutStopSec=30min \\
  -p KillSignal=SIGCONT sh "$dir/job" "$dir" 9>&-
"""
"""Starts a job while this run holds the lease. Repeated with the same token it does not start the job a second time."""
_WATCH = f"""{lease.SHELL}
dir=$1 from=$2 mine=$3 length=$4 n=0
[ ! -e "$dir/watched" ] || touch "$dir/watched"
while [ $n -lt 40 ]; do
  [ -s "$dir/result" ] && break
  [ $n -ge {COLLECT_TENTHS_S} ] && [ "$(stat -c %s "$dir/log" 2>/dev/null || echo 0)" -gt "$from" ] && break
  n=$((n+1)); sleep 0.1
done
keep_on() {{
  alone && clock || exit
  held; [ "$owner" = "$mine" ] || {{ echo lost; exit; }}
  [ "$at_boot" = "$boot" ] && [ "$at" -le "$up" ] && [ $((up - at)) -lt 30 ] || keep "$mine" "$length"
}}
lease=$([ -z "$mine" ] || keep_on 2>/dev/null)
code= ended=; [ -s "$dir/result" ] && {{ ended=1; read code boot <"$dir/result"; }}
case $code in ''|*[!0-9]*|????*)
  read boot </proc/sys/kernel/random/boot_id; code=running
  case $(systemctl show -p SubState --value -- "${{dir##*/}}" || echo running) in
    running|start*|stop*|final*) ;; *) [ -z "$ended" ] && [ -s "$dir/result" ] || code=lost;;
  esac
  [ $code = lost ] && [ "$(systemctl is-system-running 2>/dev/null)" = stopping ] && code=running;;
esac
first=$(head -c 64 "$dir/boot" 2>/dev/null | tr -cd '[:alnum:]-')  # a power cut may leave it empty
echo "$code $boot ${{first:--}} ${{lease:-kept}} $(date -d "@$(awk '/^btime/{{print $2}}' /proc/stat)" '+%F %T %Z')"
tail -c +$((from + 1)) "$dir/log" 2>/dev/null | head -c 262144
"""


_UNCLEAR = (-1, 124, 137)
"""Exit codes of a script that its time limit ended: how far it came is not known."""
_POLL = lazy_re.compile(
    rb"(?P<code>running|lost|\d{1,3}) (?P<boot>[\w-]{1,64}) (?P<first>[\w-]{1,64})"
    rb" (?P<lease>kept|lost) (?P<booted>[\w :+-]{1,64})"
)


def run(
    transport: Transport, owner: str, step: str, number: int, cmd: Command, on_line: Callable[[str], None]
) -> Result:
    """Runs a command as a job that survives the connection; returns its result. `on_line` gets each line of output.

    `owner` is that of the lease; the host starts the job only while the lease has it. Raises HostError when the job
    cannot be started, when a reboot ended it or another run has taken the host, Unreachable when the host does not come
    back.
    """
    run_id = owner.partition(" ")[0]
    slug = re.sub(r"[^a-z0-9]+", "-", step.lower()).strip("-")[:48]
    unit = f"{JOB}{slug or 'step'}-{number}"
    folder = f"{RUNS}/{run_id}/{unit}"
    text = f"export RIGWRIGHT_RUN={run_id}\n{with_stdin(cmd)}\n"
    description = own_programs.description(f"step {step}", owner)
    words = (folder, unit, owner, str(lease.EXPIRES_S), secrets.token_hex(8), description)
    started = _start(transport, script(_START, *words, stdin=text.encode(), timeout_s=60))
    if started.code == lease.LOST:
        raise lease.lost(step, started)
    if started.code != 0:
        reason = started.error_text or f"no answer (exit {started.code})"
        raise HostError(step, f"the job could not be started: {reason}", "systemd-run to work", _AGAIN)
    return watch(transport, folder, cmd.timeout_s, step, on_line, owner=owner)


def _start(transport: Transport, start: Command) -> Result:
    """The result of the script that starts a job; it is repeated if its answer is lost. Raises HostError,
    Unreachable."""
    for _ in range(2):
        try:
            answer = transport.run([start])[0]
        except Unreachable:
            _reconnect(transport, time.monotonic() + RECONNECT_S)
            continue
        if answer.code not in _UNCLEAR:
            return answer
    return transport.run([start])[0]


def watch(
    transport: Transport,
    folder: str,
    limit_s: float,
    step: str,
    on_line: Callable[[str], None],
    raise_if_stopped: Callable[[], object] = int,
    owner: str = "",
) -> Result:
    """Follows a job to its end and returns its result; reconnects after a lost connection.

    An answer that cannot be read or comes too late means that the job still runs. `raise_if_stopped` is called every
    few seconds; an exception from it ends the watching. `owner`: that of the lease, which is renewed. Raises HostError,
    also when another run has taken the host, and Unreachable.
    """
    deadline = time.monotonic() + limit_s
    log, boot, unread = _Log(on_line, folder), "", 0
    began = quiet_since = time.monotonic()
    while time.monotonic() < deadline:
        raise_if_stopped()
        words = (folder, str(log.size), owner, str(lease.EXPIRES_S))
        try:
            answer = transport.run([script(_WATCH, *words, timeout_s=min(120, 30 * (1 + unread)))])[0]
        except Unreachable:
            until = min(deadline, time.monotonic() + RECONNECT_S)
            minutes = count(max(1, round((until - time.monotonic()) / 60)), "minute")
            on_line(f"the host does not answer; a job that runs there goes on; trying again for {minutes}")
            _reconnect(transport, until)
            on_line("the host answers again")
            continue
        except HostError as error:
            answer = Result(-1, b"", str(error).encode())
        head, _, more = answer.stdout.partition(b"\n")
        poll = _POLL.fullmatch(head) if answer.code == 0 else None
        if poll is None:
            unread += 1
            if unread == 3:
                on_line("the host does not say whether the job runs; it counts as running, and the host is asked again")
            time.sleep(min(0.1 * 2**unread, 5, max(0.0, deadline - time.monotonic())))
            continue
        unread = 0
        code, seen_boot, first_boot = (poll[name].decode() for name in ("code", "boot", "first"))
        boot = boot or ("" if first_boot == "-" else first_boot)
        log.add(more)
        quiet_since = time.monotonic() if more else quiet_since
        if code == "running" and time.monotonic() - quiet_since > QUIET_S:
            quiet_since = time.monotonic()
            minutes = count(round((quiet_since - began) / 60), "minute")
            on_line(f"at work for {minutes}, and silent for the last {QUIET_S // 60}")
        if code in ("running", "lost") and boot and seen_boot != boot:
            problem = f"the machine went down in the middle of it, and booted again at {poll['booted'].decode()}"
            raise HostError(step, problem, "the job to end", _AGAIN)
        if poll["lease"] == b"lost":
            problem = "another run has taken this host, or the lease was removed; the job goes on there"
            raise HostError(
                step, problem, "the lease of this run", f"wait until no other run changes it; then {_AGAIN}"
            )
        if code == "lost":
            fix = f"df -h /var; journalctl -u {folder.rsplit('/', 1)[-1]}, on the host; then {_AGAIN}"
            raise HostError(step, "the job ended without a result", "a result", fix)
        if code != "running" and not more:
            return Result(int(code), bytes(log.end), cut=log.size > len(log.end))
        boot = seen_boot
    fix = f"look at {folder}/log on the host; the job goes on"
    silent = ", and the host no longer says whether it runs" if unread else ""
    raise HostError(step, f"not done within {limit_s:g} s{silent}", "an end", fix)


class _Log:
    """The output of a job as it arrives: its size, its end, and the lines that were passed on. All three are
    bounded."""

    def __init__(self, on_line: Callable[[str], None], folder: str) -> None:
        self.size = 0
        self.end = bytearray()
        self._on_line, self._folder = on_line, folder
        self._rest = b""
        self._lines_left, self._bytes_left = MOST_LINES, MOST_LINE_BYTES

    def add(self, more: bytes) -> None:
        """Adds output, and passes its complete lines on. The rest of a line that is longer than LOG_BYTES is a line of
        its own."""
        self.size += len(more)
        self.end += more
        del self.end[:-LOG_BYTES]
        *lines, self._rest = (self._rest + more).split(b"\n")
        if len(self._rest) > LOG_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            if self._lines_left <= 0 or self._bytes_left <= 0:
                return
            self._lines_left, self._bytes_left = self._lines_left - 1, self._bytes_left - len(line)
            self._on_line(line.decode("utf-8", "replace").rstrip("\r"))
            if self._lines_left <= 0 or self._bytes_left <= 0:
                self._on_line(f"the output is long; all of it is in {self._folder}/log on the host")


def _reconnect(transport: Transport, deadline: float) -> None:
    while True:
        try:
            transport.connect(LOGIN_S)
            return
        except Unreachable as error:
            if time.monotonic() > deadline:
                problem = f"{error.found}; a job that runs there goes on"
                raise Unreachable(error.where, problem, error.expected, error.fix) from None
            time.sleep(RECONNECT_EVERY_S)


def folder_of(job: OwnProgram) -> str:
    """The folder of a job."""
    return f"{RUNS}/{job.run}/{job.unit}"


def leftovers(programs: Iterable[OwnProgram]) -> list[OwnProgram]:
    """The jobs among the programs at work, which a controller left that ended early."""
    return [program for program in programs if program.unit.startswith(JOB)]
