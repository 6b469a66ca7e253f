"""Owns a host on disk: its record, its overlay over the base image, and what makes it one host and not another."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from lab import network
from lab.distros import DEFAULT
from lab.paths import GUEST, HOSTS, RUN, SSH_KEY, TAG, USER, write
from lab.programs import run
from rigwright.errors import HostError, UsageError

_NSPAWN = Path("/run/systemd/nspawn")


@dataclass(frozen=True)
class Host:
    """One simulated server: `number` is its place in the subnet, `layers` the read-only images, topmost first."""

    name: str
    rig: str | None
    number: int
    layers: tuple[Path, ...]
    distro: str = DEFAULT

    @property
    def folder(self) -> Path:
        """Readable by root alone: a host's root may leave setuid programs in it."""
        return HOSTS / self.name

    @property
    def root(self) -> Path:
        """The host's `/` as the machine sees it."""
        return self.folder / "merged"

    @property
    def hw(self) -> Path:
        """The simulated hardware's own files, at /run/lab/hw in the host."""
        return self.folder / "hw"

    @property
    def kept_keys(self) -> Path:
        """The ssh host keys from before they were changed on purpose; not there when they were not."""
        return self.folder / "ssh-kept"

    @property
    def console(self) -> Path:
        """What the host wrote on its console, all boots."""
        return self.folder / "console.log"

    @property
    def address(self) -> IPv4Address:
        """Where ssh reaches it; raises HostError while the lab has no bridge."""
        return network.address(self.number)

    @property
    def boots(self) -> Path:
        """One line per boot: the time it began, seconds since 1970."""
        return RUN / f"{self.name}.boots"


def load(name: str) -> Host | None:
    """The host of that name; None when there is none (or only a half-made one)."""
    path = HOSTS / f"{name}.json"
    if not path.is_file():
        return None
    found = json.loads(path.read_text())
    layers = tuple(Path(layer) for layer in found["layers"])
    return Host(found["name"], found["rig"], found["number"], layers, found.get("distro", DEFAULT))


def known() -> list[Host]:
    """Every host that was made and not removed, by name."""
    hosts = (load(path.stem) for path in sorted(HOSTS.glob("*.json")))
    return [host for host in hosts if host is not None]


def save(host: Host) -> None:
    """The host is known: written last, so that a half-made one never is."""
    record = {
        "name": host.name,
        "rig": host.rig,
        "number": host.number,
        "layers": [str(layer) for layer in host.layers],
        "distro": host.distro,
    }
    write(HOSTS / f"{host.name}.json", json.dumps(record, indent=1) + "\n")


def free_number() -> int:
    """The lowest place in the subnet that no host has."""
    taken = {host.number for host in known()}
    free = next((n for n in range(network.FIRST, network.LAST) if n not in taken), None)
    if free is None:
        raise UsageError("lab.up", f"all {len(taken)} places of the lab are taken", todo="invoke lab.down --name HOST")
    return free


def mounts(below: Path) -> list[Path]:
    """The mount points at or below a folder, innermost first."""
    points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split(" ")[4]))
        if point.is_relative_to(below):
            points.append(point)
    return sorted(points, key=lambda p: len(p.parts), reverse=True)


def mount(host: Host) -> None:
    """The host's disk is at host.root: its own changes over the rig's layers over the base."""
    if host.root in mounts(host.root):
        return
    modes = {
        host.folder: 0o700,
        host.hw: 0o711,
    }  # root's own, whoever called sudo; the state is not to be found by looking
    for path in (host.folder, host.folder / "upper", host.folder / "work", host.root, host.hw, host.hw / "kernel"):
        path.mkdir(exist_ok=True)
        if path != host.root:
            path.chmod(modes.get(path, 0o755))
    # `volatile` leaves this behind and refuses to mount over it: only a crash of the machine itself could lose writes.
    shutil.rmtree(host.folder / "work" / "work" / "incompat", ignore_errors=True)
    gone = [layer for layer in host.layers if not layer.is_dir()]
    if gone:
        raise HostError(
            host.name, f"its image {gone[0]} is gone", todo=f"sudo .venv/bin/invoke lab.down --name {host.name}"
        )
    lower = ":".join(str(layer) for layer in host.layers)
    upper, work = host.folder / "upper", host.folder / "work"
    options = f"lowerdir={lower},upperdir={upper},workdir={work},volatile"
    run(["mount", "-t", "overlay", host.name, "-o", options, host.root])


def unmount(below: Path) -> None:
    """Nothing is mounted at or below the folder."""
    for point in mounts(below):
        run(["umount", "--lazy", point], check=False)
    left = mounts(below)
    if left:
        raise HostError("lab", f"{left[0]} stays mounted", todo=f"umount {left[0]}")


def furnish(host: Host) -> None:
    """The mounted disk is this host and no other: names, machine id, ssh host keys, the lab's key for the user."""
    etc = host.root / "etc"
    (etc / "hostname").write_text(f"{host.name}\n")
    (etc / "hosts").write_text(
        f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n::1 localhost ip6-localhost ip6-loopback\n"
    )
    (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
    (etc / "rigwright-lab").write_text(f"simulated host {host.name}, rig {host.rig or 'none'}\n")
    for kind in ("ed25519", "ecdsa"):
        key = etc / "ssh" / f"ssh_host_{kind}_key"
        key.unlink(missing_ok=True)
        run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", f"root@{host.name}", "-f", key])
    home = host.root / "home" / USER / ".ssh"
    authorized = home / "authorized_keys"
    authorized.write_text(SSH_KEY.with_suffix(".pub").read_text())
    authorized.chmod(0o600)
    shutil.chown(authorized, 1000, 1000)
    shutil.copy(GUEST / "init", host.folder / "init")
    (host.folder / "init").chmod(0o755)


def delete(name: str) -> None:
    """Nothing of the host is left on the machine's disk, nor what a killed systemd-nspawn leaves in /run."""
    root = HOSTS / name / "merged"
    if root in mounts(root):
        _NSPAWN.joinpath("locks", f"inode-{root.stat().st_dev}:{root.stat().st_ino}").unlink(missing_ok=True)
    unmount(HOSTS / name)
    propagate = _NSPAWN / "propagate" / f"{TAG}-{name}"
    if propagate.is_dir():
        propagate.rmdir()
    (HOSTS / f"{name}.json").unlink(missing_ok=True)
    run(["rm", "-rf", "--one-file-system", HOSTS / name], deadline=300)
    for path in RUN.glob(f"{name}.*"):
        path.unlink()
