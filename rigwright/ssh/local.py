"""Runs batches of commands on this machine, for a host with `ansible_connection: local`."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from rigwright.core import host_text
from rigwright.core.errors import HostError, InputError, Interrupted, NoRoot
from rigwright.core.machine_identity import MachineIdentity
from rigwright.core.secrets import Secret
from rigwright.facts import system
from rigwright.inventory.model import LOCAL_MACHINE, Host
from rigwright.ssh import sudo
from rigwright.ssh.transport import Transport

_LOOK_S = 0.25
"""How often a wait for a command looks whether it was abandoned, seconds."""


class Local(Transport):
    """Runs commands on this machine, as root with sudo. An abandoned script continues to its end, as on another
    machine. `ask_password` is called if sudo needs a password that is not in the inventory."""

    def __init__(
        self,
        host: Host,
        environment: Mapping[str, str] | None = None,
        ask_password: Callable[[str], str] | None = None,
        root: bool = True,
    ) -> None:
        super().__init__(host, environment, root)
        self._abandoned = threading.Event()
        self.ask_password = ask_password
        self._password: Secret | None = host.variables.get("ansible_become_password")
        self._sudo_took_password = False

    def abandon(self) -> None:
        self._abandoned.set()

    def connect(self, timeout_s: float | None = None) -> None:  # noqa: ARG002  # nothing to wait for
        """Checks that this is the machine in the inventory. Raises HostError for another system, InputError for another
        machine."""
        require_system(self.host.name, sys.platform)
        recorded = self.host.variables.get(LOCAL_MACHINE)
        if recorded is None:
            return
        before = self.round_trips
        answer = self.run([system.identity.command])[0]
        self.round_trips = before
        require_machine(self.host, MachineIdentity.of(recorded), system.identity.parse(answer))

    def _exchange(self, script: bytes, nonce: str, limit_s: float) -> bytes:
        return self._attempt(script, nonce, limit_s, self._sudo_took_password)

    def _attempt(self, script: bytes, nonce: str, limit_s: float, with_password: bool) -> bytes:
        becomes_root = self.root and os.geteuid() != 0
        with_password = becomes_root and with_password
        argv = ["sudo", "-n", "sh"] if becomes_root else ["sh"]
        marker = f"rigwright-{nonce}-password"
        if with_password:
            password = self._known_password()
            argv = ["sudo", "-k", "-S", "-p", marker, "sh", "-c", f"echo {nonce} ready; exec sh"]
        self._raise_if_abandoned()
        pipe, deadline = subprocess.PIPE, time.monotonic() + limit_s
        try:
            # In its own process group, so that Ctrl-C at the terminal does not end a change.
            child = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, **_OWN_GROUP)
        except FileNotFoundError:
            problem, fix = f"{argv[0]} is not installed here", "apt-get install sudo, as root; or run it as root"
            raise NoRoot(self.host.name, problem, "root, or sudo", fix) from None
        if with_password:
            plain = password.reveal().encode() + b"\n"
            self._log_in(child, plain, marker.encode(), f"{nonce} ready\n".encode(), deadline)
            self._password, self._sudo_took_password = password, True
        answer, errors = self._answer(child, script, deadline, limit_s)
        if answer:
            return answer
        if becomes_root and not with_password and sudo.wants_password(errors, self.host):
            return self._attempt(script, nonce, limit_s, True)
        problem, fix = f"no root: {sudo.last_line(errors)}", "run it as root; or as root: usermod -a -G sudo USER"
        raise NoRoot(self.host.name, problem, "root, or a user who may use sudo", fix)

    def _raise_if_abandoned(self) -> None:
        if self._abandoned.is_set():
            raise Interrupted(self.host.name, "interrupted")

    def _known_password(self) -> Secret:
        """The sudo password, which a person types if it is unknown. Raises NoRoot without a terminal."""
        if self._password is None:
            if self.ask_password is None:
                secret = "set ansible_become_password with !secret (docs/reference/inventory.md#secrets)"
                fix = f"run it in a terminal or as root; or {secret}"
                problem = "sudo asks for a password, and none was given"
                brief = f"sudo wants a password{sudo.for_user(self.host)}"
                raise NoRoot(self.host.name, problem, "root, or a terminal to type the password at", fix, brief)
            return Secret(self.ask_password(self.host.name))
        return self._password

    def _log_in(
        self, child: subprocess.Popen[bytes], plain: bytes, marker: bytes, ready: bytes, deadline: float
    ) -> None:
        """Sends the password after sudo's prompt; returns when the root shell answers. Raises NoRoot if sudo refuses
        it."""
        assert child.stdin
        assert child.stdout
        assert child.stderr
        out = errors = b""
        sent = False
        while ready not in out:
            self._raise_if_abandoned()
            if time.monotonic() > deadline or len(out) + len(errors) > host_text.LOGIN_BYTES:
                self._end(child)
                raise NoRoot(self.host.name, "sudo does not let this user in", "a root shell", "sudo -v says why")
            readable, _, _ = select.select([child.stdout, child.stderr], [], [], _LOOK_S)
            pieces = {stream: os.read(stream.fileno(), 4096) for stream in readable}
            out += pieces.get(child.stdout, b"")
            errors += pieces.get(child.stderr, b"")
            prompts = errors.count(marker)
            if prompts and not sent:
                sent = True
                with contextlib.suppress(OSError):
                    child.stdin.write(plain)
            elif prompts > 1 or (readable and not any(pieces.values())):
                self._end(child)
                reason = sudo.last_line(errors.replace(marker, b"")) or "no reason given"
                expected, fix = "the password of this user, who may use sudo", sudo.other_password(self.host)
                raise NoRoot(self.host.name, f"sudo refused the password ({reason})", expected, fix)

    def _answer(
        self, child: subprocess.Popen[bytes], script: bytes, deadline: float, limit_s: float
    ) -> tuple[bytes, bytes]:
        unsent: bytes | None = script
        while True:
            try:
                return child.communicate(unsent, timeout=_LOOK_S)
            except subprocess.TimeoutExpired:
                unsent = None
            self._raise_if_abandoned()
            if time.monotonic() > deadline:
                self._end(child)
                fix = "end the command that does not return; then run the same command again"
                raise HostError(self.host.name, f"no answer within {limit_s:g} s", "an answer", fix)

    @staticmethod
    def _end(child: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(OSError):  # sudo runs as root
            child.kill()


def require_system(host: str, platform: str) -> None:
    """Raises HostError unless this machine (`sys.platform`) runs Linux."""
    if platform != "linux":
        names = {"win32": "Windows", "darwin": "macOS", "cygwin": "Windows"}
        problem = f"this machine runs {names.get(platform, platform)}"
        fix = "invoke init --host NAME --address USER@HOST describes a machine that rigwright reaches by ssh"
        raise HostError(host, problem, "Ubuntu or Debian on a host with ansible_connection: local", fix)


def require_machine(host: Host, recorded: MachineIdentity, here: MachineIdentity) -> None:
    """Raises InputError unless the recorded machine is the one with this identity."""
    if recorded.compared(here) == "same":
        return
    problem = f"{host.name} is another machine ({recorded}) than this one ({here})"
    fix = (
        "run it on that machine; invoke init --local --host NEW_NAME describes this one; "
        f"if this is that machine with a new board or system, take {LOCAL_MACHINE} out there "
        f"and put it in again: {LOCAL_MACHINE}: {identifiers(here)}"
    )
    raise InputError(host.origin(LOCAL_MACHINE), problem, "the machine that the inventory describes", fix)


def identifiers(identity: MachineIdentity) -> dict[str, str]:
    """The value of `local_machine` for a machine: its known identifiers."""
    names = ("product_uuid", "board_serial", "machine_id_hash")
    return {name: text for name in names if (text := getattr(identity, name))}


_OWN_GROUP: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}
