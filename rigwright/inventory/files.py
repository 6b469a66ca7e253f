"""Finds the files of an inventory, and reads them in Ansible's order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rigwright.core.errors import InputError
from rigwright.core.yaml_source import Mapping, load, loads, text
from rigwright.inventory import ini, yaml
from rigwright.inventory.groups import Declared, Given

YAML = (".yml", ".yaml", ".json")
_LEFT_OUT = ("host_vars", "group_vars", "vars_plugins", "rigs", "templates")
_NOT_READ = ("~", *".pyc .pyo .swp .bak .rpm .md .txt .rst .orig .ini .cfg .retry".split())
"""The file name endings that Ansible ignores in a directory. An .ini file is read only when the path names the file."""


def sources(path: Path) -> Iterator[Path]:
    """The inventory files of a path: the file itself, or the files of a directory tree in Ansible's order."""
    if path.is_file():
        yield path
    elif path.is_dir():
        for entry in sorted(path.iterdir()):
            if not entry.name.startswith(".") and entry.name not in _LEFT_OUT and not entry.name.endswith(_NOT_READ):
                yield from sources(entry)


def declare(file: Path, declared: Declared) -> None:
    """Adds the content of a file to `declared`. Raises InputError when the file is not a valid inventory."""
    if file.suffix in YAML:
        yaml.declare(load(file), str(file), declared)
        return
    content = text(file, str(file), "utf-8-sig")
    if content.startswith("#!"):
        todo = f"{file} --list > hosts.json, converted by ansible-inventory --list --yaml --export"
        raise InputError(
            f"{file}:1", "a program that makes an inventory, which rigwright does not run", "an inventory", todo
        )
    if file.suffix == ".toml":
        raise InputError(
            str(file),
            "an inventory in TOML",
            "one in YAML or INI",
            f"ansible-inventory -i {file} --list --yaml --export",
        )
    if not file.suffix and _is_yaml(content):
        yaml.declare(loads(content, str(file)), str(file), declared)
    else:
        ini.declare(content, str(file), declared)


def _is_yaml(content: str) -> bool:
    """Whether a text is YAML: its first line that is not empty or a comment begins with `---`, `{` or `NAME:`."""
    lines = (line.strip() for line in content.splitlines())
    first = next((line for line in lines if line and line[0] not in "#;"), "")
    return bool(re.match(r"---|\{|[^\[\s][^\s=]*:(\s|$)", first))


def variables(folder: Path, name: str) -> Given:
    """The variables in the first of `NAME`, `NAME.yml`, `NAME.yaml` and `NAME.json` that exists in a folder.

    If that is a directory, all its files are read. Raises InputError when a file is not a mapping of variables.
    """
    variables: Given = {}
    if "/" in name or name in (".", ".."):
        return variables
    first = next((path for ending in ("", *YAML) if (path := folder / f"{name}{ending}").exists()), None)
    for file in _files(first) if first else ():
        document = load(file)
        if document is None:
            continue
        if isinstance(document, str) and document.startswith("$ANSIBLE_VAULT"):
            todo = "keep secrets out of the inventory"
            raise InputError(str(file), "a file encrypted by ansible-vault", "plain YAML", todo)
        if not isinstance(document, Mapping):
            raise InputError(str(file), "no mapping of variables", "NAME: VALUE, one per line")
        variables.update(yaml.given(document))
    return variables


def _files(path: Path) -> Iterator[Path]:
    """The file itself, or all YAML files of a directory, sorted by name, also in its subdirectories.

    A file counts as YAML if its name has a YAML ending or no ending. Subdirectories with a dot in the name are ignored.
    """
    if path.is_file():
        yield path
        return
    for entry in sorted(path.iterdir()):
        if entry.name.startswith(".") or entry.name.endswith("~"):
            continue
        if (entry.is_dir() and not entry.suffix) or (entry.is_file() and entry.suffix in ("", *YAML)):
            yield from _files(entry)
