"""The driver's module cannot be built: the package is half configured, and from the next boot on there is no module.

apt-get says "Sub-process /usr/bin/dpkg returned an error code", dkms status "added" and no more, dpkg -l "iF"; the log
is /var/lib/dkms/.../build/make.log. Healing lets dpkg --configure -a go through.
"""

from __future__ import annotations

from lab.host import inside
from lab.host.disk import Host
from rigwright.core.errors import UsageError

NEEDS: tuple[str, ...] = ("gpu",)
ONE_GPU = False
LASTS: int | None = None


BREAK = """
touch /etc/sim-dkms-fail
for package in "$@"; do apt-get install -qq -y --reinstall --allow-downgrades --allow-change-held-packages \\
  "$package" || :; done
"""
WHICH = "dpkg-query -W -f '${db:Status-Status} ${Package}=${Version}\\n' 'nvidia-dkms-*' 2>/dev/null || :"


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    rows = [line.split() for line in inside.run(host, WHICH).splitlines()]
    there = [row[1] for row in rows if row[0] != "not-installed"]
    if not there:
        raise UsageError(
            host.name, "no nvidia-dkms package is installed", "a host with the driver", "invoke provision first"
        )
    inside.run(host, BREAK, *there, deadline=180)


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    inside.run(host, "rm -f /etc/sim-dkms-fail; dpkg --configure -a", deadline=180)
