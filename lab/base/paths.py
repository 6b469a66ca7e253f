"""The paths of the lab, all below CHECKOUT/.lab.

Names on the machine (bridge, control groups) contain this checkout's TAG.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
RIGS = CHECKOUT / "lab" / "hardware" / "rigs"
GUEST = CHECKOUT / "lab" / "host" / "guest"

STATE = CHECKOUT / ".lab"
CACHE = STATE / "cache"
VM_CACHE = Path(os.environ.get("RIGWRIGHT_VM_CACHE", "/var/cache/rigwright-lab"))
"""What virtual machines are made from: images, recordings, modules. Gigabytes and minutes, so every checkout uses the
same one.

Only root can write there. It can be removed at any time: what is needed is built again.
"""

HOSTS = STATE / "hosts"
FROZEN = STATE / "frozen"
"""What hosts had changed on their disks when copies of them were made: images below the disks of the copies."""

RUN = STATE / "run"
SSH_KEY = STATE / "ssh" / "id_ed25519"
KNOWN_HOSTS = STATE / "known_hosts"
SSH_CONFIG = STATE / "ssh_config"
INVENTORY = STATE / "inventory"

USER = "ubuntu"
"""The user on every host, who may use sudo, as on Ubuntu's cloud images."""

TAG = "rw" + hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:6]
"""The tag of this checkout's bridge, interfaces, network namespaces and cgroups. The lab may remove whatever has it."""


def give(*paths: Path) -> None:
    """Makes the user who called sudo the owner of each path, so that ssh and rigwright can read it without root."""
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() == 0 and uid.isdigit() and gid.isdigit():
        for path in paths:
            os.chown(path, int(uid), int(gid), follow_symlinks=False)


def folder(path: Path, mode: int = 0o755) -> Path:
    """Creates the folder `path` with this mode and returns it.

    New folders inside the lab belong to the user who called sudo.
    """
    missing = [p for p in (path, *path.parents) if p.is_relative_to(STATE) and not p.exists()]
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    give(*missing)
    return path


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Writes `text` to `path`, and replaces an existing file or link in one step, so that no reader sees half of it.

    Root follows no link here: the folder may belong to the user who called sudo.
    """
    folder(path.parent, path.parent.stat().st_mode & 0o7777 if path.parent.exists() else 0o755)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)
        os.fchmod(file.fileno(), mode)
    give(new)
    new.replace(path)
