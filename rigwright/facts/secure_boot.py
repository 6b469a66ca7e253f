"""Secure Boot: the key with which DKMS signs modules, and whether the machine trusts it."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from rigwright.core.command import Result, script
from rigwright.core.control_characters import one_line
from rigwright.facts import Fact, Unreadable

_KEY = """
PATH=$PATH:/usr/sbin:/sbin
conf() {
  cat /etc/dkms/framework.conf /etc/dkms/framework.conf.d/*.conf 2>/dev/null |
    sed -n "s/^[[:space:]]*$1=//p" | tail -n 1 | sed "s/[[:space:]]*#.*//; s/[\\"']//g"
}
key=$(conf mok_signing_key) certificate=$(conf mok_certificate)
if [ -z "$key" ] && grep -q '^ID="\\{0,1\\}ubuntu' /etc/os-release; then
  key=/var/lib/shim-signed/mok/MOK.priv certificate=/var/lib/shim-signed/mok/MOK.der
fi
key=${key:-/var/lib/dkms/mok.key} certificate=${certificate:-/var/lib/dkms/mok.pub}
echo "key $key"; echo "certificate $certificate"
[ -f "$key" ] && [ -f "$certificate" ] && echo made
for program in mokutil openssl; do command -v "$program" >/dev/null || echo "lacks $program"; done
for file in /boot/efi/EFI/*/*.[eE][fF][iI]; do
  [ -f "$file" ] && LC_ALL=C grep -aqP 'm\\x00m\\x00x\\x006\\x004\\x00' "$file" 2>/dev/null || continue
  echo shim; [ -f "${file%/*}/mmx64.efi" ] || echo "without ${file%/*}"
done
if [ -f "$certificate" ] && command -v mokutil >/dev/null; then
  echo "state $(mokutil --test-key "$certificate" 2>&1 | head -n 1)"
fi
"""

KeyState = Literal["enrolled", "staged", "blocked", "none"]
_STATES: tuple[tuple[str, KeyState], ...] = (
    ("MokX deletion request", "blocked"),
    ("MokX enrollment request", "blocked"),
    ("already in MokListX", "blocked"),
    ("already in dbx", "blocked"),
    ("already in the enrollment request", "staged"),
    ("already in the deletion request", "blocked"),
    ("already enrolled", "enrolled"),
    ("already in db", "enrolled"),
    ("built-in trusted keyring", "enrolled"),
    ("kernel trusted keyring", "enrolled"),
    ("is not enrolled", "none"),
)
"""What `mokutil --test-key` prints (mokutil 0.6.0), and the state of the key."""


class SigningKey(Struct, frozen=True):
    """The paths of the key and the certificate with which DKMS signs, from its configuration or its defaults.

    `made`: both files exist. `lacks`: mokutil and openssl, if not installed. `state`: enrolled; staged (to be confirmed
    at the console at the next boot); blocked or to be deleted by its owner; none. `without_manager`: directories of the
    EFI partition with a shim but without MokManager (mmx64.efi), where a shim with a pending request does not boot.
    """

    key: str
    certificate: str
    made: bool
    lacks: tuple[str, ...]
    state: KeyState
    shim: bool
    without_manager: tuple[str, ...]


def _key(result: Result) -> SigningKey:
    values: dict[str, list[str]] = {}
    for line in result.lines:
        name, _, value = line.partition(" ")
        values.setdefault(name, []).append(one_line(value)[:300])
    key, certificate = values["key"][0], values["certificate"][0]
    for path in (key, certificate):
        if not re.fullmatch(r"(?:/[\w.+-]+)+", path):
            fix = "enrol that key yourself; then secure_boot: trusted in the inventory, for this host"
            raise Unreadable(f"DKMS signs with {path!r}, which is not a file with a fixed path", fix)
    message = values.get("state", ["is not enrolled"])[0]
    state = next((state for words, state in _STATES if words in message), None)
    if state is None:
        raise Unreadable(f"mokutil --test-key {certificate}: {message}", "sudo mokutil --sb-state, on the host")
    lacks, without_manager = tuple(values.get("lacks", ())), tuple(dict.fromkeys(values.get("without", ())))
    return SigningKey(key, certificate, "made" in values, lacks, state, "shim" in values, without_manager)


signing_key = Fact("secure_boot.signing_key", script(_KEY), _key)
"""The key with which DKMS signs modules, and its state in the firmware."""
