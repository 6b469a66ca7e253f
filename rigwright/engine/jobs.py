"""Long commands as detached jobs.

A job is a script in /var/lib/rigwright/runs/RUN/STEP that systemd runs outside the session. It has ended when its result file
exists; a lost connection and the end of the controller do not affect it. A job that a shutdown ends is watched until the host
has booted again, so that the error tells of the boot.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from rigwright.core.command import Command, Result, script, with_stdin
from rigwright.core.errors import HostError, Unreachable
from rigwright.facts import Fact
from rigwright.ssh.transport import Transport

FOLDER = "/var/lib/rigwright"
_AGAIN = "run the same command again; it continues from there"
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
rm -f "$dir/result"; : >"$dir/log"; cat /proc/sys/kernel/random/boot_id >"$dir/boot"; sync "$dir/script" "$dir/job" "$dir"
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
  [ $code = lost ] && [ "$(systemctl is-system-running 2>/dev/null)" = stopping ] && code=running
fi
echo "$code $boot $(cat "$dir/boot" 2>/dev/null || echo -) $(date -d "@$(awk '/^btime/{print $2}' /proc/stat)" '+%F %T %Z')"; tail -c +$((from + 1)) "$dir/log" 2>/dev/null | head -c 262144
"""


def run(
    transport: Transport, run_id: str, step: str, number: int, cmd: Command, on_line: Callable[[str], None]
) -> Result:
    """Runs a command as a job that survives the connection; returns its result. `on_line` gets each line of output.

    Raises HostError when the job cannot be started or a reboot ended it, Unreachable when the host does not come back.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", step.lower()).strip("-")[:48]
    unit = f"rigwright-job-{slug or 'step'}-{number}"
    folder = f"{FOLDER}/runs/{run_id}/{unit}"
    text = f"export RIGWRIGHT_RUN={run_id}\n{with_stdin(cmd)}\n"
    started = transport.run([script(_START, folder, unit, stdin=text.encode(), timeout_s=60)])[0]
    if started.code != 0:
        found = f"the job could not be started: {started.error_text}"
        raise HostError(step, found, "systemd-run to work", "run the same command again")
    return watch(transport, folder, cmd.timeout_s, step, on_line)


def watch(
    transport: Transport,
    folder: str,
    limit_s: float,
    step: str,
    on_line: Callable[[str], None],
    raise_if_stopped: Callable[[], object] = int,
) -> Result:
    """Follows a job to its end and returns its result; reconnects after a lost connection.

    `raise_if_stopped` is called every few seconds; an exception from it ends the watching. Raises HostError, Unreachable.
    """
    deadline = time.monotonic() + limit_s
    log, shown, boot = b"", 0, ""
    while time.monotonic() < deadline:
        raise_if_stopped()
        try:
            answer = transport.run([script(_WATCH, folder, str(len(log)), timeout_s=30)])[0]
        except Unreachable:
            _reconnect(transport, min(deadline, time.monotonic() + 600))
            continue
        head, _, more = answer.stdout.partition(b"\n")
        code, seen_boot, first_boot, booted = head.decode().split(maxsplit=3)
        boot = boot or ("" if first_boot == "-" else first_boot)
        log += more
        lines = log[shown:].split(b"\n")
        for line in lines[:-1]:
            on_line(line.decode("utf-8", "replace").rstrip("\r"))
        shown = len(log) - len(lines[-1])
        if code in ("running", "lost") and boot and seen_boot != boot:
            found = f"the machine went down in the middle of it, and booted again at {booted}"
            raise HostError(step, found, "the job to end", _AGAIN)
        if code == "lost":
            fix = f"df -h /var; journalctl -u {folder.rsplit('/', 1)[-1]}, on the host; then {_AGAIN}"
            raise HostError(step, "the job ended without a result", "a result", fix)
        if code != "running" and not more:
            return Result(int(code), log)
        boot = seen_boot
    fix = f"look at {folder}/log on the host; the job goes on"
    raise HostError(step, f"not done within {limit_s:g} s", "an end", fix)


def _reconnect(transport: Transport, deadline: float) -> None:
    while True:
        try:
            transport.connect(15)
            return
        except Unreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(3)


leftovers: Fact[tuple[str, ...]] = Fact(
    "jobs.leftovers",
    script(
        "for unit in $(systemctl list-units --plain --no-legend --state=running 'rigwright-job-*.service' | cut -d' ' -f1); do "
        'cat "/run/rigwright.${unit%.service}" 2>/dev/null; done; :'
    ),
    lambda result: tuple(line.strip() for line in result.text.splitlines() if line.strip()),
)
"""The folders of jobs that are still running; a controller that ended early left them."""
