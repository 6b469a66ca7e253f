"""The files of an inventory: which are read, in which order, and what is in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rigwright.errors import InputError
from rigwright.inventory import from_ini, from_yaml
from rigwright.inventory.declared import Declared, Given
from rigwright.yamlfile import Mapping, load, loads

YAML = (".yml", ".yaml", ".json")
_LEFT_OUT = ("host_vars", "group_vars", "vars_plugins", "rigs")
_NOT_READ = ("~", *".pyc .pyo .swp .bak .rpm .md .txt .rst .orig .ini .cfg .retry".split())
"""The endings that Ansible passes by in a directory; an .ini file is read where it is named itself."""


def sources(path: Path) -> Iterator[Path]:
    """The inventory files of a path: itself, or those of a directory and its folders by name, as Ansible goes through them."""
    if path.is_file():
        yield path
    elif path.is_dir():
        for one in sorted(path.iterdir()):
            if not one.name.startswith(".") and one.name not in _LEFT_OUT and not one.name.endswith(_NOT_READ):
                yield from sources(one)


def declare(file: Path, declared: Declared) -> None:
    """What a file says is declared. Raises InputError."""
    if file.suffix in YAML:
        from_yaml.declare(load(file), str(file), declared)
        return
    text = _text(file)
    if text.startswith("#!"):
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
    if not file.suffix and _is_yaml(text):
        from_yaml.declare(loads(text, str(file)), str(file), declared)
    else:
        from_ini.declare(text, str(file), declared)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(file), f"cannot be read: {error}", "a readable UTF-8 file") from None


def _is_yaml(text: str) -> bool:
    """Whether a file without an ending is YAML: its first line that says something is `---`, `{` or `NAME:`."""
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and line[0] not in "#;"), "")
    return bool(re.match(r"---|\{|[^\[\s][^\s=]*:(\s|$)", first))


def variables(folder: Path, name: str) -> Given:
    """What `NAME`, `NAME.yml`, `NAME.yaml` or `NAME.json` in a folder says, the first that is there; or all files of a directory NAME.

    Raises InputError.
    """
    found: Given = {}
    if "/" in name or name in (".", ".."):
        return found
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
        found.update(from_yaml.given(document))
    return found


def _files(path: Path) -> Iterator[Path]:
    """The file; of a directory every file by name that is YAML by its ending or has none, and its folders' without an ending."""
    if path.is_file():
        yield path
        return
    for one in sorted(path.iterdir()):
        if one.name.startswith(".") or one.name.endswith("~"):
            continue
        if (one.is_dir() and not one.suffix) or (one.is_file() and one.suffix in ("", *YAML)):
            yield from _files(one)
