"""The secrets of an inventory: `!secret` with its sources, and what ansible-vault encrypted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from rigwright.core.errors import InputError
from rigwright.core.secrets import Secret
from rigwright.core.yaml_source import Tags, misspelt
from rigwright.inventory.secret_sources import Environment, FirstLine, PrivateFile, Source, asked

_FORMS = "{env: NAME}, {file: PATH} or {command: [PROGRAM, ARGUMENT, ...]}"

VAULT = "$ANSIBLE_VAULT;"
"""The beginning of a text that ansible-vault encrypted."""


class Sources(Struct, frozen=True):
    """The sources of the secrets of one inventory. `folder`: what relative paths begin at.

    `password_file` has the password of ansible-vault; "" without one.
    """

    folder: Path
    password_file: str = ""

    @property
    def tags(self) -> Tags:
        """The YAML tags whose values are secrets."""
        return {"!secret": self._secret, "!vault": self._vaulted, "!vault-encrypted": self._vaulted}

    def opened(self, encrypted: str, where: str) -> str:
        """The text of a file or a value that ansible-vault encrypted. Raises InputError."""
        return asked(Encrypted(encrypted, self.password_file), where)

    def _secret(self, given: Any, where: str) -> Secret:
        kinds: dict[str, Callable[[Any], Source | None]] = {
            "env": lambda name: Environment(name) if _is_name(name) else None,
            "file": lambda path: PrivateFile(str(self._path(path))) if _is_text(path) else None,
            "command": lambda argv: FirstLine(tuple(argv)) if _is_argv(argv) else None,
        }
        if not isinstance(given, Mapping) or len(given) != 1:
            raise InputError(where, "a secret without one source", _FORMS)
        ((kind, value),) = given.items()
        if kind not in kinds:
            raise misspelt(where, f"unknown source of a secret '{kind}'", kind, kinds)
        source = kinds[kind](value)
        if source is None:
            todo = (
                "write each word of the command as an item of the list; no shell runs it" if kind == "command" else ""
            )
            raise InputError(where, f"'{kind}' of a secret is {value!r}", _FORMS, todo)
        if isinstance(source, Environment):
            source.take()
        return Secret(_Once(source, where))

    def _vaulted(self, given: Any, where: str) -> Secret:
        if not isinstance(given, str) or not given.lstrip().startswith(VAULT):
            raise InputError(where, "a !vault without encrypted text", f"!vault | and lines that begin with {VAULT}")
        return Secret(_Once(Encrypted(given, self.password_file), where))

    def _path(self, path: str) -> Path:
        return self.folder / Path(path).expanduser()


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


def _is_name(value: Any) -> bool:
    return _is_text(value) and "=" not in value


def _is_argv(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_text, value))


class Encrypted(Source, frozen=True):
    """A text that ansible-vault encrypted."""

    text: str
    password_file: str

    def read(self, where: str) -> str:
        from rigwright.inventory import vault

        return vault.decrypted(self.text, self.password_file, where)


class _Once(Struct, frozen=True, eq=False):
    """A source that is asked once per process; its error counts as its answer. `where` is for messages, and not
    compared."""

    source: Source
    where: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Once) and other.source == self.source

    def __hash__(self) -> int:
        return hash(self.source)

    def __call__(self) -> str:
        return asked(self.source, self.where)


TAGS = Sources(Path()).tags
"""The YAML tags of an inventory file that is only edited: none of its secrets is read."""
