"""Runs rigwright's command line as a user does."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from lab.base.paths import KNOWN_HOSTS, SSH_KEY
from lab.power import switch
from tests.end_to_end import fork_server
from tests.paths import ROOT

INVENTORY = ROOT / ".lab" / "inventory"


def argv(task: str, *words: str) -> list[str]:
    """Returns the words of `invoke TASK ...` with this interpreter's Invoke."""
    return [sys.executable, "-m", "invoke", task, *words]


def login_variables(name: str, **more: Any) -> dict[str, Any]:
    """Returns the variables of an inventory with which rigwright reaches a simulated host, and `more`."""
    return {
        "ansible_host": str(switch.get(name).address),
        "ansible_user": "ubuntu",
        "ansible_ssh_private_key_file": str(SSH_KEY),
        "ssh_known_hosts": str(KNOWN_HOSTS),
        **more,
    }


def inventory(folder: Path, **hosts: dict[str, Any]) -> str:
    """Returns the path of an inventory of these hosts; the given values override the lab's (None removes a key)."""
    groups = yaml.safe_load((INVENTORY / "hosts.yml").read_text())["all"]["children"]
    written = {}
    for name, changed in hosts.items():
        given = groups["gpu"]["hosts"][name] | yaml.safe_load((INVENTORY / "host_vars" / f"{name}.yml").read_text())
        given |= {"ssh_known_hosts": str(KNOWN_HOSTS), **changed}
        written[name] = {key: value for key, value in given.items() if value is not None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hosts.yml").write_text(yaml.safe_dump({"gpu": {"hosts": written}}))
    return str(folder)


def invoke(task: str, *words: str, deadline: float = 240, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command without terminal and stdin; returns its output and exit code. Raises TimeoutExpired.

    It runs in a fork of a process that has imported rigwright, unless a variable of `environment` acts at the start of
    Python.
    """
    env = {**os.environ, "RIGWRIGHT_INVENTORY": str(INVENTORY), "COLUMNS": "100", **environment}
    if (forks := fork_server.shared()).serves(env):
        return forks.run((task, *words), env, deadline)
    return subprocess.run(
        argv(task, *words), cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=deadline,
        check=False,
    )  # fmt: skip


def start(task: str, *words: str, **environment: str) -> subprocess.Popen[str]:
    """Starts a command without terminal and stdin; its stdout has stderr, too."""
    env = {
        **os.environ,
        "RIGWRIGHT_INVENTORY": str(INVENTORY),
        "COLUMNS": "100",
        "PYTHONUNBUFFERED": "1",
        **environment,
    }
    return subprocess.Popen(
        argv(task, *words), cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Reads the output of a command up to a line with a text, and returns it."""
    assert process.stdout
    output = ""
    for line in process.stdout:
        output += line
        if text in line:
            return output
    raise AssertionError(f"no line with {text!r}:\n{output}")


def until(reached: Callable[[], object], what: str, within_s: float = 60) -> None:
    """Waits until the function returns something true."""
    ends = time.monotonic() + within_s
    while not reached():
        assert time.monotonic() < ends, f"not within {within_s:g} s: {what}"
        time.sleep(0.1)


def document(task: str, *words: str, deadline: float = 240, **environment: str) -> dict[str, Any]:
    """Returns the JSON document that `--json -` writes to stdout."""
    done = invoke(task, *words, "--json", "-", deadline=deadline, **environment)
    found = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode, done.stderr
    assert isinstance(found, dict)
    return found


def not_as_wanted(found: dict[str, Any]) -> list[Any]:
    """Returns the errors of a document and its findings that did not pass, for an assert message."""
    hosts = found["hosts"].values()
    errors = [one["error"] for one in (found, *hosts) if one["error"]]
    return errors + [
        finding for host in hosts for finding in host["findings"] if finding["verdict"] not in ("pass", "info")
    ]


def on_terminal(
    answers: list[tuple[str, str]], task: str, *words: str, deadline: float = 120, **environment: str
) -> tuple[int, str]:
    """Runs a command on a terminal and types each answer after its question; returns exit code and output."""
    env = {**os.environ, "RIGWRIGHT_INVENTORY": str(INVENTORY), "COLUMNS": "100", "TERM": "dumb", **environment}
    pid, ours = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execve(sys.executable, argv(task, *words), env)
    text, asked, until, code = "", 0, time.monotonic() + deadline, None
    try:
        while time.monotonic() < until:
            if not select.select([ours], [], [], 0.5)[0]:
                continue
            try:
                text += os.read(ours, 65536).decode()
            except OSError:  # EIO: the other end is closed
                break
            if answers[asked:] and answers[asked][0] in text:
                time.sleep(0.2)  # what was typed before a password is asked for is thrown away
                os.write(ours, answers[asked][1].encode() + b"\n")
                asked += 1
        else:
            raise TimeoutError(text)
        assert not answers[asked:], f"never asked: {answers[asked][0]}\n{text}"
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return code, text.replace("\r\n", "\n")
    finally:
        os.close(ours)
        if code is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
