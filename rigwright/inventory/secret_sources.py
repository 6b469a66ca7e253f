"""Where a secret can come from, and each text that was read: once per process, when it is needed.

Threads that need other secrets do not wait for a source that takes long.
"""

from __future__ import annotations

import os
import stat
import threading
from typing import Any, ClassVar

from msgspec import Struct, field

from rigwright.core.control_characters import one_line
from rigwright.core.errors import InputError
from rigwright.core.secrets import SHORTEST

COMMAND_S = 60.0
LARGEST_BYTES = 1 << 16
PASSWORD_VARIABLE = "ANSIBLE_VAULT_PASSWORD_FILE"
PASSWORD_FIX = f"--vault-password-file FILE, or {PASSWORD_VARIABLE}, opens {{}}"
"""What to type when something is encrypted and no password is given."""


class Source(Struct, frozen=True):
    """Where a secret comes from."""

    shortest: ClassVar[int] = SHORTEST
    """The number of characters that it must have."""

    def read(self, where: str) -> str:
        """Returns the text. `where`: FILE:LINE of the inventory, for messages. Raises InputError."""
        raise NotImplementedError


class Environment(Source, frozen=True):
    """A variable of the environment. It is taken out of it, so that no program that rigwright starts inherits it."""

    name: str

    def take(self) -> None:
        """Moves the variable from the environment into this process."""
        if self.name in os.environ:
            _environment[self.name] = os.environ.pop(self.name)

    def read(self, where: str) -> str:
        self.take()
        if not _environment.get(self.name):
            problem = f"the environment variable {self.name}, from which a secret comes, is not set"
            raise InputError(where, problem, "a value", f"export {self.name}=..., in the shell that starts this")
        return _environment[self.name]


class PrivateFile(Source, frozen=True):
    """A file that only its owner can read; its content without the last newline."""

    path: str

    def read(self, where: str) -> str:
        return read_private(self.path, where).rstrip("\n")


class FirstLine(Source, frozen=True):
    """The first line that a command prints. No shell runs it."""

    argv: tuple[str, ...]

    def read(self, where: str) -> str:
        return command_output(self.argv, where).split("\n", 1)[0].rstrip("\r")


def read_private(path: str, where: str) -> str:
    """The text of a file that only its owner can read. Raises InputError for any other file, and above 64 KiB."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if stat.S_ISFIFO(status.st_mode):
                os.set_blocking(file.fileno(), True)  # such as <(pass show vault) of a shell
            elif not stat.S_ISREG(status.st_mode):
                raise InputError(where, f"{path}, from which a secret comes, is no file", "a file")
            if status.st_mode & 0o077:
                problem = f"{path} has the mode {status.st_mode & 0o7777:04o}: others can read the secret in it"
                raise InputError(where, problem, "a file that only its owner can read", f"chmod 600 {path}")
            content = file.read(LARGEST_BYTES + 1)
        if len(content) > LARGEST_BYTES:
            raise InputError(where, f"{path} is larger than {LARGEST_BYTES} bytes", "a secret")
        return content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        problem = f"{path}, from which a secret comes, cannot be read ({reason})"
        raise InputError(where, problem, "a readable text file") from None


def command_output(argv: tuple[str, ...], where: str) -> str:
    """The first 64 KiB that a command prints. Raises InputError when it fails or takes over COMMAND_S."""
    import subprocess

    name = argv[0]
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, close_fds=True
        )
    except OSError as error:
        problem = f"the command {name}, from which a secret comes, cannot be started ({error.strerror})"
        raise InputError(where, problem, "a program", f"install {name}, or name its whole path") from None
    printed, errors = bytearray(), bytearray()
    readers = [
        threading.Thread(target=_drain, args=pair, daemon=True)
        for pair in ((process.stdout, printed), (process.stderr, errors))
    ]
    for reader in readers:
        reader.start()
    try:
        code = process.wait(COMMAND_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        problem = f"the command {name}, from which a secret comes, did not end within {COMMAND_S:g} s"
        raise InputError(where, f"{problem}{_last(errors)}", "its output", "run it in a terminal and look") from None
    for reader in readers:
        reader.join(1)  # a process that it left in the background may hold its stdout
    if code != 0:
        problem = f"the command {name}, from which a secret comes, failed (exit {code}){_last(errors)}"
        raise InputError(where, problem, "an exit of 0", "run it in a terminal and look")
    try:
        return bytes(printed).decode("utf-8")
    except UnicodeDecodeError:
        problem = f"the command {name}, from which a secret comes, printed no UTF-8"
        raise InputError(where, problem, "a text") from None


def _drain(stream: Any, content: bytearray) -> None:
    while block := stream.read1(1 << 16):
        content += block[: LARGEST_BYTES - len(content)]


def _last(errors: bytearray) -> str:
    """`: TEXT` with the end of the stderr; "" without any."""
    text = one_line(bytes(errors).decode("utf-8", "replace"))
    return f": {text[-300:]}" if text else ""


class _Answer(Struct):
    lock: threading.Lock = field(default_factory=threading.Lock)
    result: str | InputError | None = None


_answers: dict[Source, _Answer] = {}
_environment: dict[str, str] = {}
_lock = threading.Lock()


def forget() -> None:
    """Forgets all answers; for tests, which share a process."""
    with _lock:
        _answers.clear()
        _environment.clear()


def read_once(source: Source, where: str) -> str:
    """The text of a source, which is read once per process. Raises the same InputError each time."""
    with _lock:
        answer = _answers.setdefault(source, _Answer())
    with answer.lock:
        if answer.result is None:
            try:
                text = source.read(where)
                if len(text) < source.shortest:
                    problem = f"the secret has {len(text)} characters" if text else "the secret is empty"
                    expected = f"{source.shortest} or more: a shorter one cannot be hidden in what is printed"
                    raise InputError(where, problem, expected, "choose a longer one, or correct its source")
                answer.result = text
            except InputError as error:
                answer.result = error
    if isinstance(answer.result, InputError):
        first = answer.result
        raise InputError(first.where, first.found, first.expected, first.fix)
    return answer.result
