"""The functions of the lab's commands: up, down, status, ssh_config, power and snapshots. Every wait has a deadline."""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lab.archive import repositories, server
from lab.base.distros import DEFAULT, distros
from lab.base.lock import lock, need_root
from lab.base.paths import CACHE, HOSTS, RIGS, STATE, USER, folder
from lab.base.programs import need
from lab.cli import inventory
from lab.hardware import hw_state
from lab.host import cgroups, disk, image, inotify, login, network
from lab.host.active_faults import standing
from lab.host.disk import Host
from lab.power import copies, switch
from lab.power.rig import install, layers, plug_in
from lab.simulators.cuda.wheels import make_wheels
from lab.simulators.kernelfs import serve as kernelfs
from lab.vm import commands as vm, machine, real_driver, recording
from lab.vm.console import Console
from lab.vm.identity import login_key
from rigwright.core.errors import RigwrightError, UsageError

Say = Callable[[str], None]


@dataclass(frozen=True)
class HostStatus:
    """The state of a host. `uptime_s` is None while it is off, `address` while the lab has no network.

    `loaded` and `installed` are driver versions: None without a driver, "?" when the caller may not read the host's
    disk. `machine`: release and firmware of a virtual machine.
    """

    name: str
    rig: str | None
    address: str | None
    state: Literal["up", "booting", "off"]
    boots: int
    uptime_s: float | None
    loaded: str | None
    installed: str | None
    faults: tuple[str, ...]
    machine: str = ""

    def __str__(self) -> str:
        """Returns the host's line of lab.status."""
        driver = f"driver {self.loaded or 'none'}, installed {self.installed or 'none'}" if self.rig else ""
        driver = f"virtual machine, {self.machine}" if self.machine else driver
        broken = f"faults: {' '.join(self.faults)}" if self.faults else ""
        words = f"{self.name:16} {self.rig or '-':16} {self.address or '-':16} {self.state:8} boot {self.boots:<4}"
        return f"{words} {driver:44} {broken}".rstrip()


def up(
    *,
    name: str | None = None,
    rig: str | None = None,
    count: int | None = None,
    distro: str | None = None,
    snapshot: Path | None = None,
    copy_of: str | None = None,
    say: Say,
) -> None:
    """Boots hosts until the user can log in over ssh, and lists them in .lab/inventory.

    An existing host keeps its disk. With `count` the hosts are NAME1 to NAMEcount, else there is one, NAME. The disk of
    a new host is empty, or a copy of `snapshot`, which take_snapshot made of a host of the same distribution. With
    `copy_of` new hosts are copies of that host, which is switched off for the moment in which its disk is copied.
    """
    source = None if copy_of is None else switch.get(copy_of)
    if source is not None:
        _check_same(source, rig, distro)
        if faults := standing(source.name):
            todo = f"sudo .venv/bin/invoke lab.heal --host {source.name}"
            raise UsageError(source.name, f"it has the fault {faults[0]}", "a host without faults", todo)
        name, rig, distro = name or f"{source.name}-copy", source.rig, source.distro if source.rig else None
    _check_rig(rig)
    _check_distro(distro, rig)
    first, names = _names(name, rig, count)
    flags = {"rig": rig, "count": count, "distro": distro, "copy-of": copy_of}
    need_root(" ".join(["lab.up", "--name", first, *(f"--{flag} {value}" for flag, value in flags.items() if value)]))
    need()
    if not all(map(disk.load, names)):
        _images(rig, distro or DEFAULT, say)
    with lock(say):
        _check_kind(names, {one.name for one in machine.known()}, "a virtual machine", "--vm")
        for one in filter(None, map(disk.load, names)):
            _check_same(one, rig, distro)
        inotify.raised()
        login.key()
        network.bridge_up()
        kernelfs.up(say)
        running = {one for one in names if switch.running(one)}
        original = None if source is None or all(map(disk.load, names)) else _freeze(source)

        def create(each: str) -> Host:
            if original is not None:
                return _copy(each, original, say)
            return _create(each, rig, distro or DEFAULT, snapshot, say)

        hosts: list[Host] = []
        with ThreadPoolExecutor(4) as pool:  # the first hosts boot while the others are created
            begun = []
            for each in names:
                hosts.append(disk.load(each) or create(each))
                _serve(hosts[-1], say)
                begun.append(pool.submit(switch.on, hosts[-1]))
            for on in begun:
                on.result()
        login.record(_hosts())
    if original is not None and switch.running(original.host.name):
        hosts.append(original.host)
    new = [one for one in hosts if one.name not in running]
    if new:
        say(f"{', '.join(one.name for one in new)}: power on")
    try:
        _wait(hosts, running, say)
    finally:
        with lock(say):
            inventory.write_inventory()


def up_vm(
    *,
    name: str | None = None,
    rig: str | None = None,
    count: int | None = None,
    distro: str | None = None,
    firmware: str | None = None,
    disk_layout: str | None = None,
    warm: bool = False,
    with_driver: bool = True,
    say: Say,
) -> list[machine.Machine]:
    """Boots virtual machines until the user can log in over ssh, lists them in .lab/inventory, and returns them.

    They have a kernel, GRUB and an initramfs of their own. An existing machine keeps its disk. With `warm` a new one
    goes on from a recorded state. `with_driver` prepares those with a rig for NVIDIA's real driver.
    """
    _check_rig(rig)
    wanted = vm.kind(distro, firmware, disk=disk_layout, warm=warm)
    first, names = _names(name, rig, count)
    flags = {"rig": rig, "count": count, "distro": distro, "firmware": firmware, "disk": disk_layout}
    need_root(
        " ".join(["lab.up --vm", "--name", first, *(f"--{flag} {value}" for flag, value in flags.items() if value)])
    )
    _check_kind(names, {one.name for one in disk.known()}, "a light host", "no --vm")
    if not all(map(machine.load, names)):
        vm.build(rig, wanted, say)
    with lock(say):
        _check_kind(names, {one.name for one in disk.known()}, "a light host", "no --vm")
        running = {one for one in names if machine.running(one)}
        if rig is not None:
            make_wheels(folder(CACHE / "wheels"), CACHE)
        started = vm.up(names, rig, wanted, say)
        login.record(_hosts())
        inventory.write_inventory()
    for each in started:
        one, took = each.machine, vm.wait(each, say)
        state = "already up" if one.name in running else f"up after {took:.1f} s"
        say(f"{one.name}: {state}, {USER}@{one.address} port {one.port}")
    machines = [each.machine for each in started]
    for one in machines if with_driver else ():
        real_driver.prepare(one, say)
    return machines


def resume_vm(wanted: machine.Machine, state: str, say: Say) -> None:
    """Makes a machine from a recorded state, waits until the user can log in, and lists it in .lab/inventory.

    Raises UsageError when there is no such recording, or a host with the machine's name.
    """
    place = recording.place(wanted, state)
    if not place.is_dir():
        raise UsageError(wanted.name, f"no recording {place}", "one", "sudo scripts/test --vm makes it")
    with lock(say):
        _check_kind([wanted.name], _traces(), "a host", "a name that is free")
        login_key()
        made = vm.from_recording(wanted, place)
        started = vm.Started(made, Console(made.console), is_resumed=True)
        recording.resume(made, say)
        login.record(_hosts())
        inventory.write_inventory()
    say(f"{made.name}: up after {vm.wait(started, say):.1f} s")


def record_vm(name: str, state: str, say: Say) -> None:
    """Records the state of a running machine, and removes the machine. resume_vm makes it again in that state."""
    made = machine.load(name)
    if made is None:
        raise UsageError("lab", f"no virtual machine {name!r}", fix=f"sudo .venv/bin/invoke lab.up --vm --name {name}")
    recording.record(made, recording.place(made, state), say)
    down(name=name, say=say)


def _names(name: str | None, rig: str | None, count: int | None) -> tuple[str, list[str]]:
    """Returns the name that --name and --rig say, and the names of all hosts."""
    first = name or rig or "plain"
    return first, [_check_name(one) for one in _numbered(first, count)]


def _check_kind(names: list[str], others: set[str], kind: str, flag: str) -> None:
    """Raises UsageError when a host of one of the names is of another kind."""
    for name in names:
        if name in others:
            todo = f"another --name, or sudo .venv/bin/invoke lab.down --name {name} first"
            raise UsageError(name, f"it is there as {kind}", flag, todo)


def _hosts() -> list[login.Reachable]:
    """Returns every light host and virtual machine whose address is known."""
    light: list[login.Reachable] = [*disk.known()] if network.subnet() is not None else []
    return [*light, *machine.known()]


def _numbered(name: str, count: int | None) -> list[str]:
    """Returns NAME, or NAME1 to NAMEcount. Raises UsageError for an invalid count."""
    room = network.LAST - network.FIRST
    if count is not None and not 1 <= count <= room:
        raise UsageError("lab.up", f"--count {count}", f"1 to {room} hosts", "invoke lab.up --help")
    return [name] if count is None else [f"{name}{number}" for number in range(1, count + 1)]


def _check_same(one: Host, rig: str | None, distro: str | None) -> None:
    """Raises UsageError when an existing host has another rig or distribution than those requested."""
    for word, has, asked in (("rig", one.rig, rig), ("distro", one.distro, distro)):
        if asked is not None and has != asked:
            todo = f"invoke lab.down --name {one.name} first"
            raise UsageError(one.name, f"it is there with {word} {has or 'none'}", asked, todo)


def _wait(hosts: list[Host], running: set[str], say: Say) -> None:
    """Waits until the user can log in to every host. Raises the first error after waiting for all hosts."""
    with ThreadPoolExecutor(min(len(hosts), 16)) as pool:
        waits = [(one, pool.submit(login.wait, one)) for one in hosts]
    failed = None
    for one, waited in waits:
        try:
            took = waited.result()
        except RigwrightError as error:
            failed = failed or error
        else:
            state = "already up" if one.name in running else f"up after {took:.1f} s"
            say(f"{one.name}: {state}, {USER}@{one.address}")
    if failed:
        raise failed


def _images(rig: str | None, distro: str, say: Say) -> tuple[Path, ...]:
    """Returns the images of a host's disk, topmost first, and first builds those that the cache lacks.

    Each has a lock of its own. `up` also calls it before it takes the lab's, so that other commands build other images
    meanwhile.
    """
    with ThreadPoolExecutor(1) as pool:
        archive = pool.submit(repositories.archive, folder(CACHE), say) if rig is not None else None
        base = image.base(say)
        if archive is not None:
            archive.result()
    return (*(layers(rig, CACHE, base, say, distro) if rig is not None else ()), base)


def _create(name: str, rig: str | None, distro: str, snapshot: Path | None, say: Say) -> Host:
    """Creates a host with an empty disk over its images, or a copy of the snapshot. Its record is written last."""
    one = Host(name, rig, disk.free_number(), _images(rig, distro, say), distro)
    disk.delete(name)
    if snapshot is not None:
        disk.copy_changes(snapshot, one.folder / "upper")
    disk.mount(one)
    disk.furnish(one)
    if rig is not None:
        install(rig, name, one.root, one.hw, _serve(one, say), distro)
    disk.save(one)
    image.forget({layer for other in disk.known() for layer in other.layers})
    return one


def _freeze(source: Host) -> copies.Original:
    """Freezes a host as it is, with the power cut; it boots again if it was on."""
    was_on = switch.running(source.name)
    switch.cut(source.name)
    original = copies.freeze(source)
    if was_on:
        switch.on(source)
    return original


def _copy(name: str, original: copies.Original, say: Say) -> Host:
    """Creates a copy of a frozen host. Its record is written last."""
    one = Host(name, original.host.rig, disk.free_number(), original.layers, original.host.distro)
    disk.delete(name)
    disk.mount(one)
    disk.furnish(one)
    if one.rig is not None:
        plug_in(one.rig, name, one.hw, _serve(one, say))
    copies.make_own(one, original)
    disk.save(one)
    return one


def _serve(one: Host, say: Say) -> str:
    """Serves the package archive for a host with a rig, and returns its URL. Returns "" for a host without one."""
    if one.rig is None:
        return ""
    make_wheels(folder(CACHE / "wheels"), CACHE)
    return server.serve(repositories.archive(CACHE, say))


def down(*, name: str | None = None, say: Say) -> None:
    """Removes the host, or all hosts and their network. Keeps the cache and the lab's ssh key.

    It reads from the system which hosts exist, so it works after crashes, without state files, and when called twice.
    """
    need_root(" ".join(["lab.down", *(["--name", name] if name else [])]))
    if not STATE.exists() and not cgroups.groups() and not network.attached():
        say("the lab is not up: nothing to do")
        return
    with lock(say):
        there = _traces()
        if name is not None and name not in there:
            say(f"{name}: not there, nothing to do")
        gone = sorted(there if name is None else there & {name})
        for one in gone:
            cgroups.kill(one)
        for one in gone:
            _remove(one)
            say(f"{one}: removed")
        copies.forget({layer for other in disk.known() for layer in other.layers})
        if not _traces():
            server.stop()
            kernelfs.stop()
            cgroups.kill()
            disk.unmount(HOSTS)
            network.remove()
            cgroups.remove()
            inotify.restored()
        else:
            login.record(_hosts())
        inventory.write_inventory()


def _traces() -> set[str]:
    """Returns every host that left anything: a record, a disk, a control group or a network namespace."""
    disks = {path.name.removesuffix(".json") for path in HOSTS.glob("*")}
    machines = {path.name.removesuffix(".json") for path in machine.VMS.glob("*")}
    return disks | machines | (cgroups.groups() - {server.GROUP, kernelfs.GROUP}) | network.attached()


def _remove(name: str) -> None:
    machine.delete(name)
    switch.cut(name)
    one = disk.load(name)
    if one is not None and network.subnet() is not None:
        server.trouble(str(one.address), None)
    network.detach(name)
    kernelfs.forget(name)
    disk.delete(name)
    cgroups.remove(name)


def take_snapshot(name: str, folder: Path) -> None:
    """Switches the host off and copies its disk to `folder`.

    up(snapshot=folder) creates hosts with a copy of this disk.
    """
    need_root("lab.down")
    power_cut(name)
    disk.snapshot(switch.get(name), folder)


def power_cut(name: str) -> None:
    """Cuts the host's power at this moment. Its disk does not change."""
    need_root("lab.power-cut")
    switch.cut(switch.get(name).name)


def power_on(name: str) -> None:
    """Boots the host from its disk, and returns at once; login.wait waits. Raises UsageError for an unknown host."""
    need_root("lab.power-on")
    one = switch.get(name)
    network.bridge_up()
    _serve(one, lambda _: None)
    kernelfs.up(lambda _: None)
    switch.on(one)


def status() -> list[HostStatus]:
    """Returns the current state of every known host. It needs no root."""
    return [*map(_status, disk.known()), *map(_vm_status, machine.known())]


def _vm_status(one: machine.Machine) -> HostStatus:
    live = machine.running(one.name)
    state: Literal["up", "booting", "off"] = "off" if not live else "up" if login.answers(one, 5) else "booting"
    place = f"{one.address}:{one.port}"
    return HostStatus(
        one.name,
        one.rig,
        place,
        state,
        vm.boots(one),
        None,
        "?",
        "?",
        tuple(map(str, standing(one.name))),
        f"{one.distro} {one.firmware}",
    )


def _status(one: Host) -> HostStatus:
    live, networked = switch.running(one.name), network.subnet() is not None
    times = one.boots.read_text().split() if one.boots.exists() else []
    state: Literal["up", "booting", "off"] = (
        "off" if not live else "up" if networked and login.answers(one) else "booting"
    )
    uptime = time.time() - float(times[-1]) if live and times else None
    faults = tuple(str(found) for found in standing(one.name))
    address = str(one.address) if networked else None
    return HostStatus(one.name, one.rig, address, state, len(times), uptime, *_driver(one), faults)


def _driver(one: Host) -> tuple[str | None, str | None]:
    """Returns the versions of the loaded module and of the library on the disk."""
    if not os.access(one.folder, os.X_OK):
        return "?", "?"
    loaded = hw_state.read(one.hw, hw_state.VOLATILE).get("driver.loaded", "none")
    library = one.root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    return None if loaded == "none" else loaded, library.readlink().name.split(".so.")[
        1
    ] if library.is_symlink() else None


def ssh_config() -> str:
    """Returns an OpenSSH configuration for `ssh -F FILE HOST`. It is empty while the lab has no network."""
    return login.ssh_config(_hosts())


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?", name) or name in ("localhost", "all", "gpu"):
        raise UsageError("lab.up", f"{name!r} cannot be a host's name", "a-z, 0-9 and -, at most 30 characters")
    return name


def _check_rig(rig: str | None) -> None:
    rigs = sorted(path.stem for path in RIGS.glob("*.yml"))
    if rig is not None and rig not in rigs:
        close = difflib.get_close_matches(rig, rigs, 1)
        hint = f"did you mean {close[0]!r}?" if close else "choose one of them"
        raise UsageError("lab.up", f"unknown rig {rig!r}", ", ".join(rigs) or "a file in lab/hardware/rigs", hint)


def _check_distro(distro: str | None, rig: str | None) -> None:
    if distro is not None and distro not in distros():
        close = difflib.get_close_matches(distro, distros(), 1)
        hint = f"did you mean {close[0]!r}?" if close else "choose one of them"
        raise UsageError("lab.up", f"unknown distro {distro!r}", ", ".join(distros()), hint)
    if distro is not None and rig is None:
        raise UsageError(
            "lab.up", "a distro without a rig", "plain hosts are Debian 12", "lab.up --rig RIG --distro DISTRO"
        )
