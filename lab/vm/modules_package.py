"""The package rigwright-lab-modules: a make that takes NVIDIA's modules from the cache where a guest's dkms builds
them.

It also makes update-initramfs, which every driver package calls, as short as emulation needs it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from lab.vm import diversion
from lab.vm.modules import NAMES, Modules

NAME = "rigwright-lab-modules"
MAKE = "/usr/bin/make"
INITRAMFS = "/etc/initramfs-tools/conf.d/rigwright-lab"
FAILS = "/var/lib/rigwright-lab/make-fails"
"""A file of the guest: while it exists, compiling the modules prints it and fails with exit 2."""


def modules_package(modules: Modules, out: Path) -> Path:
    """Builds the package with these modules and returns its path in the folder `out`.

    In the guest, `make` copies them only where dkms builds them for their kernel, and only if the packages with the
    source and the kernel's headers have the versions that the modules were compiled with; else it is the real make.
    """
    folder = f"/usr/lib/rigwright-lab/modules/{modules.name}/{modules.release}/{modules.kernel}"
    files = {f"{folder}/{name}": modules.path / name for name in NAMES}
    with tempfile.TemporaryDirectory(prefix="rigwright-modules-") as work:
        packages = Path(work) / "packages"
        wanted = {"nvidia-kernel-dkms": modules.version, f"linux-headers-{modules.kernel}": modules.headers}
        packages.write_text("".join(f"{name} {version}\n" for name, version in wanted.items()), encoding="utf-8")
        files |= {
            f"{folder}/packages": packages,
            MAKE: diversion.FILES / "make",
            INITRAMFS: diversion.FILES / "initramfs",
        }
        about = f"NVIDIA's modules {modules.release} for {modules.kernel}, compiled elsewhere"
        return diversion.build(NAME, modules.version, about, files, out, over=(MAKE,))
