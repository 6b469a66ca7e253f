"""Why a command on a host failed, where its output says so: the cause and the fix in place of the last line."""

from __future__ import annotations

import re

from msgspec import Struct

from rigwright.core import lazy_re
from rigwright.core.control_characters import one_line

_NAME = r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}"
_PATH = r"/[^\s':]{1,255}"
_PROGRAM = r"[A-Za-z0-9][\w.+-]{0,60}"


class Failure(Struct, frozen=True):
    """The cause of a failure, and what a person does about it."""

    found: str
    fix: str


_APT_PROXY = "Acquire::http::Proxy in /etc/apt/apt.conf.d"
_CLOCK = (
    "on the host: date -u; sudo timedatectl set-ntp true, or sudo apt-get install chrony; then sudo hwclock --systohc"
)
_INSTALL = "install the program"
_KNOWN = (
    (lazy_re.compile(rf"(?:Temporary failure resolving|Could not resolve(?: host:)?) '?({_NAME})"),
     "the host cannot resolve the name {name}",
     "on the host: resolvectl query {name} (or getent hosts {name}); correct the name server (resolvectl status, "
     f"/etc/resolv.conf), or set apt's proxy: {_APT_PROXY}"),
    (lazy_re.compile(rf"(?:Could not connect to|Unable to connect to|Cannot initiate the connection to) ({_NAME})"),
     "the host cannot connect to {name}",
     "on the host: curl -sSI https://{name}/ >/dev/null; a firewall, a missing route, or a proxy that apt does not "
     f"know: {_APT_PROXY}"),
    (lazy_re.compile(rf"(?:'({_PATH})'|({_PATH})): No space left on device"),
     "no space is left for {name}",
     "on the host: df -h {name}"),
    (lazy_re.compile("No space left on device"),
     "no space is left",
     "on the host: df -h / /boot /var /run"),
    (lazy_re.compile(r"Release file for \S{1,200} is expired"),
     "{line}: the host's clock is ahead, or the mirror is old",
     _CLOCK),
    (lazy_re.compile(r"Release file for \S{1,200} is not valid yet|certificate (?:chain uses|is) not yet valid"),
     "{line}: the host's clock is behind",
     _CLOCK),
    (lazy_re.compile(rf"'({_PATH})': Operation not permitted"),
     "{name} cannot be written, not even by root (Operation not permitted): it or its directory is immutable",
     "on the host: lsattr -d {name} {folder}; an 'i' among the letters: sudo chattr -i on that path"),
    (lazy_re.compile(rf"'?({_PATH})'?: Read-only file system"),
     "{name} is on a file system that is mounted read-only",
     "on the host: findmnt -T {name}; sudo dmesg | grep -iE 'remount|I/O error' says whether the disk failed"),
    (lazy_re.compile(
         rf"(?:^|: )({_PROGRAM}): (?:command )?not found$"
         rf"|(?:^env|failed to run command):? '({_PROGRAM})': No such file or directory$"
     ),
     "",
     _INSTALL),
)  # fmt: skip
"""Patterns of lines, with the cause and the fix. `name` is the host or path that the pattern captures."""

_PACKAGES = {
    "update-initramfs": "initramfs-tools",
    "mkinitramfs": "initramfs-tools",
    "update-grub": "grub2-common",
    "grub-mkconfig": "grub2-common",
    "modprobe": "kmod",
    "python3": "python3",
}
"""Programs that rigwright runs on a host, and the package of Ubuntu and Debian that has them."""


def failure_in(text: str) -> Failure | None:
    """The cause that the output of a failed command names; None if its last lines name no known cause.

    The last three lines of apt's errors count (`E: `), or the last ten lines without such errors, and dpkg's list of
    the packages that failed. So an error of an earlier part of the output is not taken for the cause.
    """
    if known := _full_boot(text) or _broken_packages(text):
        return known
    lines = text.strip().splitlines()
    errors = [line for line in lines if line.startswith("E: ")][-3:]
    for line in reversed(errors or lines[-10:]):
        if failure := _known(line):
            nothing = "nothing was installed: " if line.startswith("E: nothing was installed") else ""
            return Failure(f"{nothing}{failure.found}", failure.fix)
    return None


def _known(line: str) -> Failure | None:
    for pattern, found, fix in _KNOWN:
        if match := pattern.search(line[:2000]):
            if fix == _INSTALL:
                return missing_program(match[1] or match[2])
            name = re.sub(r"\.X{6}$", "", next(filter(None, match.groups()), ""))  # without the ending of mktemp
            words = {"name": name, "folder": name.rpartition("/")[0] or "/", "line": match[0]}
            return Failure(found.format(**words), fix.format(**words))
    return None


def missing_program(name: str) -> Failure:
    """The failure for a program that is not installed on the host."""
    package = _PACKAGES.get(name)
    fix = f"sudo apt-get install {package}" if package else f"apt-file search bin/{name} names the package that has it"
    return Failure(f"the program {name} is not on the host", f"on the host: {fix}")


def _full_boot(text: str) -> Failure | None:
    """The initramfs for which /boot has no room; the packages that dpkg names after it are only its consequence."""
    path = re.search(r"^update-initramfs: failed for (/boot/\S{1,200})", text, re.MULTILINE)
    if not path or "No space left on device" not in text:
        return None
    return Failure(
        f"/boot is full: {path[1]} could not be written",
        "on the host: df -h /boot; dpkg -l 'linux-image-*'; "
        "sudo apt-get purge the packages of the oldest kernel that "
        "neither runs (uname -r) nor is the newest; sudo dpkg --configure -a",
    )


def _broken_packages(text: str) -> Failure | None:
    """The packages that dpkg could not unpack or configure, with its reason for the first."""
    listed = re.search(r"^Errors were encountered while processing:\n((?: \S{1,200}\n?){1,50})", text, re.MULTILINE)
    if not listed:
        return None
    names = [word.rsplit("/", 1)[-1] for word in listed[1].split()]
    reason = re.search(
        rf"^dpkg: error processing (?:package|archive) (?:\S*/)?{re.escape(names[0])} \(--[a-z]+\):\n ([^\n]{{1,200}})",
        text,
        re.MULTILINE,
    )
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    problem = f"dpkg failed on {', '.join(names[:5])}{more}{f': {one_line(reason[1])}' if reason else ''}"
    if reason and (known := _known(reason[1])):
        return Failure(problem, known.fix)
    package = names[0].split("_", 1)[0]
    log = "tail -n 30 /var/lib/dkms/*/*/build/make.log; " if re.search("dkms", text) else ""
    return Failure(
        problem,
        f"on the host: {log}sudo dpkg --configure -a shows what fails; "
        f"if nothing needs it: sudo apt-get purge {package}",
    )
