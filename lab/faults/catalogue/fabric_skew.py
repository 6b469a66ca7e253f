"""The fabric manager was upgraded without the driver, as a hold on the driver alone lets it happen.

systemctl says nvidia-fabricmanager failed, its log "don't match with driver version"; CUDA programs get error 802.
"""

from __future__ import annotations

import shutil

from lab.archive import packages
from lab.archive.packages import deb
from lab.archive.repositories import artefact, kernel_values
from lab.base.paths import CACHE
from lab.host import inside
from lab.host.disk import Host
from rigwright.core.errors import UsageError

NEEDS: tuple[str, ...] = ("gpu", "fabric")
ONE_GPU = False
LASTS: int | None = None

FOLDER = "var/cache/lab-skew"
INSTALLED = "dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\n' 'nvidia-fabricmanager-*' 2>/dev/null || :"
INSTALL = """
apt-get -y -qq -o APT::Sandbox::User=root --allow-downgrades --allow-change-held-packages install "$1"
systemctl restart nvidia-fabricmanager || :
"""


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    rows = [line.split() for line in inside.run(host, INSTALLED).splitlines()]
    there = {name: version for status, name, version in rows if status == "installed"}
    if not there:
        raise UsageError(
            host.name, "no fabric manager is installed", "one, as NVSwitch needs it", "invoke provision first"
        )
    name, version = next(iter(there.items()))
    try:
        _, (newer,) = packages.successor(kernel_values(), name, version, "fabricmanager")
    except ValueError as none:
        found = f"{none}: it has moved already"
        raise UsageError(host.name, found, "a fabric manager of the archive", "invoke lab.heal or provision") from none
    held = name in inside.run(host, "apt-mark showhold").split()
    (host.folder / "fabric").write_text(f"{name}={version} {int(held)}\n")
    folder = host.root / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    deb.build(newer, folder, lambda what, values: artefact(what, values, CACHE))
    try:
        inside.run(host, INSTALL, f"/{FOLDER}/{newer.deb}", deadline=120)
    finally:
        shutil.rmtree(folder)


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    kept = host.folder / "fabric"
    if kept.exists():
        which, hold = kept.read_text().split()
        inside.run(host, INSTALL, which, deadline=120)
        if hold == "1":
            inside.run(host, 'apt-mark hold "$@"', which.partition("=")[0])
        kept.unlink()
