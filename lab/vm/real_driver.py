"""Prepares a virtual machine for NVIDIA's real driver: the package with modules for its kernel, and the stand-in
libraries.

With them `provision` installs Debian's own driver packages there: dkms registers, signs and installs the modules, the
next boot loads them, and nvidia-smi, which is NVIDIA's, shows the GPUs of the rig.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lab.base.paths import SSH_CONFIG
from lab.host import login
from lab.vm.machine import Machine
from lab.vm.modules import candidate, modules
from lab.vm.modules_package import modules_package
from lab.vm.nvml_package import nvml_package
from rigwright.core.errors import HostError

INSTALL_S = 300.0
"""Unpacking 70 MB took 21 s under emulation."""

Say = Callable[[str], None]


def prepare(made: Machine, say: Say) -> None:
    """Installs both packages in a machine that is up and has a rig; what is installed already stays.

    The modules are those of the driver that the mirror now has for the machine's release; they are built if the cache
    has none. Raises HostError when that fails or a package cannot be installed.
    """
    if made.rig is None or _prepared(made):
        return
    began = time.monotonic()
    built = modules(made.distro, _kernel(made), candidate(made.distro), say)
    with tempfile.TemporaryDirectory(prefix="rigwright-driver-") as folder:
        out = Path(folder)
        packages = [modules_package(built, out), nvml_package(made.rig, made.name, built.release, out)]
        copy = ["scp", "-q", "-F", str(SSH_CONFIG), *map(str, packages), f"{made.name}:/tmp/"]
        done = subprocess.run(copy, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        if done.returncode == 0:
            names = " ".join(f"/tmp/{package.name}" for package in packages)
            done = login.ssh(made, f"sudo dpkg --install {names} && rm {names}", INSTALL_S)
    if done.returncode != 0:
        last = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise HostError(made.name, f"the lab's driver packages cannot be installed: {last}")
    say(
        f"{made.name}: prepared for driver {built.release} in {time.monotonic() - began:.0f} s: "
        f"dkms there takes its modules from the cache, they were compiled on this machine"
    )


def _prepared(made: Machine) -> bool:
    done = login.ssh(made, "dpkg-query -W -f '${db:Status-Status} ' rigwright-lab-nvml rigwright-lab-modules")
    return done.stdout.split() == ["installed", "installed"]


def _kernel(made: Machine) -> str:
    """Returns the machine's running kernel. Raises HostError for an answer that is no version."""
    kernel = login.ssh(made, "uname -r").stdout.strip()
    if not re.fullmatch(r"[0-9][A-Za-z0-9.+~-]{0,99}", kernel):
        raise HostError(made.name, f"uname -r says {kernel[:100]!r}", "a kernel's version")
    return kernel
