"""Finds the files of an inventory, and reads them in Ansible's order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct

from rigwright.core.errors import InputError
from rigwright.core.secrets import sealed
from rigwright.core.yaml_source import Mapping, Tags, loads, text
from rigwright.inventory import ini, yaml
from rigwright.inventory.groups import Declared, Given
from rigwright.inventory.model import NOT_SECRET
from rigwright.inventory.secrets import VAULT, Sources

YAML = (".yml", ".yaml", ".json")
_LEFT_OUT = ("host_vars", "group_vars", "vars_plugins", "rigs", "templates", "secrets")
_NOT_READ = ("~", *".pyc .pyo .swp .bak .rpm .md .txt .rst .orig .ini .cfg .retry".split())
"""The file name endings that Ansible ignores in a directory. An .ini file is read only when the path names the file."""


_DEEPEST = 20
"""The most directories inside each other; links that lead back to their own directory have no end."""


def sources(path: Path, level: int = 0) -> Iterator[Path]:
    """The inventory files of a path: the file itself, or the files of a directory tree in Ansible's order.

    Raises InputError for a directory that cannot be read, and for more than 20 directories inside each other.
    """
    if path.is_file():
        yield path
    elif path.is_dir():
        for entry in _entries(path, level):
            if not entry.name.startswith(".") and entry.name not in _LEFT_OUT and not entry.name.endswith(_NOT_READ):
                yield from sources(entry, level + 1)


def _entries(folder: Path, level: int) -> list[Path]:
    if level > _DEEPEST:
        raise InputError(str(folder), f"more than {_DEEPEST} directories inside each other", "no link that leads back")
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise InputError(str(folder), f"cannot be read: {error.strerror}", "a directory that you may read") from None


def declare(file: Path, declared: Declared, tags: Tags) -> None:
    """Adds the content of a file to `declared`. Raises InputError when the file is not a valid inventory.

    `tags`: the YAML tags that it may have.
    """
    is_yaml = file.suffix in YAML
    content = text(file, str(file), "utf-8" if is_yaml else "utf-8-sig")
    if content.startswith(VAULT):
        problem, fix = "a list of hosts that ansible-vault encrypted", f"ansible-vault decrypt {file}"
        raise InputError(str(file), problem, "hosts in plain text; secrets encrypted, in group_vars/", fix)
    if is_yaml:
        yaml.declare(loads(content, str(file), tags), str(file), declared)
        return
    if content.startswith("#!"):
        fix = f"{file} --list > hosts.json, converted by ansible-inventory --list --yaml --export"
        problem = "a program that makes an inventory, which rigwright does not run"
        raise InputError(f"{file}:1", problem, "an inventory in YAML or INI", fix)
    if file.suffix == ".toml":
        fix = f"ansible-inventory -i {file} --list --yaml --export"
        raise InputError(str(file), "an inventory in TOML", "an inventory in YAML or INI", fix)
    lines = (line.strip() for line in content.splitlines())
    first = next((line for line in lines if line and line[0] not in "#;"), "")
    if not file.suffix and re.match(r"---|\{|[^\[\s][^\s=]*:(\s|$)", first):
        yaml.declare(loads(content, str(file), tags), str(file), declared)
    else:
        ini.declare(content, str(file), declared)


class VaultFile(Struct, frozen=True):
    """A file of variables that ansible-vault encrypted as a whole."""

    path: str
    content: str
    sources: Sources

    def open(self) -> Given:
        """Its variables; every text and number of them is a secret but those of rigwright itself. Raises InputError."""
        document = loads(self.sources.opened(self.content, self.path), self.path, self.sources.tags)
        return {
            name: (value if name in NOT_SECRET else sealed(value), where)
            for name, (value, where) in _variables_of(document, self.path).items()
        }


Layer: TypeAlias = "Given | VaultFile"
"""The variables of one file. Of the same variable in two layers the later counts."""


def variables(folder: Path, name: str, sources: Sources) -> list[Layer]:
    """The variables in the first of `NAME`, `NAME.yml`, `NAME.yaml` and `NAME.json` that exists in a folder.

    If that is a directory, all its files are read. Raises InputError when a file is not a mapping of variables.
    """
    if "/" in name or name in (".", ".."):
        return []
    layers: list[Layer] = []
    first = next((path for ending in ("", *YAML) if (path := folder / f"{name}{ending}").exists()), None)
    for file in _files(first) if first else ():
        content = text(file, str(file))
        if content.startswith(VAULT):
            layers.append(VaultFile(str(file), content, sources))
        else:
            layers.append(_variables_of(loads(content, str(file), sources.tags), str(file)))
    return layers


def _variables_of(document: Any, file: str) -> Given:
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise InputError(file, "no mapping of variables", "NAME: VALUE, one per line")
    return yaml.given(document)


def _files(path: Path, level: int = 0) -> Iterator[Path]:
    """The file itself, or all YAML files of a directory, sorted by name, also in its subdirectories.

    A file counts as YAML if its name has a YAML ending or no ending. Subdirectories with a dot in the name are ignored.
    """
    if not path.is_dir():
        if not path.is_file():
            raise InputError(str(path), "is no file", "a file, or a directory of files")
        yield path
        return
    for entry in _entries(path, level):
        if entry.name.startswith(".") or entry.name.endswith("~"):
            continue
        if (entry.is_dir() and not entry.suffix) or (entry.is_file() and entry.suffix in ("", *YAML)):
            yield from _files(entry, level + 1)
