"""The eleven steps of playbooks/bench.yml for pyinfra, with separate paths, for scripts/bench --fleet."""

from __future__ import annotations

from io import StringIO

from pyinfra.operations import apt, files, server, systemd  # type: ignore[import-not-found]

UNIT = """[Unit]
Description=Waits, beside {{ names | length }} files (pyinfra's bench)

[Service]
ExecStart=/bin/sleep infinity

[Install]
WantedBy=multi-user.target
"""
LINE = 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT iommu=pt"\n'
NAMES = ("one", "two", "three", "four", "five")

apt.packages(name="Packages", packages=["openssh-server", "sudo", "python3"], _sudo=True)
for one in NAMES:
    files.put(
        name=f"File {one}",
        src=StringIO(f"bench = {one}\n"),
        dest=f"/etc/pyinfra-bench/{one}.conf",
        mode="644",
        _sudo=True,
    )
files.template(
    name="Unit",
    src=StringIO(UNIT),
    dest="/etc/systemd/system/pyinfra-wait.service",
    mode="644",
    names=list(NAMES),
    _sudo=True,
)
systemd.service(name="Service", service="pyinfra-wait.service", running=True, enabled=True, _sudo=True)
files.directory(name="Directory", path="/srv/pyinfra-bench", mode="750", _sudo=True)
server.user(name="User", user="pyinfrabench", _sudo=True)
files.put(
    name="Kernel command line", src=StringIO(LINE), dest="/etc/default/grub.d/zz-pyinfra.cfg", mode="644", _sudo=True
)
