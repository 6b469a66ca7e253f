"""Attack 19: a user of the host puts a link where root is about to write in a folder of that user, and gets another
file.

A folder that everybody may change stands for that of another user, so that the tests need no root.
"""

from __future__ import annotations

import getpass
import grp
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rigwright.core.command import Command, Result, script
from rigwright.core.errors import UsageError
from rigwright.core.files import atomic
from rigwright.facts import Fact
from rigwright.facts.footprint import OwnFile
from rigwright.features.training import operations as training
from rigwright.operations import file, footprint
from rigwright.report import output_files
from tests.paths import ROOT

USER, GROUP = getpass.getuser(), grp.getgrgid(os.getegid()).gr_name


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Returns a folder with `users`, which everybody may change, and `roots/shadow`."""
    (tmp_path / "users").mkdir()
    (tmp_path / "users").chmod(0o777)
    (tmp_path / "roots").mkdir(mode=0o750)
    (tmp_path / "roots/shadow").write_text("root:x\n")
    (tmp_path / "roots/shadow").chmod(0o600)
    return tmp_path


def run(cmd: Command, place: Path, programs: str = "") -> subprocess.CompletedProcess[str]:
    argv = [word.replace("/var/lib/rigwright", str(place / "state")) for word in cmd.argv]
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    return subprocess.run(
        argv, input=cmd.stdin.decode(), env=environment, capture_output=True, text=True, timeout=30, check=False
    )


def facts(wanted: Fact[Any]) -> Any:
    done = subprocess.run(wanted.command.argv, capture_output=True, timeout=30, check=False)
    return wanted.parse(Result(done.returncode, done.stdout, done.stderr))


def roots(place: Path) -> list[tuple[str, str, int]]:
    return [
        (path.name, path.read_text() if path.is_file() else "", path.stat().st_mode)
        for path in [place / "roots", *sorted((place / "roots").iterdir())]
    ]


def test_a_folder_becomes_a_link_after_the_plan(place: Path) -> None:
    (place / "users/data").mkdir(mode=0o700)
    (change,) = file.directory(facts, path=f"{place}/users/data", mode="0777", owner=USER, group=GROUP)  # type: ignore[arg-type]
    (place / "users/data").rmdir()
    (place / "users/data").symlink_to(place / "roots")
    before = roots(place)
    done = [run(cmd, place) for cmd in change.commands]
    assert done[-1].returncode != 0
    assert "users/data is a link" in done[-1].stderr
    assert roots(place) == before


@pytest.mark.parametrize("path", ["users/.config/shadow", "users/.config/app/app.conf"])
def test_a_folder_on_the_way_is_a_link(path: str, place: Path) -> None:
    (place / "users/.config").symlink_to(place / "roots")
    before = roots(place)
    written = run(file.write(f"{place}/{path}", b"new\n", "0644", USER, GROUP), place)
    taken = run(footprint._taken_away(OwnFile(f"{place}/users/.config/shadow", True, False))[0], place)
    assert (written.returncode, taken.returncode) == (1, 1)
    assert "users/.config is a link, and another user may change" in written.stderr
    assert roots(place) == before


def test_the_new_file_is_replaced_by_a_link_before_it_is_written(place: Path) -> None:
    """A mktemp that lets the attacker in stands for one who is fast enough."""
    (place / "programs").mkdir()
    (place / "programs/mktemp").write_text(
        f"#!/bin/sh\nPATH={os.environ['PATH']}\n"
        'made=$(mktemp "$@") && echo "$made" && mv "$made" "$made.away" || exit 1\n'
        f'[ -d "$made.away" ] && ln -s {place}/roots "$made" || ln -s {place}/roots/shadow "$made"\n'
    )
    (place / "programs/mktemp").chmod(0o755)
    before = roots(place)
    done = run(file.write(f"{place}/users/app.conf", b"new\n", "0644", USER, GROUP), place, str(place / "programs"))
    assert done.returncode == 1
    assert roots(place) == before


def test_links_of_root_are_followed(place: Path) -> None:
    """As /var/run and /lib are."""
    (place / "run").mkdir()
    (place / "run-link").symlink_to("run")
    path = f"{place}/run-link/new/app.conf"
    for content in (b"one\n", b"two\n"):
        done = run(file.write(path, content, "0640", USER, GROUP), place)
        assert (done.returncode, done.stderr) == (0, "")
        assert Path(path).read_bytes() == content
    assert Path(path).stat().st_mode & 0o777 == 0o640
    assert os.listdir(place / "run/new") == ["app.conf"]
    (change,) = file.directory(facts, path=f"{place}/run-link/data/", mode="2750", owner=USER, group=GROUP)  # type: ignore[arg-type]
    assert [run(cmd, place).returncode for cmd in change.commands] == [0]
    assert (place / "run/data").stat().st_mode & 0o7777 == 0o2750
    (take,) = footprint._taken_away(OwnFile(path, True, False))
    assert run(take, place).returncode == 0
    assert not Path(path).exists()


def test_an_output_file_is_a_link(place: Path) -> None:
    (place / "users/run.json").symlink_to(place / "roots/shadow")
    before = roots(place)
    atomic.replace(place / "users/run.json", b"new\n")
    assert roots(place) == before
    assert ((place / "users/run.json").is_symlink(), (place / "users/run.json").read_text()) == (False, "new\n")


def test_the_folder_of_an_output_file_is_a_link(place: Path) -> None:
    (place / "users/out").symlink_to(place / "roots")
    before = roots(place)
    with pytest.raises(PermissionError, match="'out' is a link that another user can have made"):
        atomic.replace(place / "users/out/run.json", b"new\n")
    assert roots(place) == before


@pytest.mark.parametrize("to", ["roots", "../../roots", "/"])
def test_links_of_this_user_are_followed(to: str, place: Path) -> None:
    (place / "own/deep").mkdir(parents=True)
    (place / "own/deep/link").symlink_to(place / to if to == "roots" else to)
    rest = f"{place}/roots"[1:] if to == "/" else ""
    atomic.replace(place / "own/deep/link" / rest / "run.json", b"new\n")
    assert (place / "roots/run.json").read_text() == "new\n"
    (place / "own/loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels"):
        atomic.replace(place / "own/loop", b"")


def test_a_link_of_another_user_is_refused_before_the_run(place: Path) -> None:
    (place / "users/out").symlink_to(place / "roots")
    with pytest.raises(UsageError, match="'out' is a link that another user can have made"):
        output_files.require_writable(output_files.Files(json=f"{place}/users/out/run.json"))


def test_a_new_folder_becomes_a_link_before_it_gets_its_owner(place: Path, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "mkdir").write_text(f'#!/bin/sh\n/bin/mkdir "$@" && mv env moved && ln -s {place}/roots env\n')
    (programs / "chown").write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/chowned\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    done = run(script(training._BUILD, f"{place}/users/env", USER, "python3", "0" * 64), place, str(programs))
    assert (done.returncode, (tmp_path / "chowned").exists()) == (1, False)
    assert "users/env is a link" in done.stderr


_CHOWN = re.compile(r"""\bchown (?:-h )?(?:--reference="\$cfg" -- |-- "\$[a-z:$]+" )(\S+)""")


def test_root_gives_away_nothing_by_a_path_in_the_folder_of_a_user() -> None:
    """`.` after a check of where that is; `content` in a folder that only root can change; `$new` beside grub.cfg."""
    texts = [
        path.read_text()
        for folder in ("rigwright", "onhost", "templates")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".j2", ".sh")
    ]
    lines = [line for text in texts for line in text.splitlines() if re.search(r"\bchown -", line)]
    given = [name.rstrip(");") for line in lines for name in _CHOWN.findall(line)]
    assert len(given) >= len(lines) >= 5
    assert {*given} == {".", "content", '"$new"'}
