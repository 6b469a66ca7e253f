"""A wait for a boot asks for everything again at each look, says what it sees, and ends when the host has gone back."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rigwright.core.command import Command, Result, command
from rigwright.core.desired import Reboot
from rigwright.core.errors import HostError, HostKeyRefused, LoginRefused, NoRoot, RigwrightError, Unreachable
from rigwright.engine import lease
from rigwright.engine.boot import wait as boot_wait
from rigwright.engine.boot.reboot import Reboots
from rigwright.engine.boot.wait import BootWait, Tried
from rigwright.engine.events import Event, Note
from rigwright.engine.host_run import HostRun
from rigwright.facts import system
from rigwright.inventory.model import Host
from tests.host_runs import host_run
from tests.ssh.fake_transport import FakeTransport

CLOSED = Unreachable("box", "the connection was refused", brief="port 22 is closed")
SILENT = Unreachable("box", "no login within 10 s", brief="no answer")
REFUSED = LoginRefused("box", "the login was refused", "", "ssh-copy-id ubuntu@box", "ssh refused the key of ubuntu")
OTHER_KEY = HostKeyRefused("box", "the host key has changed", "", "invoke trust", "the host key is another one")
SUDO = NoRoot("box", "sudo asks for a password, and none was given", "", "visudo", "sudo wants a password for ubuntu")
OLD, TRIAL, BACK = "boot-old", "boot-trial", "boot-back"
WORDS = {TRIAL: " panic=60 rigwright.trial=RUN systemd.wants=rigwright-trial.service", BACK: " rigwright.fallback=RUN"}
TRIED = Tried("RUN", 60, 900)
GONE = "the controller could not log in: the connection was lost, no answer"


@dataclass(frozen=True)
class Stage:
    """What the host is like until `until_s`: `shut` keeps everybody out, `refusal` keeps root out. `full`: its disk."""

    until_s: float
    boot: str = ""
    shut: RigwrightError | None = None
    refusal: RigwrightError | None = None
    full: bool = False


class World(FakeTransport):
    """A host whose stages follow each other in time, and the clock, which goes on while something waits."""

    def __init__(self, *stages: Stage) -> None:
        super().__init__(self.answer)
        self.stages, self.now = stages, 1000.0
        self.logins = 0
        self.events: list[str] = []

    @property
    def at_s(self) -> float:
        """Returns the seconds since the order to reboot."""
        return self.now - 1000

    @property
    def stage(self) -> Stage:
        return next((stage for stage in self.stages if self.at_s < stage.until_s), self.stages[-1])

    def connect(self, timeout_s: float = 0) -> None:
        self.logins += 1
        self.now += timeout_s if self.stage.shut is SILENT else 0.1
        if self.stage.shut:
            raise self.stage.shut

    def answer(self, cmd: Command) -> Result:
        stage = self.stage
        if stage.shut:
            raise Unreachable("box", "the connection was lost (timed out)", brief="the connection was lost")
        if stage.refusal and not self.as_user:
            raise stage.refusal
        if cmd == system.boot_id.command:
            return Result(0, f"{stage.boot}\n".encode())
        if "/proc/cmdline" in str(cmd):
            before = [earlier.until_s for earlier in self.stages if earlier.until_s <= self.at_s and not earlier.boot]
            up_s = self.at_s - max(before, default=0)
            return Result(0, f"{up_s:.2f}\nro quiet{WORDS.get(stage.boot, '')}\n".encode())
        return Result(1 if stage.full else 0, b"", b"No space left on device" if stage.full else b"")

    def hears(self, event: Event) -> None:
        """Keeps the text of a note."""
        if isinstance(event, Note):
            self.events.append(event.text)

    def sleep(self, seconds: float) -> None:
        """Lets the clock go on."""
        self.now += seconds


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that makes a wait for a world."""

    def wait(world: World, tried: Tried | None = TRIED, limit_s: int = 900) -> BootWait:
        monkeypatch.setattr(boot_wait.time, "monotonic", lambda: world.now)
        monkeypatch.setattr(boot_wait.time, "sleep", world.sleep)
        transport: Any = world
        run = host_run(world, host=Host("box", (), {"ansible_user": "ubuntu"}), tell=world.hears)
        held = lease.Lease(transport, "box", "RUN ada@desk 1", 1)
        return BootWait(run, held, OLD, tried.limit_s if tried else limit_s, tried)

    return wait


DOWN = (Stage(3, OLD), Stage(6, OLD, refusal=SUDO), Stage(20, shut=CLOSED))
"""A host that goes down, and whose firmware takes a while; the shutdown ends sessions, which looks like a refusal."""


def test_a_rule_of_sudo_that_comes_late_is_waited_for(waits: Any) -> None:
    world = World(*DOWN, Stage(45, TRIAL, refusal=SUDO), Stage(999, TRIAL))
    assert waits(world).until_up(30) == ()
    assert 45 <= world.at_s < 60
    seen = next(note for note in world.events if "sudo wants" in note)
    assert (
        "s so far: the new boot runs, and sudo wants a password for ubuntu; unless the new boot is confirmed," in seen
    )
    assert world.events[-1].startswith("back after")
    stays = World(*DOWN, Stage(45, BACK, refusal=SUDO), Stage(999, BACK))
    waits(stays, None).until_up(30)
    assert 45 <= stays.at_s < 60, "a boot that is not tried"


@pytest.mark.parametrize(
    ("kept_out", "says"),
    [
        (Stage(80, TRIAL, refusal=SUDO), "sudo wanted a password for ubuntu"),
        (Stage(80, shut=REFUSED), "ssh refused the key of ubuntu"),
        (Stage(80, shut=OTHER_KEY), "the host key was another one"),
        (Stage(80, shut=CLOSED), "port 22 was closed"),
        (Stage(80, shut=SILENT), "no answer"),
        (Stage(80, TRIAL, full=True), "the lease cannot be renewed: No space left on device"),
    ],
    ids=["sudo", "key", "host key", "port", "silence", "disk"],
)
def test_it_ends_when_the_host_has_gone_back(waits: Any, kept_out: Stage, says: str) -> None:
    world = World(*DOWN, kept_out, Stage(90, shut=SILENT), Stage(999, BACK))
    assert waits(world).until_up(30) == (f"the controller could not log in: {says}",)
    assert 90 <= world.at_s < 115, "not at a sum of limits"


def test_what_is_refused_is_asked_for_less_often_each_time(waits: Any) -> None:
    """sshd and fail2ban lock out who is refused again and again."""
    world = World(*DOWN, Stage(620, shut=REFUSED), Stage(999, BACK))
    waits(world).until_up(30)
    assert world.logins < 20 + 600 / 9


def test_what_is_seen_is_said_when_it_changes_and_every_half_minute(waits: Any) -> None:
    world = World(*DOWN, Stage(110, shut=SILENT), Stage(112, shut=CLOSED), Stage(120, shut=SILENT), Stage(999, TRIAL))
    waits(world).until_up(30)
    seen = [(note.split(" s so far: ")[1].split(";")[0]) for note in world.events[:-1]]
    assert seen[:2] == ["port 22 is closed", "no answer"]
    assert set(seen) == {"port 22 is closed", "no answer"}, world.events
    times = [0, *(int(note.removeprefix("waiting for it to come back, ").split()[0]) for note in world.events[:-1])]
    assert all(later - earlier <= 32 for earlier, later in itertools.pairwise(times)), times


def test_the_seconds_until_it_goes_back_are_those_of_the_boot_that_is_seen(waits: Any) -> None:
    world = World(*DOWN, Stage(80, TRIAL, refusal=SUDO), Stage(999, BACK))
    waits(world).until_up(30)
    note = next(note for note in world.events if "sudo wants" in note)
    so_far = int(note.removeprefix("waiting for it to come back, ").split()[0])
    goes_back = int(note.partition("the host goes back by itself in ")[2].split()[0])
    assert abs(so_far + goes_back - 80) <= 1, note


def test_sudo_that_refuses_after_the_way_back_too_is_the_error(waits: Any) -> None:
    world = World(*DOWN, Stage(80, TRIAL, refusal=SUDO), Stage(90, shut=SILENT), Stage(9999, BACK, refusal=SUDO))
    with pytest.raises(
        NoRoot, match="the host went back to what ran before, and there sudo asks for a password"
    ) as caught:
        waits(world).until_up(30)
    assert caught.value.fix == "visudo"
    assert world.at_s < 90 + boot_wait.SETTLES_S + 20
    assert any("what ran before is back" in note for note in world.events)


def test_a_boot_that_stays_and_refuses_root_is_an_error(waits: Any) -> None:
    world = World(*DOWN, Stage(9999, BACK, refusal=SUDO))
    with pytest.raises(NoRoot, match="after its reboot sudo asks for a password"):
        waits(world, None).until_up(30)
    assert world.at_s < 20 + boot_wait.SETTLES_S + 20


def test_what_nobody_sees_has_the_limit_of_the_boots_which_is_said(waits: Any) -> None:
    world = World(*DOWN, Stage(9999, shut=SILENT))
    with pytest.raises(Unreachable, match=r"it did not come back within 201\d s of its reboot: no answer") as caught:
        waits(world).until_up(30)
    assert "off and on again it boots what ran before" in caught.value.fix
    assert "the host goes back by itself in about 57 s; waiting up to 2000 s more" in world.events[0]
    assert "the host goes back by itself now; waiting up to" in world.events[-1]


def test_a_new_boot_that_was_seen_limits_the_wait_for_the_way_back(waits: Any) -> None:
    world = World(*DOWN, Stage(70, TRIAL, refusal=SUDO), Stage(9999, shut=SILENT))
    with pytest.raises(Unreachable, match="no answer"):
        waits(world).until_up(30)
    assert 20 + 60 + boot_wait.GOES_DOWN_S + 900 <= world.at_s < 20 + 60 + boot_wait.GOES_DOWN_S + 900 + 15


def test_what_is_refused_after_the_way_back_is_no_reason_of_the_trial(waits: Any) -> None:
    world = World(*DOWN, Stage(80, shut=CLOSED), Stage(110, BACK, refusal=SUDO), Stage(999, BACK))
    assert waits(world).until_up(30) == ("the controller could not log in: port 22 was closed",)


def test_a_host_key_that_stays_another_one_is_named_at_the_end(waits: Any) -> None:
    world = World(*DOWN, Stage(9999, shut=OTHER_KEY))
    with pytest.raises(Unreachable, match="the host key is another one") as caught:
        waits(world, None, 300).until_up(30)
    assert caught.value.fix.startswith("invoke trust")


def test_a_connection_that_is_lost_before_the_boot_is_complete_is_made_again(waits: Any) -> None:
    """The address of the new boot changes after a moment."""
    world = World(*DOWN, Stage(25, TRIAL), Stage(90, shut=SILENT), Stage(999, BACK))
    wait = waits(world)
    assert wait.until_up(30) == ()
    world.now += 15
    lost = Unreachable("box", "the connection was lost (timed out)", brief="the connection was lost")
    assert wait.again(lost, 30) == (GONE,)
    assert any(note.startswith("the connection was lost; unless the new boot is confirmed") for note in world.events)
    assert 90 <= world.at_s < 115


def test_a_lease_that_another_run_has_ends_the_wait(waits: Any) -> None:
    world = World(*DOWN, Stage(999, TRIAL))
    answer = world.answer

    def lost(cmd: Command) -> Result:
        return Result(lease.LOST, b"", b"another") if "lease" in str(cmd) else answer(cmd)

    world._answers = lost
    with pytest.raises(HostError, match="the lease of this run is gone"):
        waits(world).until_up(30)


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"x" * 9000, b"boot-trial\n\n\n"])
def test_a_host_that_tells_no_boot_is_not_back(text: bytes) -> None:
    boot = boot_wait._boot([Result(0, text), Result(0, b"not a number\n")])
    assert boot is None or (boot.boot_id, boot.tried_by) == ("boot-trial", "") or text == b"\xff\xfe"


class Trials:
    """The trials of a run, on a host whose boot a world tells."""

    judged_within_s = 30.0
    reboot = Reboot(confirm_within_s=60)

    def __init__(self, run: HostRun, *unhealthy: str) -> None:
        self.run, self.unhealthy = run, unhealthy

    def state(self) -> Any:
        self.run.store.forget()
        running = self.run.value(system.boot_id) == TRIAL
        return SimpleNamespace(stage="running" if running else "returned", run="RUN")

    def reasons(self, _trial: Any, _step: Any) -> tuple[str, ...]:
        time.sleep(15)
        self.run.transport.run([command("systemctl", "is-system-running")])
        return self.unhealthy

    def give_up(self) -> Command:
        return command("sh", "watch", "words")

    def close(self, _trial: Any, why: tuple[str, ...], _work: Any, _seen: Any) -> Any:
        return SimpleNamespace(text="; ".join(why), said=())


@pytest.mark.parametrize(
    ("stages", "stage", "seen"),
    [
        ((Stage(40, shut=SILENT), Stage(999, TRIAL)), "running", ()),
        ((Stage(40, TRIAL, refusal=SUDO), Stage(999, TRIAL)), "running", ()),
        ((Stage(90, shut=SILENT), Stage(999, BACK)), "returned", (GONE,)),
    ],
    ids=["a moment", "sudo", "for good"],
)
def test_a_connection_that_is_lost_while_the_boot_is_judged_is_made_again(
    waits: Any, stages: tuple[Stage, ...], stage: str, seen: tuple[str, ...]
) -> None:
    world = World(*DOWN, Stage(25, TRIAL), *stages)
    wait = waits(world)
    assert wait.until_up(30) == ()
    trials: Any = Trials(wait.run)
    reboots = Reboots(wait.run, wait.held, (), (), trials)
    reboots._becomes_ok = lambda *_args: True  # type: ignore[method-assign]
    step: Any = None
    trial, why, kept_out = reboots._judgement(step, wait, ())
    assert trial is not None
    assert (trial.stage, why, kept_out) == (stage, (), seen)


def test_a_connection_that_is_lost_before_the_order_to_go_back_ends_when_the_host_has_gone_back(
    waits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    world = World(*DOWN, Stage(40, TRIAL), Stage(90, shut=SILENT), Stage(999, BACK))
    wait = waits(world)
    wait.until_up(30)
    trials: Any = Trials(wait.run, "0 of 4 GPUs answer")
    reboots = Reboots(wait.run, wait.held, (), (), trials)
    reboots._becomes_ok = lambda *_args: True  # type: ignore[method-assign]
    step: Any = SimpleNamespace(name="Reboot")
    answer = world.answer

    def lost(cmd: Command) -> Result:
        if "watch" in cmd.argv:
            world.now = 1050.0
        return answer(cmd)

    world._answers = lost
    with pytest.raises(HostError, match="the host went back to what ran before: 0 of 4 GPUs answer"):
        reboots._judge_trial(step, 900, wait)
    assert 90 <= world.at_s < 115
