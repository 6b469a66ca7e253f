"""Sends a script over a channel and reads its output, with a limit on time and size."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from rigwright.core import host_text
from rigwright.core.errors import HostError, Unreachable
from rigwright.inventory.model import Host
from rigwright.ssh import batch_script

if TYPE_CHECKING:
    from paramiko import Channel


MOST_BYTES = host_text.SCRIPT_BYTES
"""The limit of the output of a script, which protects the memory of this machine."""


def lost(host: Host, reason: object) -> Unreachable:
    """The error for a connection that was lost."""
    problem, brief = f"the connection was lost ({reason})", "the connection was lost"
    return Unreachable(host.name, problem, "", "run the same command again", brief)


def _require_size(host: Host, size: int, most: int | None = None) -> None:
    most = most or MOST_BYTES
    if size > most:
        shown = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most >> 10} KiB"
        problem = f"its output is longer than {shown} and has not ended"
        fix = f"ssh {host.address} sudo -n true, and look at what it prints"
        raise HostError(host.name, problem, f"an answer of at most {shown}", fix)


def until(channel: Channel, in_out: bytes, in_errors: bytes, deadline: float, host: Host) -> tuple[bytes, bytes]:
    """The stdout and stderr until `in_out` is in stdout or `in_errors` in stderr, the channel closes, or the deadline
    (seconds of the monotonic clock). Raises HostError for an output over the size limit."""
    out, err = b"", b""
    while in_out not in out and in_errors not in err and time.monotonic() < deadline:
        size = len(out) + len(err)
        _require_size(host, size, host_text.LOGIN_BYTES)
        if channel.recv_ready():
            out += channel.recv(65536)
        if channel.recv_stderr_ready():
            err += channel.recv_stderr(65536)
        if len(out) + len(err) == size:
            if channel.exit_status_ready() or channel.closed:
                break
            time.sleep(0.005)
    return out, err


def converse(channel: Channel, script: bytes, nonce: str, deadline: float, host: Host) -> tuple[bytes, bytes]:
    """Sends a script, and returns its stdout and stderr when the output is complete or the channel is closed.

    Raises Unreachable at the deadline (seconds of the monotonic clock) or if the connection is lost, and HostError for
    an output over the size limit: LOGIN_BYTES before the header of the answer, MOST_BYTES in all.
    """
    with contextlib.suppress(OSError):  # the program may have ended already; its stderr, read below, has the reason
        channel.sendall(script)
    answer, errors = bytearray(), b""
    header, begun = f"{nonce} codes".encode(), False
    try:
        while not batch_script.is_finished(bytes(answer[-64:]), nonce):
            channel.settimeout(max(0.1, deadline - time.monotonic()))
            data = channel.recv(262144)
            if not data:
                break
            answer += data
            begun = begun or header in answer
            _require_size(host, len(answer), None if begun else host_text.LOGIN_BYTES)
        while channel.recv_stderr_ready() or (
            not answer and not channel.exit_status_ready() and time.monotonic() < deadline
        ):
            errors += channel.recv_stderr(65536) if channel.recv_stderr_ready() else b""
            _require_size(host, len(errors))
            time.sleep(0.002)
        while channel.recv_stderr_ready():
            errors += channel.recv_stderr(65536)
            _require_size(host, len(errors))
    except (TimeoutError, OSError, EOFError) as error:
        raise lost(host, error or "no answer in time") from None
    return bytes(answer), errors
