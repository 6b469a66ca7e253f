"""The way to a host: SSH with verified keys (Fabric, paramiko), this machine, or recorded answers.

A transport runs batches of commands as root. `Ssh` keeps one connection for a whole run and bounds every wait by a
deadline that closes the socket: a login that hangs while a host resets cannot hang the tool.
"""

from __future__ import annotations

import re
import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from rigwright import batch, exchange
from rigwright.errors import HostError, Interrupted, Unreachable
from rigwright.hosts import Host
from rigwright.shell import Command, Result, Secret

if TYPE_CHECKING:
    from paramiko import Channel

    from rigwright.session import Session

CONNECT_S = 20.0
_ALLOW = "as root on the host: usermod -a -G sudo USER, or a line in /etc/sudoers.d"


class Transport(Protocol):
    """What the rest of rigwright knows of a connection."""

    round_trips: int

    def connect(self, timeout_s: float = CONNECT_S) -> None:
        """A verified, authenticated session exists. Raises Unreachable."""
        ...

    def run(self, commands: Sequence[Command], *, together: bool = False) -> list[Result]:
        """The results, as root: side by side with empty stdin, or in order up to the first that fails.

        Raises Unreachable (connection lost), HostError (no root, no usable shell).
        """
        ...

    def close(self) -> None:
        """Nothing is held open."""
        ...

    def abandon(self) -> None:
        """Whatever waits on this transport, in any thread, ends soon with Interrupted; so does every later use."""
        ...


class Ssh:
    """One SSH session with one host, for the whole of a run; commands run as root, or with `root=False` as who logs in."""

    def __init__(
        self,
        host: Host,
        environment: Mapping[str, str] | None = None,
        ask_password: Callable[[str], str] | None = None,
        root: bool = True,
    ) -> None:
        self.host = host
        self.root = root
        self.environment = dict(environment or {})
        self.round_trips = 0
        self._session: object | None = None
        self._abandoned = False
        self._abort: Callable[[], None] = lambda: None
        self._ask = ask_password
        self._sudo: Secret | None = host.variables.get("ansible_become_password")
        self._sudo_wants_password = False

    def connect(self, timeout_s: float = CONNECT_S) -> None:
        from rigwright import ssh

        self.close()
        if self._abandoned:
            raise Interrupted(self.host.name, "interrupted")
        self._session = ssh.verified(self.host, timeout_s, self._opening, self._program)

    def _program(self, user: str) -> str:
        """What takes a script on the host; "" where a password has to come first."""
        if user == "root" or not self.root:
            return "sh"
        return "" if self._sudo_wants_password else "sudo -n sh"

    def _opening(self, abort: Callable[[], None]) -> None:
        self._abort = abort
        if self._abandoned:
            abort()

    def abandon(self) -> None:
        self._abandoned = True
        self._abort()
        self.close()

    def close(self) -> None:
        from rigwright.session import Session

        if isinstance(self._session, Session):
            self._session.close()
        self._session = None

    def run(self, commands: Sequence[Command], *, together: bool = False) -> list[Result]:
        if not commands:
            return []
        nonce = secrets.token_hex(12)
        if together:
            script = batch.together(commands, nonce)
            limit_s = max(cmd.timeout_s for cmd in commands) + 20
        else:
            script = batch.in_order(commands, nonce, self.environment)
            limit_s = sum(cmd.timeout_s + 6 for cmd in commands) + 20
        self.round_trips += 1
        return batch.results(self._exchange(script.encode(), nonce, limit_s), nonce, len(commands))

    def _exchange(self, script: bytes, nonce: str, limit_s: float) -> bytes:
        from paramiko import SSHException

        from rigwright.session import Session

        if not isinstance(self._session, Session):
            self.connect()
        session = self._session
        assert isinstance(session, Session)
        deadline = time.monotonic() + limit_s
        stop = threading.Timer(limit_s, session.close)
        stop.daemon = True
        stop.start()
        try:
            return self._attempt(session, script, nonce, deadline)
        except (OSError, EOFError, SSHException) as error:
            raise Unreachable(
                self.host.name, f"the connection was lost ({error})", "", "run the same command again"
            ) from None
        finally:
            stop.cancel()

    def _attempt(self, session: Session, script: bytes, nonce: str, deadline: float) -> bytes:
        program = self._program(session.user)
        with session.channel(deadline, program) as channel:
            channel.settimeout(max(1.0, deadline - time.monotonic()))
            if not program:
                self._sudo_with_password(channel, nonce, deadline)
            answer, errors = exchange.converse(channel, script, nonce, deadline, self.host)
        if batch.finished(answer, nonce):
            return answer
        if answer.startswith(batch.NO_ROOM.encode()):
            raise HostError(
                self.host.name, "no temporary directory can be made", "room in /run or /dev/shm", "df -h /run /dev/shm"
            )
        if answer:
            raise Unreachable(
                self.host.name, "the connection ended in the middle of an answer", "", "run the same command again"
            )
        if b"not found" in errors:
            raise HostError(
                self.host.name, _last(errors), "sudo on the host, or a login as root", "apt-get install sudo, as root"
            )
        if b"sudo" not in errors:
            said = _last(errors) or "no message"
            raise Unreachable(self.host.name, f"the connection ended before an answer came ({said})")
        if self._sudo_wants_password or not re.search(
            rb"password|authentication is required|terminal is required", errors
        ):
            raise HostError(
                self.host.name, f"sudo refused: {_last(errors)}", f"that {session.user} may use sudo", _ALLOW
            )
        self._sudo_wants_password = True
        return self._attempt(session, script, nonce, deadline)

    def _sudo_with_password(self, channel: Channel, nonce: str, deadline: float) -> None:
        """The password is sent only after sudo asked for it by our marker, the script only after our nonce came back."""
        if self._sudo is None:
            if self._ask is None:
                raise HostError(
                    self.host.name,
                    "sudo asks for a password, and none was given",
                    "sudo without a password, or a terminal to type it at",
                    f"run it in a terminal, or on the host: echo '{self.host.connection('ansible_user') or 'USER'} ALL=(ALL) NOPASSWD: ALL' "
                    "| sudo tee /etc/sudoers.d/rigwright",
                )
            self._sudo = Secret(self._ask(self.host.name))
        marker = f"rigwright-{nonce}-password"
        channel.exec_command(f"sudo -k -S -p {marker} sh -c 'echo {nonce} ready; exec sh'")
        _, errors = exchange.until(channel, marker.encode(), deadline, self.host, errors=True)
        if marker.encode() not in errors:
            raise HostError(self.host.name, f"sudo refused: {_last(errors)}", "that this user may use sudo", _ALLOW)
        channel.sendall(self._sudo.reveal().encode() + b"\n")
        ready, errors = exchange.until(
            channel, f"{nonce} ready\n".encode(), deadline, self.host, errors=False, give_up=marker.encode()
        )
        if f"{nonce} ready".encode() not in ready:
            said = errors.replace(marker.encode(), b"")
            if b"sudoers" in said or b"not allowed" in said:
                raise HostError(self.host.name, f"sudo refused: {_last(said)}", "that this user may use sudo", _ALLOW)
            self._sudo = None
            raise HostError(
                self.host.name, "sudo refused the password", "the password of the user that logs in", "try again"
            )


def _last(errors: bytes) -> str:
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


class Local:
    """This machine, as a host."""

    def __init__(self, host: Host, environment: Mapping[str, str] | None = None, root: bool = True) -> None:
        self.host = host
        self.root = root
        self.environment = dict(environment or {})
        self.round_trips = 0

    def connect(self, timeout_s: float = CONNECT_S) -> None:
        """There is nothing to connect to."""

    def close(self) -> None:
        """There is nothing to close."""

    def abandon(self) -> None:
        """There is nothing that waits."""

    def run(self, commands: Sequence[Command], *, together: bool = False) -> list[Result]:
        import os

        nonce = secrets.token_hex(12)
        script = batch.together(commands, nonce) if together else batch.in_order(commands, nonce, self.environment)
        self.round_trips += 1
        limit_s = sum(cmd.timeout_s + 6 for cmd in commands) + 20
        argv = ["sh"] if os.geteuid() == 0 or not self.root else ["sudo", "-n", "sh"]
        try:
            done = subprocess.run(argv, input=script.encode(), capture_output=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            raise HostError(self.host.name, f"no answer within {limit_s:g} s", "an answer") from None
        if not done.stdout:
            raise HostError(self.host.name, f"no root: {_last(done.stderr)}", "root, or sudo without a password")
        return batch.results(done.stdout, nonce, len(commands))


def to(
    host: Host,
    environment: Mapping[str, str] | None = None,
    ask_password: Callable[[str], str] | None = None,
    root: bool = True,
) -> Transport:
    """The transport for a host of the inventory (`ansible_connection: local` is this machine)."""
    if host.variables.get("ansible_connection") == "local":
        return Local(host, environment, root)
    from rigwright import ssh  # noqa: F401  # loaded once and here: every worker would wait for the first one's import

    return Ssh(host, environment, ask_password, root)
