"""unattended-upgrades has moved the driver's packages to the next version; the module in the kernel is the old one.

nvidia-smi says "Failed to initialize NVML: Driver/library version mismatch", the kernel log "NVRM: API mismatch", and
/var/log/apt/history.log when it was. A reboot loads the new module; healing without one brings the old packages back.
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

NEEDS: tuple[str, ...] = ("gpu",)
ONE_GPU = False
LASTS: int | None = 0

FOLDER = "var/cache/lab-moved"
INSTALLED = "dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\n' | sed -n 's/^installed //p'"
APT = """
apt-get -y -qq -o Dpkg::Options::=--force-confold -o APT::Sandbox::User=root \
    --allow-downgrades --allow-change-held-packages install "$@"
"""
AS_LOGGED = """
sed -i 's|^Commandline: apt-get .*/lab-moved/.*|Commandline: /usr/bin/unattended-upgrade|' /var/log/apt/history.log
mkdir -p /var/log/unattended-upgrades
echo "$(date '+%F %T'),000 INFO Packages that will be upgraded: $*" \\
  >>/var/log/unattended-upgrades/unattended-upgrades.log
"""


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    there = _installed(host)
    library = next((name for name in there if name.startswith("libnvidia-compute-")), None)
    if library is None:
        raise UsageError(host.name, "no NVIDIA driver is installed", "a host with the driver", "invoke provision first")
    try:
        version, family = packages.successor(kernel_values(), library, there[library])
    except ValueError as none:
        found = f"{none}: the packages have moved already"
        raise UsageError(host.name, found, "a driver of the archive", "invoke lab.heal or provision") from none
    kept = {name: there[name] for name in there if _is_driver(name)}
    held = set(inside.run(host, "apt-mark showhold").split())
    (host.folder / "moved").write_text("".join(f"{name}={kept[name]} {int(name in held)}\n" for name in kept))
    folder = host.root / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    for package in family:
        if package.name in there or package.name.endswith(f"-{version}"):
            deb.build(package, folder, lambda what, values: artefact(what, values, CACHE))
    debs = sorted(f"/{FOLDER}/{path.name}" for path in folder.iterdir())
    try:
        inside.run(host, APT, *debs, deadline=180)
        inside.run(host, AS_LOGGED, *(package.name for package in family if package.name in there))
    finally:
        shutil.rmtree(folder)


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    record = host.folder / "moved"
    if not record.exists():
        return
    rows = [line.split() for line in record.read_text().splitlines()]
    names = {which.partition("=")[0] for which, _ in rows}
    newcomers = [f"{name}-" for name in _installed(host) if _is_driver(name) and name not in names]
    inside.run(host, APT, *(which for which, _ in rows), *newcomers, deadline=180)
    held = [which.partition("=")[0] for which, hold in rows if hold == "1"]
    if held:
        inside.run(host, 'apt-mark hold "$@"', *held)
    record.unlink()


def _installed(host: Host) -> dict[str, str]:
    rows = (line.split() for line in inside.run(host, INSTALLED).splitlines())
    return {row[0]: row[1] for row in rows}


def _is_driver(name: str) -> bool:
    return "nvidia" in name and name not in ("nvidia-settings", "nvidia-modprobe")
