"""The recorder on a host: started as a systemd unit of its own, stopped, its journal fetched and removed.

The journal stays on the host when the connection is lost or the machine goes down. The recorder itself ends after its
time limit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rigwright.core import lazy_re
from rigwright.core.command import script
from rigwright.core.errors import HostError, RigwrightError, Unreachable
from rigwright.engine import onhost_program, own_programs as ours, run_owner
from rigwright.engine.host_run import HostRun
from rigwright.engine.onhost_program import archive
from rigwright.facts import own_programs
from rigwright.features.recorder import facts
from rigwright.features.recorder.facts import FOLDERS, LONGEST_LINE, PROGRAM, UNIT, Recording

NAME = "recorder"
HZ = 10
LONGEST_S = 7 * 86400

_START = f"""{own_programs.BEGIN}
set -e
name=$1 limit=$2 hz=$3 idle=$4 description=$5
command -v python3 >/dev/null || {{ echo "python3 is not there" >&2; exit 69; }}
state=$(systemctl show -p SubState --value -- {UNIT})
case $state in running|start*|stop*) echo "another recording is at work ({UNIT}.service)" >&2; exit 75;; esac
systemctl stop -- {UNIT} 2>/dev/null || :; systemctl reset-failed -- {UNIT} 2>/dev/null || :
rm -rf -- {PROGRAM}; mkdir -m 700 -- {PROGRAM}; tar -xzpf - -C {PROGRAM}
umask 077; mkdir -p -m 755 {FOLDERS.rpartition("/")[0]}; mkdir -p -m 700 {FOLDERS}; chmod 700 {FOLDERS}; cd {FOLDERS}
kept=
for old in $(ls -A | sort -r); do
  if [ -z "$kept" ] && [ -s "./$old/samples.jsonl" ] && [ ! -e "./$old/fetched" ]
  then kept=$old; else rm -rf -- "./$old"; fi
done
free=$name n=1
while [ -e "./$free" ]; do n=$((n + 1)); free=$name-$n; done
name=$free
mkdir -m 700 -- "$name"; : >"$name/alive"; echo "$name" >{PROGRAM}/folder
cat >{PROGRAM}/job <<'END'
umask 077; folder=$1 idle=$2; shift 2
python3 -B {PROGRAM}/recorder.py --folder "$folder" "$@" 2>{PROGRAM}/log </dev/null
code=$?
[ $code = 0 ] || exit $code
[ "$idle" = 0 ] || tail -n 1 "$folder/samples.jsonl" 2>/dev/null | grep -q '"end":"stop"' ||
  {{ rm -rf -- "$folder"; rmdir {FOLDERS} 2>/dev/null; }}
rm -rf -- {PROGRAM}
END
begin "$description" --collect --unit={UNIT} -p Nice=-5 -p OOMScoreAdjust=-900 -p RuntimeMaxSec=$((limit + 120)) \\
  -p TimeoutStopSec=10 -p SendSIGKILL=yes \\
  sh {PROGRAM}/job "{FOLDERS}/$name" "$idle" --limit-s "$limit" --hz "$hz" --idle-s "$idle" >/dev/null
n=0
while [ ! -s "$name/samples.jsonl" ]; do
  n=$((n + 1))
  case $n:$(systemctl show -p SubState --value -- {UNIT}) in
    600:*|*:dead|*:failed) head -c 2000 {PROGRAM}/log >&2; rm -rf -- "./$name"; exit 70;;
  esac
  sleep 0.1
done
echo "$name"
"""
_IDLE_END = "idle"
"""The key of a recorder with an idle end."""
_NAME = script(f"cat {PROGRAM}/folder")
_STOP = f"""
name=$1 n=0
[ "$(cat {PROGRAM}/folder 2>/dev/null)" = "$name" ] || exit 0
: >"{FOLDERS}/$name/stop"
while [ $n -lt 80 ] && [ -d {PROGRAM} ]; do n=$((n + 1)); sleep 0.1; done
timeout 30 systemctl stop -- {UNIT} 2>/dev/null || :; systemctl reset-failed -- {UNIT} 2>/dev/null || :
rm -rf -- {PROGRAM}; rm -f -- "{FOLDERS}/$name/alive" "{FOLDERS}/$name/stop"
"""
"""Ends a recording; does nothing when the recorder that runs belongs to another one."""
_FETCHED = f'[ ! -d "{FOLDERS}/$1" ] || : >"{FOLDERS}/$1/fetched"'
_REMOVE = f"""
timeout 30 systemctl stop -- {UNIT} 2>/dev/null || :; systemctl reset-failed -- {UNIT} 2>/dev/null || :
rm -rf -- {PROGRAM} {FOLDERS}
"""
_DISCARD = f'rm -rf -- "{FOLDERS}/$1"; rmdir {FOLDERS} 2>/dev/null; :'


def start(run: HostRun, limit_s: int, hz: float = HZ, idle_s: int = 0) -> str:
    """Starts the recorder; returns the path of its folder on the host once it samples. It ends after `limit_s` at the
    latest.

    `idle_s`: it also ends when the file `alive` of the folder was not touched for so long; 0: never. A recorder with an
    idle end removes its folder when it ends by itself; after `stop` the folder stays for the caller. This run takes
    over a recorder with an idle end whose command has ended, while the program beside it is at work; otherwise it
    replaces it. Raises HostError, also when another recorder runs; Unreachable.
    """
    owner, limit_s = run_owner.owner(run.options.run_id, run.host.name), min(limit_s, LONGEST_S)
    description = own_programs.description(NAME, owner, limit_s + 120, _IDLE_END if idle_s else "")
    words = (run.options.run_id, str(limit_s), f"{hz:g}", str(idle_s), description)
    begin = script(_START, *words, stdin=archive("recorder.py"), timeout_s=120)
    answer = run.transport.run([begin])[0]
    if answer.code == 75 and (other := ours.of_unit(run, UNIT)):
        if not (idle_s and other.key == _IDLE_END and ours.command_ended(other)):
            raise ours.busy(run, other)
        folder = f"{FOLDERS}/{run.transport.run([_NAME])[0].text.strip()[:80]}"
        if ours.of_unit(run, onhost_program.UNIT):
            return folder
        stop(run, folder)
        discard(run, folder)
        answer = run.transport.run([begin])[0]
    if answer.code != 0:
        expected, fix = "systemd-run, python3, room in /var", "sudo apt-get install python3; df -h /run /var"
        if answer.code == 75:
            expected, fix = "one recording at a time", f"wait until it has ended, or: sudo systemctl stop {UNIT}"
        raise HostError(NAME, f"it cannot be started: {answer.error_text[:300]}", expected, fix)
    return f"{FOLDERS}/{answer.text.strip()[:80]}"


def stop(run: HostRun, folder: str) -> None:
    """Ends the recording of that folder and removes the program from the host; the journal stays. Raises Unreachable,
    HostError."""
    run.transport.run([script(_STOP, folder.rpartition("/")[2], timeout_s=60)])


@contextlib.contextmanager
def recording(run: HostRun, limit_s: int, hz: float = HZ) -> Iterator[str]:
    """Records while the context is open; yields the path of the folder on the host, in which marks.jsonl may be
    written.

    A lost connection does not end the recording: it is stopped at the end of the context if the host answers again,
    else it ends after `limit_s`. Raises HostError, Unreachable.
    """
    folder = start(run, limit_s, hz)
    try:
        yield folder
    finally:
        with contextlib.suppress(RigwrightError):
            try:
                stop(run, folder)
            except Unreachable:
                run.transport.connect()
                stop(run, folder)


def fetch(run: HostRun) -> Recording | None:
    """The newest recording of the host that was not fetched yet, which then counts as fetched; None without one, and
    while it is still at work. Its folder stays until the next recording, or until `remove`. Raises HostError,
    Unreachable."""
    run.store.known.pop(facts.unfetched, None)
    recording: Recording | None = run.value(facts.unfetched)
    if recording is None or recording.running:
        return None
    run.transport.run([script(_FETCHED, recording.name)])
    return recording


_POLL = f"""
cd {FOLDERS}/"$1" 2>/dev/null || {{ echo "gone - 0"; exit; }}
touch alive
state=ended; [ "$(cat {PROGRAM}/folder 2>/dev/null)" = "$1" ] && systemctl is-active -q {UNIT} && state=running
set -- "$2" "$3" $(stat -c '%i %s' samples.jsonl)
[ "$1" = "$3" ] && [ "$2" -le "$4" ] || set -- "$3" 0
echo "$state $1 $2"
tail -c +$(($2 + 1)) samples.jsonl | head -c 1048576
"""
_POLLED = lazy_re.compile(rb"(running|ended|gone) (\d{1,20}|-) (\d{1,12})\n")


class Following:
    """The journal of a recorder that is at work, read as it grows. Each `poll` also tells the recorder that somebody
    follows it."""

    def __init__(self, run: HostRun, folder: str) -> None:
        self._run, self._name = run, folder.rpartition("/")[2]
        self._file, self._at, self._rest = "-", 0, b""
        self.state = "running"
        """running, ended (it stopped, or the machine went down), or gone (the folder is not there)."""

    def poll(self) -> list[str]:
        """The complete lines that were written since the last call. Raises Unreachable, HostError."""
        words = (self._name, self._file, str(self._at))
        answer = self._run.transport.run([script(_POLL, *words, timeout_s=20)])[0]
        head = _POLLED.match(answer.stdout)
        if head is None:
            problem = f"its journal cannot be read: {answer.error_text[:200]}"
            raise HostError(NAME, problem, "a journal", "the same command again")
        state, file, at = (word.decode() for word in head.groups())
        data = answer.stdout[head.end() :]
        if file != self._file:
            self._rest = b""
        self.state, self._file, self._at = state, file, int(at) + len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-LONGEST_LINE:]
        return [line.decode("utf-8", "replace") for line in lines]


def discard(run: HostRun, folder: str) -> None:
    """Removes one recording from the host. Raises Unreachable, HostError."""
    run.transport.run([script(_DISCARD, folder.rpartition("/")[2])])


def remove(run: HostRun) -> None:
    """Removes the recorder and all its recordings from the host. Raises Unreachable, HostError."""
    run.transport.run([script(_REMOVE, timeout_s=60)])
