"""The supply chain of Python packages: scripts/lock installs its tools by hash, and an audit that did not happen is no
success."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT

LOCK = """# Made by scripts/lock from pyproject.toml.
jinja2==3.1.6 \\
    --hash=sha256:{0}
dask[distributed]==2026.1.2 ; python_full_version < '3.11' \\
    --hash=sha256:{0} \\
    --hash=sha256:{0}
dask[distributed]==2026.3.0 ; sys_platform == 'win32' \\
    --hash=sha256:{0}
""".format("0" * 64)
TODAY = datetime.date.today()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """Returns a lock file with three versions of two packages."""
    path = tmp_path / "rigwright.lock"
    path.write_text(LOCK)
    return path


def _audit(lock: Path, *words: str | Path, **env: str) -> tuple[int, str]:
    argv = [sys.executable, str(ROOT / "scripts" / "audit"), *map(str, words), str(lock)]
    done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def _advisory(name: str, *, days_old: int = 0, **affected: Any) -> dict[str, Any]:
    package = {"package": {"ecosystem": "PyPI", "name": name}, **affected}
    return {"id": "PYSEC-1", "modified": f"{TODAY - datetime.timedelta(days_old)}T10:00:00Z", "affected": [package]}


def _range(*events: dict[str, str]) -> dict[str, Any]:
    return {"ranges": [{"type": "ECOSYSTEM", "events": list(events)}]}


@pytest.mark.parametrize(
    ("advisory", "says"),
    [
        (_advisory("Jinja2", **_range({"introduced": "0"}, {"fixed": "3.1.7"})), "jinja2 3.1.6: PYSEC-1"),
        (_advisory("jinja2", **_range({"introduced": "0"}, {"fixed": "3.1.6"})), ""),
        (_advisory("jinja2", **_range({"introduced": "0"}, {"last_affected": "3.1.6"})), "jinja2 3.1.6: PYSEC-1"),
        (_advisory("jinja2", **_range({"introduced": "3.2"})), ""),
        (
            _advisory("jinja2", **_range({"fixed": "3"}, {"introduced": "3.1"}, {"introduced": "0"})),
            "jinja2 3.1.6: PYSEC-1",
        ),
        (_advisory("jinja2", **_range({"introduced": "0"}, {"fixed": "not a version"})), "jinja2 3.1.6: PYSEC-1"),
        (_advisory("jinja2", versions=["2.0-odd-", "3.1.6.0"]), "jinja2 3.1.6: PYSEC-1"),
        (_advisory("dask", versions=["2026.3.0"]), "dask 2026.3.0: PYSEC-1"),
        (_advisory("jinja", versions=["3.1.6"]), ""),
        ({**_advisory("jinja2", versions=["3.1.6"]), "withdrawn": "2026-01-01T00:00:00Z"}, ""),
        (_advisory("jinja", days_old=31), "not audited"),
        (_advisory("jinja2", ranges=[{"type": "ECOSYSTEM"}]), "not audited"),
        ({**_advisory("jinja2"), "affected": [{"package": {"ecosystem": "npm", "name": "jinja2"}}]}, "not audited"),
        ([1], "not audited"),
    ],
)
def test_advisories_in_a_folder(tmp_path: Path, lock: Path, advisory: Any, says: str) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "PYSEC-1.json").write_text(json.dumps(advisory))
    code, said = _audit(lock, "--advisories", folder)
    assert (code, "3 locked versions audited, no known vulnerability" in said) == ((1, False) if says else (0, True))
    assert says in said


@pytest.mark.parametrize("there", [None, ""])
def test_a_folder_without_advisories_is_no_audit(tmp_path: Path, lock: Path, there: str | None) -> None:
    if there is not None:
        (tmp_path / "export").mkdir()
    code, said = _audit(lock, "--advisories", tmp_path / "export")
    assert (code, "fix:" in said) == (1, True)


def _answer(name: str, version: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "version": version, "vulns": [], **more}


CLEAN = [_answer("jinja2", "3.1.6"), _answer("dask", "2026.1.2"), _answer("dask", "2026.3.0")]


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (CLEAN, ""),
        (CLEAN[1:], "pip-audit does not answer for jinja2 3.1.6"),
        ([*CLEAN[1:], {"name": "jinja2", "skip_reason": "not found"}], "not audited: not found"),
        (None, "not audited: no route to the service"),
        (
            [
                *CLEAN[1:],
                _answer("jinja2", "3.1.6", vulns=[{"id": "PYSEC-2", "fix_versions": ["3.1.7"]}]),
            ],
            "jinja2 3.1.6: PYSEC-2, fixed in 3.1.7",
        ),
    ],
)
def test_the_service_of_pip_audit(tmp_path: Path, lock: Path, answers: list[dict[str, Any]] | None, says: str) -> None:
    """pip_audit is a program that answers from a file for what its requirements file asks, or fails."""
    (tmp_path / "answers.json").write_text(json.dumps(answers))
    (tmp_path / "pip_audit.py").write_text(f"""
import json, re, sys
answers = json.load(open({str(tmp_path / "answers.json")!r}))
if answers is None:
    sys.exit("traceback\\nno route to the service")
asked = re.findall("(.+)==(.+)", open(sys.argv[-1]).read())
assert len(dict(asked)) == len(asked)
found = [one for one in answers if any(one["name"] == name and one.get("version", version) == version
         for name, version in asked)]
print(json.dumps({{"dependencies": found}}))
""")
    code, said = _audit(lock, PYTHONPATH=str(tmp_path))
    assert (code, "no known vulnerability" in said) == ((1, False) if says else (0, True))
    assert says in said


def test_a_line_without_a_locked_version_is_not_left_out(lock: Path) -> None:
    lock.write_text(LOCK + "mine @ file:///tmp/mine\n")
    code, said = _audit(lock, "--advisories", lock.parent)
    assert (code, "rigwright.lock:9: 'mine @ file:///tmp/mine' is no locked version" in said) == (1, True)


@pytest.mark.nightly
@pytest.mark.parametrize("right", [True, False])
def test_only_the_locked_uv_is_run_with_the_index_of_pip(tmp_path: Path, right: bool) -> None:
    """The index offers a uv of the locked version; one with other content would run as the person who locks."""
    checkout = tmp_path / "checkout"
    (checkout / "scripts").mkdir(parents=True)
    for name in ("scripts/lock", "scripts/audit", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout / name)
    offered = tmp_path / "uv-0.9.9-py3-none-any.whl"
    with zipfile.ZipFile(offered, "w") as wheel:
        info = "uv-0.9.9.dist-info"
        program = zipfile.ZipInfo("uv-0.9.9.data/scripts/uv")
        program.external_attr = 0o100755 << 16
        wheel.writestr(program, f'#!/bin/sh\necho "$UV_DEFAULT_INDEX" >{tmp_path}/ran\nexit 1\n')
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: uv\nVersion: 0.9.9\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(offered.read_bytes()).hexdigest() if right else "0" * 64
    (checkout / "requirements").mkdir()
    (checkout / "requirements" / "tools.lock").write_text(f"uv==0.9.9 \\\n    --hash=sha256:{digest}\n")
    index = "https://index.example.org/simple"
    env = {**os.environ, "PIP_INDEX_URL": index, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    argv = ["sh", checkout / "scripts" / "lock"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "DO NOT MATCH THE HASHES" in done.stderr) == (1, not right)
    assert [path.read_text() for path in tmp_path.glob("ran")] == ([f"{index}\n"] if right else [])
