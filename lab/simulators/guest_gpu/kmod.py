"""The programs of kmod that load and unload modules, and module loading at boot. modules.py simulates the kernel.

    kmod.py modprobe|insmod|rmmod ARGUMENTS...            commands that /bin/kmod does not pass to the real program
    kmod.py boot                                          initrd, coldplug, modules-load.d, in this order

The real modprobe resolves names, aliases, options and blacklists to files.
"""

from __future__ import annotations

import glob
import os
import re
import subprocess
import sys

from lab.simulators.guest_gpu import nodes
from lab.simulators.guest_gpu.modules import KERNEL, REAL, Refused, holders, insert, loaded, remove
from lab.simulators.guest_gpu.state import HW, SYSFS, read, run


def may_change(program: str, name: str) -> bool:
    """Whether the user is root and the simulated kernel exists; otherwise prints an error."""
    if os.geteuid() == 0 and os.path.isdir(SYSFS):
        return True
    verb = "remove" if program == "rmmod" else "insert"
    print(f"{program}: ERROR: could not {verb} '{name}': Operation not permitted", file=sys.stderr)
    return False


def modprobe(words: list[str]) -> int:
    """modprobe: loads modules, or unloads them with -r. Returns the exit status."""
    flags, names, rest = list[str](), list[str](), list(words)
    while rest:
        word = rest.pop(0)
        if word in ("-S", "-C", "-d", "--set-version", "--config", "--dirname"):
            flags += [word, *rest[:1]]
            rest = rest[1:]
        elif word.startswith("-"):
            flags.append(word)
        else:
            names.append(word)
    short = "".join(flag[1:] for flag in flags if re.fullmatch(r"-[a-z]+", flag))
    quiet = "q" in short or "--quiet" in flags
    if names and not may_change("modprobe", names[0]):
        return 1
    if "r" in short or "--remove" in flags:
        return max([unload(name.replace("-", "_"), quiet) for name in names], default=0)
    only_here = ("-f", "-v", "--verbose", "--first-time", "--force", "-s", "--syslog")
    asked = [flag for flag in flags if flag not in only_here]
    status, out, err = run(REAL + "modprobe", "--show-depends", *asked, *names)
    sys.stderr.write(err)
    bound_before = "nvidia" in loaded()
    for line in out.splitlines():
        verb, _, what = line.partition(" ")
        if verb == "insmod":
            status = max(status, load(what, quiet))
        elif verb == "install":
            status = max(status, subprocess.call(["/bin/sh", "-c", what]))
    if "nvidia" in loaded() and not bound_before:
        udev()
    return status


def load(what: str, quiet: bool) -> int:
    """Loads the module of one line `insmod FILE OPTIONS` from `modprobe --show-depends`. Returns the exit status."""
    path, *options = what.split()
    try:
        insert(path, options)
    except Refused as no:
        if not quiet:
            name = os.path.basename(path).split(".")[0].replace("-", "_")
            print(f"modprobe: ERROR: could not insert '{name}': {no}", file=sys.stderr)
        return 1
    return 0


def unload(name: str, quiet: bool) -> int:
    """modprobe -r NAME: unloads the module, and its dependencies that no other module needs.

    Returns the exit status.
    """
    if name not in loaded():
        return 0
    needed = [module for module in loaded() if name in holders(module)]
    try:
        remove(name)
    except Refused as no:
        if not quiet:
            print(f"modprobe: FATAL: Module {name} {str(no).split(' by:')[0]}.", file=sys.stderr)
        return 1
    for other in needed:
        if other in loaded() and not holders(other):
            unload(other, True)
    return 0


def udev() -> None:
    """Runs the actions of the installed udev rules after the nvidia driver was bound. Containers have no udevd."""
    rules = {
        os.path.basename(p): p for d in ("/lib/udev/rules.d", "/etc/udev/rules.d") for p in glob.glob(d + "/*.rules")
    }
    for line in "".join(read(path) for _, path in sorted(rules.items())).splitlines():
        if not line.startswith('ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia"'):
            continue
        for name in re.findall(r'RUN\+="/sbin/modprobe ([\w-]+)"', line):
            modprobe(["-q", name])
        for unit in re.findall(r'SYSTEMD_WANTS\}="([^"]+)"', line):
            wants = "/run/systemd/system/multi-user.target.wants/" + unit
            os.makedirs(os.path.dirname(wants), exist_ok=True)
            if not os.path.islink(wants):
                os.symlink("/lib/systemd/system/" + unit, wants)
            if os.path.exists("/run/systemd/private"):
                run("systemctl", "daemon-reload")
                run("systemctl", "start", "--no-block", unit)


def rmmod(words: list[str]) -> int:
    """rmmod NAMES. Returns the exit status."""
    status = 0
    for word in (word for word in words if not word.startswith("-")):
        name = os.path.basename(word).split(".ko")[0].replace("-", "_")
        if not may_change("rmmod", name):
            return 1
        try:
            remove(name)
        except Refused as no:
            status = 1
            print(f"rmmod: ERROR: Module {name} {no}", file=sys.stderr)
    return status


def insmod(words: list[str]) -> int:
    """insmod FILE OPTIONS. Returns the exit status."""
    path, *options = [word for word in words if not word.startswith("-")] or [""]
    if not may_change("insmod", path):
        return 1
    try:
        if not os.path.exists(path):
            raise Refused("No such file or directory")
        insert(path, options)
    except Refused as no:
        print(f"insmod: ERROR: could not insert module {path}: {no}", file=sys.stderr)
        return 1
    if os.path.basename(path) == "nvidia.ko":
        udev()
    return 0


def coldplug(*where: str) -> None:
    """Loads the modules of every PCI device by its modalias, like udev. Blacklists apply."""
    aliases = {read(link + "/modalias").strip() for link in glob.glob(SYSFS + "/bus/pci/devices/*")}
    for alias in sorted(aliases - {""}):
        modprobe(["-q", "-b", *where, alias])


def boot(_: list[str]) -> int:
    """Loads drivers in the order of a real boot.

    First those in the initrd that GRUB chose, with its own modprobe.d, then those on the disk. Returns the exit status.
    """
    initrd = HW + "/initrd"
    if os.path.isdir(f"{initrd}/lib/modules/{KERNEL}"):
        coldplug("-d", initrd, "-C", initrd + "/modprobe.d")
    coldplug()
    folders = ("/usr/lib", "/lib", "/run", "/etc")
    wanted = {os.path.basename(p): p for d in folders for p in glob.glob(d + "/modules-load.d/*.conf")}
    for path in [*(path for _, path in sorted(wanted.items())), "/etc/modules"]:
        for line in read(path).splitlines():
            if line.strip() and line.strip()[0] not in "#;":
                modprobe(["-q", "-b", line.split()[0]])
    return 0


def main(argv: list[str]) -> int:
    """Runs the program in the first argument with the other arguments. Returns the exit status."""
    os.environ.pop("PYTHONPATH", None)
    before = set(loaded())
    programs = {"modprobe": modprobe, "rmmod": rmmod, "insmod": insmod, "boot": boot}
    status = programs[argv[0]](argv[1:])
    nodes.make(set(loaded()) - before)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
