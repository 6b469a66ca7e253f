"""Debian packages of the lab that put their files over those of other packages, with dpkg-divert.

The other package may be installed before or after; it is unchanged, and its files are back when ours is removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lab.archive.packages import Package, PackedFile, deb

FILES = Path(__file__).parent / "files"


def build(
    name: str,
    version: str,
    description: str,
    files: Mapping[str, Path],
    out: Path,
    *,
    over: tuple[str, ...] = (),
    values: Mapping[str, str] | None = None,
    postinst: str = "",
) -> Path:
    """Builds the package and returns its path in the folder `out`.

    `files`: the file for each path of the package; those that are executable stay so. `over`: the paths at which other
    packages have files; these are moved to /usr/lib/rigwright-lab/diverted. `values` are put in place of @KEY@ in the
    files that come from the folder `files` beside this module. `postinst` names a script in that folder.

    Raises HostError when dpkg-deb fails.
    """
    known = {"PACKAGE": name, "DIVERTED": " ".join(over)} | dict(values or {})
    scripts = {"postinst": str(FILES / postinst)} if postinst else {}
    if over:
        scripts |= {script: str(FILES / f"divert.{script}") for script in ("preinst", "postrm")}
    packed = []
    for path, file in files.items():
        mode = 0o755 if file.stat().st_mode & 0o100 else 0o644
        kind = "source" if file.parent == FILES else "built"
        packed.append(PackedFile(path, kind, str(file), mode))
    if over:
        note = f"The files over which {name} has its own.\n"
        packed.append(PackedFile(f"/usr/lib/rigwright-lab/diverted/README.{name}", "text", note, 0o644))
    control = {
        "Package": name,
        "Version": version,
        "Architecture": "amd64",
        "Maintainer": "rigwright lab <lab@rigwright.invalid>",
        "Section": "misc",
        "Priority": "optional",
        "Description": f"{description}\n This package is made by the rigwright lab.",
    }
    package = Package("", (), (), "", control, tuple(packed), scripts, known)
    return deb.build(package, out, lambda path, _: Path(path))
