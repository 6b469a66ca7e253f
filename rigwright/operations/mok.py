"""The machine owner key (MOK) with which DKMS signs the driver's module. A person enrols it at the console."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rigwright.core.change import Change
from rigwright.core.command import script
from rigwright.core.desired import Driver, SecureBoot
from rigwright.core.errors import HostError
from rigwright.core.secrets import Secret
from rigwright.driver.package_sets import wants_prebuilt
from rigwright.driver.secure_boot_advice import CONSOLE, NOT_TRUSTED, PASSWORD, steps
from rigwright.facts import Facts, driver as state, system
from rigwright.facts.secure_boot import SigningKey, signing_key
from rigwright.operations import apt, operation

WAIT_S = 60
"""MokManager waits this long for a key press at the console (its default: 10 s), then boots without the key."""

_MAKE = """
set -e; umask 077
PATH=$PATH:/usr/sbin:/sbin
mkdir -p "${1%/*}" "${2%/*}"
[ -f "$1" ] && [ -f "$2" ] && exit 0
for old in "$1" "$2"; do [ ! -e "$old" ] || mv -T "$old" "$old.old"; done
case $1 in
/var/lib/shim-signed/*)
  if command -v update-secureboot-policy >/dev/null; then SHIM_NOTRIGGER=y update-secureboot-policy --new-key; fi;;
esac
[ -f "$1" ] && [ -f "$2" ] && exit 0
openssl req -new -x509 -nodes -days 36500 -subj "/CN=DKMS module signing key" -newkey rsa:2048 \\
  -addext extendedKeyUsage=codeSigning -keyout "$1.new" -outform DER -out "$2.new"
chmod 644 "$2.new"; sync "$1.new" "$2.new"; mv -T "$1.new" "$1"; mv -T "$2.new" "$2"; sync "${1%/*}"
"""
_STAGE = """
PATH=$PATH:/usr/sbin:/sbin
mokutil --import "$1" >/dev/null || exit 1
mokutil --timeout "$2" >/dev/null 2>&1 || :
mokutil --test-key "$1" 2>&1 | grep -qF 'already in the enrollment request' ||
  { echo "mokutil staged no key" >&2; exit 1; }
"""
_WHERE = "secure_boot"


@operation()
def enrolled(
    facts: Facts, *, secure_boot: SecureBoot | None = None, password: str | Secret = "", driver: Driver | None = None
) -> Iterator[Change]:
    """With Secure Boot on, the firmware trusts the key with which DKMS signs the driver's module.

    With `secure_boot: enrol` a missing key is made where DKMS expects it, and staged with mokutil with a one-time
    `password` of 8 to 16 letters and digits. Then HostError is raised, with the steps at the console, until the key is
    enrolled. A request that nobody confirmed is gone after that boot, and is staged again. With `secure_boot: trusted`
    nothing is done. Raises HostError if the EFI partition lacks MokManager: the machine would not boot with a staged
    key.
    """
    secured, release = facts.all(state.secure_boot, system.os_release)
    if not secured or secure_boot == "trusted" or (driver and wants_prebuilt(driver, release, secured)):
        return
    key = facts(signing_key)
    if key.state == "enrolled":
        return
    if secure_boot != "enrol":
        raise HostError(_WHERE, NOT_TRUSTED, "Secure Boot off, or an enrolled key", steps(release, driver))
    if key.state == "staged":
        problem = f"the key {key.certificate} is staged, and no one has confirmed it at the console yet"
        raise HostError(_WHERE, problem, "an enrolled key, before the driver", CONSOLE)
    if key.state == "blocked":
        problem = f"the key {key.certificate} is blocked, or is to be deleted"
        fix = "sudo mokutil --list-enrolled --mokx; sudo mokutil --revoke-delete; or remove "
        fix = f"{fix}{key.key} and {key.certificate}: a new key is made"
        raise HostError(_WHERE, problem, "a key that may be enrolled", fix)
    _require_manager(key)
    commands = (
        *((apt.install(list(key.lacks)),) if key.lacks else ()),
        script(_MAKE, key.key, key.certificate, timeout_s=120),
        script(_STAGE, key.certificate, str(WAIT_S), stdin=_stdin(password), timeout_s=60),
    )
    before = f"{key.certificate}, not enrolled" if key.made else "no key"
    after = (
        f"{key.certificate} staged with the one-time password; a person confirms it at the console, then the driver "
        "follows"
    )
    yield Change("add", "machine owner key", before, after, commands)


def _require_manager(key: SigningKey) -> None:
    """Raises HostError unless every shim on the EFI partition has MokManager beside it."""
    if not key.shim:
        problem = "there is no shim on /boot/efi, which takes keys of the owner"
        fix = (
            "sudo mount /boot/efi; if this machine boots without shim: sign with a key of its db, and secure_boot: "
            "trusted in the inventory"
        )
        raise HostError(_WHERE, problem, "shim, as Debian and Ubuntu install it", fix)
    if key.without_manager:
        folders = " and ".join(key.without_manager[:3])
        problem = f"{folders} has shim and no mmx64.efi: with a staged key the machine would not boot from there"
        fix = (
            f"on the host: sudo cp /usr/lib/shim/mmx64.efi.signed {key.without_manager[0]}/mmx64.efi (Debian: package "
        )
        fix += "shim-helpers-amd64-signed; Ubuntu: shim-signed, mmx64.efi); then run the same command again"
        raise HostError(_WHERE, problem, "MokManager beside each shim", fix)


def _stdin(password: str | Secret) -> bytes:
    """The stdin of mokutil, which reads the password twice. Raises HostError for one that cannot be typed at the
    console."""
    text = password.reveal() if isinstance(password, Secret) else password
    if not text:
        problem, fix = (
            "no one-time password is given for the key",
            "export MOK_PASSWORD=... in the shell that starts this",
        )
        raise HostError("mok_password", problem, f"{PASSWORD} in the inventory", fix)
    if not re.fullmatch(r"[A-Za-z0-9]{8,16}", text):
        problem = "the one-time password has other characters than letters and digits, or not 8 to 16 of them"
        fix = "the console has a US keyboard: choose another one-time password"
        raise HostError("mok_password", problem, "8 to 16 letters and digits", fix)
    return f"{text}\n{text}\n".encode()
