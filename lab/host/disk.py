"""The disk of a host: its record, its overlay over the base image, its names and keys, and its snapshots."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from lab.base.distros import DEFAULT
from lab.base.paths import GUEST, HOSTS, RUN, SSH_KEY, TAG, USER, write
from lab.base.programs import run
from lab.host import network
from rigwright.core.errors import HostError, UsageError

_NSPAWN = Path("/run/systemd/nspawn")


@dataclass(frozen=True)
class Host:
    """One simulated server. `number` is its position in the subnet; `layers` are read-only images, topmost first."""

    name: str
    rig: str | None
    number: int
    layers: tuple[Path, ...]
    distro: str = DEFAULT

    @property
    def folder(self) -> Path:
        """The host's folder. Only root can read it, because a host's root user may leave setuid programs in it."""
        return HOSTS / self.name

    @property
    def root(self) -> Path:
        """The path of the host's `/` on the machine."""
        return self.folder / "merged"

    @property
    def hw(self) -> Path:
        """The folder of the simulated hardware's own files, which is /run/lab/hw in the host."""
        return self.folder / "hw"

    @property
    def kept_keys(self) -> Path:
        """The ssh host keys before a change on purpose. The path does not exist when they were not changed."""
        return self.folder / "ssh-kept"

    @property
    def console(self) -> Path:
        """The file with the console output of all boots."""
        return self.folder / "console.log"

    @property
    def address(self) -> IPv4Address:
        """The address where ssh reaches the host. Raises HostError when the lab has no bridge."""
        return network.address(self.number)

    @property
    def port(self) -> int:
        """The port of the host's sshd."""
        return 22

    @property
    def key(self) -> Path:
        """The user's private key for the host."""
        return SSH_KEY

    @property
    def public_keys(self) -> list[str]:
        """The public ssh host keys on the host's disk, "TYPE KEY"; those before a change on purpose, if there was
        one."""
        keys = self.kept_keys if self.kept_keys.exists() else self.folder / "upper/etc/ssh"
        return [" ".join(path.read_text().split()[:2]) for path in sorted(keys.glob("ssh_host_*_key.pub"))]

    @property
    def boots(self) -> Path:
        """The file with one line per boot: the time it began, in seconds since 1970."""
        return RUN / f"{self.name}.boots"


def load(name: str) -> Host | None:
    """Returns the host with that name; None when there is none, or when its creation is not complete."""
    path = HOSTS / f"{name}.json"
    if not path.is_file():
        return None
    found = json.loads(path.read_text())
    layers = tuple(Path(layer) for layer in found["layers"])
    return Host(found["name"], found["rig"], found["number"], layers, found.get("distro", DEFAULT))


def known() -> list[Host]:
    """Returns every host that was created and not removed, by name."""
    hosts = (load(path.stem) for path in sorted(HOSTS.glob("*.json")))
    return [host for host in hosts if host is not None]


def save(host: Host) -> None:
    """Writes the host's record. It is written last, so that an incomplete host has no record."""
    record = {
        "name": host.name,
        "rig": host.rig,
        "number": host.number,
        "layers": [str(layer) for layer in host.layers],
        "distro": host.distro,
    }
    write(HOSTS / f"{host.name}.json", json.dumps(record, indent=1) + "\n")


def free_number() -> int:
    """Returns the lowest position in the subnet that no host has."""
    taken = {host.number for host in known()}
    free = next((n for n in range(network.FIRST, network.LAST) if n not in taken), None)
    if free is None:
        raise UsageError("lab.up", f"all {len(taken)} places of the lab are taken", fix="invoke lab.down --name HOST")
    return free


def mounts(below: Path) -> list[Path]:
    """Returns the mount points at or below a folder, innermost first."""
    points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split(" ")[4]))
        if point.is_relative_to(below):
            points.append(point)
    return sorted(points, key=lambda p: len(p.parts), reverse=True)


def copy_changes(source: Path, target: Path) -> None:
    """Copies a disk's changes over its images to `target`, with owners, deleted files and all other attributes."""
    run(["mkdir", "-p", "-m", "0700", target.parent])
    run(["cp", "-a", "--reflink=auto", source, target], deadline=300)


def snapshot(host: Host, folder: Path) -> None:
    """Copies the disk of a host that is off to `folder`. New hosts with the same images can start with this copy."""
    unmount(host.folder)
    partial = folder.with_suffix(".partial")
    run(["rm", "-rf", "--one-file-system", partial], deadline=300)
    copy_changes(host.folder / "upper", partial)
    partial.rename(folder)


def mount(host: Host) -> None:
    """Mounts the host's disk at host.root: its own changes over the rig's layers over the base image."""
    if host.root in mounts(host.root):
        return
    modes = {
        host.folder: 0o700,
        host.hw: 0o711,
    }  # owned by root, whoever called sudo; other users cannot list the simulated hardware's state
    for path in (host.folder, host.folder / "upper", host.folder / "work", host.root, host.hw, host.hw / "kernel"):
        path.mkdir(exist_ok=True)
        if path != host.root:
            path.chmod(modes.get(path, 0o755))
    # `volatile` leaves this folder behind and then refuses to mount. Only a machine crash could lose writes.
    shutil.rmtree(host.folder / "work" / "work" / "incompat", ignore_errors=True)
    gone = [layer for layer in host.layers if not layer.is_dir()]
    if gone:
        raise HostError(
            host.name, f"its image {gone[0]} is gone", fix=f"sudo .venv/bin/invoke lab.down --name {host.name}"
        )
    lower = ":".join(str(layer) for layer in host.layers)
    upper, work = host.folder / "upper", host.folder / "work"
    options = f"lowerdir={lower},upperdir={upper},workdir={work},volatile"
    run(["mount", "-t", "overlay", host.name, "-o", options, host.root])


def unmount(below: Path) -> None:
    """Unmounts everything at or below the folder. Raises HostError when something stays mounted."""
    for point in mounts(below):
        run(["umount", "--lazy", point], check=False)
    left = mounts(below)
    if left:
        raise HostError("lab", f"{left[0]} stays mounted", fix=f"umount {left[0]}")


def furnish(host: Host) -> None:
    """Makes the mounted disk this host's own: its names, machine id, ssh host keys, and the lab's key for the user."""
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
    """Removes the host from the machine's disk, and from /run the files that a killed systemd-nspawn leaves there."""
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
