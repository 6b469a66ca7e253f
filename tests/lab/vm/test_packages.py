"""The packages that a guest gets: the stand-in libraries over NVIDIA's, and a make with NVIDIA's modules."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

from lab.vm import diversion, modules, modules_package, nvml_package
from lab.vm.modules import NAMES, Modules
from rigwright.core.errors import HostError

pytestmark = pytest.mark.usefixtures("as_root")  # dpkg installs into a folder only for root
VERSION = "535.261.03"
KERNEL = "6.1.0-50-amd64"
LIBRARY = f"{nvml_package.LIBRARIES}/libnvidia-ml.so.{VERSION}"


class Root:
    """A folder with a dpkg database, in which packages are installed without chroot."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in ("var/lib/dpkg/updates", "var/lib/dpkg/info", "var/log"):
            (path / name).mkdir(parents=True)
        (path / "var/lib/dpkg/status").touch()

    def dpkg(self, *arguments: str | Path) -> None:
        argv = ["dpkg", f"--root={self.path}", f"--log={self.path}/log", "--force-script-chrootless", "--force-depends"]
        done = subprocess.run([*argv, *arguments], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr

    def text(self, path: str) -> str:
        return (self.path / path.lstrip("/")).read_bytes().decode("latin-1")


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Modules:
    """Returns modules of the cache, of one line each."""
    monkeypatch.setattr(modules, "VM_CACHE", tmp_path / "cache")
    made = Modules("debian12", KERNEL, f"{VERSION}-1", "6.1.176-1", "nvidia-current", 170)
    made.path.mkdir(parents=True)
    for name in NAMES:
        (made.path / name).write_text(f"compiled {name}\n")
    (made.path / "manifest.json").write_text(json.dumps(asdict(made)))
    return made


def other_package(path: str, out: Path) -> Path:
    """Builds a package of somebody else with a file at `path`."""
    file = out / "theirs"
    file.write_text("the real one\n")
    return diversion.build("theirs", "1", "another package", {path: file}, out)


@pytest.mark.parametrize("theirs_first", [True, False])
def test_a_library_of_ours_lies_over_nvidias_until_it_is_removed(
    root: Root, tmp_path: Path, theirs_first: bool
) -> None:
    theirs = other_package(LIBRARY, tmp_path)
    ours = nvml_package.nvml_package("servbadge", "vm1", VERSION, tmp_path)
    for package in [theirs, ours] if theirs_first else [ours, theirs]:
        root.dpkg("--install", package)
    assert "nvmlInit_v2" in root.text(LIBRARY)
    assert root.text(f"/usr/lib/rigwright-lab/diverted/libnvidia-ml.so.{VERSION}") == "the real one\n"
    root.dpkg("--install", ours)
    root.dpkg("--verify", "theirs")
    root.dpkg("--remove", nvml_package.NAME)
    assert root.text(LIBRARY) == "the real one\n"
    assert not (root.path / "var/lib/dpkg/diversions").read_text()


class Guest:
    """A guest's dkms folder in a root, with the program make of our package, which finds its files in that root."""

    def __init__(self, root: Root, package: Path, work: Path) -> None:
        root.dpkg("--install", package)
        self.root = root
        self.versions = {"nvidia-kernel-dkms": f"{VERSION}-1", f"linux-headers-{KERNEL}": "6.1.176-1"}
        self.build = root.path / f"var/lib/dkms/nvidia-current/{VERSION}/build"
        self.build.mkdir(parents=True)
        text = root.text(modules_package.MAKE)
        for folder in ("/usr/lib/rigwright-lab", "/var/lib/rigwright-lab", "/var/lib/dkms"):
            text = text.replace(folder, f"{root.path}{folder}")
        self.make = work / "make"
        self.make.write_text(text)
        self.make.chmod(0o755)
        real = root.path / "usr/lib/rigwright-lab/diverted/make"
        real.write_text('#!/bin/sh\necho "real make: $*"\n')
        real.chmod(0o755)
        self.programs = work / "programs"
        self.programs.mkdir()

    def run(self, *words: str, folder: Path | None = None) -> tuple[int, str]:
        """Returns the exit code and the output of make with these words, as dkms calls it by default."""
        cases = "".join(f"{name}) printf %s '{version}';;\n" for name, version in self.versions.items())
        query = self.programs / "dpkg-query"
        query.write_text(f"#!/bin/sh\nfor name; do :; done\ncase $name in\n{cases}*) exit 1;; esac\n")
        query.chmod(0o755)
        env = {"PATH": f"{self.programs}:{os.environ['PATH']}"}
        given = words or ("-j2", "modules", f"KERNEL_UNAME={KERNEL}")
        argv, cwd = [self.make, *given], folder or self.build
        done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def guest(root: Root, kept: Modules, tmp_path: Path) -> Guest:
    return Guest(root, modules_package.modules_package(kept, tmp_path), tmp_path)


def test_dkms_build_of_the_cached_modules_copies_them_and_says_so(guest: Guest) -> None:
    code, said = guest.run()
    assert code == 0
    assert "the modules are copied from" in said
    assert {path.name: path.read_text() for path in guest.build.iterdir()} == {n: f"compiled {n}\n" for n in NAMES}


@pytest.mark.parametrize(
    "words",
    [("clean",), ("--version",), ("modules", "KERNEL_UNAME=6.1.0-51-amd64"), ("modules",)],
    ids=["another target", "no target", "another kernel", "no kernel"],
)
def test_all_other_builds_are_the_real_makes(guest: Guest, words: tuple[str, ...]) -> None:
    assert guest.run(*words) == (0, f"real make: {' '.join(words)}\n")
    assert not list(guest.build.iterdir())
    assert guest.run(folder=guest.programs) == (0, f"real make: -j2 modules KERNEL_UNAME={KERNEL}\n"), "another folder"


def test_the_cache_says_what_it_has(kept: Modules) -> None:
    assert modules.cached("debian12", KERNEL, f"{VERSION}-1") == kept
    assert modules.cached("debian12", "6.1.0-51-amd64", f"{VERSION}-1") is None
    assert modules.modules("debian12", KERNEL, f"{VERSION}-1", print) == kept


def test_signed_modules_do_not_enter_the_cache(kept: Modules, tmp_path: Path) -> None:
    made = tmp_path / "made"
    kept.path.rename(made)
    (made / "nvidia.ko").write_bytes(b"compiled" + modules.SIGNATURE)
    with pytest.raises(HostError, match=r"nvidia\.ko is missing or signed"):
        modules._keep("debian12", KERNEL, f"{VERSION}-1", made, print, 1.0)
