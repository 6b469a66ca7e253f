"""The machine owner keys of a simulated machine with Secure Boot: shim on its EFI partition, and MokManager at power
on.

The person at the console is the key `console.types` of the nvram: the password that is typed at the next boot.
MokManager deletes the request at that boot, whether somebody typed the right password or not (MokManager.c of shim).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from lab.hardware import hw_state

TYPES = "console.types"
STORE = "boot/efi/EFI/lab-mok"
_SHIM = "boot/efi/EFI/debian"
_MANAGER = "\\mmx64.efi".encode("utf-16-le")
"""shim has the name of MokManager in it, by which rigwright knows a shim."""


def power_on(root: Path, hw: Path) -> None:
    """Puts shim and MokManager on the disk at `root`, and decides on a request of mokutil as MokManager does."""
    folder = root / _SHIM
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shimx64.efi").write_bytes(b"MZ (stand-in) " + _MANAGER)
    (folder / "mmx64.efi").write_bytes(b"MZ (stand-in)")
    typed = hw_state.values(hw).get(TYPES, "")
    hw_state.edit(hw, nvram={TYPES: ""})
    request, password = root / STORE / "request", root / STORE / "password"
    if not request.is_file():
        return
    if typed and hashlib.sha256(typed.encode()).hexdigest() == password.read_text().strip():
        request.replace(root / STORE / "enrolled")
    for path in (request, password):
        path.unlink(missing_ok=True)
