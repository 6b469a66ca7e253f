"""A root of Debian 13 in the cache, in which a command runs over this machine's kernel; `scripts/test-pythons` uses it.

    sudo .venv/bin/python -m lab.base.debian13_root FOLDER COMMAND...

FOLDER is mounted at CHECKOUT and is the command's working directory. The command runs as the owner of FOLDER, and ends
with it whatever it started. It has the network and pip's configuration of this machine.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

from lab.base import debian
from lab.base.debian import Say
from lab.base.lock import cache_lock, need_root
from lab.base.paths import VM_CACHE, folder
from lab.base.programs import need, run
from rigwright.core.errors import RigwrightError, UsageError

SUITE = "trixie"
PACKAGES = "ca-certificates,git,kmod,openssh-client,procps,python3,python3-venv,systemd"
"""Python, and what the unit tests run of a server's programs."""
CHECKOUT = "/home/tester/rigwright"
INSIDE = """
root=$1 from=$2 owner=$3
shift 3
mount --make-rprivate /
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind -o ro /sys "$root/sys"
mount -t tmpfs tmp "$root/tmp"
{ cat "$root/etc/passwd"; echo "tester:x:$owner::/home/tester:/bin/sh"; } >"$root/tmp/passwd"
mount --bind -o ro "$root/tmp/passwd" "$root/etc/passwd"
mount -t tmpfs -o "mode=755,uid=${owner%:*},gid=${owner#*:}" home "$root/home/tester"
mkdir "$root$CHECKOUT"
mount --bind "$from" "$root$CHECKOUT"
mount --bind -o ro /etc/ssl/certs "$root/etc/ssl/certs"
mount --bind -o ro /etc/resolv.conf "$root/etc/resolv.conf"
exec chroot "--userspec=$owner" --groups= "$root" sh -c 'cd "$0" && exec "$@"' "$CHECKOUT" "$@"
"""


def root(say: Say) -> Path:
    """Returns the root's folder, and first builds it when the cache has none with these packages."""
    image = folder(VM_CACHE, 0o700) / f"debian13-root-{hashlib.sha256(PACKAGES.encode()).hexdigest()[:12]}"
    with cache_lock(VM_CACHE, image.name, say):
        if not image.is_dir():
            partial = image.with_suffix(".partial")
            run(["rm", "-rf", "--one-file-system", partial], deadline=300)
            say(f"Building a root of Debian 13, once: a minute, 400 MB in {VM_CACHE}.")
            debian.bootstrap(partial, SUITE, PACKAGES, say)
            (partial / "home" / "tester").mkdir()
            (partial / "etc" / "resolv.conf").touch()
            partial.rename(image)
    return image


def environment() -> dict[str, str]:
    """Returns the command's environment: proxies, pip's configuration and certificates are those of this machine."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "PYTHONDONTWRITE"))}
    kept |= {name: value for name, value in os.environ.items() if name.endswith(("CA_BUNDLE", "SSL_CERT_FILE"))}
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    for name, value in re.findall(r"^global\.([a-z-]+)='(.*)'$", configured, re.M):
        kept.setdefault(f"PIP_{name.replace('-', '_').upper()}", value)
    return {**debian.environment(), **kept, "HOME": "/home/tester", "USER": "tester", "CHECKOUT": CHECKOUT}


def main(argv: list[str]) -> int:
    """Runs a command in the root; returns its exit code."""
    if len(argv) < 2:
        raise UsageError("lab.base.debian13_root", f"{len(argv)} words", "FOLDER COMMAND...")
    need_root("-m lab.base.debian13_root")
    need(("mmdebstrap", "unshare", "mount", "chroot"))
    place, command = Path(argv[0]).resolve(), argv[1:]
    if not place.is_dir():
        raise UsageError("lab.base.debian13_root", f"{place} is no folder", "the checkout in which the command runs")

    def say(text: str) -> None:
        print(text, file=sys.stderr)

    image = root(say)
    owner = place.stat()
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", INSIDE, "sh"]
    inside = [*namespaces, str(image), str(place), f"{owner.st_uid}:{owner.st_gid}", *command]
    return subprocess.run(inside, stdin=subprocess.DEVNULL, env=environment(), check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RigwrightError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
