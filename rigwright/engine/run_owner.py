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
    """How a run of this process is named on a host: the run, the user and machine, the process, when that started, and
    which name of the inventory it uses for the host, if that is given."""
    process = f"{run_id} {_word(_user())}@{_machine()} {os.getpid()} {_started(os.getpid()) or '?'}"
    return f"{process} {of_host(host)}" if host else process


def of_host(name: str) -> str:
    """The name of a host as the owner of its lease has it."""
    return _word(name)[:253]


def environment(run_id: str) -> dict[str, str]:
    """The environment of the commands of a run of this process."""
    return {"RIGWRIGHT_RUN": run_id, "RIGWRIGHT_OWNER": owner(run_id)}


def ended(owner: str) -> bool:
    """Whether the owner was a process of this machine that has ended. False for one of another machine, and for other
    text."""
    match = OWNER.fullmatch(owner)
    if match is None or not match["user"].endswith(f"@{_machine()}"):
        return False
    return _started(int(match["pid"])) not in (match["started"], "?")


def alive(owner: str) -> bool:
    """Whether the owner is a process of this machine, another one than this or this one, that has not ended."""
    match = OWNER.fullmatch(owner)
    if match is None or not match["user"].endswith(f"@{_machine()}"):
        return False
    return _started(int(match["pid"])) == match["started"]


def is_mine(owner: str) -> bool:
    """Whether the owner was a process of this user on this machine."""
    match = OWNER.fullmatch(owner)
    return match is not None and person(match["user"]) == person(f"{_word(_user())}@{_machine()}")


def person(user: str) -> str:
    """`ada@desk`: the user of an owner without the address and the processes of that machine."""
    return re.sub(r"-[0-9a-f]+\.\d+$", "", user)


def _user() -> str:
    """The name of the user; the number of one who has no name."""
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


def _started(pid: int) -> str:
    """When a process of this machine started, in clock ticks since boot; "" when it has ended, "?" without /proc."""
    if not Path("/proc/self/stat").exists():
        return "?"
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return ""
