"""The keys with which a connection logs in, chosen as OpenSSH does, and the login with them."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import paramiko
from msgspec import Struct, field
from paramiko.agent import AgentSSH

from rigwright.core.errors import RigwrightError

_LARGEST_KEY_BYTES = 1 << 20
_AGENT_S = 20.0
"""Seconds to wait for an answer of the agent; a key may need a touch or a confirmation."""


class KeyFileError(RigwrightError):
    """A key file cannot be used."""


class NoKeyError(paramiko.AuthenticationException):
    """There is no key to log in with."""


class _Agent(AgentSSH):
    """The agent that listens on a socket. Raises OSError and SSHException."""

    def __init__(self, path: str) -> None:
        super().__init__()
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_AGENT_S)
        try:
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Closes the connection to the agent."""
        self._close()  # type: ignore[attr-defined]


class Identities(Struct):
    """The keys of one login.

    `files`: key files. `named`: the inventory or ssh_config names them. `only`: no other keys are used, also not of the
    agent. `agent`: its socket, "" without one. `unusable`: the key files that could not be used. `accepted`: the public
    key of the login in base64; "" before it, and for a certificate.
    """

    user: str
    files: tuple[Path, ...]
    named: bool
    only: bool
    agent: str
    unusable: list[KeyFileError] = field(default_factory=list)
    accepted: str = ""

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Logs in with the first key that the server accepts; paramiko calls this after it verified the host key.
        Raises AuthenticationException if the server accepts none, and what ended the connection."""
        refused: paramiko.SSHException | None = None
        for key in self._keys():
            try:
                further = transport.auth_publickey(self.user, key)
            except paramiko.SSHException as error:
                refused = error
                if not transport.is_active():
                    break
                continue
            if not further:
                self.accepted = "" if key.public_blob or "-cert-" in key.get_name() else key.get_base64()
                return
            raise paramiko.AuthenticationException(f"besides the key it wants {', '.join(further)}")
        if self.unusable and (refused is None or self.only):
            raise self.unusable[0]
        raise refused or NoKeyError("no key")

    def _keys(self) -> Iterator[paramiko.PKey]:
        """The keys in the order in which they are tried: named files, keys of the agent, other files."""
        if self.named:
            yield from self._of_files()
        if not self.only:
            tried = {public for path in self.files if self.named and (public := public_key(path))}
            with self._agent_keys() as held:
                yield from (key for key in held if key.asbytes() not in tried)
        if not self.named:
            yield from self._of_files()

    def _of_files(self) -> Iterator[paramiko.PKey]:
        for path in self.files:
            try:
                yield private_key(path)
            except KeyFileError as error:
                public = public_key(path)
                with self._agent_keys() as held:
                    same = [key for key in held if public and key.asbytes() == public]
                    if not same:
                        self.unusable.append(error)
                    yield from same

    @contextlib.contextmanager
    def _agent_keys(self) -> Iterator[list[paramiko.PKey]]:
        if not self.agent:
            yield []
            return
        agent = None
        keys: list[paramiko.PKey] = []
        with contextlib.suppress(OSError, paramiko.SSHException):
            agent = _Agent(self.agent)
            keys = list(agent.get_keys())
        try:
            yield keys
        finally:
            if agent is not None:
                agent.close()


def private_key(path: Path) -> paramiko.PKey:
    """The key in a file, with its certificate beside it. Raises KeyFileError with what to do about the file."""
    where = str(path)
    if not path.is_file():
        raise KeyFileError(where, "the ssh key is not there", "a private key file", "ssh-keygen makes one")
    try:
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            size = len(file.read(_LARGEST_KEY_BYTES + 1))
    except OSError as error:
        problem = f"the ssh key cannot be read: {error.strerror}"
        raise KeyFileError(where, problem, "a private key file", f"ls -l {where} shows who may read it") from None
    if state.st_mode & 0o077 and state.st_uid == os.geteuid():
        problem = f"other users may use the ssh key (its mode is {state.st_mode & 0o777:04o})"
        raise KeyFileError(where, problem, "a file that only its owner may read", f"chmod 600 {where}")
    if size > _LARGEST_KEY_BYTES:
        fix = "name the file with the private key"
        raise KeyFileError(where, "the ssh key is larger than 1 MiB", "a private key file", fix)
    certificate = path.with_name(f"{path.name}-cert.pub")
    changed = certificate.stat().st_mtime_ns if certificate.exists() else 0
    return _private_key(path, state.st_mtime_ns, state.st_size, state.st_ino, changed)


@lru_cache(maxsize=16)
def _private_key(path: Path, _changed_ns: int, _size: int, _inode: int, _certificate_changed_ns: int) -> paramiko.PKey:
    """The key in a file, read once for all hosts; it signs in any thread. Raises KeyFileError."""
    try:
        return paramiko.PKey.from_path(path)
    except (paramiko.PasswordRequiredException, TypeError):
        problem, expected, fix = "the ssh key is encrypted", "a key that an ssh-agent holds", f"ssh-add {path}"
    except (paramiko.SSHException, ValueError, OSError, paramiko.pkey.UnknownKeyType):
        problem, fix = "the ssh key cannot be understood", "ssh-keygen makes one"
        expected = "a private key of ssh: ed25519, ecdsa or rsa"
    raise KeyFileError(str(path), problem, expected, fix)


_MAGIC = b"openssh-key-v1\0"
"""The beginning of a key file of OpenSSH; then come cipher, kdf and its options, the number of keys, the public key."""


def public_key(path: Path) -> bytes:
    """The public part of a key file, from NAME.pub or from an unencrypted part of the file; b"" without it."""
    for public in (path.with_name(f"{path.name}.pub"), path):
        with contextlib.suppress(OSError, ValueError, IndexError):
            kind, key = _beginning(public).split()[:2]
            if not kind.startswith(b"-----"):
                return base64.b64decode(key, validate=True)
    with contextlib.suppress(OSError, ValueError, IndexError, paramiko.SSHException):
        lines = _beginning(path).split(b"\n")
        packed = base64.b64decode(b"".join(line for line in lines if not line.startswith(b"-----")))
        if packed.startswith(_MAGIC):
            message = paramiko.Message(packed[len(_MAGIC) :])
            for _cipher_kdf_options in range(3):
                message.get_binary()
            message.get_int()
            return message.get_binary()
    return b""


def _beginning(path: Path) -> bytes:
    """The first MiB of a file; b"" of a device or a pipe, which may have no end. Raises OSError."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(_LARGEST_KEY_BYTES)
