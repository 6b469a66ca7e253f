"""Waits for the boot of a host, and says what it sees: port 22 is closed, ssh refused the key, sudo wants a password.

Each look connects anew and asks for root anew: what refuses now may be late (sshd, a directory of users, a rule of
sudo). Where root is refused but not the login, a look still reads which boot runs. So the wait knows a boot that is
tried once from what ran before, and ends soon after the host has gone back.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from rigwright.core.command import Command, Result, script
from rigwright.core.control_characters import one_line
from rigwright.core.errors import HostError, HostKeyRefused, LoginRefused, NoRoot, RigwrightError, Unreachable
from rigwright.engine import lease
from rigwright.engine.host_run import HostRun
from rigwright.facts import system
from rigwright.facts.kernel import TRIAL_WORDS
from rigwright.ssh.transport import Transport

LOGIN_S = 10.0
"""The longest wait of one look for a login."""
MOST_PAUSE_S = 10.0
"""The longest pause between two looks. After each refusal it is longer: sshd locks out a user who is refused too
often."""
NOTE_EVERY_S = 20.0
"""A wait repeats its message so often; a look may take LOGIN_S more, so there is a message every 30 seconds."""
BRIEF_S = 5.0
"""What is seen for a shorter time is not noted: a shutdown shows much that means nothing."""
SETTLES_S = 120.0
"""Root may be refused for so long in a boot that stays, until that is an error: a rule of sudo may come from the
network."""
GOES_DOWN_S = 150
"""The longest shutdown at the end of a boot that is tried: its unit orders it twice, then forces it."""
UP_S = 240.0
"""The longest wait for the start of systemd after a boot that stays."""

_READ = (
    system.boot_id.command,
    script("cut -d' ' -f1 /proc/uptime; head -c 4096 /proc/cmdline", reads=True, timeout_s=20),
)


def systemd_up(within_s: float) -> Command:
    """The command that waits until the start of systemd is complete, `within_s` seconds at most."""
    return script(f"timeout {within_s:g} systemctl is-system-running --wait || :", timeout_s=within_s + 10)


class Boot(Struct, frozen=True):
    """A boot that runs: its id, the seconds since its start, and the run that tries it, "" for a boot that stays."""

    boot_id: str
    up_s: float
    tried_by: str


class Look(Struct, frozen=True):
    """What one look at a host showed.

    `refusal`: why root did not answer; None if it did. `boot`: the boot that runs; None if nobody could log in.
    `results`: of the commands that were run as root.
    """

    refusal: RigwrightError | None
    boot: Boot | None = None
    results: tuple[Result, ...] = ()

    @property
    def is_refusal(self) -> bool:
        """Whether the host answered, and refused the login or root."""
        return isinstance(self.refusal, (HostError, HostKeyRefused, LoginRefused))


def look(transport: Transport, commands: Sequence[Command] = ()) -> Look:
    """Logs in to a host again, and runs commands as root; asks nobody for a password. Raises Interrupted."""
    with transport.looking():
        try:
            transport.connect(LOGIN_S)
            results = transport.run([*_READ, *commands])
            return Look(None, _boot(results), tuple(results[len(_READ) :]))
        except Unreachable as error:
            return Look(error)
        except HostError as error:
            refusal = error
    with contextlib.suppress(Unreachable, HostError), transport.looking(as_user=True):
        return Look(refusal, _boot(transport.run(_READ, together=True)))
    return Look(refusal)


def _boot(answers: Sequence[Result]) -> Boot | None:
    """The boot in the answers to _READ; None if they have none."""
    boot_id, _, more = "\n".join(answer.text.strip() for answer in answers[: len(_READ)]).partition("\n")
    up_s, _, command_line = more.partition("\n")
    tried = TRIAL_WORDS.search(command_line)
    seconds = float(up_s) if re.fullmatch(r"\d{1,12}(\.\d{1,9})?", up_s) else 0.0
    return Boot(boot_id, seconds, tried[1] if tried else "") if re.fullmatch(r"\S{1,64}", boot_id) else None


class Tried(Struct, frozen=True):
    """A boot that is tried once: the run that tries it, the seconds within which it must be confirmed, and the longest
    time of a boot."""

    run: str
    confirm_within_s: int
    boot_s: int

    @property
    def limit_s(self) -> int:
        """The seconds within which the host answers after the reboot: it may boot twice before a look succeeds."""
        return 2 * self.boot_s + self.confirm_within_s + GOES_DOWN_S


class Sightings:
    """What a wait has seen since `began`. `note` shows a line to the user."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note
        self.began = self.looked_at = time.monotonic()
        self.seconds: dict[str, float] = {}
        """For how long each thing that kept the controller out was seen."""
        self.refusals: set[str] = set()
        """The things among these that the host itself has answered."""
        self.lost = ""
        """How a connection was lost after which these things were seen; "" for none."""
        self._text, self._since = "", self.began
        self._noted, self._noted_at = "", self.began

    def add(self, text: str, rest: Callable[[], str]) -> None:
        """Adds what a look showed; notes it, and the rest, when it is new and lasts, and every NOTE_EVERY_S seconds."""
        now = time.monotonic()
        if text != self._text:
            self._text, self._since = text, self.looked_at
        lasts = now - self._since >= BRIEF_S
        if (text != self._noted and lasts) or now - self._noted_at >= NOTE_EVERY_S:
            self._noted, self._noted_at = text, now
            self.note(f"waiting for it to come back, {now - self.began:.0f} s so far: {text}{rest()}")
        self.looked_at = now

    def keep(self, text: str, is_refusal: bool) -> None:
        """Counts the seconds since the last look for what kept the controller out."""
        self.seconds[text] = self.seconds.get(text, 0.0) + time.monotonic() - self.looked_at
        if is_refusal:
            self.refusals.add(text)

    def forget(self, lost: str = "") -> None:
        """Forgets what kept the controller out before; `lost`: how a connection was lost now."""
        self.seconds.clear()
        self.refusals.clear()
        self.lost, self.looked_at = lost, time.monotonic()

    @property
    def reasons(self) -> tuple[str, ...]:
        """One sentence about what kept the controller out: the refusals, or otherwise what was seen longest; () for
        nothing."""
        lasting = [text for text, seen_s in self.seconds.items() if seen_s >= BRIEF_S]
        lasting.sort(key=lambda text: -self.seconds[text])
        refused = [text for text in lasting if text in self.refusals]
        texts = dict.fromkeys(_past(text) for text in (self.lost, *(refused or lasting[:1])) if text)
        return (f"the controller could not log in: {', '.join(texts)}",) if texts else ()


def _past(text: str) -> str:
    """The sentence in the past tense."""
    return re.sub(r"\bis\b", "was", re.sub(r"\bwants\b", "wanted", text, count=1), count=1)


class BootWait:
    """Waits until a host runs another boot than `before` and answers as root there, at most `limit_s` seconds.

    `held` is the lease of the host, which is renewed then. `tried`: the boot is tried once, and the host goes back by
    itself; None for a boot that stays.
    """

    def __init__(self, run: HostRun, held: lease.Lease, before: str, limit_s: int, tried: Tried | None = None) -> None:
        self.run, self.held, self.before, self.limit_s, self.tried = run, held, before, limit_s, tried
        self.seen = Sightings(run.note)
        self.ends_at = self.seen.began + limit_s
        self.down_at: float | None = None
        self.goes_back_at: float | None = None
        self.stays: tuple[str, float] = ("", 0.0)
        """The boot that runs and stays, and when it was first seen."""

    def until_up(self, up_s: float) -> tuple[str, ...]:
        """Returns when root answers and the start of systemd is complete, or took `up_s` seconds.

        The result is what kept the controller out of a boot that was tried and has ended, () for nothing. Raises
        Unreachable at the limit, the refusal in a boot that stays and refuses root, HostError when the lease is lost,
        Interrupted.
        """
        refused = 0
        while True:
            time.sleep(min(MOST_PAUSE_S, 2.0 ** max(0, refused - 1)))
            now = self._look()
            self._time(now.boot)
            if self._is_back(now):
                try:
                    self.run.note(f"back after {time.monotonic() - self.seen.began:.0f} s")
                    self.run.store.forget()
                    self.run.transport.run([systemd_up(up_s)])
                    return () if self._is_tried(now.boot) else self.seen.reasons
                except (Unreachable, NoRoot) as error:
                    now = Look(error, now.boot)
            refused = refused + 1 if now.is_refusal else 0
            self._learn(now)
            self._require_time(now)

    def again(self, lost: RigwrightError, up_s: float) -> tuple[str, ...]:
        """As `until_up`, after a connection to a boot that is tried was lost."""
        self.run.note(f"{lost.brief}{self._rest()}")
        self.seen.forget(lost.brief)
        return self.until_up(up_s)

    def _look(self) -> Look:
        seen = look(self.run.transport, [self.held.renewal(self.limit_s)])
        if seen.refusal is None and seen.results and self._is_other(seen.boot):
            try:
                self.held.require(seen.results[0])
            except HostError as error:
                if seen.results[0].code == lease.LOST:
                    raise
                return Look(error, seen.boot)  # a full disk, which the way back may mend
        return seen

    def _is_other(self, boot: Boot | None) -> bool:
        return boot is not None and boot.boot_id != self.before

    def _is_tried(self, boot: Boot | None) -> bool:
        return bool(boot and self.tried and boot.tried_by == self.tried.run)

    def _is_back(self, look: Look) -> bool:
        """Whether root answers in another boot than before."""
        return look.refusal is None and self._is_other(look.boot)

    def _learn(self, look: Look) -> None:
        """Records and notes what a look has shown."""
        boot = look.boot
        text = one_line(look.refusal.brief)[:160] if look.refusal else "it answers"
        if boot and boot.boot_id == self.before:
            self.seen.add("it has not gone down yet", self._rest)
            return
        if look.refusal and not self.stays[0]:
            self.seen.keep(text, look.is_refusal)
        self.seen.add(f"the new boot runs, and {text}" if self._is_tried(boot) else text, self._rest)

    def _time(self, boot: Boot | None) -> None:
        """Records until when the boot that was seen can run."""
        now = time.monotonic()
        if boot and boot.boot_id == self.before:
            return
        self.down_at = self.down_at or now
        if boot and self.tried and self._is_tried(boot):
            self.goes_back_at = now + self.tried.confirm_within_s - boot.up_s
            self.ends_at = min(self.ends_at, self.goes_back_at + GOES_DOWN_S + self.tried.boot_s)
        elif boot and boot.boot_id != self.stays[0]:
            self.stays = boot.boot_id, now

    def _rest(self) -> str:
        """The end of a note: how the wait goes on."""
        now = time.monotonic()
        left = f"waiting up to {max(0.0, self.ends_at - now):.0f} s more"
        if self.tried is None:
            return f"; {left}"
        if self.stays[0]:
            return f"; what ran before is back; {left}"
        at = self.goes_back_at or (self.down_at or now) + self.tried.confirm_within_s
        if at <= now:
            return f"; the host goes back by itself now; {left}"
        about = "" if self.goes_back_at else "about "
        return f"; unless the new boot is confirmed, the host goes back by itself in {about}{at - now:.0f} s; {left}"

    def _require_time(self, look: Look) -> None:
        """Raises the error with which the wait ends."""
        now, error = time.monotonic(), look.refusal
        if error and look.boot and look.boot.boot_id == self.stays[0] and now - self.stays[1] >= SETTLES_S:
            back = "the host went back to what ran before, and there" if self.tried else "after its reboot"
            where = error.where or self.run.host.name
            raise type(error)(where, f"{back} {error.found}", error.expected, error.fix, error.brief)
        if now < self.ends_at:
            return
        sight = one_line(error.brief)[:160] if error else "it never went down"
        problem = f"it did not come back within {now - self.seen.began:.0f} s of its reboot: {sight}"
        fix = error.fix if error and look.is_refusal else "look at its console"
        off = "off and on again it boots what ran before; " if self.tried else ""
        raise Unreachable(self.run.host.name, problem, "a boot", f"{fix}; {off}then run the same command again")
