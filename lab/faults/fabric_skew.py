"""The fabric manager was upgraded without the driver, as a hold on the driver alone lets it happen.

systemctl says nvidia-fabricmanager failed, its log "don't match with driver version"; CUDA programs get error 802.
"""

from __future__ import annotations

from lab import inside
from lab.host import Host
from rigwright.errors import UsageError

NEEDS: tuple[str, ...] = ("gpu", "fabric")
ONE_GPU = False
LASTS: int | None = None

INSTALLED = "dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\n' 'nvidia-fabricmanager-*' 2>/dev/null || :"
OTHERS = "apt-cache madison \"$1\" | awk '{print $3}'"
INSTALL = """
apt-get -y -qq --allow-downgrades --allow-change-held-packages install "$1=$2"
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
    others = [other for other in inside.run(host, OTHERS, name).split() if other != version]
    if not others:
        raise UsageError(host.name, f"the archive has no other version of {name}", "two versions")
    kept = host.folder / "fabric"
    if not kept.exists():
        kept.write_text(f"{name} {version}\n")
    inside.run(host, INSTALL, name, others[0], deadline=120)


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    kept = host.folder / "fabric"
    if kept.exists():
        inside.run(host, INSTALL, *kept.read_text().split(), deadline=120)
        kept.unlink()
