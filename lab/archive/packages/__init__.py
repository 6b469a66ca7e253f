"""The package tables: every *.yml here lists packages of the simulated archives.

This module turns each entry into Package objects. A table:

    repository: ubuntu|debian|cuda|toolkit    the repository of its packages
    suites: [jammy-updates, ...]      suites of the ubuntu or debian repository
    distros: [ubuntu2204, ...]        distributions whose cuda repository, a flat one, has them (default ubuntu2204)
    component: restricted             component of the ubuntu or debian repository
    architecture: amd64               default of its packages
    sets: [{N: "535", V: 535.183.01}] the packages are made once per set; @N@, @V@ ... are replaced everywhere
    packages:                         name, version, and as in a control file: section, depends, recommends, provides,
                                      conflicts, replaces, breaks, description
        also: [{M: nvidia}, ...]      the package is made once per entry, whose keys are added to the set's
        files: [{path, text | source | ko | built | link, mode}]
        scripts: {postinst: FILE}     a maintainer script from files/

A set may override repository, suites, distros and component. `source` and scripts name files of files/ (or
../guest_gpu/), `ko` names a module source there, and `built` an artefact that lab.archive.repositories can build.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
FILES = HERE / "files"

RELATIONS = ("pre_depends", "depends", "recommends", "provides", "conflicts", "replaces", "breaks")
PACKAGE_KEYS = {
    *RELATIONS,
    "name",
    "version",
    "section",
    "architecture",
    "source",
    "multi_arch",
    "description",
    "files",
    "scripts",
}
TABLE_KEYS = {"repository", "suites", "component", "architecture", "sets", "packages", "source", "section", "distros"}


@dataclass(frozen=True)
class PackedFile:
    """One path of a package. `kind` gives the meaning of `content` (text, source, ko, built, link)."""

    path: str
    kind: str
    content: str
    mode: int


@dataclass(frozen=True)
class Package:
    """One package version and its place in the repositories."""

    repository: str
    suites: tuple[str, ...]
    distros: tuple[str, ...]
    component: str
    control: dict[str, str]
    files: tuple[PackedFile, ...]
    scripts: dict[str, str]
    values: dict[str, str] = field(compare=False)

    @property
    def name(self) -> str:
        """The package's name."""
        return self.control["Package"]

    @property
    def version(self) -> str:
        """The package's version."""
        return self.control["Version"]

    @property
    def deb(self) -> str:
        """The file name of the .deb: name_version_architecture, where the version has no epoch."""
        return f"{self.name}_{self.version.split(':')[-1]}_{self.control['Architecture']}.deb"


def load(values: dict[str, str], folder: Path = HERE) -> list[Package]:
    """Returns every package of every table in `folder`. All tables may use `values` (KVER).

    Raises ValueError for an invalid table.
    """
    packages: list[Package] = []
    for path in sorted(folder.glob("*.yml")):
        try:
            packages.extend(_table(yaml.safe_load(path.read_text(encoding="utf-8")), values))
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(f"{path.name}: {error}") from error
    seen: set[tuple[str, str, str]] = set()
    for package in packages:
        key = (package.repository, package.name, package.version)
        if key in seen:
            raise ValueError(f"{' '.join(key)} is made twice")
        seen.add(key)
    return packages


def successor(values: dict[str, str], name: str, version: str, table_name: str = "driver") -> tuple[str, list[Package]]:
    """Returns the driver version after this one, and its packages as the archive would have them.

    The packages are those of the family that has `name` in this version. Raises ValueError when no family has it.
    """
    table = yaml.safe_load((HERE / f"{table_name}.yml").read_text(encoding="utf-8"))
    for entry in table["sets"]:
        family = list(_table({**table, "sets": [entry]}, values))
        if any((package.name, package.version) == (name, version) for package in family):
            major, minor, _ = entry["V"].split(".")
            after = f"{major}.{int(minor) + 1}.01"
            newer = {
                key: text.replace(entry["V"], after) if key in ("V", "FM") else text for key, text in entry.items()
            }
            return after, list(_table({**table, "sets": [newer]}, values))
    raise ValueError(f"no table has {name} {version}")


def substitute(text: str, values: dict[str, str]) -> str:
    """Returns `text` with each @KEY@ replaced. Raises ValueError for a key without a value."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in values:
            raise ValueError(f"@{found[1]}@ has no value")
        return values[found[1]]

    return re.sub(r"@([A-Z]+)@", value, text)


def _table(table: dict[str, Any], values: dict[str, str]) -> Iterator[Package]:
    """Yields the packages of one table, once per set."""
    unknown = set(table) - TABLE_KEYS
    if unknown:
        raise ValueError(f"unknown key {sorted(unknown)}")
    for entry in table.get("sets") or [{}]:
        options = {k: entry.get(k, table.get(k)) for k in TABLE_KEYS - {"sets", "packages"}}
        known = dict(values)
        for key, text in entry.items():
            if key not in TABLE_KEYS:
                known[key] = substitute(str(text), known)
        for row in table["packages"]:
            for more in row.get("also") or [{}]:
                own = dict(known)
                for key, text in more.items():
                    own[key] = substitute(str(text), own)
                yield _package({k: v for k, v in row.items() if k != "also"}, options, own)


def _package(row: dict[str, Any], options: dict[str, Any], values: dict[str, str]) -> Package:
    """Returns one package with all values replaced."""
    unknown = set(row) - PACKAGE_KEYS
    if unknown:
        raise ValueError(f"{row.get('name')}: unknown key {sorted(unknown)}")

    def text(key: str, default: str) -> str:
        return substitute(str(row.get(key) or options.get(key) or default), values)

    control = {
        "Package": text("name", ""),
        "Version": text("version", ""),
        "Architecture": text("architecture", "amd64"),
        "Maintainer": "rigwright lab <lab@rigwright.invalid>",
        "Section": text("section", "misc"),
        "Priority": "optional",
    }
    if row.get("source") or options.get("source"):
        control["Source"] = text("source", "")
    if row.get("multi_arch"):
        control["Multi-Arch"] = row["multi_arch"]
    for relation in RELATIONS:
        if row.get(relation):
            control[relation.title().replace("_", "-")] = substitute(", ".join(row[relation]), values)
    control["Description"] = text("description", control["Package"]) + "\n This package is made by the rigwright lab."
    return Package(
        repository=options["repository"],
        suites=tuple(options.get("suites") or ()),
        distros=tuple(options.get("distros") or ("ubuntu2204",)),
        component=options.get("component") or "",
        control=control,
        files=tuple(_file(f, values) for f in row.get("files") or ()),
        scripts={k: substitute(v, values) for k, v in (row.get("scripts") or {}).items()},
        values=values,
    )


def _file(row: dict[str, Any], values: dict[str, str]) -> PackedFile:
    """Returns the file of one row; its kind is the one key besides path and mode."""
    kinds = [k for k in row if k not in ("path", "mode")]
    if len(kinds) != 1 or kinds[0] not in ("text", "source", "ko", "built", "link"):
        raise ValueError(f"{row.get('path')}: one of text, source, ko, built, link, not {kinds}")
    return PackedFile(
        path=substitute(row["path"], values),
        kind=kinds[0],
        content=substitute(row[kinds[0]], values),
        mode=int(str(row.get("mode", "644")), 8),
    )
