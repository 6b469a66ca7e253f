"""Simulated hosts for tests of many hosts: each needs a folder until it has made it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rigwright.core.command import Command, Result
from rigwright.core.errors import Interrupted, Unreachable
from rigwright.facts import own_programs, pci, system
from rigwright.facts.nccl import p2p_record
from rigwright.inventory.model import Host
from rigwright.ssh import open_transport
from tests.ssh.fake_transport import FakeTransport

if TYPE_CHECKING:
    import pytest

PLAY = "- name: P\n  hosts: all\n  tasks:\n    - name: Room\n      file.directory: {path: /srv/room}\n"


@dataclass
class Fleet:
    """The hosts that have their folder (in the order of making), that cannot make it, and that do not answer. `gpus`:
    of each host."""

    folder: Path
    names: tuple[str, ...]
    broken: set[str] = field(default_factory=set)
    away: set[str] = field(default_factory=set)
    made: list[str] = field(default_factory=list)
    connected: list[str] = field(default_factory=list)
    gpus: int = 0
    before: Callable[[str], object] = str
    """Called with a host's name before it makes its folder."""
    hosts: dict[str, Answering] = field(default_factory=dict, repr=False)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def inventory(self) -> str:
        """Returns the path of the inventory file of all hosts."""
        return str(self.folder / "hosts.yml")

    @property
    def playbook(self) -> str:
        """Returns the path of the playbook that requires the folder."""
        return str(self.folder / "play.yml")

    def answer(self, name: str, cmd: Command) -> Result:
        """Returns the host's result for a command."""
        if cmd == system.boot_id.command:
            return Result(0, b"b00d1d\n")
        if cmd == p2p_record.record.command:
            return Result(0, b"record\n")
        if cmd == pci.gpus.command:
            return Result(0, "".join(f"0000:0{n}:00.0 0x030200 1db1 \n" for n in range(self.gpus)).encode())
        if cmd in (system.simulated.command, own_programs.at_work.command):
            return Result(0, b"") if cmd == own_programs.at_work.command else Result(1, b"")
        if cmd.argv[-2:-1] == ("root:root",):  # the command that makes the directory
            self.before(name)
            if name in self.broken:
                return Result(1, b"", b"mkdir: cannot create directory '/srv/room': No space left on device")
            with self.lock:
                self.made.append(name)
            return Result(0, b"")
        if cmd.argv[-1].startswith("/srv/") and cmd.argv[0] == "sh":
            there = name in self.made and cmd.argv[-1] == "/srv/room"
            return Result(0, b"directory|755|root|root|4096\n" if there else b"absent\n")
        return Result(0, b"")


class Answering(FakeTransport):
    """A host of the fleet."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        super().__init__(lambda cmd: fleet.answer(name, cmd))
        self.fleet, self.name = fleet, name
        self.abandoned = threading.Event()
        fleet.hosts[name] = self

    def connect(self, timeout_s: float | None = None) -> None:  # noqa: ARG002
        if self.name in self.fleet.away:
            raise Unreachable(self.name, "the connection was refused", "a running sshd", "is it up?")
        self.fleet.connected.append(self.name)

    def abandon(self) -> None:
        self.abandoned.set()

    def run(self, commands: Sequence[Command], *, together: bool = False) -> list[Result]:
        if self.abandoned.is_set():
            raise Interrupted(self.name, "interrupted")
        return super().run(commands, together=together)


def fleet(folder: Path, patch: pytest.MonkeyPatch, *names: str) -> Fleet:
    """Replaces the real transport; returns a fleet of hosts with these names."""
    made = Fleet(folder, names)
    (folder / "hosts.yml").write_text("gpu:\n  hosts:\n" + "".join(f"    {name}:\n" for name in names))
    (folder / "play.yml").write_text(PLAY)

    def opened(host: Host, *_options: object) -> Answering:
        return Answering(made, host.name)

    patch.setattr(open_transport, "open_transport", opened)
    return made
