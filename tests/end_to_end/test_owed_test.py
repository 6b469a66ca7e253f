"""A provision that is interrupted after the driver's change: the next one runs the peer-to-peer test before it says `proved`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cli import commands
from lab.hardware.rigfile import describe
from tests.end_to_end.conftest import Ssh
from tests.end_to_end.rw import argv, document, inventory, invoke
from tests.end_to_end.test_rigs import Server
from tests.paths import ROOT

pytestmark = pytest.mark.lab
NAME = "t-owed"
RECORD = "cat /var/lib/rigwright/p2p-test.owed 2>/dev/null; :"


@pytest.fixture(scope="module")
def given(snapshots: Path, ssh: Ssh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """Yields --host and --inventory of a servbadge with an older release of its driver, without CUDA."""
    server = Server("servbadge", ssh)
    server.host, server.described = NAME, describe("servbadge", NAME)
    server.boots(snapshots)
    yield "--host", NAME, "--inventory", inventory(tmp_path_factory.mktemp("owed"), **{NAME: {"cuda": None}})
    commands.down(name=NAME, say=print)


def test_interrupted_after_the_driver(given: tuple[str, ...], ssh: Ssh) -> None:
    with subprocess.Popen(
        argv("provision", *given, "--yes"), cwd=ROOT, env={**os.environ, "COLUMNS": "160"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, text=True,
    ) as first:  # fmt: skip
        assert first.stdout
        text = ""
        for line in first.stdout:
            text += line
            if "Limits at every boot" in line and "•" in line:
                first.send_signal(signal.SIGINT)
    assert first.returncode == 130, text
    assert "proved by" not in text
    written = ssh(NAME, RECORD).stdout
    assert "driver 535." in written, text
    assert '"reboot"' in written


def test_the_next_plan_and_verify_say_so(given: tuple[str, ...], ssh: Ssh) -> None:
    plan = invoke("plan", *given)
    assert "peer-to-peer test: owed since 20" in plan.stdout, plan.stdout
    for command, words in (("verify", ("--quick",)), ("fleet.check", ())):
        findings = document(command, *given, *words)["hosts"][NAME]["findings"]
        owed = [finding for finding in findings if finding["seen"].startswith("owed since")]
        assert [(finding["verdict"], finding["check"]) for finding in owed] == [("warn", "p2p.ran")], command
        assert ", driver 535." in owed[0]["seen"]
        assert owed[0]["seen"].endswith(", reboot")
    assert ssh(NAME, RECORD).stdout, "these commands pay nothing"


@pytest.mark.parametrize(
    ("wheels", "code", "words"),
    [("none", 0, "hold, 1 test is owed"), ("fetch", 2, "hold, 1 could not be answered, 1 test is owed")],
)
def test_without_libraries_nothing_is_proved(
    given: tuple[str, ...], ssh: Ssh, wheels: str, code: int, words: str
) -> None:
    done = invoke("provision", *given, "--yes", "--wheels", wheels)
    assert done.returncode == code, done.stdout
    assert "proved by" not in done.stdout
    assert words in done.stdout
    assert ssh(NAME, RECORD).stdout


def test_the_next_run_tests_and_then_says_proved(given: tuple[str, ...], ssh: Ssh, tmp_path: Path) -> None:
    done = invoke("provision", *given, "--yes", "--json", str(tmp_path / "run.json"))
    assert "proved by" in done.stdout, done.stdout
    host = json.loads((tmp_path / "run.json").read_text())["hosts"][NAME]
    assert (host["status"], host["changes"], host["owed"]) == ("ok", [], [])
    assert (host["p2p"]["outcome"], host["p2p"]["quick"]) == ("ok", False)
    assert not [finding for finding in host["findings"] if finding["seen"].startswith("owed")]
    assert ssh(NAME, RECORD).stdout == ""
    again = document("provision", *given, "--yes")["hosts"][NAME]
    assert (again["p2p"], again["owed"]) == (None, []), "nothing that the test measured has changed"
