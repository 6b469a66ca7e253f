"""`sudo scripts/demo`: root runs nothing that a third person can replace, follows no link, removes only what it
recorded."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.base import paths
from tests.paths import ROOT

OTHER = "nobody"
"""A user who is neither root nor the caller; in other tests the caller."""


@pytest.fixture
def checkout() -> Iterator[Path]:
    """Yields a small checkout of root in a folder that every user can enter; `invoke` leaves a file `ran` beside it."""
    with tempfile.TemporaryDirectory(prefix="rigwright-demo.") as folder:
        Path(folder).chmod(0o755)
        root = Path(folder, "checkout")
        for name in ("scripts/lib", "rigwright", ".venv/bin"):
            (root / name).mkdir(parents=True)
        for name in ("demo", "lib/machine.sh"):
            shutil.copy(ROOT / "scripts" / name, root / "scripts" / name)
        machine = root / "scripts" / "lib" / "machine.sh"
        text = machine.read_text().replace("/var/lib/rigwright-demo", f"{folder}/records")
        assert f"{folder}/records" in text
        machine.write_text(text)
        (root / "rigwright" / "x.py").touch()
        (root / ".venv" / "bin" / "python").symlink_to("/bin/sh")
        _program(root / ".venv" / "bin" / "invoke", f'echo "$*" >>{folder}/ran')
        for name in ("apt-get", "ssh"):
            _program(Path(folder, "bin", name), f'echo {name} "$*" >>{folder}/ran; echo 545.1')
        yield root


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def _sh(checkout: Path, commands: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", commands, "scripts/demo"],
        cwd=checkout,
        env={"PATH": f"{checkout.parent}/bin:{os.environ['PATH']}", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _ran(checkout: Path) -> str:
    path = checkout.parent / "ran"
    return path.read_text() if path.exists() else ""


OURS = {
    "as cloned": "",
    "a group without members": "chgrp staff rigwright/x.py; chmod 664 rigwright/x.py",
    "a sticky folder above, as /tmp": "chmod 1777 ..",
    "a link inside": "ln -s x.py rigwright/y.py",
    "a link to nowhere, as editors make": "ln -s ada@desk.77 rigwright/.#x.py",
    "disks of simulated hosts": f"mkdir -p .lab/hosts/one/tmp; chown {OTHER} .lab/hosts/one; "
    "chmod 777 .lab/hosts/one/tmp",
}
OTHERS = {
    "a file for everybody": ("chmod 666 rigwright/x.py", "everybody can write ./rigwright/x.py"),
    "a folder of another user": (f"chown {OTHER} rigwright", f"./rigwright belongs to {OTHER}"),
    "a link of another user": (f"chown -h {OTHER} .venv/bin/python", f"./.venv/bin/python belongs to {OTHER}"),
    "the checkout itself": ("chmod 777 .", "everybody can write ."),
    "a sticky folder inside": ("chmod 1777 rigwright", "everybody can write ./rigwright"),
    "a group with members": ("chgrp daemon scripts; chmod 775 scripts", "the group daemon can write ./scripts"),
    "a folder above": ("chmod 777 ..", "everybody can write rigwright-demo"),
    "the owner of a folder above": (f"chown {OTHER} ..", "on the way to"),
    "links by way of another's folder": (
        "mkdir ../theirs; chmod 777 ../theirs; ln -s /bin/sh ../theirs/sh; ln -sf ../../../theirs/sh .venv/bin/python",
        "everybody can write theirs, on the way to",
    ),
    "a folder behind a link": (
        "mkdir ../theirs; touch ../theirs/x.py; chmod 666 ../theirs/x.py; ln -s ../../theirs rigwright/more",
        "theirs/x.py",
    ),
    "a name that steers the terminal": (
        "touch \"$(printf 'a\\033]52;')\"; chmod 666 a*",
        "everybody can write ./a?]52;",
    ),
    ".lab for everybody": ("mkdir -p .lab/run; chmod 777 .lab/run", "everybody can write ./.lab/run"),
    ".lab as a link": ("ln -s /etc .lab", ".lab is a symbolic link"),
    "a link in .lab": ("mkdir .lab; ln -s /etc .lab/cache", ".lab/cache is a symbolic link"),
    ".venv as a link": ("mv .venv ../venv; ln -s ../venv .venv", ".venv is a symbolic link"),
}


@pytest.mark.parametrize("prepare", OURS.values(), ids=OURS)
def test_a_checkout_that_only_root_and_the_caller_can_change(checkout: Path, prepare: str) -> None:
    done = _sh(checkout, f"{prepare}\n. scripts/lib/machine.sh; need_own_checkout; echo went on")
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on\n", "")


@pytest.mark.parametrize(("prepare", "says"), OTHERS.values(), ids=OTHERS)
def test_root_runs_nothing_that_somebody_else_can_change(checkout: Path, prepare: str, says: str) -> None:
    assert _sh(checkout, prepare).returncode == 0
    done = _sh(checkout, "scripts/demo --remove --yes")
    assert (done.returncode, _ran(checkout), done.stdout) == (1, "", "")
    assert says in done.stderr
    assert "\n  fix:      " in done.stderr
    assert "\033" not in done.stderr


def test_an_access_control_list(checkout: Path) -> None:
    """Gives another user the right to write; the mode shows only that the group, root's, may."""
    entries = ((1, 6, 2**32 - 1), (2, 6, 65534), (4, 4, 2**32 - 1), (16, 6, 2**32 - 1), (32, 4, 2**32 - 1))
    access = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(checkout / "rigwright" / "x.py", "system.posix_acl_access", access)
    done = _sh(checkout, "scripts/demo --remove --yes")
    assert (done.returncode, _ran(checkout)) == (1, "")
    assert "an access control list is on ./rigwright/x.py" in done.stderr


def test_the_caller_of_sudo_may_own_it_and_nobody_else(checkout: Path) -> None:
    assert _sh(checkout, f"chown -Rh {OTHER}: .").returncode == 0
    check = ". scripts/lib/machine.sh; need_own_checkout; echo went on"
    assert _sh(checkout, check, SUDO_USER=OTHER).stdout == "went on\n"
    for caller in ({}, {"SUDO_USER": "daemon"}, {"SUDO_USER": "no-such-user"}):
        done = _sh(checkout, check, **caller)
        assert (done.returncode, done.stdout) == (1, ""), caller


def test_what_setup_made_is_checked_before_root_runs_it(checkout: Path) -> None:
    """A new .venv whose interpreter is in a folder of somebody else."""
    (checkout.parent / "theirs").mkdir()
    (checkout.parent / "theirs").chmod(0o777)
    (checkout / ".venv" / "bin" / "python").unlink()
    link = f"ln -s /bin/sh {checkout.parent}/theirs/sh; ln -s {checkout.parent}/theirs/sh .venv/bin/python"
    _program(checkout / "scripts" / "setup", link)
    _program(checkout.parent / "bin" / "dpkg-query", "echo installed")
    done = _sh(checkout, "scripts/demo --yes")
    assert (done.returncode, _ran(checkout)) == (1, "")
    assert "everybody can write theirs, on the way to" in done.stderr


def test_a_file_of_the_checkout_names_no_package_to_purge(checkout: Path) -> None:
    """The record of installed packages was .lab/installed-packages, a file of the caller."""
    (checkout / ".lab").mkdir()
    (checkout / ".lab" / "installed-packages").write_text("bash\n")
    done = _sh(checkout, "scripts/demo --remove --yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert _ran(checkout) == "lab.down\n"
    assert "Kept, because scripts/demo did not make it: .lab .venv" in done.stdout
    assert (checkout / ".venv").exists()


def test_removed_is_what_was_recorded(checkout: Path) -> None:
    (checkout / ".lab").mkdir()
    (checkout / ".lab" / "out").mkdir()
    (checkout / ".lab" / "out" / "link").symlink_to(checkout / "rigwright")
    _sh(checkout, ". scripts/lib/machine.sh; record folder .lab; record package made-up libmade:amd64")
    record = next((checkout.parent / "records").iterdir())
    assert (record.stat().st_mode & 0o777, record.parent.stat().st_mode & 0o777) == (0o644, 0o755)
    done = _sh(checkout, "scripts/demo --remove --yes")
    assert (done.stderr, done.returncode) == ("", 0)
    left = [(checkout / name).exists() for name in (".lab", ".venv", "rigwright/x.py")]
    assert left == [False, True, True]
    assert _ran(checkout).splitlines()[-1].endswith("purge made-up libmade:amd64")
    assert not record.parent.exists()


@pytest.mark.parametrize(
    "prepare",
    [
        "echo folder ../other >>$record",
        "echo folder rigwright >>$record",
        "echo folder /etc >>$record",
        "echo package -oDPkg::Pre-Invoke::=id >>$record",
        "echo package a b >>$record",
        "echo else >>$record",
        "chmod 666 $record",
        f"chown {OTHER} $record",
        "chmod 777 ../records",
        f"chown {OTHER} ../records",
        "mv $record ../mine; ln -s ../mine $record",
    ],
)
def test_a_record_that_is_not_roots_or_names_other_things(checkout: Path, prepare: str) -> None:
    setup = ". scripts/lib/machine.sh; record folder .venv; record=$(record_file)"
    assert _sh(checkout, f"{setup}; {prepare}").returncode == 0
    done = _sh(checkout, "scripts/demo --remove --yes")
    assert (done.returncode, _ran(checkout), (checkout / ".venv").exists()) == (1, "", True)
    assert "nothing was removed" in done.stderr


def test_packages_are_recorded_even_if_apt_fails(checkout: Path) -> None:
    programs = checkout.parent / "bin"
    _program(programs / "dpkg-query", "echo installed old; [ ! -e ../ran ] || echo installed new")
    _program(programs / "apt-get", "touch ../ran; exit 100")
    done = _sh(checkout, ". scripts/lib/machine.sh; install_packages new")
    assert done.returncode == 1
    assert _sh(checkout, ". scripts/lib/machine.sh; recorded package").stdout == "new\n"


def test_the_owners_files_are_given_back_but_no_second_names(checkout: Path) -> None:
    outside = checkout.parent / "roots-file"
    outside.touch()
    (checkout / "rigwright" / "same").hardlink_to(outside)
    (checkout / "rigwright" / "linked").symlink_to(outside)
    assert _sh(checkout, ". scripts/lib/machine.sh; give_back", SUDO_USER=OTHER).returncode == 0
    assert (outside.owner(), (checkout / "rigwright" / "x.py").owner()) == ("root", OTHER)


def test_the_log_of_the_demo_is_written_with_the_rights_of_the_caller(checkout: Path) -> None:
    night = checkout / ".lab" / "night"
    night.mkdir(parents=True)
    outside = checkout.parent / "roots-file"
    outside.write_text("as it was")
    (night / "apt.log").symlink_to(outside)
    demo = (checkout / "scripts" / "demo").read_text()
    function = demo[demo.index("by_hand() {") : demo.index("remove() {")].partition("\n}\n")[0] + "\n}"
    setup = f"results=.lab/night; BY_HAND=id; chown -Rh {OTHER} .lab; . scripts/lib/machine.sh"
    _sh(checkout, f"{setup}\n{function}\nby_hand", SUDO_USER=OTHER)
    assert outside.read_text() == "as it was"
    (night / "apt.log").unlink()
    _sh(checkout, f"{setup}\n{function}\nby_hand", SUDO_USER=OTHER)
    assert ((night / "apt.log").owner(), (night / "apt.log").read_text().splitlines()[-1]) == (OTHER, "545.1")


def test_a_file_of_the_lab_is_written_beside_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("as it was")
    for name in (f".state.{os.getpid()}", "state"):
        (tmp_path / name).symlink_to(outside)
    paths.write(tmp_path / "state", "new", 0o600)
    written = tmp_path / "state"
    assert (outside.read_text(), written.read_text(), written.is_symlink()) == ("as it was", "new", False)
    assert written.stat().st_mode & 0o777 == 0o600
