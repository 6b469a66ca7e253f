"""The scripts of mok.enrolled: openssl makes a key where DKMS expects one; mokutil, a stand-in with its words, is given
it."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from pathlib import Path

import pytest

from rigwright.core.command import Command, Result
from rigwright.core.desired import Driver
from rigwright.core.errors import HostError
from rigwright.core.secrets import Secret
from rigwright.driver.secure_boot_advice import CONSOLE
from rigwright.facts import Fact, FactStore, Missing
from rigwright.facts.secure_boot import signing_key
from rigwright.operations import mok

MOKUTIL = """#!/bin/sh
# A stand-in for mokutil 0.6.0: what it prints and what it asks; the firmware's lists are files.
new=@/mok-new list=@/mok-list
case $1 in
--test-key)
  if cmp -s "$2" "$list"; then echo "$2 is already enrolled"; exit 1; fi
  if cmp -s "$2" "$new"; then echo "$2 is already in the enrollment request"; exit 1; fi
  echo "$2 is not enrolled";;
--import)
  printf 'input password: '; read -r one; printf 'input password again: '; read -r two
  [ "$one" = "$two" ] || { echo "password doesn't match" >&2; exit 255; }
  cp "$2" "$new"; echo "$one" >@/password;;
--timeout) echo "$2" >@/timeout;;
esac
"""
PASSWORD = "Tulip2026"
MMX = "mmx64.efi".encode("utf-16-le")


class Machine:
    """A machine with Secure Boot on, whose files are in a folder; its firmware keeps the request for one boot."""

    def __init__(self, folder: Path, system: str = "debian") -> None:
        self.folder, self.system = folder, system
        (folder / "bin").mkdir()
        (folder / "bin/mokutil").write_text(MOKUTIL.replace("@", str(folder)))
        (folder / "bin/mokutil").chmod(0o755)
        shims = folder / "efi/EFI/debian"
        shims.mkdir(parents=True)
        (shims / "shimx64.efi").write_bytes(b"MZ\0\1" + MMX + b"\0\xff")
        (shims / "mmx64.efi").write_bytes(b"MZ")
        (shims / "grubx64.efi").write_bytes(b"MZ")
        (folder / "etc").mkdir()
        (folder / "etc/os-release").write_text(f'ID="{system}"\n' if system == "debian" else f"ID={system}\n")

    def run(self, cmd: Command) -> Result:
        """Runs a command of the operation or a fact with this machine's files."""
        places = {
            "/etc/os-release": "etc/os-release",
            "/etc/dkms": "dkms.conf",
            "/boot/efi": "efi",
            "/var/lib": "lib",
            "PATH=$PATH:": f"PATH={self.folder}/bin:$PATH:",
        }
        argv = list(cmd.argv)
        for place, own in places.items():
            argv = [word.replace(place, own if place.startswith("PATH") else f"{self.folder}/{own}") for word in argv]
        done = subprocess.run(argv, input=cmd.stdin, capture_output=True, timeout=60, check=False, env=dict(os.environ))
        text = done.stdout.replace(str(self.folder / "lib").encode(), b"/var/lib")
        return Result(done.returncode, text, done.stderr)

    def provision(self, password: str | Secret = PASSWORD) -> list[str]:
        """Runs the operation's commands until it has none; returns what it did, and its error."""
        done: list[str] = []
        for _ in range(3):
            try:
                changes = self._plan(password)
            except HostError as error:
                return [*done, f"{error.found}: {error.fix}"]
            if not changes:
                return done
            for change in changes:
                done.append(change.before)
                for cmd in change.commands:
                    result = self.run(cmd)
                    assert result.code == 0, result
        raise AssertionError("it never ends")

    def _plan(self, password: str | Secret) -> list[mok.Change]:
        store = FactStore()
        release = f"ID={self.system}\nVERSION_ID=12\n".encode()
        known = {"driver.secure_boot": b" 1\n", "system.os_release": release}
        driver = Driver("535", modules="dkms")
        for _ in range(4):
            try:
                return list(mok.enrolled(store, secure_boot="enrol", password=password, driver=driver))
            except Missing as wanted:
                store.learn((fact, self._answer(fact, known)) for fact in wanted.facts)
        raise AssertionError("facts that never settle")

    def _answer(self, fact: Fact[object], known: dict[str, bytes]) -> Result:
        return Result(0, known[fact.name]) if fact.name in known else self.run(fact.command)

    def boots(self, *, confirmed: bool) -> None:
        """The next boot: MokManager deletes the request, and enrols the key if somebody confirms it."""
        request = self.folder / "mok-new"
        if confirmed:
            request.replace(self.folder / "mok-list")
        request.unlink(missing_ok=True)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Returns a fresh Debian machine."""
    return Machine(tmp_path)


def test_from_no_key_to_an_enrolled_one(machine: Machine) -> None:
    """Made and staged, confirmed at the console, and then nothing is left to do. The key stays the one that DKMS
    uses."""
    first = machine.provision()
    assert first[0] == "no key"
    assert CONSOLE in first[1]
    key, certificate = machine.folder / "lib/dkms/mok.key", machine.folder / "lib/dkms/mok.pub"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = hashlib.sha256(key.read_bytes()).digest()
    text = subprocess.run(
        ["openssl", "x509", "-inform", "DER", "-in", certificate, "-noout", "-subject", "-ext", "extendedKeyUsage"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "DKMS module signing key" in text
    assert "Code Signing" in text
    assert (machine.folder / "password").read_text() == f"{PASSWORD}\n"
    assert (machine.folder / "timeout").read_text() == f"{mok.WAIT_S}\n"
    assert machine.provision() == first[1:], "staged: only the step at the console is left"
    machine.boots(confirmed=True)
    assert machine.provision() == []
    assert hashlib.sha256(key.read_bytes()).digest() == before


def test_a_request_that_nobody_confirmed_is_made_again(machine: Machine) -> None:
    machine.provision()
    key = (machine.folder / "lib/dkms/mok.key").read_bytes()
    machine.boots(confirmed=False)
    again = machine.provision()
    assert again[0] == "/var/lib/dkms/mok.pub, not enrolled"
    assert (machine.folder / "lib/dkms/mok.key").read_bytes() == key
    machine.boots(confirmed=True)
    assert machine.provision() == []


def test_ubuntu_has_its_key_elsewhere(tmp_path: Path) -> None:
    Machine(tmp_path, "ubuntu").provision()
    assert sorted(path.name for path in (tmp_path / "lib/shim-signed/mok").iterdir()) == ["MOK.der", "MOK.priv"]


def test_half_a_key_is_kept_beside_the_new_one(machine: Machine) -> None:
    """DKMS would make both anew; the half that is there is renamed, not deleted."""
    (machine.folder / "lib/dkms").mkdir(parents=True)
    (machine.folder / "lib/dkms/mok.key").write_text("a key without its certificate\n")
    machine.provision()
    assert (machine.folder / "lib/dkms/mok.key.old").read_text() == "a key without its certificate\n"


def test_dkms_own_configuration_counts(machine: Machine) -> None:
    folder = machine.folder / "dkms.conf"
    (folder / "framework.conf.d").mkdir(parents=True)
    (folder / "framework.conf").write_text("# mok_signing_key=/no\nmok_signing_key=/no/where\n")
    (folder / "framework.conf.d/own.conf").write_text(
        'mok_signing_key="/srv/own.key"  # ours\nmok_certificate=/srv/own.der\n'
    )
    key = signing_key.parse(machine.run(signing_key.command))
    assert (key.key, key.certificate, key.made) == ("/srv/own.key", "/srv/own.der", False)


def test_a_shim_without_mokmanager_is_refused_before_a_key_is_staged(machine: Machine) -> None:
    """A machine that starts from the fallback path, whose directory has shim alone."""
    fallback = machine.folder / "efi/EFI/BOOT"
    fallback.mkdir()
    (fallback / "BOOTX64.EFI").write_bytes(b"MZ\0\1" + MMX + b"\0\xff")
    (found,) = machine.provision()
    assert "efi/EFI/BOOT has shim and no mmx64.efi" in found
    assert not (machine.folder / "mok-new").exists()


def test_the_password_is_in_no_argument_and_no_text(machine: Machine) -> None:
    secret = Secret(PASSWORD)
    (change,) = machine._plan(secret)
    assert PASSWORD not in f"{change!r}{[str(cmd) for cmd in change.commands]}{[cmd.argv for cmd in change.commands]}"
    assert change.commands[-1].stdin == f"{PASSWORD}\n{PASSWORD}\n".encode()
    assert not [path for path in machine.folder.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
