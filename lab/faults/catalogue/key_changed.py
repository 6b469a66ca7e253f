"""The host shows another ssh host key, as after a reinstallation or with somebody in between.

ssh says "REMOTE HOST IDENTIFICATION HAS CHANGED!"; the lab's known_hosts keeps the key from before. Healed, it has the
old key again.
"""

from __future__ import annotations

import shutil

from lab.host import inside
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ()
ONE_GPU = False
LASTS: int | None = None


NEW = "rm -f /etc/ssh/ssh_host_*; ssh-keygen -q -A; systemctl restart ssh"


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    inside.first_process(host)
    if not host.kept_keys.exists():
        host.kept_keys.mkdir(mode=0o700)
        for path in (host.root / "etc/ssh").glob("ssh_host_*"):
            shutil.copy2(path, host.kept_keys)
    inside.run(host, NEW)


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    for path in (host.root / "etc/ssh").glob("ssh_host_*"):
        path.unlink()
    for path in host.kept_keys.glob("ssh_host_*"):
        shutil.copy2(path, host.root / "etc/ssh")
    shutil.rmtree(host.kept_keys)
    inside.run(host, "systemctl restart ssh")
