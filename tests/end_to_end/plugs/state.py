"""The state of a host that two runs must agree on: packages, marks, files, boot, units, driver and limits."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_READ = r"""
export LC_ALL=C
section() { echo "=== $1"; }
section packages; dpkg-query -W -f '${Package}:${Architecture} ${Version} ${db:Status-Abbrev}\n'
section auto; apt-mark showauto
section holds; apt-mark showhold
section broken; dpkg --audit; apt-get check 2>&1 | grep -E '^(E:|W:| [^ ])'
section files
find /etc /boot /usr /opt /srv /root /home /var/lib -xdev \( -type d -o -type l \) -printf '%y %m %u:%g %p %l\n'
find /usr -xdev -type f -not -path '/usr/local/*' -not -path '/usr/share/keyrings/*' -printf '%y %m %u:%g %p %s\n'
find /var/lib -xdev -type f -not -path '/var/lib/rigwright/*' -printf '%y %m %u:%g %p\n'
find /etc /boot /opt /srv /root /home /usr/local /usr/share/keyrings /var/lib/dkms /var/lib/rigwright -xdev -type f \
  -printf '%y %m %u:%g %p\n'
section contents
find /etc /boot /opt /srv /root /home /usr/local /usr/share/keyrings /usr/src /var/lib/dkms /var/lib/rigwright -xdev \
  -type f -print0 | xargs -0 sha256sum
find /usr/lib/modules /lib/modules -xdev -type f -name '*.ko*' -print0 2>/dev/null | xargs -0r sha256sum
for list in files holds; do sort "/var/lib/rigwright/$list" 2>/dev/null | sed "s/^/$list: /"; done
section units; systemctl list-unit-files --no-legend --plain | awk '{print $1, $2, $3}'
section running
systemctl list-units --no-legend --plain --type=service,timer,path,socket --state=active,failed,activating |
  awk '{print $1, $3}'
section boot; cat /proc/cmdline; grub-editenv list 2>/dev/null
section driver; head -1 /proc/driver/nvidia/version 2>/dev/null; awk '{print $1}' /proc/modules | sort
section limits
nvidia-smi --query-gpu=index,persistence_mode,power.limit,clocks.applications.memory,clocks.applications.graphics \
  --format=csv,noheader
nvidia-smi --query-compute-apps=pid,name --format=csv,noheader
section left; ls -d /run/rigwright[-.]* /dev/shm/rigwright* /tmp/* 2>/dev/null | grep -v /tmp/systemd-private
ls /var/lib/rigwright/lease 2>/dev/null
ps -eo args | grep -E '/var/lib/rigwright/runs|/run/rigwright-|[a]pt-get|[d]pkg ' | grep -v grep
:
"""

VOLATILE = {
    r"/var/lib/rigwright/runs/": "scripts and records of each run, under its number",
    r"/var/lib/rigwright/(files|holds)$": "a list in the order of the steps; compared sorted",
    r"/var/lib/rigwright/(p2p-test\.|pin-proof|lease)": "records with the time and the run",
    r"/etc/(ld\.so\.cache|rigwright-lab|machine-id)$|/etc/\.pwd\.lock$": "made by programs, or the lab's",
    r"/etc/(passwd|group|g?shadow)-$": "the copy before the last change",
    r"/(etc|var/lib)/apt/.*(lists|periodic|partial)|/var/lib/apt/extended_states$": "apt's cache; marks are compared",
    r"/var/lib/dpkg/(lock|status|available|updates|triggers|tmp\.ci|diversions|statoverride|info)": "packages compared",
    r"/var/lib/(systemd|dbus|private|logrotate|misc|ucf|sudo|dhcp|initramfs-tools|pam)(/|$)": "clocks, seeds, caches",
    r"/var/lib/dkms/.*/(log|build)(/|$)": "the log of a build, with its times",
    r"/boot/initrd\.img|/var/lib/dkms/.*\.tar": "archives with times; their presence is compared",
    r"__pycache__|\.pyc$|/usr/lib/modules/[^/]*/modules\.": "caches that programs make",
}
"""Paths whose content, or presence, two uninterrupted runs of one host do not agree on either, with the reason."""
_PRESENCE = re.compile(
    r" (/boot/initrd\.img|/usr/lib/modules/[^/]*/modules\.|/var/lib/rigwright/(files|holds|p2p-test\.))"
)
"""Of those, what is there must be the same in spite of that."""
_VOLATILE = re.compile("|".join(VOLATILE))
_OF_RUNS = re.compile(
    r"rigwright-job-|run-\S+\.|session-|user@|user-runtime|systemd-(tmpfiles|udev|timedated|hostnamed)|apt-daily|e2scrub"
)
"""Units that a run or the time makes."""
_RUN = re.compile(r"\b\d{8}-\d{6}-[0-9a-f]{8}\b")
_OF_TRIAL = re.compile(r"panic=60|rigwright\.trial=.*|systemd\.wants=rigwright-trial\.service")

State = dict[str, frozenset[str]]


@dataclass(frozen=True)
class Difference:
    """A line that only one of two states has."""

    section: str
    line: str
    only: str

    def __str__(self) -> str:
        return f"{self.section}: {'+' if self.only == 'here' else '-'} {self.line}"


def read(root: Callable[[str], str]) -> State:
    """The state of a host, by section; each is a set of lines. `root`: runs a script as root on the host and returns
    its output."""
    sections: dict[str, set[str]] = {}
    name = ""
    for line in root(_READ).splitlines():
        if line.startswith("=== "):
            name = line[4:]
            sections[name] = set()
        elif line.strip() and not _left_out(name, line):
            sections[name].add(_without_run(line.rstrip()))
    return {name: frozenset(lines) for name, lines in sections.items()}


def _without_run(line: str) -> str:
    """A line without the number of a run, and a kernel command line without the words of a boot that is tried once."""
    if " rigwright.trial=" in line:
        line = " ".join(word for word in line.split() if not _OF_TRIAL.fullmatch(word))
    return _RUN.sub("RUN", line)


def _left_out(section: str, line: str) -> bool:
    if section in ("files", "contents"):
        return bool(_VOLATILE.search(line)) and not (section == "files" and _PRESENCE.search(line))
    return section in ("units", "running", "left") and bool(_OF_RUNS.search(line))


def differences(here: State, reference: State, booted: State | None = None) -> list[Difference]:
    """What differs between a host and the uninterrupted run. `booted`: the host after that run and one more boot; each
    section may also be as there."""
    found = []
    for section in reference:
        ways = [
            [Difference(section, line, "here") for line in sorted(here[section] - other[section])]
            + [Difference(section, line, "reference") for line in sorted(other[section] - here[section])]
            for other in (reference, booted or reference)
        ]
        found += min(ways, key=len)
    return found


def is_kept_for_the_next_run(difference: Difference) -> bool:
    """Whether a power cut may leave this: `verify` explains a reset in the middle of a load from the recording."""
    return (
        difference.section in ("files", "contents")
        and difference.only == "here"
        and " /var/lib/rigwright/recordings" in difference.line
    )
