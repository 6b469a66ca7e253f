"""The simulated kernel: loaded modules, and the driver of each PCI device. The state is kept in files (state.py)."""

from __future__ import annotations

import fcntl
import glob
import os
import re
import shutil
import time
from collections.abc import Iterable

from lab.simulators.guest_gpu import klog
from lab.simulators.guest_gpu.driver import announce
from lab.simulators.guest_gpu.state import DRIVES, HW, SYSFS, devices, nvswitches, read, run, write

REAL = "/usr/lib/lab/kmod/"
MODULES = HW + "/volatile/modules"
KERNEL = os.uname().release


class Refused(Exception):
    """The kernel refused an operation. The text is part of the message that the program prints."""


def loaded() -> list[str]:
    """Returns the loaded modules, newest first."""
    return [line.split()[0] for line in read(MODULES).splitlines()]


def holders(name: str) -> list[str]:
    """Returns the modules that depend on this one."""
    folder = f"{SYSFS}/module/{name}/holders"
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def save(names: Iterable[str]) -> None:
    """Writes the list of loaded modules in the format of /proc/modules."""
    lines = []
    for name in names:
        users = holders(name)
        size = read(f"{SYSFS}/module/{name}/coresize", "0").strip()
        listed = "".join(user + "," for user in users) or "-"
        lines.append(f"{name} {size} {len(users)} {listed} Live 0x0000000000000000\n")
        write(f"{SYSFS}/module/{name}/refcnt", f"{len(users)}\n")
    with open(MODULES, "w") as file:  # in place, because this file is the source of a bind mount over /proc/modules
        file.write("".join(lines))


def bind(name: str, info: dict[str, str]) -> None:
    """Binds a driver to every free device.

    Raises Refused when the nvidia driver finds no free device that it supports.
    """
    found = [device for device, driver in devices(name) if driver is None]
    if name == "nvidia":
        flavour = "proprietary" if info.get("license") == "NVIDIA" else "open"
        found = [d for d in found if flavour in read(f"{HW}/flavours/{os.path.basename(d)}", flavour)]
        if not found:
            klog.no_gpu([os.path.basename(d) for d, driver in devices(name) if driver is not None])
            raise Refused("No such device")
    attach(name, found)
    if name == "nvidia":
        attach("nvidia-nvswitch", nvswitches())


def attach(driver: str, found: list[str]) -> None:
    """Binds a driver to devices, which are given as sysfs folders."""
    target = f"{SYSFS}/bus/pci/drivers/{driver}"
    if found:
        os.makedirs(target, exist_ok=True)
    for device in found:
        os.symlink(os.path.relpath(target, device), device + "/driver")
        os.symlink(os.path.relpath(device, target), f"{target}/{os.path.basename(device)}")


def unbind(name: str) -> None:
    """Unbinds a driver from all of its devices."""
    for device, driver in devices(name):
        if driver == name:
            os.unlink(device + "/driver")
    shutil.rmtree(f"{SYSFS}/bus/pci/drivers/{name}", ignore_errors=True)
    for device in nvswitches() if name == "nvidia" else ():
        os.unlink(device + "/driver")
        shutil.rmtree(f"{SYSFS}/bus/pci/drivers/nvidia-nvswitch", ignore_errors=True)


def insert(path: str, options: list[str]) -> None:
    """Loads the module in a file and binds it to its devices. A loaded module stays as it is.

    Raises Refused when the kernel does not accept the module, or when bind refuses.
    """
    info = dict(reversed(re.findall(r"^([a-z]+): +(.*)$", run(REAL + "modinfo", path)[1], re.M)))
    name, names = info.get("name", "").replace("-", "_"), loaded()
    if name in names:
        return
    command_line = read(HW + "/cmdline").split()
    barred = [n for word in command_line if word.startswith("module_blacklist=") for n in word[17:].split(",")]
    if name in barred:
        raise Refused("Operation not permitted")
    magic = info.get("vermagic", "")
    if magic.split(" ")[0] != KERNEL:
        klog.say(
            klog.ERROR, f"{name}: version magic '{magic}' should be '{KERNEL} SMP preempt mod_unload modversions '"
        )
        raise Refused("Exec format error")
    needs = [need for need in info.get("depends", "").split(",") if need]
    if "secure_boot=1" in read(HW + "/nvram/nvram").splitlines() and "/updates/dkms/" in path and not _key_enrolled():
        klog.say(klog.NOTICE, f"Loading of module with unavailable key is rejected: {name}")
        raise Refused("Key was rejected by service")
    if set(needs) - set(names):
        klog.say(klog.WARNING, f"{name}: Unknown symbol sim_{min(set(needs) - set(names))} (err -2)")
        raise Refused("Unknown symbol in module, or unknown parameter (see dmesg)")
    # Without mode setting nouveau is loaded but binds to no device, as on a real host.
    if name in DRIVES and not (name == "nouveau" and ("modeset=0" in options or "nomodeset" in command_line)):
        bind(name, info)
    _describe(name, path, info, options, needs)
    save([name, *names])
    if name == "nvidia":
        announce(info["version"], info.get("license"))
    klog.inserted(name, info, [os.path.basename(d) for d, driver in devices(name) if driver == name])


def _key_enrolled() -> bool:
    """Whether the firmware has DKMS' key. The stand-in for dkms signs nothing: its key stands for the signature of all
    its modules."""
    enrolled = read("/boot/efi/EFI/lab-mok/enrolled")
    return bool(enrolled) and enrolled in (read("/var/lib/dkms/mok.pub"), read("/var/lib/shim-signed/mok/MOK.der"))


def _describe(name: str, path: str, info: dict[str, str], options: list[str], needs: list[str]) -> None:
    """Writes /sys/module/NAME and adds the module to the holders of the modules that it depends on."""
    with open(path, "rb") as file:
        size = re.search(rb"rigwright-size=(\d+)", file.read())
    values = {"coresize": size[1].decode() if size else "16384", "initstate": "live"}
    values["taint"] = {"NVIDIA": "POE", "Dual MIT/GPL": "OE"}.get(info.get("license", ""), "")
    values.update({key: info[key] for key in ("version", "srcversion") if key in info})
    values.update({"parameters/" + o.split("=")[0]: o.split("=", 1)[1] for o in options if "=" in o})
    for key, value in values.items():
        write(f"{SYSFS}/module/{name}/{key}", value + "\n")
    os.makedirs(f"{SYSFS}/module/{name}/holders", exist_ok=True)
    for need in needs:
        os.symlink("../../" + name, f"{SYSFS}/module/{need}/holders/{name}")


def remove(name: str) -> None:
    """Unloads a module and unbinds it from its devices.

    Raises Refused with rmmod's text if it is not loaded or in use.
    """
    if name not in loaded():
        raise Refused("is not currently loaded")
    if holders(name):
        raise Refused("is in use by: " + " ".join(holders(name)))
    if name == "nvidia":
        with open(HW + "/volatile/clients", "a") as clients:
            try:
                fcntl.flock(clients, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Refused("is in use") from None
        announce(None, None)
    unbind(name)
    # Move the folder instead of deleting it: a real sysfs never reuses its inode number, but a disk would.
    os.makedirs(f"{HW}/volatile/removed", exist_ok=True)
    os.rename(f"{SYSFS}/module/{name}", f"{HW}/volatile/removed/{name}.{time.time_ns()}")
    for link in glob.glob(f"{SYSFS}/module/*/holders/{name}"):
        os.unlink(link)
    save([other for other in loaded() if other != name])
    klog.removed(name)
