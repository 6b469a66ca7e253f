"""A login in fewer round trips: what sshd takes in order is sent at once, where paramiko waits for each answer before it goes on."""

from __future__ import annotations

import threading

import paramiko
from paramiko.auth_handler import AuthHandler
from paramiko.common import cMSG_CHANNEL_REQUEST

_IN_ORDER = "SSH-2.0-OpenSSH_"
"""Servers of which it is known that they work off what was sent at once, and call the first channel 0."""


class Login(paramiko.Transport):
    """Asks for the authentication and authenticates in one flight; the channel on which `ahead` is to run is opened in it too.

    For a login with a key that is likely to be the right one: of a channel before the login is through sshd leaves a line in
    its log, and forgets it.
    """

    ahead = ""
    went_ahead = False
    """Whether a channel was asked for with the login."""
    answer: Exception | None = None
    """Why the last key did not let anybody in. After it paramiko may try to read the same file as a key of another kind, and
    what it says in the end is only that."""
    _opening: _Opening | None = None
    _behind: paramiko.Message | None = None

    def auth_publickey(self, username: str, key: paramiko.PKey, event: threading.Event | None = None) -> list[str]:
        """As paramiko's; `answer` is what became of it."""
        try:
            return self._with_key(username, key, event)
        except Exception as error:
            self.answer = error
            raise

    def _with_key(self, username: str, key: paramiko.PKey, event: threading.Event | None) -> list[str]:
        if event is not None or not self.remote_version.startswith(_IN_ORDER):
            return super().auth_publickey(username, key, event)
        if not self.is_active() or not self.initial_kex_done:
            raise paramiko.SSHException("No existing session")
        done = threading.Event()
        handler = self.auth_handler = _AtOnce(self)
        handler.auth_publickey(username, key, done)
        opening = None
        if self.ahead:
            self._behind = asked_for(0, self.ahead)
            opening = _Opening(self, self.ahead)
            self.went_ahead = True
        self.ahead = ""  # of another key it is not known that it is likely
        further: list[str] = handler.wait_for_response(done)
        self._opening = None if further else opening
        return further

    def _send_user_message(self, data: paramiko.Message) -> None:
        """As paramiko's; what is to go behind the next message goes behind it."""
        behind, self._behind = self._behind, None
        super()._send_user_message(data)  # type: ignore[misc]
        if behind is not None:
            super()._send_user_message(behind)  # type: ignore[misc]

    def first_channel(self, timeout_s: float) -> tuple[paramiko.Channel, str] | None:
        """The channel that was asked for with the login, and what runs on it; None where there is none, or not any more.

        Raises SSHException when it has another number than was thought.
        """
        opening, self._opening = self._opening, None
        channel = opening.channel(timeout_s) if opening else None
        if opening is None or channel is None:
            return None
        if channel.remote_chanid != 0:
            raise paramiko.SSHException("the first channel is not 0")
        return channel, opening.program


def asked_for(channel: int, program: str) -> paramiko.Message:
    """What asks the far end to run a program on its channel of that number."""
    asked = paramiko.Message()
    asked.add_byte(cMSG_CHANNEL_REQUEST)
    asked.add_int(channel)
    asked.add_string("exec")
    asked.add_boolean(True)
    asked.add_string(program)
    return asked


class _AtOnce(AuthHandler):
    """The request to authenticate follows the one for the service, and not its answer."""

    def _request_auth(self) -> None:
        super()._request_auth()  # type: ignore[misc]
        accepted = paramiko.Message()
        accepted.add_string("ssh-userauth")
        accepted.rewind()
        super()._parse_service_accept(accepted)  # type: ignore[misc]

    def _parse_service_accept(self, m: paramiko.Message) -> None:
        """What it allows has been done."""


class _Opening:
    """A channel that is being opened, and the program that is asked for on it."""

    def __init__(self, transport: paramiko.Transport, program: str) -> None:
        self.program = program
        self._transport = transport
        self._opened: paramiko.Channel | None = None
        self._thread = threading.Thread(target=self._open, daemon=True)
        self._thread.start()

    def _open(self) -> None:
        try:
            self._opened = self._transport.open_session(timeout=30)
        except (paramiko.SSHException, OSError, EOFError):
            self._opened = None

    def channel(self, timeout_s: float) -> paramiko.Channel | None:
        """The channel, once it is open."""
        self._thread.join(timeout_s)
        return self._opened
