"""Ctrl-C while several hosts are changed: critical steps finish, others do not start; a second one stops all."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rigwright import operations
from rigwright.core.errors import HostError, RigwrightError, Unreachable
from rigwright.core.process import interruption
from rigwright.engine import plugins
from rigwright.fleet import pool
from tests.cli.run_command import run_command
from tests.fleet import fake_fleet
from tests.fleet.fake_fleet import Fleet

HOSTS = tuple(f"gpu{number}" for number in range(1, 7))


pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Returns six hosts, of which two are processed at a time."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(pool, "WORKERS", 2)
    return fake_fleet.fleet(tmp_path, monkeypatch, *HOSTS)


def run(
    gpus: Fleet, capsys: pytest.CaptureFixture[str], command: str = "provision", **words: Any
) -> tuple[int, str, Any]:
    """Runs a command; returns the exit code, the text and the hosts of the JSON document."""
    file = gpus.folder / "out.json"
    given: dict[str, Any] = {"host": "all", "inventory": gpus.inventory, "playbook": gpus.playbook, **words}
    code = run_command(command, json=str(file), **given, **({"yes": True} if command == "provision" else {}))
    return code, capsys.readouterr().out, json.loads(file.read_text())["hosts"]


def ctrl_c() -> None:
    """Sends SIGINT to the main thread, as Ctrl-C at the terminal does."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def test_what_must_not_be_cut_is_finished(gpus: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    both = threading.Barrier(2, timeout=60)

    def before(name: str) -> None:
        both.wait()
        if name == "gpu1":
            ctrl_c()
            assert not gpus.hosts["gpu1"].abandoned.wait(0.4)
        else:
            time.sleep(0.1)

    gpus.before = before
    code, text, hosts = run(gpus, capsys)
    assert code == 130
    assert sorted(gpus.made) == ["gpu1", "gpu2"]
    assert {name: host["status"] for name, host in hosts.items()} == {
        "gpu1": "changed", "gpu2": "changed", **dict.fromkeys(HOSTS[2:], "not_attempted"),
    }  # fmt: skip
    assert (
        "gpu1   … finishing 'Room', which must not be interrupted; press Ctrl-C again to stop waiting for it\n" in text
    )
    assert text.endswith(
        "\ninterrupted\n  done: gpu1, gpu2\n  not attempted: gpu[3:6]\n"
        "  fix: run the same command again; it continues from there\n"
    )
    gpus.before = str
    assert run(gpus, capsys)[0] == 0
    assert sorted(gpus.made) == list(HOSTS)


def test_nothing_more_is_begun_on_a_host(gpus: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    (gpus.folder / "play.yml").write_text(
        fake_fleet.PLAY + "    - name: Another\n      file.directory: {path: /srv/another}\n"
    )

    def before(name: str) -> None:
        if name == "gpu1":
            last, until = interruption._last, time.monotonic() + 60
            ctrl_c()
            while interruption._last == last and time.monotonic() < until:  # a busy machine may take long
                time.sleep(0.01)
            time.sleep(0.2)

    gpus.before = before
    code, text, hosts = run(gpus, capsys, host="gpu1")
    assert code == 130
    assert gpus.made == ["gpu1"]
    assert hosts["gpu1"]["status"] == "failed"
    steps = {step["name"]: step["status"] for step in hosts["gpu1"]["steps"]}
    assert steps == {"Room": "changed", "Another": "pending"}
    assert "error gpu1: stopped after some steps; the step that was running is complete\n" in text
    assert "  not done: gpu1\n" in text


@pytest.mark.parametrize(("number", "required"), [(2, True), (1, False), (0, False)])
def test_it_names_the_test_that_is_required_then(
    gpus: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int, required: bool
) -> None:
    gpus.gpus = number
    plugins.known("operations")
    declared = replace(operations.declared("file.directory") or operations.operation, affects_p2p=True)
    monkeypatch.setitem(operations._DECLARATIONS, "file.directory", declared)

    def before(name: str) -> None:
        if name == "gpu1":
            ctrl_c()
            time.sleep(0.2)

    gpus.before = before
    code, text, _ = run(gpus, capsys, host="gpu1")
    assert code == 130
    assert ("  required: the peer-to-peer test of gpu1; the same command runs it\n" in text) is required


def test_what_fails_while_it_is_finished_is_told(gpus: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    def before(_name: str) -> None:
        ctrl_c()
        time.sleep(0.2)

    gpus.broken.add("gpu1")
    gpus.before = before
    code, text, hosts = run(gpus, capsys, host="gpu1")
    assert (code, hosts["gpu1"]["status"]) == (130, "failed")
    assert "no space is left for /srv/room" in text


@pytest.mark.parametrize("error", [Unreachable, HostError])
def test_a_second_one_leaves_it_to_the_host_and_says_what(
    gpus: Fleet, capsys: pytest.CaptureFixture[str], error: type[RigwrightError]
) -> None:
    both = threading.Barrier(2, timeout=60)

    def before(name: str) -> None:
        both.wait()
        if name == "gpu1":
            ctrl_c()
            time.sleep(0.3)
            ctrl_c()
            assert gpus.hosts["gpu1"].abandoned.wait(150)
            raise error("gpu1", "the connection was lost")
        gpus.hosts[name].abandoned.wait(150)
        raise Unreachable(name, "the connection was lost")

    gpus.before = before
    started = time.monotonic()
    code, text, hosts = run(gpus, capsys)
    assert time.monotonic() - started < 60
    assert code == 130
    assert gpus.made == []
    assert "error gpu1: left in the middle of 'Room', which continues on the host\n" in text
    assert text.count("fix:") == 1
    assert "  not done: gpu1, gpu2\n  not attempted: gpu[3:6]\n" in text
    assert hosts["gpu1"]["status"] == "failed"
    assert hosts["gpu3"]["status"] == "not_attempted"


def test_a_plan_is_simply_ended(
    gpus: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Fleet.answer

    def answer(self: Fleet, name: str, cmd: Any) -> Any:
        if name == "gpu2":
            ctrl_c()
        # gpu1 too, or its worker would plan the other four before the signal is handled
        gpus.hosts[name].abandoned.wait(5)
        return real(self, name, cmd)

    monkeypatch.setattr(Fleet, "answer", answer)
    code, text, hosts = run(gpus, capsys, "plan")
    assert code == 130
    assert text.endswith("\ninterrupted: nothing was changed\n")
    assert hosts["gpu6"]["status"] == "not_attempted"


def test_a_rollout_goes_on_after_it(gpus: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    def before(name: str) -> None:
        if name == "gpu2":
            ctrl_c()
            time.sleep(0.2)

    gpus.before = before
    code, text, hosts = run(gpus, capsys, serial="1,1,100%")
    assert code == 130
    assert sorted(gpus.made) == ["gpu1", "gpu2"]
    assert text.endswith("  done: gpu1, gpu2\n  not attempted: gpu[3:6]\n  fix: invoke provision --resume\n")
    gpus.before = str
    code, text, hosts = run(gpus, capsys, resume=True, host=None, inventory="", playbook="")
    assert code == 0
    assert sorted(hosts) == list(HOSTS[2:])
    assert sorted(gpus.made) == list(HOSTS)
