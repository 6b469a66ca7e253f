"""Makes virtual machines, boots them or starts them from a recorded state, and waits until a login works."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lab.base.programs import need
from lab.host import cgroups, login
from lab.vm import disk_layouts, image, machine, recording
from lab.vm.accelerator import accelerator
from lab.vm.console import Console, boots as boots_on
from lab.vm.device import build as devices
from lab.vm.disk_layouts import DiskLayout
from lab.vm.distributions import DEFAULT, DISTRIBUTIONS, Distribution
from lab.vm.hardware import power_on
from lab.vm.identity import login_key, write_identity
from lab.vm.machine import FIRMWARES, Firmware, Machine
from lab.vm.recording import resume
from rigwright.core.errors import HostError, UsageError

BOOT_S = 900.0
"""A boot under software emulation on a busy machine took 140 s."""

MEMINFO = Path("/proc/meminfo")
SPARE_MIB = 512
"""The memory of QEMU itself: 256 MiB of translated code, and devices."""

RESTARTS = 2
"""How often a boot that ends in a kernel panic is started again: under emulation a late timer can cause one."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Kind:
    """What a virtual machine is to be."""

    distribution: Distribution
    firmware: Firmware
    memory_mib: int
    layout: DiskLayout | None = None
    warm: bool = False


@dataclass(frozen=True)
class Started:
    """A machine that was switched on, with its console since then. `is_resumed`: it went on from a recorded state."""

    machine: Machine
    console: Console
    is_resumed: bool


def kind(
    distro: str | None,
    firmware: str | None,
    *,
    disk: str | None = None,
    warm: bool = False,
    memory_mib: int = machine.MEMORY_MIB,
) -> Kind:
    """Returns the kind of machine that the flags ask for. Raises UsageError for an unknown one."""
    distribution = DISTRIBUTIONS.get(distro or DEFAULT)
    if distribution is None:
        raise UsageError("lab.up", f"--vm --distro {distro}", " or ".join(DISTRIBUTIONS), "invoke lab.up --help")
    found = next((name for name in FIRMWARES if name == (firmware or "bios")), None)
    if found is None:
        raise UsageError("lab.up", f"--firmware {firmware}", ", ".join(FIRMWARES), "invoke lab.up --help")
    layout = disk_layouts.layout(disk)
    if warm and layout is not None and layout.disks > 1:
        raise UsageError("lab.up", f"--warm --disk {disk}", "--warm for a machine with one disk", "leave --warm out")
    return Kind(distribution, found, memory_mib, layout, warm)


def build(rig: str | None, wanted: Kind, say: Say) -> None:
    """Builds the image of a kind of machine, and the simulated devices if it has a rig, unless the cache has them:
    minutes.

    Each has a lock of its own: the lab's is not held meanwhile, so that other commands go on.
    """
    need(machine.PROGRAMS)
    image.image(wanted.distribution, say, wanted.layout)
    if rig is not None:
        devices.library(say)


def up(names: Sequence[str], rig: str | None, wanted: Kind, say: Say) -> list[Started]:
    """Switches machines on, and makes those that do not exist; wait() waits for them. An existing machine keeps its
    disk."""
    login_key()
    say(f"virtual machines run under {accelerator().text}")
    started = []
    for name in names:
        found = machine.load(name)
        if found is not None:
            _check_same(found, rig, wanted)
        is_new = found is None
        made = found or create(name, rig, wanted, say)
        began = Started(made, Console(made.console), is_resumed=is_new and bool(made.recording))
        if not machine.running(name):
            _need_memory(made)
            say(f"{name}: {'goes on from its recorded state' if began.is_resumed else 'power on'}")
            resume(made, say) if began.is_resumed else power_on(made, say)
        started.append(began)
    return started


def _check_same(found: Machine, rig: str | None, wanted: Kind) -> None:
    """Raises UsageError when an existing machine has another rig, release or firmware than those requested."""
    asked = {"rig": rig or found.rig, "distro": wanted.distribution.name, "firmware": wanted.firmware}
    asked["layout"] = wanted.layout.name if wanted.layout else disk_layouts.PLAIN
    for word, value in asked.items():
        if getattr(found, word) != value:
            todo = f"sudo .venv/bin/invoke lab.down --name {found.name}"
            raise UsageError(found.name, f"it is there with {word} {getattr(found, word) or 'none'}", str(value), todo)


def _need_memory(made: Machine) -> None:
    """Raises HostError when this machine has not the memory that the virtual one can take: it would end other
    programs."""
    free_mib = next(
        int(line.split()[1]) >> 10 for line in MEMINFO.read_text().splitlines() if line.startswith("MemAvailable")
    )
    if free_mib < made.memory_mib + SPARE_MIB:
        found = f"{free_mib} MiB of memory are available on this machine"
        fix = "end other programs, or sudo .venv/bin/invoke lab.down"
        raise HostError(made.name, found, f"{made.memory_mib + SPARE_MIB} MiB for a virtual machine", fix)


def described(name: str, rig: str | None, wanted: Kind) -> Machine:
    """Returns a machine as it would be made; nothing exists yet."""
    return Machine(
        name,
        rig,
        wanted.distribution.name,
        wanted.firmware,
        str(image.path_of(wanted.distribution, wanted.layout)),
        machine.free_port(),
        wanted.memory_mib,
        layout=wanted.layout.name if wanted.layout else disk_layouts.PLAIN,
    )


def create(name: str, rig: str | None, wanted: Kind, say: Say) -> Machine:
    """Makes a machine with an empty disk over its release's image, or over a recording. Its record is written last.

    With `wanted.warm` a machine that has no recording is booted and recorded first.
    """
    build(rig, wanted, say)
    made = described(name, rig, wanted)
    if wanted.warm:
        place = recording.place(made)
        if not place.is_dir():
            _boot_once(made, place, say)
        return from_recording(made, place)
    _make(made)
    return made


def from_recording(wanted: Machine, place: Path) -> Machine:
    """Makes a machine that goes on from a recorded state; resume() switches it on."""
    made = replace(wanted, image=str(place / "disk.qcow2"), recording=str(place))
    machine.create_disk(made)
    for path in place.iterdir():
        if path.name == "identity.tar" or path.name.startswith("ssh_host_"):
            shutil.copy2(path, made.folder / path.name)
    machine.save(made)
    return made


def _make(made: Machine) -> None:
    machine.create_disk(made)
    write_identity(made)
    machine.save(made)


def _boot_once(made: Machine, place: Path, say: Say) -> None:
    """Boots a new machine until a login works, records it, and removes it."""
    say(f"{made.name}: has no recorded state yet; it boots once")
    _make(made)
    try:
        login.record([*machine.known()])
        started = Started(made, Console(made.console), is_resumed=False)
        power_on(made, say)
        wait(started, say)
        recording.record(made, place, say)
    finally:
        machine.delete(made.name)


def wait(started: Started, say: Say, deadline: float = BOOT_S) -> float:
    """Waits until a login works and returns the seconds it took. Starts a machine again whose kernel panics in the
    boot.

    Raises HostError with the console's last lines for a third panic, for a machine that powers off, and at the
    deadline.
    """
    made, log = started.machine, started.console
    began, restarts = time.monotonic(), 0
    while time.monotonic() - began < deadline:
        if login.answers(made, 5) and login.ssh(made, "true", deadline=60).returncode == 0:
            if started.is_resumed:
                recording.set_clock(made)
            return time.monotonic() - began
        panic = log.panic()
        if panic and restarts < RESTARTS:
            restarts += 1
            say(f"{made.name}: {panic}; starting it again")
            machine.cut(made.name)
            log = Console(made.console)
            power_on(made, say)
        elif panic:
            raise HostError(made.name, f"its kernel panics: {panic}", "a boot", f"sudo less {made.console}")
        if not cgroups.processes(made.name):
            raise HostError(made.name, f"it switched itself off: {log.last()}", "a boot", f"sudo less {made.console}")
        time.sleep(0.3)
    raise HostError(made.name, f"no login after {deadline:.0f} s: {log.last()}", "a login", f"sudo less {made.console}")


def boots(made: Machine) -> int:
    """Returns how often the machine's kernel has started, by its console."""
    return boots_on(made.console)
