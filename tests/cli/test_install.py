"""The contents of the wheel, and the installed program `rigwright`, used from a folder outside a checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from rigwright import __version__
from rigwright.cli import program
from rigwright.fleet import dask_workers
from tests.cli.test_programs import process
from tests.paths import ROOT

DATA = {"onhost": "*.py", "playbooks": "*.yml", "templates": "**/*.j2", "rigwright/catalogue": "**/*.*"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the wheel of this checkout, built from a copy so that no build folder is left in the checkout."""
    source = tmp_path_factory.mktemp("source")
    for name in ("rigwright", "lab", "onhost", "playbooks", "templates"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "tasks.py"):
        shutil.copy(ROOT / name, source)
    built = source / "dist"
    argv = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(built), "."]
    subprocess.run(argv, cwd=source, check=True)
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns `rigwright` of a new virtual environment with the wheel; dependencies come from our site-packages."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "-q", "--python", str(python)]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "rigwright"


@pytest.fixture
def rigwright(installed: Path, tmp_path: Path):  # type: ignore[no-untyped-def]
    """Runs the installed program in an empty folder."""

    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RIGWRIGHT_I"))
        }
        environment["PATH"] = f"{installed.parent}:{environment['PATH']}"
        done = subprocess.run(
            [installed, *words], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


def test_the_wheel_has_every_module_and_data_file_and_not_the_lab(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "rigwright").rglob("*.py")}
    assert modules - names == set()
    for folder, pattern in DATA.items():
        files = {
            str(path.relative_to(ROOT)) for path in (ROOT / folder).glob(pattern) if "__pycache__" not in path.parts
        }
        assert files
        assert {name if name.startswith("rigwright/") else f"rigwright/{name}" for name in files} - names == set()
    assert {name.split("/")[0] for name in names} == {"rigwright", f"rigwright-{__version__}.dist-info"}


def test_it_has_the_commands_without_those_of_the_lab(rigwright) -> None:  # type: ignore[no-untyped-def]
    listed = rigwright("--list").stdout
    for command in program.commands():
        assert f"  {command.command} " in listed
    assert "lab." not in listed
    assert rigwright("--version").stdout == f"rigwright {__version__}\n"


def test_it_reads_its_own_catalogue(rigwright) -> None:  # type: ignore[no-untyped-def]
    assert "Tesla V100" in rigwright("explain", "v100-sxm2-16gb").stdout
    assert "They agree." in rigwright("catalogue.check").stdout


def test_a_worker_with_the_wheel_has_the_same_rigwright_as_a_checkout(installed: Path, tmp_path: Path) -> None:
    argv = [installed.parent / "python", "-c", "from rigwright.fleet.dask_workers import sources; print(sources())"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    said = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.strip() == dask_workers.sources()


def test_help_names_the_program_that_was_started(rigwright) -> None:  # type: ignore[no-untyped-def]
    text = rigwright("init", "--help").stdout
    assert "rigwright init --host servbadge" in text
    assert "invoke" not in text


def test_without_an_inventory_it_says_what_to_do(rigwright) -> None:  # type: ignore[no-untyped-def]
    done = rigwright("plan", code=1)
    assert (done.stdout + done.stderr).count("error ") == 1
    assert "rigwright init makes a new one here" in done.stdout


def test_a_mistake_gets_a_hint_with_the_name_of_the_program(rigwright) -> None:  # type: ignore[no-untyped-def]
    assert "rigwright plan --host; all flags: rigwright plan --help" in rigwright("plan", "--hots", code=1).stderr


def test_a_host_that_does_not_answer(rigwright, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The command finds the playbook, its templates and the host programs; then the connection is refused."""
    host = (
        'gpu:\n  hosts:\n    one: {ansible_host: 127.0.0.1, ansible_port: 9, rig: servbadge, driver: {branch: "535"}}\n'
    )
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "hosts.yml").write_text(host)
    made = json.loads(rigwright("plan", "--json", "-", code=3).stdout)
    assert made["hosts"]["one"]["status"] == "unreachable"
    assert made["playbook"].endswith("rigwright/playbooks/provision.yml")
    rigwright("fleet.report", code=3)
    assert "<html" in (tmp_path / "fleet.html").read_text()


SCRIPTS = {
    "bash": """source <(rigwright --print-completion-script bash)
COMP_WORDS=(rigwright {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
$(complete -p rigwright | sed 's/.*-F \\([^ ]*\\).*/\\1/') rigwright "${{COMP_WORDS[COMP_CWORD]}}" ''
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    "zsh": """source <(rigwright --print-completion-script zsh)
words="rigwright {words}"
_complete_rigwright
printf '%s\\n' ${{(M)reply:#${{words##* }}*}}
""",
}
"""Shell code that completes the last word: in bash the script calls `compgen`; in zsh this code filters the words."""
SHELLS = [name for name in SCRIPTS if shutil.which(name)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ver", ["verify"]),
        ("fleet.", ["fleet.check", "fleet.report", "fleet.run"]),
        ("plan --ta", ["--tags"]),
        ("verify --nccl", ["--nccl-tests"]),
    ],
)
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_commands_and_flags(
    installed: Path, tmp_path: Path, shell: str, words: str, expected: list[str]
) -> None:
    path = f"{installed.parent}:{os.environ['PATH']}"
    done = process(shell, "-c", SCRIPTS[shell].format(words=words), folder=tmp_path, PATH=path)
    assert sorted(done.stdout.split()) == expected, done.stderr
