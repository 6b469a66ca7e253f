"""Owns where the lab keeps things: all below CHECKOUT/.lab, every name on the machine marked with this checkout's TAG."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
RIGS = CHECKOUT / "lab" / "rigs"
GUEST = CHECKOUT / "lab" / "guest"

STATE = CHECKOUT / ".lab"
CACHE = STATE / "cache"
HOSTS = STATE / "hosts"
RUN = STATE / "run"
SSH_KEY = STATE / "ssh" / "id_ed25519"
KNOWN_HOSTS = STATE / "known_hosts"
SSH_CONFIG = STATE / "ssh_config"
INVENTORY = STATE / "inventory"

USER = "ubuntu"
"""The sudoer of every host, as on Ubuntu's cloud images."""

TAG = "rw" + hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:6]
"""Marks bridge, interfaces, network namespaces and cgroups of this checkout's lab: what carries it is ours to remove."""


def give(*paths: Path) -> None:
    """Each path belongs to the person who called sudo, so that ssh and rigwright can read it without root."""
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() == 0 and uid.isdigit() and gid.isdigit():
        for path in paths:
            os.chown(path, int(uid), int(gid), follow_symlinks=False)


def folder(path: Path, mode: int = 0o755) -> Path:
    """`path` is a folder with this mode; it and those made above it inside the lab belong to the caller of sudo."""
    missing = [p for p in (path, *path.parents) if p.is_relative_to(STATE) and not p.exists()]
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    give(*missing)
    return path


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """`path` holds `text`, replaced in one step so that no reader sees half of it."""
    folder(path.parent, path.parent.stat().st_mode & 0o7777 if path.parent.exists() else 0o755)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.chmod(mode)
    give(new)
    new.replace(path)
