"""Owns the way into the hosts: the lab's ssh key, the known host keys, an ssh_config, and waiting for a login."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

from lab import cgroups
from lab.host import Host, known
from lab.paths import HOSTS, KNOWN_HOSTS, SSH_CONFIG, SSH_KEY, USER, folder, give, write
from lab.programs import run
from rigwright.errors import HostError

LOGIN_S = 120.0


def key() -> Path:
    """The lab's private key, made when missing; it belongs to the person who called sudo."""
    if not SSH_KEY.exists():
        folder(SSH_KEY.parent, 0o700)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "rigwright lab", "-f", SSH_KEY])
    give(SSH_KEY.parent, SSH_KEY, SSH_KEY.with_suffix(".pub"))
    return SSH_KEY


def record() -> None:
    """.lab/known_hosts has every host's own keys, read from its disk (nobody in between could give others), .lab/ssh_config each."""
    lines = []
    for host in known():
        keys = host.kept_keys if host.kept_keys.exists() else HOSTS / host.name / "upper/etc/ssh"
        for path in sorted(keys.glob("ssh_host_*_key.pub")):
            kind, public = path.read_text().split()[:2]
            lines.append(f"{host.address},{host.name} {kind} {public}\n")
    write(KNOWN_HOSTS, "".join(lines))
    write(SSH_CONFIG, ssh_config(known()))


def ssh_config(hosts: list[Host]) -> str:
    """An OpenSSH configuration that reaches each host by its name; nothing of the user's own is read or changed."""
    blocks = [
        f"Host {host.name}\n"
        f"    HostName {host.address}\n"
        f"    User {USER}\n"
        f'    IdentityFile "{SSH_KEY}"\n'
        "    IdentitiesOnly yes\n"
        f'    UserKnownHostsFile "{KNOWN_HOSTS}"\n'
        "    GlobalKnownHostsFile /dev/null\n"
        "    StrictHostKeyChecking yes\n"
        "    ConnectTimeout 10\n"
        "    ServerAliveInterval 10\n"
        "    ServerAliveCountMax 3\n"
        for host in hosts
    ]
    return "\n".join(blocks)


def ssh(host: Host, command: str, deadline: float = 30) -> subprocess.CompletedProcess[str]:
    """A command run on the host over ssh, killed after `deadline` (a login in a host that resets hangs for ever).

    The exit status is ssh's own: 255 when there was no login.
    """
    argv = ["ssh", "-F", str(SSH_CONFIG), "-o", "BatchMode=yes", host.name, command]
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=deadline, check=False
    )


def answers(host: Host, deadline: float = 0.5) -> bool:
    """Whether its sshd greets."""
    try:
        with socket.create_connection((str(host.address), 22), timeout=deadline) as line:
            line.settimeout(deadline)
            line.sendall(b"SSH-2.0-rigwright_lab\r\n")  # or sshd logs an error
            return line.recv(4) == b"SSH-"
    except OSError:
        return False


def wait(host: Host, deadline: float = LOGIN_S) -> float:
    """A real login works; returns the seconds it took. Raises HostError with the console's last words when it does not."""
    started = time.monotonic()
    last = "no answer on port 22"
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
