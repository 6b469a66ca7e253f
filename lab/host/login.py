"""Logs in to hosts: the lab's ssh key, the known host keys, an ssh_config, and waiting until a login works."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import Protocol

from lab.base.paths import KNOWN_HOSTS, SSH_CONFIG, SSH_KEY, USER, folder, give, write
from lab.base.programs import run
from lab.host import cgroups
from rigwright.core.errors import HostError

LOGIN_S = 120.0


class Reachable(Protocol):
    """A host of the lab that has an sshd: a light host or a virtual machine."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> IPv4Address: ...

    @property
    def port(self) -> int: ...

    @property
    def console(self) -> Path: ...

    @property
    def key(self) -> Path: ...

    @property
    def public_keys(self) -> list[str]: ...


def key() -> Path:
    """Returns the path of the lab's private key, and creates it when it is missing.

    It belongs to the user who called sudo.
    """
    if not SSH_KEY.exists():
        folder(SSH_KEY.parent, 0o700)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "rigwright lab", "-f", SSH_KEY])
    give(SSH_KEY.parent, SSH_KEY, SSH_KEY.with_suffix(".pub"))
    return SSH_KEY


def record(hosts: Sequence[Reachable]) -> None:
    """Writes .lab/ssh_config, and .lab/known_hosts with the keys from the hosts' disks, not from the network."""
    lines = []
    for host in hosts:
        place = f"{host.address}" if host.port == 22 else f"[{host.address}]:{host.port}"
        lines += [f"{place},{host.name} {key}\n" for key in host.public_keys]
    write(KNOWN_HOSTS, "".join(lines))
    write(SSH_CONFIG, ssh_config(hosts))


def ssh_config(hosts: Sequence[Reachable]) -> str:
    """Returns an OpenSSH configuration with each host by its name.

    It neither reads nor changes the user's own configuration. The key exchange is the fastest one: ssh's default takes
    50 ms more of a processor core for each login, and tests log in thousands of times.
    """
    blocks = [
        f"Host {host.name}\n"
        f"    HostName {host.address}\n"
        f"    Port {host.port}\n"
        f"    User {USER}\n"
        f'    IdentityFile "{host.key}"\n'
        "    IdentitiesOnly yes\n"
        f'    UserKnownHostsFile "{KNOWN_HOSTS}"\n'
        "    GlobalKnownHostsFile /dev/null\n"
        "    StrictHostKeyChecking yes\n"
        "    KexAlgorithms curve25519-sha256\n"
        "    ConnectTimeout 10\n"
        "    ServerAliveInterval 10\n"
        "    ServerAliveCountMax 3\n"
        for host in hosts
    ]
    return "\n".join(blocks)


def ssh(host: Reachable, command: str, deadline: float = 30) -> subprocess.CompletedProcess[str]:
    """Runs a command on the host over ssh. Kills it after `deadline` seconds: a login in a host that resets never ends.

    The exit status is ssh's own: 255 when the login failed.
    """
    argv = ["ssh", "-F", str(SSH_CONFIG), "-o", "BatchMode=yes", host.name, command]
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=deadline, check=False
    )


def answers(host: Reachable, deadline: float = 0.5) -> bool:
    """Returns whether the host's sshd sends its banner."""
    try:
        with socket.create_connection((str(host.address), host.port), timeout=deadline) as line:
            line.settimeout(deadline)
            line.sendall(b"SSH-2.0-rigwright_lab\r\n")  # without it sshd logs an error
            return line.recv(4) == b"SSH-"
    except OSError:
        return False


def wait(host: Reachable, deadline: float = LOGIN_S) -> float:
    """Waits until a login works, and returns the seconds it took.

    Raises HostError with the console's last lines at the deadline.
    """
    started = time.monotonic()
    last = f"no answer on port {host.port}"
    while time.monotonic() - started < deadline:
        if answers(host):
            try:
                done = ssh(host, "true", deadline=10)
            except subprocess.TimeoutExpired:
                last = "ssh: no login within 10 s"
                continue
            if done.returncode == 0:
                return time.monotonic() - started
            last = (done.stderr.strip().splitlines() or [f"ssh: exit {done.returncode}"])[-1]
        elif not cgroups.processes(host.name):
            last = "it powered off"
            break
        time.sleep(0.05)
    words = host.console.read_text(errors="replace").strip().splitlines()[-5:] if host.console.exists() else []
    raise HostError(
        host.name,
        f"no login after {time.monotonic() - started:.0f} s: {last}",
        "\n          ".join(["a login; its console ends with", *words]),
        f"sudo less {host.console}",
    )
