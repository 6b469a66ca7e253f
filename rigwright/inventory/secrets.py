"""The secrets of an inventory: `!secret` with its sources, and what ansible-vault encrypted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from rigwright.core.errors import InputError
from rigwright.core.secrets import Secret
from rigwright.core.yaml_source import Tags, misspelt
from rigwright.inventory.secret_sources import Environment, FirstLine, PrivateFile, Source, read_once

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
        return {"!secret": self._secret, "!vault": self._secret_of_vault, "!vault-encrypted": self._secret_of_vault}

    def opened(self, encrypted: str, where: str) -> str:
        """The text of a file or a value that ansible-vault encrypted. Raises InputError."""
        return read_once(Encrypted(encrypted, self.password_file), where)

    def _secret(self, given: Any, where: str) -> Secret:
        if not isinstance(given, Mapping) or len(given) != 1:
            raise InputError(where, "a secret without one source", _FORMS)
        ((kind, value),) = given.items()
        if kind not in ("env", "file", "command"):
            raise misspelt(where, f"unknown source of a secret '{kind}'", kind, ("env", "file", "command"))
        source: Source | None = None
        if kind == "env" and _is_text(value) and "=" not in value:
            source = Environment(value)
            source.take()
        elif kind == "file" and _is_text(value):
            source = PrivateFile(str(self.folder / Path(value).expanduser()))
        elif kind == "command" and isinstance(value, list) and value and all(map(_is_text, value)):
            source = FirstLine(tuple(value))
        if source is None:
            fix = "write each word of the command as an item of the list; no shell runs it" if kind == "command" else ""
            raise InputError(where, f"'{kind}' of a secret is {value!r}", _FORMS, fix)
        return Secret(_Once(source, where))

    def _secret_of_vault(self, encrypted: Any, where: str) -> Secret:
        if not isinstance(encrypted, str) or not encrypted.lstrip().startswith(VAULT):
            raise InputError(where, "a !vault without encrypted text", f"!vault | and lines that begin with {VAULT}")
        return Secret(_Once(Encrypted(encrypted, self.password_file), where))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


class Encrypted(Source, frozen=True):
    """A text that ansible-vault encrypted."""

    text: str
    password_file: str

    def read(self, where: str) -> str:
        from rigwright.inventory import vault

        return vault.decrypt(self.text, self.password_file, where)


class _Once(Struct, frozen=True, eq=False):
    """A source that is read once per process. `where` is for messages, and not compared."""

    source: Source
    where: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Once) and other.source == self.source

    def __hash__(self) -> int:
        return hash(self.source)

    def __call__(self) -> str:
        return read_once(self.source, self.where)


TAGS = Sources(Path()).tags
"""The YAML tags of an inventory file that is only edited: none of its secrets is read."""
