"""A command that changes the machine it runs on goes on after that machine's reboot.

Before the reboot a unit of systemd is enabled that starts the same command again, as the same user and in the same
folder. The unit counts its boots, reports how the command ended (at the next login and in `plan`), and removes itself.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import rigwright
from rigwright.core.command import Command, quote, script
from rigwright.core.control_characters import one_line
from rigwright.core.errors import HostError
from rigwright.core.machine_identity import MachineIdentity
from rigwright.core.templates.host_files import Templates
from rigwright.engine.host_run import HostRun
from rigwright.facts import system
from rigwright.facts.boot.continuation import FOLDER, LOG, MESSAGE, PROGRAM, UNIT, UNIT_NAME, Continuation, continuation
from rigwright.inventory.model import LOCAL_MACHINE
from rigwright.inventory.secret_sources import PASSWORD_VARIABLE
from rigwright.ssh.local import identifiers

MOST_BOOTS = 3
"""The command ends after so many boots: one for the change, one back from a boot that was not healthy, one spare."""
DELAY_S = 10
"""The seconds from the order to the reboot. This run ends in that time, and writes its history."""
VARIABLE = "RIGWRIGHT_CONTINUES"
"""The variable of the environment that says that this process goes on after a reboot."""

_KEPT = (
    "HOME", "USER", "LOGNAME", "PATH", "LANG", "TZ", "SUDO_USER", "SUDO_UID", "SUDO_GID", "XDG_STATE_HOME",
    "XDG_CONFIG_HOME", "RIGWRIGHT_INVENTORY", PASSWORD_VARIABLE,
)  # fmt: skip
"""The environment variables that the command gets after the reboot. They have no secrets."""

_PUT = """
set -e; umask 022; mkdir -p -m 755 "${1%/*}"
[ ! -L "$1" ] || { echo "$1 is a link" >&2; exit 1; }
cat >"$1.new"; chmod "$2" "$1.new"; sync "$1.new"; mv -fT "$1.new" "$1"; sync "${1%/*}"
"""
_ENABLE = f"""
set -e
rm -f {FOLDER}/ended {MESSAGE}
systemctl daemon-reload; systemctl enable --quiet {UNIT_NAME}
mkdir -p -m 755 /run/rigwright; : >/run/rigwright/continues; sync
"""
_CLEAR = f"""
if [ -e {UNIT} ]; then systemctl disable --quiet {UNIT_NAME}; rm -f {UNIT}; systemctl daemon-reload; fi
rm -rf {FOLDER}; rm -f {PROGRAM} {MESSAGE} /run/rigwright/continues
"""
_PERMANENT = """
for path do
  findmnt -n -o TARGET,FSTYPE -T "$path" | tail -n 1 | while read -r target type; do
    case $type in tmpfs|ramfs|autofs) echo "$type $path"; continue;; esac
    [ "$target" = / ] || findmnt -s -n -o OPTIONS "$target" | grep -qvw noauto ||
      systemctl is-enabled -q "$(systemd-escape -p --suffix=mount "$target")" || echo "$target $path"
  done
done
"""


def continues() -> bool:
    """Whether this process goes on with a command after a reboot."""
    return VARIABLE in os.environ


def require_identified(run: HostRun) -> None:
    """Raises HostError where the inventory does not say which machine a host with `ansible_connection: local` is."""
    if LOCAL_MACHINE in run.host.variables:
        return
    here = run.value(system.identity)
    known = identifiers(here) if isinstance(here, MachineIdentity) else {}
    problem = "the inventory does not say which machine it is, so that a copy of it would change another one"
    place = run.host.origin("ansible_connection")
    fix = f"if it is this one, set {LOCAL_MACHINE}: {known} beside ansible_connection ({place})"
    raise HostError(run.host.name, problem, f"{LOCAL_MACHINE} with its identifiers", fix)


def require_possible(run: HostRun, due: bool) -> None:
    """Raises HostError when the command cannot go on after a reboot, with the reason; nothing was changed.

    `due`: whether the plan leads to a reboot. Without it a command that cannot go on at all is not refused.
    """
    name = run.host.name
    if not run.options.restart:
        if due:
            raise _ends_with_it(name)
        return
    release = Path("/proc/sys/kernel/osrelease").read_text(encoding="ascii", errors="replace")
    if "microsoft" in release.lower():
        problem, fix = (
            "it is a WSL guest, whose kernel and driver are those of Windows",
            "provision a machine that boots Linux",
        )
        raise HostError(name, problem, "Ubuntu or Debian on a machine", fix)
    if not Path("/run/systemd/system").is_dir():
        problem = "systemd is not its init (a container?), so that nothing can go on after its reboot"
        raise HostError(name, problem, "a machine that boots with systemd", "run it on the machine itself")
    if os.geteuid() != 0 and not _sudo_without_password():
        problem = "nobody can type the sudo password after its reboot"
        fix = "run it with sudo, as root; or sudo without a password for this user, in /etc/sudoers.d"
        raise HostError(name, problem, "root, or sudo without a password", fix)
    paths = [sys.executable, *map(str, (Path.cwd(), Path(rigwright.__file__).parent))]
    answer = run.transport.run([script(_PERMANENT, *paths, reads=True)])[0]
    if lines := answer.lines:
        place, _, path = one_line(lines[0]).partition(" ")
        problem = f"{path} is not there after a reboot: it is on {place}, which no boot mounts by itself"
        fix = "put rigwright on a file system that /etc/fstab mounts, such as /opt; then the same command"
        raise HostError(name, problem, "a program that is there after the reboot", fix)


def arm(run: HostRun, templates: Templates, why: str, wait_s: float) -> tuple[Command, ...]:
    """The commands after which the next boot continues this command. Raises HostError after MOST_BOOTS boots.

    `why`: the reason for the reboot. `wait_s`: the longest wait of the command until the boot is complete.
    """
    if not run.options.restart:
        raise _ends_with_it(run.host.name)
    before = state(run)
    boots = before.boots if before and before.armed and continues() else 0
    if boots >= MOST_BOOTS:
        problem = f"it has rebooted {boots} times for this, and wants another reboot ({why})"
        raise HostError(run.host.name, problem, f"at most {MOST_BOOTS} reboots", "look at sudo less " + LOG)
    values = {
        "folder": FOLDER, "log": LOG, "motd": MESSAGE, "unit": UNIT_NAME, "program": PROGRAM, "most_boots": MOST_BOOTS,
        "wait_s": int(wait_s), "run": quote([run.options.run_id]), "directory": quote([str(Path.cwd())]),
        "command": _command_line(run.options.restart, run.options.run_id),
        "title": f"{run.options.restart_title} of {run.host.name}",
    }  # fmt: skip
    program = templates.render("continuation/run.sh.j2", values)
    unit = templates.render("systemd/rigwright-continue.service.j2", {"program": PROGRAM})
    return (
        script(f"mkdir -p -m 755 {FOLDER}"),
        _put(f"{FOLDER}/boots", f"{boots}\n", "600"),
        _put(f"{FOLDER}/why", f"{one_line(why)[:600]}\n", "600"),
        _put(PROGRAM, program, "644"),
        _put(UNIT, unit, "644"),
        script(_ENABLE, timeout_s=60),
    )


def _ends_with_it(name: str) -> HostError:
    problem = "this command ends with the reboot of the machine that it runs on"
    return HostError(name, problem, "provision, which goes on after it", "run this command from another machine")


def state(run: HostRun) -> Continuation | None:
    """The continuation on the machine now; None also where it cannot be read."""
    run.store.forget()
    run.read_unknown((continuation,))
    value = run.store.known[continuation]
    return value if isinstance(value, Continuation) else None


def clear() -> Command:
    """The command that removes a continuation, and its message."""
    return script(_CLEAR, timeout_s=60)


def message(last: Continuation | None) -> str:
    """What `plan` says about the continuation; "" without one."""
    if last is None:
        return ""
    if last.armed:
        return f"a provision goes on after a reboot and has not ended: sudo journalctl -u {UNIT_NAME}"
    return f"run {last.run} went on after its reboot: {last.how}, {last.at} (sudo less {LOG})"


def _put(path: str, text: str, mode: str) -> Command:
    return Command(("sh", "-c", _PUT, "sh", path, mode), text.encode())


def _command_line(words: Sequence[str], run_id: str) -> str:
    """The shell's words that start the command as this user, in an environment of its own."""
    given = [f"{name}={os.environ[name]}" for name in _KEPT if name in os.environ]
    line = ["env", "-i", *given, f"{VARIABLE}={run_id}", "COLUMNS=160", *words]
    user = [] if os.geteuid() == 0 else ["runuser", "-u", pwd.getpwuid(os.geteuid()).pw_name, "--"]
    return quote([*user, *line])


def _sudo_without_password() -> bool:
    """Whether sudo needs no password, also without one that it remembers."""
    sudo = ("sudo", "-k", "-n", "true")
    try:
        return subprocess.run(sudo, capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
