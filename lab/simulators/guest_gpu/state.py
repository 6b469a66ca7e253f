"""Reads and writes the folder of the simulated kernel. hw/boot binds parts of the folder over /sys and /proc."""

from __future__ import annotations

import glob
import os
import subprocess
from collections.abc import Iterator

HW = "/run/lab/hw"
SYSFS, PROC = HW + "/sys", HW + "/proc"
DRIVES = {"nouveau": "0x10de", "nvidia": "0x10de", "ast": "0x1a03"}  # driver -> vendor whose displays it drives


def read(path: str, default: str = "") -> str:
    """Returns a file's text, or `default` if it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return default


def write(path: str, text: str) -> None:
    """Writes a file and its folders; an existing file is replaced in one step."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)


def run(*argv: str) -> tuple[int, str, str]:
    """Runs a program. Returns its exit status, stdout and stderr."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def nvswitches() -> list[str]:
    """Returns the sysfs folders of the NVSwitches: NVIDIA's PCI bridges."""
    links = sorted(glob.glob(SYSFS + "/bus/pci/devices/*"))
    return [
        os.path.realpath(link)
        for link in links
        if read(link + "/vendor").strip() == "0x10de" and read(link + "/class").startswith("0x0680")
    ]


def devices(name: str) -> Iterator[tuple[str, str | None]]:
    """Yields (folder, name of the bound driver or None) of every PCI device that a driver supports."""
    for link in sorted(glob.glob(SYSFS + "/bus/pci/devices/*")):
        if read(link + "/vendor").strip() == DRIVES.get(name) and read(link + "/class").startswith("0x03"):
            driver = link + "/driver"
            yield os.path.realpath(link), os.path.basename(os.readlink(driver)) if os.path.islink(driver) else None
