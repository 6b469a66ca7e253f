"""The recorder on a host: a reset in the middle is explained by the next verify, and nothing is left behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.hardware import hw_state
from lab.host import login
from lab.power import switch
from rigwright import inventory
from rigwright.core.errors import HostError
from rigwright.engine.host_run import HostRun, Options, no_events
from rigwright.engine.playbook import BoundPlaybook
from rigwright.features.recorder import facts, recorder
from rigwright.features.recorder.checks import explained
from rigwright.features.recorder.facts import FOLDERS, PROGRAM, UNIT, Recording
from rigwright.fleet import host_runs
from tests.end_to_end.conftest import ssh
from tests.end_to_end.rw import INVENTORY, document, invoke, read_until, start, until
from tests.end_to_end.test_rigs import server_with_driver

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

NAME = "t-recorder"
LEFT = (
    f"ls -d {FOLDERS}/* {PROGRAM} 2>/dev/null; systemctl list-units --all --plain --no-legend {UNIT}.service; "
    "pgrep -f [r]ecorder.py"
)


@pytest.fixture(scope="module", autouse=True)
def _box(lab_root: None, snapshots: Path) -> Iterator[None]:  # noqa: ARG001
    """Starts a servbadge with the driver loaded."""
    with server_with_driver(NAME, "servbadge", snapshots):
        yield


@pytest.fixture
def run() -> Iterator[Callable[[], HostRun]]:
    """Returns a function that makes a connected run."""
    made: list[HostRun] = []

    def new() -> HostRun:
        options = Options(f"20261122-14032{len(made)}-136a")
        bound = BoundPlaybook(inventory.read(INVENTORY).hosts[NAME], (), ())
        one = host_runs.prepare([bound], options, no_events)[0]
        one.transport.connect()
        made.append(one)
        return one

    recorder.remove(new())
    yield new
    recorder.remove(new())
    for one in made:
        one.transport.close()


def left() -> str:
    """Returns the recordings, programs, units and processes of recorders on the host."""
    return ssh(NAME, f"sudo sh -c '{LEFT}'").stdout


def loads(percent: object) -> None:
    hw_state.edit(switch.get(NAME).hw, volatile={f"gpu{number}.load": percent for number in range(4)})


@pytest.mark.nightly
def test_a_recording_outlives_the_connection(run: Callable[[], HostRun]) -> None:
    first = run()
    folder = recorder.start(first, 120)
    with pytest.raises(HostError, match="at work is your recorder"):
        recorder.start(first, 120)
    first.transport.close()  # the controller goes away
    loads(100)
    time.sleep(0.3)
    loads("")
    time.sleep(0.5)
    second = run()
    assert recorder.fetch(second) is None, "it is still at work"
    recorder.stop(second, folder)
    found = recorder.fetch(second)
    assert found is not None
    assert folder == f"{FOLDERS}/{found.name}"
    assert found.end == "stop"
    assert len(found.series) >= 5
    assert (found.peak(3).most_w or 0) > 250, "the peak of 0.3 s"
    assert found.lowest_voltage() is not None
    assert not found.went_down
    assert recorder.fetch(second) is None, "it was fetched"
    assert left() == f"{folder}\n", "only the journal"
    with recorder.recording(second, 60) as next_folder:
        assert f"{folder}\n" not in left(), "the next one replaces what was fetched"
    assert left() == f"{next_folder}\n"
    recorder.remove(second)
    assert left() == ""


@pytest.mark.nightly
def test_a_recorder_that_nobody_follows_takes_all_of_it_away(run: Callable[[], HostRun]) -> None:
    folder = recorder.start(run(), 60, idle_s=30)
    recorder.stop(run(), folder)
    assert left() == f"{folder}\n", "one that was ended by its caller leaves the journal to it"
    recorder.discard(run(), folder)
    recorder.start(run(), 60, idle_s=1)
    until(lambda: left() == "", "the end of the recorder")


@pytest.mark.nightly
def test_a_reset_in_the_middle_is_explained(run: Callable[[], HostRun]) -> None:
    assert _finding(document("verify", "--host", NAME, "--tags", "hardware", "--quick"))["verdict"] == "pass"
    watch = start("power.watch", "--host", NAME)
    try:
        said = read_until(watch, "160 W together")
        loads(100)
        time.sleep(2)
        before = switch.get(NAME).boots.read_text()
        hw_state.edit(switch.get(NAME).hw, volatile={"supply1.out": 1, "supply2.out": 1})  # the third cannot carry it
        until(lambda: switch.get(NAME).boots.read_text() != before, "the reset")
        login.wait(switch.get(NAME), 60)
        said += "".join(watch.stdout or ())
        assert watch.wait(60) == 2, said
    finally:
        watch.kill()
        watch.wait()
    assert "went down: last seen" in said
    assert "all 4 GPUs at 2" in said
    finding = _finding(document("verify", "--host", NAME, "--tags", "hardware", "--quick"))
    assert finding["verdict"] == "warn"
    assert finding["symptom"] in ("host.power_cut", "power.rail_sag")
    assert finding["seen"] in said
    assert "the machine was off by" in finding["seen"]
    assert "power.plan --rig servbadge" in finding["fix"]
    again = run()
    again.read((facts.unended,))
    assert [one.verdict for one in explained(again.store)] == ["warn"], "verify has left the journal"
    found = recorder.fetch(again)
    assert isinstance(found, Recording)
    assert found.went_down
    with recorder.recording(again, 60):
        pass
    assert _finding(document("verify", "--host", NAME, "--tags", "hardware", "--quick"))["verdict"] == "pass"


def _finding(found: dict[str, dict[str, dict[str, list[dict[str, str]]]]]) -> dict[str, str]:
    (one,) = [one for one in found["hosts"][NAME]["findings"] if one["check"] == "recording.explained"]
    return one


@pytest.mark.nightly
def test_power_watch_shows_peaks_and_leaves_nothing(tmp_path: Path) -> None:
    page = tmp_path / "power.html"
    done = invoke("power.watch", "--host", NAME, "--seconds", "3", "--html", str(page))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "160 W together, 12 V 12.24 V" in done.stdout
    assert "SXM2-4" in done.stdout
    assert "<svg" in page.read_text()
    assert left() == ""


@pytest.mark.nightly
def test_ctrl_c_ends_power_watch_and_leaves_nothing() -> None:
    watch = start("power.watch", "--host", NAME)
    read_until(watch, "together")
    assert PROGRAM in left()
    watch.send_signal(signal.SIGINT)
    rest = watch.communicate(timeout=30)[0]
    assert watch.returncode == 0, rest
    assert "SXM2-1" in rest
    assert left() == ""


@pytest.mark.nightly
def test_remove_takes_recordings_away(run: Callable[[], HostRun]) -> None:
    recorder.start(run(), 60)
    done = invoke("remove", "--host", NAME, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ssh(NAME, f"sudo ls {FOLDERS}").returncode != 0
    until(lambda: left() == "", "the end of the recorder")
