"""A provision that is interrupted after the driver's change, and again and again: the one that ends runs the
peer-to-peer test before it says `proved`.

A boot that the interrupted run asked for and did not judge is judged first. All of it is on one host: each run is
interrupted further on.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.host import login
from lab.power import switch
from rigwright.facts.boot.trial import FOLDER
from tests.end_to_end.conftest import Ssh
from tests.end_to_end.rw import document, inventory, invoke, read_until, start, until
from tests.end_to_end.test_rigs import server_with_driver

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]
NAME, RIG = "t-required", "rig-3090"
OPEN = "which nobody has confirmed; it ends by itself"
ENDED = "which ended before it was judged"
RECORD = "cat /var/lib/rigwright/p2p-test.owed 2>/dev/null; :"


def boot_begins() -> None:
    """Waits until the host has begun its second boot."""
    boots = switch.get(NAME).boots
    until(lambda: len(boots.read_text().splitlines()) == 2, "its reboot", 120)


@dataclass(frozen=True)
class Place:
    """Where a run is interrupted: at the line of its output that contains `at`, by a signal, after `wait`.

    `code`: its exit code. `without`: runs after it that cannot pay, by --wheels, and what each says. `open_trial`: the
    boot that it asked for runs, and nobody has judged it. `settles`: it first judges the boot that the run before it
    left.
    """

    at: str
    by: signal.Signals
    code: int
    wait: Callable[[], object] = int
    without: tuple[tuple[str, str], ...] = ()
    open_trial: bool = False
    settles: bool = False


PLACES = {
    "while it waits for the boot": Place(
        "… rebooting, to try the new boot: ", signal.SIGKILL, -signal.SIGKILL, boot_begins, open_trial=True,
    ),
    "before the last change": Place(
        "• Limits at every boot", signal.SIGINT, 130, settles=True,
        without=(("none", "hold, 1 test is required"), ("fetch", "hold, 1 could not be answered, 1 test is required")),
    ),
    "during the test": Place(" pair ", signal.SIGINT, 130),
}  # fmt: skip
"""In the order of a run: a run that was interrupted at one place is continued to the next."""


@pytest.fixture
def given(snapshots: Path, tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """Yields --host and --inventory of a host with an older release of its driver, without CUDA."""
    with server_with_driver(NAME, RIG, snapshots):
        yield "--host", NAME, "--inventory", inventory(tmp_path / "required", **{NAME: {"cuda": None}})


def interrupted(place: Place, given: tuple[str, ...]) -> str:
    """Provisions the host, interrupts that, and returns its output."""
    with start("provision", *given, "--yes", COLUMNS="160") as run:
        text = read_until(run, place.at)
        place.wait()
        run.send_signal(place.by)
        text += "".join(run.stdout or ())
    assert run.returncode == place.code, text
    assert "proved by" not in text
    return text


@pytest.mark.nightly
def test_interrupted_after_the_driver(given: tuple[str, ...], ssh: Ssh, tmp_path: Path) -> None:
    for name, place in PLACES.items():
        require_the_test(name, place, given, ssh)
    done = invoke("provision", *given, "--yes", "--json", str(tmp_path / "run.json"))
    assert "proved by" in done.stdout, done.stdout
    assert -1 < done.stdout.find(" pair ") < done.stdout.find("proved by"), done.stdout
    host = json.loads((tmp_path / "run.json").read_text())["hosts"][NAME]
    assert (host["p2p"]["outcome"], host["p2p"]["quick"], host["owed"]) == ("ok", False, [])
    assert not [
        finding for finding in host["findings"] if finding["seen"].startswith("required") or OPEN in finding["seen"]
    ]
    assert ssh(NAME, RECORD).stdout == ""
    again = document("provision", *given, "--yes")["hosts"][NAME]
    assert (again["p2p"], again["owed"]) == (None, []), "nothing that the test measured has changed"


def require_the_test(name: str, place: Place, given: tuple[str, ...], ssh: Ssh) -> None:
    """Interrupts a run at a place, and asserts that all commands name the required test, and only `provision`
    runs it."""
    text = interrupted(place, given)
    login.wait(switch.get(NAME))
    written = ssh(NAME, RECORD).stdout
    assert "driver 535." in written, (name, text)
    assert '"reboot"' in written, name
    settled = [text.find(words) for words in (ENDED, "the new boot is healthy; it is permanent now", place.at)]
    assert (-1 not in settled and settled == sorted(settled)) is place.settles, (name, text)

    plan = invoke("plan", *given)
    assert "peer-to-peer test: required since 20" in plan.stdout, (name, plan.stdout)
    assert (OPEN in plan.stdout) is place.open_trial, (name, plan.stdout)
    for command, words in (("verify", ("--quick",)), ("fleet.check", ())):
        findings = document(command, *given, *words)["hosts"][NAME]["findings"]
        tests = [finding for finding in findings if finding["seen"].startswith("required since")]
        assert [(finding["verdict"], finding["check"]) for finding in tests] == [("warn", "p2p.ran")], (name, command)
        assert ", driver 535." in tests[0]["seen"]
        assert tests[0]["seen"].endswith(", reboot")
        tried = [finding["verdict"] for finding in findings if OPEN in finding["seen"]]
        assert tried == ["warn"] * place.open_trial, (name, command)
    assert ssh(NAME, RECORD).stdout == written, "these commands run no test"
    assert (ssh(NAME, f"test -e {FOLDER}").returncode == 0) is place.open_trial, "these commands settle nothing"

    for wheels, words in place.without:
        done = invoke("provision", *given, "--yes", "--wheels", wheels)
        assert done.returncode == 2, done.stdout
        assert "proved by" not in done.stdout
        assert words in done.stdout
        assert ssh(NAME, RECORD).stdout
