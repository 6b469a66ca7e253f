"""Runs batches of commands on a host: over SSH with verified host keys (Fabric, paramiko), or on this machine.

Commands run as root by default. `Ssh` keeps one connection for a whole run. Every wait has a deadline that closes the
socket, so that a host which hangs cannot block rigwright.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from msgspec import Struct, field

from rigwright.core import lazy_re
from rigwright.core.command import LOGIN, Command, Result
from rigwright.core.errors import Interrupted, Unreachable
from rigwright.core.process import deadlines, interruption
from rigwright.core.secrets import Secret
from rigwright.inventory.model import Host
from rigwright.ssh import batch_script, channel_io, sudo

if TYPE_CHECKING:
    from rigwright.ssh.session import Session

FRESH_S = 10.0
"""The age up to which an answer that was read ahead is used, seconds (assumed)."""


class _Ahead(Struct, frozen=True):
    """Answers to commands that were read ahead and not used yet, and their time by the monotonic clock."""

    answers: dict[Command, Result] = field(default_factory=dict)
    at: float = 0.0


class Transport:
    """A connection to a host, whose shell runs batches of commands as one script. `environment`: of the commands.

    `round_trips`: the number of batches that were run. `acted`: commands were sent that may have changed the host.
    `ask_password` returns the sudo password of a host; None: nobody can type it. `warning`: for a person, about the
    open connection, or "".
    """

    acted = False
    ask_password: Callable[[str], str] | None = None

    def __init__(self, host: Host, environment: Mapping[str, str] | None = None, root: bool = True) -> None:
        self.host = host
        self.root = root
        self.environment = dict(environment or {})
        self.round_trips = 0
        self.warning = ""
        self._ahead = _Ahead()
        self._reading: Future[_Ahead] | None = None

    def begin(self, commands: Sequence[Command]) -> None:
        """Begins to connect, and to run commands that only read, in a thread; does nothing on this machine.

        `connect` waits for the connection. `run` uses each answer once, for an equal command, within FRESH_S seconds
        and before commands that may change the host. The round trip always counts.
        """

    def connect(self, timeout_s: float | None = None) -> None:
        """Opens a verified, authenticated session with another machine within connect.CONNECT_S, or `timeout_s`
        seconds. Raises Unreachable."""

    def close(self) -> None:
        """Closes the connection."""

    def abandon(self) -> None:
        """Closes the connection from any thread. Waiting calls end soon, and later calls raise Interrupted."""

    @contextlib.contextmanager
    def looking(self, *, as_user: bool = False) -> Iterator[None]:
        """A context in which nobody is asked for a password, for a wait that looks at a host repeatedly. With `as_user`
        commands run as the login user, without sudo."""
        before = self.ask_password, self.root
        self.ask_password, self.root = None, self.root and not as_user
        try:
            yield
        finally:
            self.ask_password, self.root = before

    def run(self, commands: Sequence[Command], *, together: bool = False) -> list[Result]:
        """Runs the commands and returns their results, in order up to the first failure.

        With `together` all commands run at the same time with an empty stdin. Raises Unreachable when the connection is
        lost, and HostError when there is no root or no usable shell.
        """
        if not commands:
            return []
        self.acted = self.acted or not together
        known = self._known_ahead(commands)
        unknown = [command for command in commands if command not in known]
        if unknown:
            self.round_trips += 1
        answers = self._run(unknown, together) if unknown else []
        if not known:
            return answers
        known.update(zip(unknown, answers, strict=True))
        return [known[command] for command in commands]

    def _run(self, commands: Sequence[Command], together: bool) -> list[Result]:
        if not together:
            return self._run_script(commands, together)
        unsplit: set[Command] = set()
        answers = self._merged_answers(commands, unsplit)
        while rest := [command for command in dict.fromkeys(commands) if command not in answers]:
            self.round_trips += 1
            answers.update(self._merged_answers(rest, unsplit))
        return [answers[command] for command in commands]

    def _merged_answers(self, commands: Sequence[Command], unsplit: set[Command]) -> dict[Command, Result]:
        """Runs commands at the same time, in one round trip, merged (facts/merging.py) except for those in `unsplit`.

        Returns the answers, without those that a merged answer lacks. Adds the commands of a merged answer that has
        none of theirs to `unsplit`, so that they are not merged again.
        """
        from rigwright.facts import merging

        commands = list(dict.fromkeys(commands))  # several facts may read one answer
        mergeable = tuple(command for command in commands if command not in unsplit)
        merged = merging.merged(mergeable)
        inside = {mergeable[number] for each in merged for number in each.numbers}
        single = [command for command in commands if command not in inside]
        results = self._run_script([*single, *(each.command for each in merged)], True)
        answers = dict(zip(single, results, strict=False))
        for each, result in zip(merged, results[len(single) :], strict=True):
            own = tuple(mergeable[number] for number in each.numbers)
            parts = each.answers(result, own)
            answers.update((command, part) for command, part in zip(own, parts, strict=True) if part is not None)
            unsplit.update(own if not any(parts) else ())
        return answers

    def _run_script(self, commands: Sequence[Command], together: bool) -> list[Result]:
        nonce = secrets.token_hex(12)
        if together:
            script = batch_script.together(commands, nonce, self.environment)
            limit_s = max(cmd.timeout_s for cmd in commands) + 20
        else:
            script = batch_script.in_order(commands, nonce, self.environment)
            limit_s = sum(cmd.timeout_s + 6 for cmd in commands) + 20
        return batch_script.results(self._exchange(script.encode(), nonce, limit_s), nonce, len(commands))

    def _known_ahead(self, commands: Sequence[Command]) -> dict[Command, Result]:
        """The answers to these commands that `begin` has read and that are still fresh."""
        if self._reading is not None:
            self._ahead, self._reading = self._reading.result(), None
            self.round_trips += bool(self._ahead.answers)
        answers = self._ahead.answers
        if self.acted or time.monotonic() - self._ahead.at > FRESH_S:
            answers.clear()
        return {command: answers.pop(command) for command in dict.fromkeys(commands) if command in answers}

    def _exchange(self, script: bytes, nonce: str, limit_s: float) -> bytes:
        """The output of the script, which ends with the nonce, within `limit_s` seconds. Raises HostError,
        Unreachable."""
        raise NotImplementedError


class Ssh(Transport):
    """One SSH session with one host for a whole run. Commands run as root, or with `root=False` as the login user."""

    def __init__(
        self,
        host: Host,
        environment: Mapping[str, str] | None = None,
        ask_password: Callable[[str], str] | None = None,
        root: bool = True,
    ) -> None:
        super().__init__(host, {**(environment or {}), LOGIN: "ssh"}, root)
        self._session: Session | None = None
        self._connecting: Future[None] | None = None
        self._abandoned = False
        self._abort: Callable[[], None] = lambda: None
        self.ask_password = ask_password
        self._sudo_password: Secret | None = host.variables.get("ansible_become_password")
        self._sudo_took_password = False
        """Whether sudo accepted the password over this connection. A new connection first tries without it."""

    def begin(self, commands: Sequence[Command]) -> None:
        self._connecting, self._reading = Future(), Future()
        work = (self._connecting, self._reading, tuple(commands))
        threading.Thread(target=self._begin, args=work, daemon=True, name=interruption.LEFT_BEHIND).start()

    def _begin(self, connecting: Future[None], reading: Future[_Ahead], commands: Sequence[Command]) -> None:
        answers: dict[Command, Result] = {}
        try:
            self._connect(None)
        except BaseException as error:  # `connect` raises it
            connecting.set_exception(error)
        else:
            connecting.set_result(None)
            with contextlib.suppress(Exception):  # `run` raises it again
                answers = self._merged_answers(commands, set())
        reading.set_result(_Ahead(answers, time.monotonic()))

    def connect(self, timeout_s: float | None = None) -> None:
        if connecting := self._connecting:
            self._connecting = None
            connecting.result()
        else:
            self._connect(timeout_s)

    def _connect(self, timeout_s: float | None) -> None:
        self.close()
        if self._abandoned:
            raise Interrupted(self.host.name, "interrupted")
        from rigwright.ssh import connect

        limit_s = connect.CONNECT_S if timeout_s is None else timeout_s
        session = self._session = connect.open_session(self.host, limit_s, self._opening, self._program)
        self.environment[LOGIN] = f"ssh {session.accepted_key}".strip()
        if old := ", ".join(session.legacy):
            self.warning = f"warning: the connection uses {old}, which ssh_legacy_algorithms allows"

    def _program(self, user: str) -> str:
        """The program that runs a script on the host; "" if sudo needs a password."""
        if user == "root" or not self.root:
            return "sh"
        return "" if self._sudo_took_password else "sudo -n sh"

    def _opening(self, abort: Callable[[], None]) -> None:
        self._abort = abort
        if self._abandoned:
            abort()

    def abandon(self) -> None:
        self._abandoned = True
        self._abort()
        self.close()

    def close(self) -> None:
        self._sudo_took_password = False
        if self._session:
            self._session.close()
        self._session = None

    def _exchange(self, script: bytes, nonce: str, limit_s: float) -> bytes:
        if self._session is None:
            self.connect()
        session = self._session
        assert session is not None
        deadline = time.monotonic() + limit_s
        stop = deadlines.after(limit_s, session.close)
        try:
            return self._attempt(session, script, nonce, deadline)
        except session.errors as error:
            raise channel_io.lost(self.host, error) from None
        finally:
            stop.cancel()

    def _attempt(
        self, session: Session, script: bytes, nonce: str, deadline: float, with_password: bool = False
    ) -> bytes:
        program = "" if with_password else self._program(session.user)
        with session.channel(deadline, program) as channel:
            channel.settimeout(max(1.0, deadline - time.monotonic()))
            if not program:
                self._sudo_password = sudo.start_root_shell(
                    channel, self.host, self._sudo_password, self.ask_password, nonce, deadline
                )
                self._sudo_took_password = True
            answer, errors = channel_io.converse(channel, script, nonce, deadline, self.host)
        if batch_script.is_finished(answer, nonce):
            return answer
        if full := batch_script.without_room(answer, self.host.name):
            raise full
        if other_user := _OTHER_USER.search(answer + errors):
            user = other_user[1].decode()
            problem = f"the host takes no login as {session.user}: it wants {user}"
            fix = f"set ansible_user: {user} for {self.host.name} ({self.host.where})"
            raise Unreachable(self.host.name, problem, "a user that may log in and use sudo", fix)
        if answer:
            problem = "the connection ended in the middle of an answer"
            raise Unreachable(self.host.name, problem, "", "run the same command again")
        if not sudo.wants_password(errors, self.host) or not program:
            raise sudo.refusal(self.host, errors, f"that {session.user} may use sudo")
        return self._attempt(session, script, nonce, deadline, with_password=True)


_OTHER_USER = lazy_re.compile(rb'[Pp]lease login as the user "([a-z_][a-z0-9_-]{0,31})"')
"""The answer of a cloud image to a login as root."""
