"""Builds a .deb from a Package of the tables, with the real dpkg-deb."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from lab.archive import ko_file
from lab.archive.packages import FILES, Package, PackedFile, substitute
from rigwright.core.errors import HostError

Built = Callable[[str, dict[str, str]], Path]
"""A function that makes an artefact such as `nvml` for a package's values and returns its file."""


def build(package: Package, out: Path, built: Built) -> Path:
    """Builds the .deb in the folder `out` and returns its path. Everything in it belongs to root.

    Raises HostError when dpkg-deb fails.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / package.deb
    with tempfile.TemporaryDirectory(prefix="rigwright-deb-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        for file in package.files:
            _put(root / file.path.lstrip("/"), file, package.values, built)
        size = sum(path.lstat().st_size // 1024 + 1 for path in root.rglob("*"))
        (root / "DEBIAN").mkdir()
        control = {"Package": package.name, "Installed-Size": str(size)} | package.control
        (root / "DEBIAN/control").write_text("".join(f"{k}: {v}\n" for k, v in control.items()), encoding="utf-8")
        conffiles = [f.path for f in package.files if f.path.startswith("/etc/") and f.kind != "link"]
        if conffiles:
            (root / "DEBIAN/conffiles").write_text("".join(f"{c}\n" for c in conffiles), encoding="utf-8")
        for script, source in package.scripts.items():
            target = root / "DEBIAN" / script
            target.write_text(
                substitute((FILES / source).read_text(encoding="utf-8"), package.values), encoding="utf-8"
            )
            target.chmod(0o755)
        argv = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(root), str(path)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HostError("archive", f"{package.deb}: {done.stderr.strip()}")
    return path


def _put(target: Path, file: PackedFile, values: dict[str, str], built: Built) -> None:
    """Writes one path of the package's tree. Its parent folders get mode 0755 whatever the umask."""
    for parent in reversed(target.parents):
        if not parent.exists():
            parent.mkdir()
            parent.chmod(0o755)
    if file.kind == "link":
        target.symlink_to(file.content)
        return
    if file.kind == "text":
        target.write_text(file.content, encoding="utf-8")
    elif file.kind == "source":
        target.write_text(substitute((FILES / file.content).read_text(encoding="utf-8"), values), encoding="utf-8")
    elif file.kind == "ko":
        source = substitute((FILES / file.content).read_text(encoding="utf-8"), values)
        target.write_bytes(ko_file.module(ko_file.parse(source), values["KVER"]))
    else:
        shutil.copyfile(built(file.content, values), target)
    target.chmod(file.mode)
