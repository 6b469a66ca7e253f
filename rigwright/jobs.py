"""Long commands as detached jobs, and the lease that keeps two people from changing one host at once.

A job is a script in /var/lib/rigwright/runs/RUN/STEP, run by systemd outside the session. It is finished when the
result file that it wrote is there, whatever the connection, the controller or the unit do meanwhile.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

from rigwright.errors import HostError, Unreachable
from rigwright.facts import Fact
from rigwright.shell import Command, Result, script, with_stdin
from rigwright.transport import Transport

FOLDER = "/var/lib/rigwright"
_START = """
set -e
dir=$1 unit=$2
mkdir -p -m 755 /var/lib/rigwright /var/lib/rigwright/runs && mkdir -p -m 700 "$dir"
cat >"$dir/script"; chmod 700 "$dir/script"
cat >"$dir/job" <<'END'
dir=$1; sh "$dir/script" >"$dir/log" 2>&1 </dev/null; code=$?
read boot </proc/sys/kernel/random/boot_id
echo "$code $boot" >"$dir/result.new" && sync "$dir/result.new" && mv "$dir/result.new" "$dir/result" && sync "$dir"
END
rm -f "$dir/result"; : >"$dir/log"; sync "$dir/script" "$dir/job" "$dir"
state=$(systemctl show -p SubState --value -- "$unit")
case $state in running|start*) echo "the unit $unit is running already" >&2; exit 75;; esac
systemctl stop -- "$unit" 2>/dev/null || :; systemctl reset-failed -- "$unit" 2>/dev/null || :
echo "$dir" >"/run/rigwright.$unit"
systemd-run --quiet --unit="$unit" -p RemainAfterExit=yes -p TimeoutStopSec=30min -p KillSignal=SIGCONT \\
  --setenv=LC_ALL=C --setenv=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh "$dir/job" "$dir"
"""
_WATCH = """
dir=$1 from=$2 n=0
while [ $n -lt 40 ]; do
  [ -s "$dir/result" ] && break
  [ "$(stat -c %s "$dir/log" 2>/dev/null || echo 0)" -gt "$from" ] && [ $n -gt 1 ] && break
  n=$((n+1)); sleep 0.1
done
touch -c /var/lib/rigwright/lease 2>/dev/null || :
if [ -s "$dir/result" ]; then read code boot <"$dir/result"; else
  read boot </proc/sys/kernel/random/boot_id; code=running
  case $(systemctl show -p SubState --value -- "${dir##*/}") in running|start*) ;; *) [ -s "$dir/result" ] || code=lost;; esac
fi
echo "$code $boot"; tail -c +$((from + 1)) "$dir/log" 2>/dev/null | head -c 262144
"""


def unit_name(step: str, number: int) -> str:
    """The unit of a step's job."""
    slug = re.sub(r"[^a-z0-9]+", "-", step.lower()).strip("-")[:48]
    return f"rigwright-job-{slug or 'step'}-{number}"


def run(transport: Transport, run_id: str, step: str, number: int, cmd: Command, say: Callable[[str], None]) -> Result:
    """The command's result, from a job that outlives this connection; `say` gets its lines as they come.

    Raises HostError when the job was cut off by a reboot or cannot be started, Unreachable when the host stays away.
    """
    unit = unit_name(step, number)
    folder = f"{FOLDER}/runs/{run_id}/{unit}"
    text = f"export RIGWRIGHT_RUN={run_id}\n{with_stdin(cmd)}\n"
    started = transport.run([script(_START, folder, unit, stdin=text.encode(), timeout_s=60)])[0]
    if started.code != 0:
        raise HostError(
            step,
            f"the job could not be started: {started.error_text}",
            "systemd-run to work",
            "run the same command again",
        )
    return watch(transport, folder, cmd.timeout_s, step, say)


def watch(
    transport: Transport,
    folder: str,
    limit_s: float,
    step: str,
    say: Callable[[str], None],
    go_on: Callable[[], object] = int,
) -> Result:
    """Follows a job to its end, over lost connections; or until `go_on`, called every few seconds, raises."""
    deadline = time.monotonic() + limit_s
    log, shown, boot = b"", 0, ""
    while time.monotonic() < deadline:
        go_on()
        try:
            answer = transport.run([script(_WATCH, folder, str(len(log)), timeout_s=30)])[0]
        except Unreachable:
            _reconnect(transport, min(deadline, time.monotonic() + 600))
            continue
        head, _, more = answer.stdout.partition(b"\n")
        code, seen_boot = head.decode().split()
        log += more
        lines = log[shown:].split(b"\n")
        for line in lines[:-1]:
            say(line.decode("utf-8", "replace").rstrip("\r"))
        shown = len(log) - len(lines[-1])
        if code in ("running", "lost") and boot and seen_boot != boot:
            found, todo = (
                "the machine went down in the middle of it",
                "run the same command again: it goes on from there",
            )
            raise HostError(step, found, "the job to end", todo)
        if code == "lost":
            found, todo = (
                "the job ended without a result",
                f"df -h /var; journalctl -u {folder.rsplit('/', 1)[-1]}, on the host",
            )
            raise HostError(step, found, "a result", f"{todo}; then the same command again: it goes on from there")
        if code != "running" and not more:
            return Result(int(code), log)
        boot = seen_boot
    raise HostError(
        step, f"not done within {limit_s:g} s", "an end", f"look at {folder}/log on the host; the job goes on"
    )


def _reconnect(transport: Transport, deadline: float) -> None:
    while True:
        try:
            transport.connect(15)
            return
        except Unreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(3)


def _leftovers(result: Result) -> tuple[str, ...]:
    return tuple(line.strip() for line in result.text.splitlines() if line.strip())


leftovers: Fact[tuple[str, ...]] = Fact(
    "jobs.leftovers",
    script(
        "for unit in $(systemctl list-units --plain --no-legend --state=running 'rigwright-job-*.service' | cut -d' ' -f1); do "
        'cat "/run/rigwright.${unit%.service}" 2>/dev/null; done; :'
    ),
    _leftovers,
)
"""The folders of jobs that still run, left by a controller that died."""

_LEASE = """
mkdir -p -m 755 /var/lib/rigwright && exec 9>/var/lib/rigwright/lease.lock && flock -w 10 9 || exit 1
file=/var/lib/rigwright/lease mine=$1 dead=$2
if [ -s "$file" ] && [ "$(cut -d' ' -f1 "$file")" != "${mine%% *}" ]; then
  age=$(( $(date +%s) - $(stat -c %Y "$file") ))
  running=$(systemctl list-units --plain --no-legend --state=running 'rigwright-job-*.service' | wc -l)
  if { [ $age -lt 600 ] || [ "$running" != 0 ]; } && [ "$(cat "$file")" != "$dead" ]; then echo "$age $(cat "$file")"; exit 75; fi
fi
echo "$mine" >"$file.new" && mv "$file.new" "$file"
"""
_KEEP = """
file=/var/lib/rigwright/lease
[ "$(cut -d' ' -f1 "$file" 2>/dev/null)" = "$1" ] && exec touch "$file"
echo "another run has taken this host: $(cat "$file" 2>/dev/null)" >&2; exit 75
"""
_RELEASE = 'f=/var/lib/rigwright/lease; [ "$(cut -d" " -f1 "$f" 2>/dev/null)" = "$1" ] && rm -f "$f"; :'


def keep_lease(run_id: str) -> Command:
    """A command that beats the lease's heart, and fails when another run has taken it."""
    return script(_KEEP, run_id, timeout_s=30)


def take_lease(transport: Transport, host: str, run_id: str) -> None:
    """This run holds the host's lease. Raises HostError that names the run and person who hold it.

    A holder without a heartbeat for 10 minutes and without a job, or one that was a process of this machine that has
    ended, holds nothing.
    """
    import getpass
    import uuid

    machine = f"{socket.gethostname()}-{uuid.getnode():x}"
    mine = f"{run_id} {getpass.getuser()}@{machine} {os.getpid()} {_started(os.getpid())}"
    dead = ""
    for _ in range(2):
        answer = transport.run([script(_LEASE, mine, dead, timeout_s=30)])[0]
        if answer.code != 75:
            break
        age, holder = answer.text.strip().split(" ", 1)
        words = holder.split()
        ours = len(words) == 4 and words[1].endswith(f"@{machine}")
        if not ours or words[3] == "?" or _started(int(words[2])) == words[3]:
            raise HostError(
                host,
                f"run {words[0]} by {words[1]} is changing it (heartbeat {age} s ago)",
                "one run at a time",
                "wait until it is done, then run the same command",
            )
        dead = holder
    if answer.code != 0:
        raise HostError(
            host,
            f"the lease cannot be taken: {answer.error_text or answer.text.strip()}",
            "a writable /var/lib",
            "df -h /var",
        )


def release_lease(transport: Transport, run_id: str) -> None:
    """The lease, if this run holds it, is gone."""
    transport.run([script(_RELEASE, run_id, timeout_s=30)])


def _started(pid: int) -> str:
    """When a process of this machine started (clock ticks since boot), "" when there is none, "?" where /proc cannot tell."""
    if not Path("/proc/self/stat").exists():
        return "?"
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return ""
