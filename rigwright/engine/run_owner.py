"""How a run is named on a host: in the lease, in its scratch directories and in the environment of its commands."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from rigwright.core import lazy_re

OWNER = lazy_re.compile(
    r"(?P<run>[\w.-]{1,100}) (?P<user>[\w.+-]{1,256}@[\w.+-]{1,300}) (?P<pid>\d{1,10}) (?P<started>[\d?]{1,20})"
    r"(?: (?P<host>[\w.+-]{1,253})(?: (?P<token>\d{1,16}))?)?"
)
"""The text of `owner`, in a lease with its fencing token."""


def owner(run_id: str, host: str = "") -> str:
    """How a run of this process is named on a host: the run, user and machine, process, its start, and, if given, the
    name of the host in the inventory."""
    process = f"{run_id} {_word(_user())}@{_machine()} {os.getpid()} {_start_of_process(os.getpid()) or '?'}"
    return f"{process} {of_host(host)}" if host else process


def of_host(name: str) -> str:
    """The name of a host as the owner of its lease has it."""
    return _word(name)[:253]


def environment(run_id: str) -> dict[str, str]:
    """The environment of the commands of a run of this process."""
    return {"RIGWRIGHT_RUN": run_id, "RIGWRIGHT_OWNER": owner(run_id)}


def has_ended(owner: str) -> bool:
    """Whether the owner was a process of this machine that has ended; False for other machines and other texts."""
    match = _of_this_machine(owner)
    return match is not None and _start_of_process(int(match["pid"])) not in (match["started"], "?")


def alive(owner: str) -> bool:
    """Whether the owner is a process of this machine that has not ended; this process counts."""
    match = _of_this_machine(owner)
    return match is not None and _start_of_process(int(match["pid"])) == match["started"]


def _of_this_machine(owner: str) -> re.Match[str] | None:
    match = OWNER.fullmatch(owner)
    return match if match is not None and match["user"].endswith(f"@{_machine()}") else None


def is_mine(owner: str) -> bool:
    """Whether the owner was a process of this user on this machine."""
    match = OWNER.fullmatch(owner)
    return match is not None and person(match["user"]) == person(f"{_word(_user())}@{_machine()}")


def person(user: str) -> str:
    """`ada@desk`: the user of an owner without the address and the processes of that machine."""
    return re.sub(r"-[0-9a-f]+\.\d+$", "", user)


def _user() -> str:
    """The name of the user, or the number of a user without a name."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _machine() -> str:
    """This machine: its name, its MAC address and the namespace of its process numbers."""
    import uuid

    try:
        namespace = Path("/proc/self/ns/pid").readlink().name.strip("pid:[]")
    except OSError:
        namespace = "0"
    return f"{_word(socket.gethostname())}-{uuid.getnode():x}.{namespace}"


def _word(text: str) -> str:
    return re.sub(r"[^\w.+-]", "_", text) or "_"


def _start_of_process(pid: int) -> str:
    """When a process of this machine started, in clock ticks since boot; "" if it has ended, "?" without /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return "" if Path("/proc/self/stat").exists() else "?"
