"""The file system with /var is full, until it is healed or the host reboots.

df says 100 %, apt-get "No space left on device". What is there can be read.
"""

from __future__ import annotations

from lab.host import inside
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ()
ONE_GPU = False
LASTS: int | None = 0


FULL = "/run/lab/full"
FILL = """
if mountpoint -q "$1"; then exit 0; fi
mkdir -p "$1"
mount -t tmpfs -o size=1m,mode=0755 tmpfs "$1"
mkdir "$1/upper" "$1/work"
mount -t overlay -o "lowerdir=/var,upperdir=$1/upper,workdir=$1/work" full /var
dd if=/dev/zero of="$1/fill" bs=4k 2>/dev/null || :
"""


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    inside.run(host, FILL, FULL)


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    inside.run(host, 'if mountpoint -q "$1"; then umount -l /var; umount -l "$1"; fi', FULL)
