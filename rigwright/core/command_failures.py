"""Why a command on a host failed, where its output says so: the cause and the fix in place of the last line."""

from __future__ import annotations

import re
from collections.abc import Callable

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


def failure_in(text: str) -> Failure | None:
    """The cause that the output of a failed command tells; None when nothing in its last lines is known.

    The last three lines of apt's errors count (`E: `), or the last ten lines when there are none, and dpkg's list of
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
    return next((failure(match) for pattern, failure in _KNOWN if (match := pattern.search(line[:2000]))), None)


def _full_boot(text: str) -> Failure | None:
    """The initramfs for which /boot has no room; the packages that dpkg names after it are only its consequence."""
    path = re.search(r"^update-initramfs: failed for (/boot/\S{1,200})", text, re.MULTILINE)
    if not path or "No space left on device" not in text:
        return None
    return Failure(
        f"/boot is full: {path[1]} could not be written",
        "on the host: df -h /boot; dpkg -l 'linux-image-*'; sudo apt-get purge the packages of the oldest kernel that neither "
        "runs (uname -r) nor is the newest; sudo dpkg --configure -a",
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
    found = f"dpkg failed on {', '.join(names[:5])}{more}{f': {one_line(reason[1])}' if reason else ''}"
    if reason and (known := _known(reason[1])):
        return Failure(found, known.fix)
    package = names[0].split("_", 1)[0]
    log = "tail -n 30 /var/lib/dkms/*/*/build/make.log; " if re.search("dkms", text) else ""
    return Failure(
        found,
        f"on the host: {log}sudo dpkg --configure -a shows what fails; "
        f"if nothing needs it: sudo apt-get purge {package}",
    )


def _no_name(match: re.Match[str]) -> Failure:
    name = match[1]
    return Failure(
        f"the host cannot resolve the name {name}",
        f"on the host: resolvectl query {name} (or getent hosts {name}); correct the name server (resolvectl status, "
        "/etc/resolv.conf), or set apt's proxy: Acquire::http::Proxy in /etc/apt/apt.conf.d",
    )


def _no_connection(match: re.Match[str]) -> Failure:
    name = match[1].split(":")[0]
    return Failure(
        f"the host cannot connect to {name}",
        f"on the host: curl -sSI https://{name}/ >/dev/null; a firewall, a missing route, or a proxy that apt does not "
        "know: Acquire::http::Proxy in /etc/apt/apt.conf.d",
    )


def _no_space(match: re.Match[str]) -> Failure:
    path = next((word for word in match.groups() if word), "")
    return Failure(
        f"no space is left{f' for {path}' if path else ''}", f"on the host: df -h {path or '/ /boot /var /run'}"
    )


def _clock(match: re.Match[str]) -> Failure:
    behind = match[1] != "expired"
    return Failure(
        f"{match[0]}: the host's clock is {'behind' if behind else 'ahead, or the mirror is old'}",
        "on the host: date -u; sudo timedatectl set-ntp true, or sudo apt-get install chrony; then sudo hwclock --systohc",
    )


def _immutable(match: re.Match[str]) -> Failure:
    path = re.sub(r"\.X{6}$", "", match[1])
    folder = path.rpartition("/")[0] or "/"
    return Failure(
        f"{path} cannot be written, not even by root (Operation not permitted): it or its directory is immutable",
        f"on the host: lsattr -d {path} {folder}; an 'i' among the letters: sudo chattr -i on that path",
    )


def _read_only(match: re.Match[str]) -> Failure:
    path = re.sub(r"\.X{6}$", "", match[1])
    return Failure(
        f"{path} is on a file system that is mounted read-only",
        f"on the host: findmnt -T {path}; sudo dmesg | grep -iE 'remount|I/O error' says whether the disk failed",
    )


_PACKAGES = {
    "update-initramfs": "initramfs-tools",
    "mkinitramfs": "initramfs-tools",
    "update-grub": "grub2-common",
    "grub-mkconfig": "grub2-common",
    "modprobe": "kmod",
    "python3": "python3",
}
"""Programs that rigwright runs on a host, and the package of Ubuntu and Debian that has them."""


def missing_program(name: str) -> Failure:
    """The failure for a program that is not installed on the host."""
    package = _PACKAGES.get(name)
    fix = f"sudo apt-get install {package}" if package else f"apt-file search bin/{name} names the package that has it"
    return Failure(f"the program {name} is not on the host", f"on the host: {fix}")


_KNOWN: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Failure]], ...] = (
    (lazy_re.compile(rf"(?:Temporary failure resolving|Could not resolve(?: host:)?) '?({_NAME})"), _no_name),
    (lazy_re.compile(rf"(?:Could not connect to|Unable to connect to|Cannot initiate the connection to) ({_NAME}(?::\w+)?)"), _no_connection),
    (lazy_re.compile(rf"(?:'({_PATH})'|({_PATH})): No space left on device|No space left on device"), _no_space),
    (lazy_re.compile(r"Release file for \S{1,200} is (not valid yet|expired)|certificate (?:chain uses|is) (not yet valid)"), _clock),
    (lazy_re.compile(rf"'({_PATH})': Operation not permitted"), _immutable),
    (lazy_re.compile(rf"'?({_PATH})'?: Read-only file system"), _read_only),
    (lazy_re.compile(rf"(?:^|: )({_PROGRAM}): (?:command )?not found$"), lambda match: missing_program(match[1])),
    (lazy_re.compile(rf"(?:^env|failed to run command):? '({_PROGRAM})': No such file or directory$"), lambda match: missing_program(match[1])),
)  # fmt: skip
"""Patterns of lines, with the function that makes the failure of a match."""
