"""Gets root with sudo, with or without a password."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from rigwright.core.errors import NoRoot, Unreachable
from rigwright.core.host_text import LINE_CHARACTERS
from rigwright.core.secrets import Secret
from rigwright.inventory.model import Host
from rigwright.ssh import channel_io

if TYPE_CHECKING:
    from paramiko import Channel

_ASKS = rb"password|authentication is required|terminal is required"


def wants_password(errors: bytes, host: Host) -> bool:
    """Whether sudo did not run the script because it needs a password; False if sudo refuses the user.

    `errors`: the stderr of a script without an answer. Raises HostError if sudo is not installed, and Unreachable if
    the stderr is not from sudo.
    """
    if b"not found" in errors:
        expected = "sudo on the host, or a login as root"
        raise NoRoot(host.name, last_line(errors), expected, "apt-get install sudo, as root")
    if b"sudo" not in errors:
        message = f" ({line})" if (line := last_line(errors)) else ""
        reason = "the host rebooted, was switched off, or lost its network"
        problem = f"the connection ended before an answer came{message}: {reason}"
        todo = "when the host is up again: the same command continues"
        raise Unreachable(host.name, problem, "an answer", todo, "the connection ended")
    return re.search(_ASKS, errors) is not None


def start_root_shell(
    channel: Channel,
    host: Host,
    password: Secret | None,
    ask_password: Callable[[str], str] | None,
    nonce: str,
    deadline: float,
) -> Secret:
    """Starts a root shell on the channel with the sudo password, and returns the password.

    Sends the password only after the prompt with `nonce` (there is none if sudo needs no password any more), and
    returns only after the shell answered with `nonce`, so that the caller's script cannot be read as a password.
    `deadline`: of the monotonic clock. Raises NoRoot without a password, or if sudo refuses it.
    """
    if password is None:
        if ask_password is None:
            secret = "set ansible_become_password with !secret (docs/reference/inventory.md#secrets)"
            rule = f"echo '{_user(host)} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/rigwright"
            fix = f"run it in a terminal; or {secret}; or as root on the host: {rule}"
            fix = f"{host.closed}; or {fix}" if host.closed else fix
            problem = "sudo asks for a password, and none was given"
            expected, brief = (
                "sudo without a password, or a terminal to type it at",
                f"sudo wants a password{for_user(host)}",
            )
            raise NoRoot(host.name, problem, expected, fix, brief)
        password = Secret(ask_password(host.name))
    plain = password.reveal().encode() + b"\n"  # before the program starts: a source may take a minute
    marker, ready = f"rigwright-{nonce}-password".encode(), f"{nonce} ready\n".encode()
    channel.exec_command(f"sudo -k -S -p {marker.decode()} sh -c 'echo {nonce} ready; exec sh'")
    out, errors = channel_io.until(channel, ready, marker, deadline, host)
    if ready in out:
        return password
    if marker not in errors:
        raise refusal(host, errors, "that this user may use sudo")
    channel.sendall(plain)
    out, errors = channel_io.until(channel, ready, marker, deadline, host)
    if ready not in out:
        message = errors.replace(marker, b"")
        if b"sudoers" in message or b"not allowed" in message:
            raise refusal(host, message, "that this user may use sudo")
        expected = f"the password of {_user(host)} on the host"
        raise NoRoot(host.name, "sudo refused the password", expected, other_password(host))
    return password


def other_password(host: Host) -> str:
    """The fix for a password that sudo refused."""
    written = host.connection("ansible_become_password") is not None
    return f"correct it: {host.origin('ansible_become_password')}" if written else "run the same command again"


def refusal(host: Host, errors: bytes, expected: str) -> NoRoot:
    """The error for a user whom sudo does not allow to become root."""
    todo = f"as root on the host: usermod -a -G sudo {_user(host)}, or a line in /etc/sudoers.d"
    return NoRoot(host.name, f"sudo refused: {last_line(errors)}", expected, todo)


def for_user(host: Host) -> str:
    """` for ubuntu` if the inventory names the user, otherwise ""."""
    user = host.connection("ansible_user")
    return f" for {user}" if user else ""


def _user(host: Host) -> str:
    return str(host.connection("ansible_user") or "USER")


def last_line(errors: bytes) -> str:
    """The first 300 characters of the last line of the stderr; "" if it is empty."""
    lines = errors[-LINE_CHARACTERS:].decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else ""
