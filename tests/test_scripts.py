"""Checks scripts/: valid syntax, help texts, clear error messages, and agreement with the lab and pyproject.toml."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.base.paths import RIGS
from lab.base.programs import VM_PROGRAMS
from lab.bench import before_after
from lab.host import image
from lab.vm.device import build
from tests import conftest
from tests.paths import ROOT

SCRIPTS = ROOT / "scripts"
ALL = sorted(path for path in SCRIPTS.rglob("*") if path.is_file() and path.suffix != ".pyc")
SHELL = [path for path in ALL if path.read_text(encoding="utf-8").startswith(("#!/bin/sh", "# shellcheck shell=sh"))]
HELPFUL = [path for path in ALL if os.access(path, os.X_OK)]
LOCKS = [ROOT / "requirements" / f"{name}.lock" for name in ("rigwright", "test", "bench", "tools")]


def _run(*argv: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_shell_parses(path: Path) -> None:
    done = _run("sh", "-n", path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", HELPFUL, ids=lambda path: path.name)
def test_help(path: Path) -> None:
    own_python = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = _run(path, "--help", env=own_python)
    assert done.returncode == 0, done.stderr
    assert f"scripts/{path.name}" in done.stdout


@pytest.mark.parametrize("name", ["setup", "demo"])
def test_unknown_option(name: str) -> None:
    done = _run(SCRIPTS / name, "--remoev")
    assert done.returncode == 1
    assert "unknown option '--remoev'" in done.stderr


def test_ci_runs_what_contributing_says() -> None:
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert _run("bash", "-n", ROOT / ".ci" / "run").returncode == 0
    assert re.findall(r"exec (.+)", text) == ['scripts/test "$@"', 'sudo scripts/test "$@"']
    assert "    sudo scripts/test " in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def _machine(commands: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs shell commands after sourcing machine.sh."""
    return _run("sh", "-c", f". scripts/lib/machine.sh; {commands}", env={"PATH": os.environ["PATH"], **env})


def test_without_root_it_says_what_to_type() -> None:
    done = _machine("id() { echo 1000; }; need_root 'sudo scripts/demo'; echo went on")
    assert done.returncode == 1
    assert "sudo scripts/demo" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("sudo_user", "user"),
    [
        ("", "root"),
        ("ada", "ada"),
        ("ada@example.org", "ada@example.org"),
        ("-rf", "root"),
        ("a b", "root"),
        ("a;id", "root"),
    ],
)
def test_the_person_who_called_sudo(sudo_user: str, user: str) -> None:
    assert _machine("user", SUDO_USER=sudo_user).stdout == f"{user}\n"


def test_packages_are_those_that_the_lab_wants() -> None:
    listed = set(_machine("echo $PACKAGES").stdout.split())
    assert set(image.SYSTEM_PACKAGES) - listed == set()
    of_machines = set(_machine("echo $PACKAGES $VM_PACKAGES").stdout.split())
    wanted = {package for packages in build.PROGRAMS.values() for package in packages.split()}
    assert {*VM_PROGRAMS.values(), "ovmf", *wanted} - of_machines == set()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Returns a checkout with the files that scripts/setup reads before its first download."""
    for folder in ("scripts", "requirements"):
        (tmp_path / folder).mkdir()
    for name in ("scripts/setup", "pyproject.toml", "requirements/rigwright.lock", "requirements/test.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def _python(folder: Path, text: str) -> str:
    fake = folder / "fake-python"
    fake.write_text(f"#!/bin/sh\n{text}\n")
    fake.chmod(0o755)
    return str(fake)


def _setup(checkout: Path, python: str) -> subprocess.CompletedProcess[str]:
    return _run(checkout / "scripts" / "setup", cwd=checkout, env={"PATH": "/usr/bin:/bin", "PYTHON": python})


def test_setup_without_python_or_venv(checkout: Path) -> None:
    fake = _python(checkout, 'case "$2" in *ensurepip*) exit 1 ;; esac; [ "$1" != --version ] || echo Python 3.11.2')
    done = _setup(checkout, fake)
    assert done.returncode == 1
    assert "Python 3.11.2 has no venv module" in done.stderr
    assert "sudo apt-get install python3-venv" in done.stderr
    done = _setup(checkout, _python(checkout, "exit 1"))
    assert done.returncode == 1
    assert "no Python 3.10 or newer" in done.stderr


def test_setup_leaves_alone_what_is_no_virtual_environment(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "mine").touch()
    done = _setup(checkout, _python(checkout, "exit 0"))
    assert done.returncode == 1
    assert ".venv exists and is not a virtual environment" in done.stderr
    assert (checkout / ".venv" / "mine").exists()


def _versions(lock: Path) -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+==\S+)", lock.read_text(encoding="utf-8"), re.M))


def test_locks_have_every_dependency_with_hashes() -> None:
    declared = re.findall(r'^    "([A-Za-z-]+)[<>=]', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    locked = {version.partition("==")[0] for version in _versions(LOCKS[1])}
    only_bench = {name for name in _versions(LOCKS[2]) if name.startswith("pyinfra==")}
    assert len(only_bench) == 1
    assert {name.lower() for name in declared} <= {*locked, "pyinfra"}
    assert _versions(LOCKS[0]) <= _versions(LOCKS[1])
    for lock in LOCKS:
        text = lock.read_text(encoding="utf-8")
        assert "://" not in text
        for entry in re.split(r"\n(?=[a-z])", text)[1:]:
            assert "--hash=sha256:" in entry, entry.splitlines()[0]


def _night(outcome: str, gb_s: float | None, **host: Any) -> dict[str, Any]:
    """Returns the part of a run's document that the demo shows, for one host with two GPUs."""
    sent = {"outcome": outcome, "gb_s": gb_s, "transport": "P2P/direct pointer"}
    total = {"outcome": outcome, "busbw_gb_s": gb_s, "without_p2p": {"outcome": "ok", "busbw_gb_s": 11.32}}
    pair, other = {"bytes": sent, "collective": sent}, {"bytes": sent, "collective": {**sent, "transport": None}}
    rows = [{"gpus": 1, "speed_up": 1.0}, {"gpus": 2, "speed_up": 1.725}] if gb_s else []
    return {"p2p": {"versions": {"driver": "5"}, "pairs": [pair, other], "all_reduce": total, "scaling": rows}, **host}


def test_the_demo_concludes_nothing_it_shows_what_was_measured() -> None:
    iommu = {"check": "iommu.passthrough", "seen": "on, identity"}
    found = before_after.rows(_night("hang", None, findings=[]), _night("ok", 20.457, findings=[iommu]))
    assert [row[1:] for row in found] == [
        ("5", "5"),
        ("-", "on, identity"),
        ("2 of 2 hang", "2 of 2 right, 20.5 GB/s"),
        ("2 of 2 hang", "2 of 2 right, 20.5 GB/s"),
        ("P2P/direct pointer", "P2P/direct pointer"),
        ("hang", "right, 20.5 GB/s busbw"),
        ("right, 11.3 GB/s busbw", "right, 11.3 GB/s busbw"),
        ("-", "2 GPUs do 1.73 times one"),
    ]
    assert max(map(len, before_after.table(found).splitlines())) <= 80


def test_demo_of_rig_3090_claims_no_proof() -> None:
    text = " ".join((SCRIPTS / "demo").read_text(encoding="utf-8").split())
    assert "This does not prove that driver 545 was the cause" in text
    assert _run(SCRIPTS / "demo", "rig-3091").returncode == 1
    assert "servbadge, rig-3090 or supplies" in _run(SCRIPTS / "demo", "rig-3091").stderr
    for rig in ("servbadge", "rig-3090"):
        assert f"lab.up --rig {rig}" in text
        assert (RIGS / f"{rig}.yml").exists()


TOOL = """#!/bin/sh
case "$(basename "$0") $*" in
*" -m pytest"*) echo "1 passed"; exit "$PYTEST" ;;
*"$COMPLAINS"*) echo "all lines"; seq 30 | sed 's/^/line /'; exit 1 ;;
esac
"""


@pytest.fixture
def tested(tmp_path: Path) -> Path:
    """Returns a checkout in which scripts/test finds programs that say what the environment names."""
    (tmp_path / "scripts" / "lib").mkdir(parents=True)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("test", "lib/machine.sh"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts" / name)
    tools = [tmp_path / ".venv" / "bin" / name for name in ("ruff", "mypy", "python")]
    for path, text in {tmp_path / "scripts" / "setup": "#!/bin/sh\n", **dict.fromkeys(tools, TOOL)}.items():
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / "scripts" / "docs").write_text("#!/usr/bin/env python3\n")
    return tmp_path


@pytest.mark.parametrize("failed", [0, 1])
@pytest.mark.parametrize(
    ("complains", "tool", "todo"),
    [
        ("format --check", ".venv/bin/ruff format", ".venv/bin/ruff format . scripts/docs"),
        ("ruff check", ".venv/bin/ruff check", ".venv/bin/ruff check --fix . scripts/docs"),
        (
            "mypy --strict --scr",
            ".venv/bin/mypy --strict",
            ".venv/bin/mypy --strict --scripts-are-modules scripts/docs",
        ),
    ],
)
def test_what_a_tool_complained_of_is_last(complains: str, tool: str, todo: str, failed: int, tested: Path) -> None:
    env = {"PATH": os.environ["PATH"], "COMPLAINS": complains, "PYTEST": str(failed)}
    done = _run(tested / "scripts" / "test", "--quick", cwd=tested, env=env)
    head, _, tail = done.stdout.partition("1 passed\n")
    assert done.returncode == 1, done.stderr
    assert ("all lines" in head) == (tool != ".venv/bin/mypy --strict"), "mypy runs beside the tests"
    lines = tail.splitlines()
    assert lines[0] == f"error scripts/test: {tool} ended with exit 1"
    assert lines[1:-1] == [f"  line {number}" for number in range(11, 31)]
    assert lines[-1] == f"  fix:      {todo}"


@pytest.mark.parametrize("failed", [0, 1, 5])
def test_without_a_complaint_the_tests_are_last(failed: int, tested: Path) -> None:
    env = {"PATH": os.environ["PATH"], "COMPLAINS": "nothing", "PYTEST": str(failed)}
    done = _run(tested / "scripts" / "test", "--quick", cwd=tested, env=env)
    assert (done.returncode, done.stdout) == (failed, "1 passed\n")


def test_every_file_that_runs_first_exists() -> None:
    assert [path for path in conftest.FIRST if not (ROOT / path).is_file()] == []
    assert len(set(conftest.FIRST)) == len(conftest.FIRST)
