"""Owns what people ask of the lab: up, down, status, ssh_config, and the power button. Each wait has a deadline."""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from lab import archive_http, cgroups, host, hwstate, image, inotify, inventory, login, network, power
from lab.cuda.wheels import make_wheels
from lab.distros import DEFAULT, distros
from lab.hardware import hardware
from lab.host import Host
from lab.kernelfs import serve as kernelfs
from lab.lock import lock, need_root
from lab.paths import CACHE, HOSTS, RIGS, STATE, USER, folder
from lab.programs import need
from lab.standing import standing
from rigwright.errors import RigwrightError, UsageError

Say = Callable[[str], None]


@dataclass(frozen=True)
class HostStatus:
    """A host as it is now; `uptime_s` is None while it is off, `address` while the lab has no network.

    `loaded` and `installed` are driver versions: None without one, "?" for who may not read the host's disk.
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

    def __str__(self) -> str:
        """One line of lab.status."""
        driver = f"driver {self.loaded or 'none'}, installed {self.installed or 'none'}" if self.rig else ""
        broken = f"faults: {' '.join(self.faults)}" if self.faults else ""
        words = f"{self.name:16} {self.rig or '-':16} {self.address or '-':16} {self.state:8} boot {self.boots:<4} {driver:44} {broken}"
        return words.rstrip()


def up(
    *, name: str | None = None, rig: str | None = None, count: int | None = None, distro: str | None = None, say: Say
) -> None:
    """Hosts of that name let the user log in over ssh and stand in .lab/inventory; one that was off has its old disk.

    With `count` they are NAME1 to NAMEcount, else one, called NAME.
    """
    _check_rig(rig)
    _check_distro(distro, rig)
    first = name or rig or "plain"
    names = [_check_name(one) for one in _numbered(first, count)]
    flags = {"rig": rig, "count": count, "distro": distro}
    need_root(" ".join(["lab.up", "--name", first, *(f"--{flag} {value}" for flag, value in flags.items() if value)]))
    need()
    with lock(say):
        for one in filter(None, map(host.load, names)):
            _check_same(one, rig, distro)
        inotify.raised()
        login.key()
        network.bridge_up()
        kernelfs.up(say)
        running = {one for one in names if power.running(one)}
        hosts: list[Host] = []
        with ThreadPoolExecutor(4) as pool:  # the first ones boot while the others are made
            begun = []
            for each in names:
                hosts.append(host.load(each) or _create(each, rig, distro or DEFAULT, say))
                _serve(hosts[-1], say)
                begun.append(pool.submit(power.on, hosts[-1]))
            for on in begun:
                on.result()
        login.record()
    new = [one for one in hosts if one.name not in running]
    if new:
        say(f"{', '.join(one.name for one in new)}: power on")
    try:
        _wait(hosts, running, say)
    finally:
        with lock(say):
            inventory.write_inventory()


def _numbered(name: str, count: int | None) -> list[str]:
    """NAME, or NAME1 to NAMEcount; raises UsageError for a count that is none."""
    room = network.LAST - network.FIRST
    if count is not None and not 1 <= count <= room:
        raise UsageError("lab.up", f"--count {count}", f"1 to {room} hosts", "invoke lab.up --help")
    return [name] if count is None else [f"{name}{number}" for number in range(1, count + 1)]


def _check_same(one: Host, rig: str | None, distro: str | None) -> None:
    """A host that is there has the rig and the distribution that are asked for; raises UsageError."""
    for word, has, asked in (("rig", one.rig, rig), ("distro", one.distro, distro)):
        if asked is not None and has != asked:
            todo = f"invoke lab.down --name {one.name} first"
            raise UsageError(one.name, f"it is there with {word} {has or 'none'}", asked, todo)


def _wait(hosts: list[Host], running: set[str], say: Say) -> None:
    """Every host lets the user log in; raises the first error once all have been waited for."""
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


def _create(name: str, rig: str | None, distro: str, say: Say) -> Host:
    """A new host with an empty disk over its images; known only once it is complete."""
    base = image.base(say)
    layers = hardware().layers(rig, CACHE, base, say, distro) if rig is not None else []
    one = Host(name, rig, host.free_number(), (*layers, base), distro)
    host.delete(name)
    host.mount(one)
    host.furnish(one)
    if rig is not None:
        hardware().install(rig, name, one.root, one.hw, _serve(one, say), distro)
    host.save(one)
    image.forget({layer for other in host.known() for layer in other.layers})
    return one


def _serve(one: Host, say: Say) -> str:
    """The URL of the package archive, served when the host has a rig."""
    if one.rig is None:
        return ""
    make_wheels(folder(CACHE / "wheels"), CACHE)
    return archive_http.serve(hardware().archive(CACHE, say))


def down(*, name: str | None = None, say: Say) -> None:
    """Nothing is left of the host, or of all hosts and their network; the cache and the lab's ssh key stay.

    What is there is read from the system, not remembered: it works after crashes and with no state files, and twice.
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
        if not _traces():
            archive_http.stop()
            kernelfs.stop()
            cgroups.kill()
            host.unmount(HOSTS)
            network.remove()
            cgroups.remove()
            inotify.restored()
        elif network.subnet() is not None:
            login.record()
        inventory.write_inventory()


def _traces() -> set[str]:
    """Every host of which anything is left: a record, a disk, a control group, a network namespace."""
    disks = {path.name.removesuffix(".json") for path in HOSTS.glob("*")}
    return disks | (cgroups.groups() - {archive_http.GROUP, kernelfs.GROUP}) | network.attached()


def _remove(name: str) -> None:
    power.cut(name)
    one = host.load(name)
    if one is not None and network.subnet() is not None:
        archive_http.refuse(archive_http.refused() - {str(one.address)})
    network.detach(name)
    kernelfs.forget(name)
    host.delete(name)
    cgroups.remove(name)


def power_cut(name: str) -> None:
    """The host lost its power at this moment; its disk is as it was."""
    need_root("lab.power-cut")
    power.cut(power.the(name).name)


def power_on(name: str) -> None:
    """The host boots from the disk it had; returns at once, login.wait waits. Raises UsageError when it is not known."""
    need_root("lab.power-on")
    one = power.the(name)
    network.bridge_up()
    _serve(one, lambda _: None)
    kernelfs.up(lambda _: None)
    power.on(one)


def status() -> list[HostStatus]:
    """Every known host as it is now; needs no root."""
    return [_status(one) for one in host.known()]


def _status(one: Host) -> HostStatus:
    live, networked = power.running(one.name), network.subnet() is not None
    times = one.boots.read_text().split() if one.boots.exists() else []
    state: Literal["up", "booting", "off"] = (
        "off" if not live else "up" if networked and login.answers(one) else "booting"
    )
    uptime = time.time() - float(times[-1]) if live and times else None
    faults = tuple(str(found) for found in standing(one.name))
    address = str(one.address) if networked else None
    return HostStatus(one.name, one.rig, address, state, len(times), uptime, *_driver(one), faults)


def _driver(one: Host) -> tuple[str | None, str | None]:
    """The version of the loaded module and of the library on the disk."""
    if not os.access(one.folder, os.X_OK):
        return "?", "?"
    loaded = hwstate.read(one.hw, hwstate.VOLATILE).get("driver.loaded", "none")
    library = one.root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    return None if loaded == "none" else loaded, library.readlink().name.split(".so.")[
        1
    ] if library.is_symlink() else None


def ssh_config() -> str:
    """An OpenSSH configuration for `ssh -F FILE HOST`; empty while the lab has no network."""
    return login.ssh_config(host.known()) if network.subnet() is not None else ""


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?", name) or name in ("localhost", "all", "gpu"):
        raise UsageError("lab.up", f"{name!r} cannot be a host's name", "a-z, 0-9 and -, at most 30 characters")
    return name


def _check_rig(rig: str | None) -> None:
    rigs = sorted(path.stem for path in RIGS.glob("*.yml"))
    if rig is not None and rig not in rigs:
        close = difflib.get_close_matches(rig, rigs, 1)
        hint = f"did you mean {close[0]!r}?" if close else "choose one of them"
        raise UsageError("lab.up", f"unknown rig {rig!r}", ", ".join(rigs) or "a file in lab/rigs", hint)


def _check_distro(distro: str | None, rig: str | None) -> None:
    if distro is not None and distro not in distros():
        close = difflib.get_close_matches(distro, distros(), 1)
        hint = f"did you mean {close[0]!r}?" if close else "choose one of them"
        raise UsageError("lab.up", f"unknown distro {distro!r}", ", ".join(distros()), hint)
    if distro is not None and rig is None:
        raise UsageError(
            "lab.up", "a distro without a rig", "plain hosts are Debian 12", "lab.up --rig RIG --distro DISTRO"
        )
