"""A user's own tasks.py beside rigwright's: `rigwright.connect` gives a verified connection of Fabric to a host of the
inventory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.rw import INVENTORY
from tests.paths import ROOT

pytestmark = pytest.mark.lab
PAGE = ROOT / "docs" / "guide" / "own_tasks.md"


def _invoke(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RIGWRIGHT_INVENTORY": str(INVENTORY)}
    argv = [sys.executable, "-m", "invoke", *words]
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a folder with the tasks.py of the page, and a task that only reads."""
    (source,) = re.findall(r"```python tasks.py\n(.*?)```", PAGE.read_text(), re.S)
    read = '\n\n@task\ndef who(c, host):\n    """Print who is who."""\n    server = connect(host)\n'
    read += '    print(server.run("whoami", hide=True).stdout, server.sudo("whoami", hide=True).stdout)\n'
    (tmp_path / "tasks.py").write_text(source + read)
    return tmp_path


def test_the_task_of_the_page_runs_on_a_host(spare_host: str, folder: Path) -> None:
    done = _invoke(folder, "scratch", "--host", spare_host, "--size-gb", "1")
    assert done.returncode == 0, done.stderr
    assert "/scratch" in done.stdout
    assert _invoke(folder, "who", "--host", spare_host).stdout.split() == ["ubuntu", "root"]


def test_a_host_key_that_is_not_known_ends_it_with_a_message(
    plain_host: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = folder / "inventory"
    text = (INVENTORY / "hosts.yml").read_text() + "\n"
    empty.mkdir()
    (empty / "hosts.yml").write_text(text)
    monkeypatch.setenv("HOME", str(folder))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RIGWRIGHT_INVENTORY": str(empty)}
    argv = [sys.executable, "-m", "invoke", "who", "--host", plain_host]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "the host key is not known" in done.stderr
    assert f"invoke trust --host {plain_host}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_name_that_the_inventory_does_not_have(folder: Path) -> None:
    done = _invoke(folder, "who", "--host", "nowhere")
    assert done.returncode == 1
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr
