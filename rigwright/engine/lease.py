"""The lease of a host: only one run changes a host at a time."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from rigwright.core.command import Command, script
from rigwright.core.errors import HostError
from rigwright.ssh.transport import Transport

EXPIRES_S = 600
"""A lease that was not renewed for so long has expired, unless one of its jobs still runs."""

_TAKE = """
mkdir -p -m 755 /var/lib/rigwright && exec 9>/var/lib/rigwright/lease.lock && flock -w 10 9 || exit 1
file=/var/lib/rigwright/lease mine=$1 dead=$2
if [ -s "$file" ] && [ "$(cut -d' ' -f1 "$file")" != "${mine%% *}" ]; then
  age=$(( $(date +%s) - $(stat -c %Y "$file") ))
  running=$(systemctl list-units --plain --no-legend --state=running 'rigwright-job-*.service' | wc -l)
  if { [ $age -lt "$3" ] || [ "$running" != 0 ]; } && [ "$(cat "$file")" != "$dead" ]; then echo "$age $(cat "$file")"; exit 75; fi
fi
echo "$mine" >"$file.new" && mv "$file.new" "$file"
"""
_RENEW = """
file=/var/lib/rigwright/lease
[ "$(cut -d' ' -f1 "$file" 2>/dev/null)" = "$1" ] && exec touch "$file"
echo "another run has taken this host: $(cat "$file" 2>/dev/null)" >&2; exit 75
"""
_RELEASE = 'f=/var/lib/rigwright/lease; [ "$(cut -d" " -f1 "$f" 2>/dev/null)" = "$1" ] && rm -f "$f"; :'


def renewal(run_id: str) -> Command:
    """A command that renews the lease, and fails when another run holds it."""
    return script(_RENEW, run_id, timeout_s=30)


def take(transport: Transport, host: str, run_id: str) -> None:
    """Takes the host's lease for this run. Raises HostError with the run and the user who hold it.

    A lease has expired when it was not renewed for EXPIRES_S and no job is running, or when its holder was a process of this
    machine that has ended.
    """
    import getpass
    import uuid

    machine = f"{socket.gethostname()}-{uuid.getnode():x}"
    mine = f"{run_id} {getpass.getuser()}@{machine} {os.getpid()} {_started(os.getpid())}"
    dead = ""
    for _ in range(2):
        answer = transport.run([script(_TAKE, mine, dead, str(EXPIRES_S), timeout_s=30)])[0]
        if answer.code != 75:
            break
        age, holder = answer.text.strip().split(" ", 1)
        words = holder.split()
        ours = len(words) == 4 and words[1].endswith(f"@{machine}")
        if not ours or words[3] == "?" or _started(int(words[2])) == words[3]:
            found = f"run {words[0]} by {words[1]} is changing it (its lease was renewed {age} s ago)"
            raise HostError(host, found, "one run at a time", "wait until it is done, then run the same command")
        dead = holder
    if answer.code != 0:
        found = f"the lease cannot be taken: {answer.error_text or answer.text.strip()}"
        raise HostError(host, found, "a writable /var/lib", "df -h /var")


def release(transport: Transport, run_id: str) -> None:
    """Releases the lease if this run holds it."""
    transport.run([script(_RELEASE, run_id, timeout_s=30)])


def _started(pid: int) -> str:
    """When a process of this machine started, in clock ticks since boot; "" when it has ended, "?" without /proc."""
    if not Path("/proc/self/stat").exists():
        return "?"
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return ""
