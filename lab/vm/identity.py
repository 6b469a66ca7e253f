"""The names and keys of a virtual machine, which QEMU hands to the guest as a tar archive (fw_cfg) at its first
boot."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

from lab.base.paths import USER, VM_CACHE, folder, give
from lab.base.programs import run
from lab.vm.machine import LOGIN_KEY, Machine

KEYS = ("ed25519", "ecdsa")


def login_key() -> Path:
    """Returns this checkout's copy of the key that opens every virtual machine, and makes the key when there is none.

    Recorded machines know it, and every checkout uses them. The copy belongs to the user who called sudo.
    """
    common = folder(VM_CACHE, 0o700) / "login_ed25519"
    if not common.exists():
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "rigwright lab, virtual machines", "-f", common])
    folder(LOGIN_KEY.parent, 0o700)
    for source, target in ((common, LOGIN_KEY), (common.with_suffix(".pub"), LOGIN_KEY.with_suffix(".pub"))):
        shutil.copy(source, target)
        target.chmod(source.stat().st_mode & 0o777)
        give(target)
    return LOGIN_KEY


def write_identity(machine: Machine) -> None:
    """Makes ssh host keys for the machine and writes FOLDER/identity.tar."""
    files = {
        "etc/hostname": f"{machine.name}\n".encode(),
        "etc/hosts": (
            f"127.0.0.1 localhost\n127.0.1.1 {machine.name}\n::1 localhost ip6-localhost ip6-loopback\n"
        ).encode(),
        "etc/rigwright-lab": f"simulated host {machine.name}, rig {machine.rig or 'none'}, virtual machine\n".encode(),
        f"home/{USER}/.ssh/authorized_keys": login_key().with_suffix(".pub").read_bytes(),
    }
    for kind in KEYS:
        key = machine.folder / f"ssh_host_{kind}_key"
        run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", f"root@{machine.name}", "-f", key])
        for path in (key, key.with_suffix(".pub")):
            files[f"etc/ssh/{path.name}"] = path.read_bytes()
    with tarfile.open(machine.folder / "identity.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o600 if name.endswith("_key") or "authorized" in name else 0o644
            entry.uid = entry.gid = 1000 if name.startswith("home/") else 0
            archive.addfile(entry, io.BytesIO(content))
