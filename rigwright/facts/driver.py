"""The NVIDIA driver: loaded version, libraries, Secure Boot."""

from __future__ import annotations

import re

from rigwright.core import lazy_re
from rigwright.core.command import Result, script
from rigwright.facts import Fact, Unreadable, whole
from rigwright.facts.installed import INSTALLED

_VERSION = lazy_re.compile(r"\d{1,6}\.\d{1,6}(?:\.\d{1,6})?")


def _loaded(result: Result) -> str:
    if not result.stdout.strip():
        return ""
    marked = [line for line in result.lines if "Kernel Module" in line or "NVRM version:" in line]
    versions = (_VERSION.match(word) for line in marked for word in line.split())
    version = next((match[0] for match in versions if match), "")
    if not version:
        raise ValueError("no version in /proc/driver/nvidia/version")
    return version


loaded_version = Fact(
    "driver.loaded_version", script("cat /proc/driver/nvidia/version 2>/dev/null; :", reads=True), _loaded, kept=whole
)


def _flavour(result: Result) -> str:
    text = result.text
    return "open" if "Open Kernel Module" in text else "proprietary" if "Kernel Module" in text else ""


loaded_flavour = Fact(
    "driver.loaded_flavour", script("cat /proc/driver/nvidia/version 2>/dev/null; :", reads=True), _flavour, kept=whole
)
"""The flavour of the loaded kernel module: open or proprietary; "" without one."""

_LIBRARY = """
path=$(ldconfig -p 2>/dev/null | awk '/libnvidia-ml.so.1/{print $NF; exit}'); [ -n "$path" ] && readlink -f -- "$path"; :
"""


def _library(result: Result) -> str:
    path = result.text.strip()
    version = path.rpartition("libnvidia-ml.so.")[2]
    if path and not re.fullmatch(r"\d+(\.\d+)+", version):
        raise Unreadable(f"{path} carries no version")
    return version


library_version = Fact(
    "driver.library_version", script(_LIBRARY, reads=True, cache_key=INSTALLED), _library, kept=whole
)

_SECURE_BOOT = """
for file in /sys/firmware/efi/efivars/SecureBoot-*; do [ -r "$file" ] && od -An -t u1 -j 4 -N 1 "$file"; done; :
"""


def _secure_boot(result: Result) -> bool:
    return result.text.strip() == "1"


secure_boot = Fact("driver.secure_boot", script(_SECURE_BOOT, reads=True), _secure_boot, kept=whole)
"""True when the firmware enforces Secure Boot; False without UEFI."""

_RUNFILE = 'for file in /usr/bin/nvidia-uninstall /usr/bin/nvidia-installer; do [ -e "$file" ] && ! dpkg -S "$file" >/dev/null 2>&1 && { "$file" --version 2>/dev/null | grep -o "[0-9][0-9][0-9]\\.[0-9.]*" | head -1 || :; echo found; exit; }; done; :'


def _runfile(result: Result) -> str | None:
    lines = result.text.split()
    return (lines[0] if len(lines) > 1 else "") if "found" in lines else None


runfile_version = Fact("driver.runfile_version", script(_RUNFILE, cache_key=INSTALLED), _runfile)
"""The version of a driver installed with NVIDIA's .run installer; "" if the version is unknown, None without such a
driver."""
