"""A command in a fork prints and returns what the same command does in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.end_to_end import fork_server
from tests.end_to_end.rw import argv
from tests.paths import ROOT


@pytest.mark.parametrize(
    "words", [("explain", "Xid 79"), ("plan", "--inventory", "/nowhere"), ("no-such-command",)], ids=" ".join
)
def test_a_fork_is_a_process_of_its_own(words: tuple[str, ...]) -> None:
    env = {**os.environ, "COLUMNS": "70"}
    alone = subprocess.run(argv(*words), cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    fork = fork_server.shared().run(words, env, 60)
    assert (fork.returncode, fork.stdout, fork.stderr) == (alone.returncode, alone.stdout, alone.stderr)
    assert (fork.returncode, bool(fork.stdout + fork.stderr)) == (0 if words[0] == "explain" else 1, True)


def test_it_ends_at_the_deadline() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        fork_server.shared().run(("explain", "Xid 79"), os.environ, 0.001)
    assert fork_server.shared().run(("explain", "Xid 79"), os.environ, 60).returncode == 0, "others go on"


def test_a_variable_of_the_interpreter_needs_a_new_process() -> None:
    server = fork_server.shared()
    assert server.serves({**os.environ, "HOME": "/nowhere"})
    assert not server.serves({**os.environ, "PYTHONUTF8": "0", "LC_ALL": f"not {sys.getdefaultencoding()}"})
