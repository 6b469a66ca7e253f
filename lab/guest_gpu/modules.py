"""The state of the simulated kernel: which modules are loaded, which driver has which PCI device, what /proc/driver/nvidia says.

Everything is files of the hardware's folder, which hw/boot binds to /sys/bus/pci, /sys/module, /proc/driver and /proc/modules.
"""

import fcntl
import glob
import os
import re
import shutil
import subprocess
import time

HW = "/run/lab/hw"
REAL = "/usr/lib/lab/kmod/"
MODULES, SYSFS, PROC = HW + "/volatile/modules", HW + "/sys", HW + "/proc"
KERNEL = os.uname().release
DRIVES = {"nouveau": "0x10de", "nvidia": "0x10de", "ast": "0x1a03"}  # driver -> vendor whose displays it drives


class Refused(Exception):
    """The kernel says no; the text is what the program then prints."""


def read(path, default=""):
    """A file's text; `default` when it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return default


def write(path, text):
    """A file with this text, replaced in one step."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)


def run(*argv):
    """A program's exit status, output and errors."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def loaded():
    """The loaded modules, newest first."""
    return [line.split()[0] for line in read(MODULES).splitlines()]


def holders(name):
    """The modules that need this one."""
    folder = f"{SYSFS}/module/{name}/holders"
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def save(names):
    """The module list, in the form of /proc/modules."""
    lines = []
    for name in names:
        users = holders(name)
        size = read(f"{SYSFS}/module/{name}/coresize", "0").strip()
        listed = "".join(user + "," for user in users) or "-"
        lines.append(f"{name} {size} {len(users)} {listed} Live 0x0000000000000000\n")
        write(f"{SYSFS}/module/{name}/refcnt", f"{len(users)}\n")
    with open(MODULES, "w") as file:  # in place: where the kernel has /proc/modules, this file is bound over it
        file.write("".join(lines))


def devices(name):
    """The PCI devices that a driver of that name can drive: (folder, name of the driver that has it now or None)."""
    for link in sorted(glob.glob(SYSFS + "/bus/pci/devices/*")):
        if read(link + "/vendor").strip() == DRIVES.get(name) and read(link + "/class").startswith("0x03"):
            driver = link + "/driver"
            yield os.path.realpath(link), os.path.basename(os.readlink(driver)) if os.path.islink(driver) else None


def bind(name, info):
    """The driver has every device that is free. Raises Refused when the nvidia driver finds none that it supports."""
    found = [device for device, driver in devices(name) if driver is None]
    if name == "nvidia":
        flavour = "proprietary" if info.get("license") == "NVIDIA" else "open"
        found = [d for d in found if flavour in read(f"{HW}/flavours/{os.path.basename(d)}", flavour)]
        if not found:
            raise Refused("No such device")
    target = f"{SYSFS}/bus/pci/drivers/{name}"
    os.makedirs(target, exist_ok=True)
    for device in found:
        os.symlink(os.path.relpath(target, device), device + "/driver")
        os.symlink(os.path.relpath(device, target), f"{target}/{os.path.basename(device)}")


def unbind(name):
    """The driver has no device."""
    for device, driver in devices(name):
        if driver == name:
            os.unlink(device + "/driver")
    shutil.rmtree(f"{SYSFS}/bus/pci/drivers/{name}", ignore_errors=True)


def insert(path, options):
    """The module of that file is loaded and has bound its devices; a loaded one stays as it is. Raises Refused."""
    info = dict(reversed(re.findall(r"^([a-z]+): +(.*)$", run(REAL + "modinfo", path)[1], re.M)))
    name, names = info.get("name", "").replace("-", "_"), loaded()
    if name in names:
        return
    command_line = read(HW + "/cmdline").split()
    barred = [n for word in command_line if word.startswith("module_blacklist=") for n in word[17:].split(",")]
    if name in barred:
        raise Refused("Operation not permitted")
    if info.get("vermagic", "").split(" ")[0] != KERNEL:
        raise Refused("Exec format error")
    needs = [need for need in info.get("depends", "").split(",") if need]
    if set(needs) - set(names):
        raise Refused("Unknown symbol in module, or unknown parameter (see dmesg)")
    # Without mode setting nouveau is there and drives nothing, as in life.
    if name in DRIVES and not (name == "nouveau" and ("modeset=0" in options or "nomodeset" in command_line)):
        bind(name, info)
    _describe(name, path, info, options, needs)
    save([name, *names])
    if name == "nvidia":
        announce(info["version"], info.get("license"))


def _describe(name, path, info, options, needs):
    """/sys/module/NAME and its mark in the modules it needs."""
    with open(path, "rb") as file:
        size = re.search(rb"rigwright-size=(\d+)", file.read())
    values = {"coresize": size[1].decode() if size else "16384", "initstate": "live"}
    values["taint"] = {"NVIDIA": "POE", "Dual MIT/GPL": "OE"}.get(info.get("license"), "")
    values.update({key: info[key] for key in ("version", "srcversion") if key in info})
    values.update({"parameters/" + o.split("=")[0]: o.split("=", 1)[1] for o in options if "=" in o})
    for key, value in values.items():
        write(f"{SYSFS}/module/{name}/{key}", value + "\n")
    os.makedirs(f"{SYSFS}/module/{name}/holders", exist_ok=True)
    for need in needs:
        os.symlink("../../" + name, f"{SYSFS}/module/{need}/holders/{name}")


def remove(name):
    """The module is gone and its devices are free. Raises Refused with what rmmod says of the module."""
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
    shutil.rmtree(f"{SYSFS}/module/{name}")
    for link in glob.glob(f"{SYSFS}/module/*/holders/{name}"):
        os.unlink(link)
    save([other for other in loaded() if other != name])


def announce(version, license_text):
    """The simulated driver library and /proc/driver/nvidia say that this version is loaded; None: no driver is."""
    state = HW + "/volatile/state"
    with open(state + ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = [line for line in read(state).splitlines() if not line.startswith(("driver.loaded=", "driver.instance="))]
        kept += [f"driver.loaded={version or 'none'}", f"driver.instance={time.time_ns() // 1000000}"]
        write(state, "".join(line + "\n" for line in kept))
    shutil.rmtree(PROC + "/nvidia", ignore_errors=True)
    if version is None:
        return
    kind = "x86_64 Kernel Module" if license_text == "NVIDIA" else "Open Kernel Module for x86_64"
    compiler = "gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04.2) "
    write(PROC + "/nvidia/version", f"NVRM version: NVIDIA UNIX {kind}  {version}  Thu Nov 19 12:00:00 UTC 2026\nGCC version:  {compiler}\n")
    text = read(HW + "/board.conf")
    board = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    numbers = {board[key].lower(): key.split(".")[0] for key in board if re.fullmatch(r"gpu\d+\.bus_id", key)}
    mine = [device for device, driver in devices("nvidia") if driver == "nvidia"]
    for minor, device in enumerate(mine):
        _information(board, numbers.get(os.path.basename(device), "gpu?"), device, minor)


def _information(board, gpu, device, minor):
    """/proc/driver/nvidia/gpus/ADDRESS/information."""
    address = os.path.basename(device)

    def of(key):
        return board.get(f"{gpu}.{key}") or board.get(f"model.{board.get(gpu + '.model')}.{key}", "?")

    rows = (
        ("Model", "\t\t", of("name")), ("IRQ", "  \t\t", read(device + "/irq").strip()), ("GPU UUID", "\t", of("uuid")),
        ("Video BIOS", "\t", of("vbios")), ("Bus Type", "\t", "PCIe"), ("DMA Size", "\t", "47 bits"),
        ("DMA Mask", "\t", "0x7fffffffffff"), ("Bus Location", "\t", address), ("Device Minor", "\t", str(minor)),
    )  # fmt: skip
    text = "".join(f"{name}: {gap} {value}\n" for name, gap, value in rows)
    write(f"{PROC}/nvidia/gpus/{address}/information", text + "GPU Excluded:\t No\n")
