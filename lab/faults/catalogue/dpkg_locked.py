"""Another package manager is at work and does not end: it holds dpkg's lock until it is healed or the host reboots.

apt-get says "Could not get lock /var/lib/dpkg/lock-frontend. It is held by process ... (unattended-upgr)".
"""

from __future__ import annotations

from lab.host import inside
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ()
ONE_GPU = False
LASTS: int | None = 0


UNIT = "lab-unattended-upgrades"
HOLD = """
import fcntl, time
open("/proc/self/comm", "w").write("unattended-upgr")
locks = [open("/var/lib/dpkg/" + name, "w") for name in ("lock-frontend", "lock")]
for lock in locks:
    fcntl.lockf(lock, fcntl.LOCK_EX)
open("/run/lab-dpkg-locked", "w").close()
time.sleep(1e6)
"""
START = """
if systemctl -q is-active "$1"; then exit 0; fi
rm -f /run/lab-dpkg-locked
systemd-run --quiet --collect --unit="$1" python3 -c "$2"
timeout 20 sh -c 'until [ -e /run/lab-dpkg-locked ]; do sleep 0.05; done'
"""


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    inside.run(host, START, UNIT, HOLD)


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    inside.run(host, 'systemctl stop "$1"; rm -f /run/lab-dpkg-locked', UNIT)
