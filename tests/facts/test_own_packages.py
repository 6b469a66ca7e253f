"""The record of rigwright's packages on a host, kept by the real shell functions beside a stand-in of dpkg-query and
a file of apt's marks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rigwright.core.command import Result
from rigwright.facts import own_packages
from rigwright.facts.own_packages import OWN_PACKAGES, Installed, needed

BEFORE = {"bash": "manual", "libc6": "auto", "make": "auto"}


@pytest.fixture(name="host")
def _host(tmp_path: Path) -> Path:
    """The folder of a host's state, with the programs that tell its packages from the files `packages.now` and
    `auto.now`."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {
        "dpkg-query": f"cat {tmp_path}/packages.now",
        "dpkg": "echo amd64",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    _packages(tmp_path, BEFORE)
    return tmp_path


def _packages(host: Path, marks: dict[str, str], left: tuple[str, ...] = ()) -> None:
    """Sets what is installed, with its marks, and what left only configuration."""
    lines = [f"{name}\tamd64\t1.0\tinstall\tinstalled\n" for name in marks]
    lines += [f"{name}\tamd64\t1.0\tdeinstall\tconfig-files\n" for name in left]
    (host / "packages.now").write_text("".join(lines))
    automatic = [name for name, mark in marks.items() if mark == "auto"]
    blocks = [f"Package: {name}\nArchitecture: amd64\nAuto-Installed: 1\n\n" for name in automatic]
    (host / "auto.now").write_text("".join(blocks))


def _says(host: Path, work: str) -> list[str]:
    """Runs shell text with the functions of the record; returns the lines of the record."""
    text = f"{OWN_PACKAGES}\n{work}".replace("/var/lib/rigwright", str(host / "state"))
    text = text.replace("/var/lib/apt/extended_states", str(host / "auto.now"))
    path = {"PATH": f"{host / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", text], env={**os.environ, **path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = host / "state/packages"
    return record.read_text().splitlines() if record.exists() else []


def test_what_apt_will_install_is_recorded_before_and_its_mark_after(host: Path) -> None:
    assert _says(host, "own_begun libcublas cuda") == ["since\twhole", "new\tlibcublas", "new\tcuda"]
    _packages(host, BEFORE | {"libcublas": "auto", "cuda": "manual"})
    assert _says(host, "own_ended") == ["since\twhole", "auto\tlibcublas", "manual\tcuda"]
    assert not (host / "state/packages-before").exists()
    assert (host / "state/packages").stat().st_mode & 0o777 == 0o644


def test_a_power_cut_loses_nothing_and_what_a_person_installs_then_is_not_ours(host: Path) -> None:
    _says(host, "own_begun libcublas cuda never")
    _packages(host, BEFORE | {"libcublas": "auto", "cuda": "manual", "htop": "manual"})
    kinds = {line.split("\t")[1]: line.split("\t")[0] for line in _says(host, "own_begun dcgm")[1:]}
    assert kinds == {"libcublas": "auto", "cuda": "manual", "dcgm": "new"}


def test_a_package_that_somebody_installs_again_is_no_longer_ours(host: Path) -> None:
    _says(host, "own_begun cuda")
    _packages(host, BEFORE | {"cuda": "manual"})
    _says(host, "own_ended")
    _packages(host, BEFORE, left=("cuda",))
    assert _says(host, "own_ended") == ["since\twhole", "left\tcuda"]
    _packages(host, BEFORE | {"cuda": "auto"})
    assert _says(host, "own_begun && own_ended") == ["since\twhole", "left\tcuda"]
    _packages(host, BEFORE)
    assert _says(host, "own_ended") == ["since\twhole"]


def test_a_mark_that_a_person_changed_is_told_from_one_that_our_work_changed(host: Path) -> None:
    _says(host, "own_begun a b")
    _packages(host, BEFORE | {"a": "auto", "b": "auto"})
    _says(host, "own_ended")
    _packages(host, BEFORE | {"a": "manual", "b": "auto"})  # a person marks a
    _says(host, "own_begun")
    _packages(
        host, BEFORE | {"a": "manual", "b": "manual", "make": "manual"}
    )  # apt marks b and make, which a step names
    assert _says(host, "own_ended") == ["since\twhole", "auto\ta", "manual\tb", "was-auto\tmake"]
    _packages(host, BEFORE | {"a": "manual", "b": "manual"})
    assert _says(host, "own_ended") == ["since\twhole", "auto\ta", "manual\tb"]


def test_a_host_of_an_earlier_version_is_recorded_in_part(host: Path) -> None:
    (host / "state").mkdir()
    (host / "state/holds").write_text("nvidia-utils-535\n")
    assert _says(host, "own_begun dcgm")[0] == "since\tpartial"
    (host / "state/holds").unlink()
    assert _says(host, "own_ended")[0] == "since\tpartial"


def test_a_dpkg_that_lists_nothing_deletes_no_record(host: Path) -> None:
    _says(host, "own_begun cuda")
    (host / "packages.now").write_text("")
    assert _says(host, "own_ended || :") == ["since\twhole", "new\tcuda"]
    assert _says(host, "own_begun dcgm || :") == ["since\twhole", "new\tcuda"]


def _installed(needs: str = "", provides: str = "") -> Installed:
    clauses = tuple(tuple(clause.split("|")) for clause in needs.split(",") if clause)
    return Installed("1", False, False, "", clauses, tuple(filter(None, provides.split(","))))


def test_what_others_need_stays_with_all_that_it_needs_itself() -> None:
    packages = {
        "app": _installed("blas-api,make|gmake"),
        "blas": _installed("config", "blas-api"),
        "config": _installed(),
        "make": _installed(),
        "gmake": _installed(),
        "cuda": _installed("blas,config,make"),
        "foreign": _installed("cuda:i386"),
        "cuda:i386": _installed(),
    }
    assert needed(packages, {"blas", "config", "make", "cuda"}) == {"app": ["blas", "config"]}
    assert needed(packages, {"cuda", "cuda:i386"}) == {"foreign": ["cuda:i386"]}
    assert needed(packages, {"cuda", "make"}) == {}
    assert needed(packages, {"make", "gmake"}) == {"cuda": ["make"]}


def test_a_folded_field_of_a_package_is_read() -> None:
    answer = (
        "native amd64\nauto\tlibc6\n"
        "installed\tlibc6\tamd64\t2.36\tinstall\tA <a@b>\t, \t\n"
        "installed\tapp\tall\t1\thold\tme\t, libc6 (>= 2),\n python3:any | x\tapi (= 1), other\n"
    )
    read = own_packages.installed.parse(Result(0, answer.encode()))
    assert read["app"] == Installed("1", True, False, "me", (("libc6",), ("python3", "x")), ("api", "other"))
    assert read["libc6"].automatic
