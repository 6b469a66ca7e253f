"""What rows of the fact next_boot.conditions make of the programs' words, as Debian 12 and 13, Ubuntu 22.04 and 24.04
print them."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from rigwright.core.command import LOGIN, Result
from rigwright.facts import parsed
from rigwright.facts.boot import next_boot

KEYS = "accepted /home/u/.ssh/k\nmode {} /home/u/.ssh/k\nmode {} /home/u/.ssh\nmode {} /home/u\n"
USER = "user u\nuid 1000\ngroups u sudo\nshell /bin/bash\nlocked no\ntoday 20783\n"
SSHD = (
    "sshd usepam yes\nsshd pubkeyauthentication yes\nsshd authorizedkeyscommand none\nsshd strictmodes yes\n"
    "file /home/u/.ssh/k\n"
)
MINE = KEYS.format("600 1000 1000", "700 1000 1000", "755 1000 1000")
UNITS = "unit networking.service enabled enabled\nunit systemd-networkd.service {} enabled\n"

FINE = {
    "ssh server": [
        "exit 0",
        "/etc/ssh/sshd_config line 1: Deprecated option UsePrivilegeSeparation\nexit 0",
        "Missing privilege separation directory: /run/sshd\r\nexit 255",
    ],
    "ssh at boot": [
        "login\nunit ssh.service enabled enabled\nunit ssh.socket disabled enabled",
        "login\nunit ssh.service disabled enabled\nunit ssh.socket enabled enabled",
    ],
    "ssh login": [
        USER,
        USER + SSHD + MINE,
        USER + SSHD + KEYS.format("644 0 0", "700 1000 1000", "775 1000 1000") + "group 1000 u\nname 1000 u",
        USER + SSHD + "sshd allowusers u@10.0.0.* other\n" + MINE,
        USER + SSHD + "sshd allowgroups sud?\nsshd denyusers root v* [a-z]\n" + MINE,
        USER + SSHD.replace("strictmodes yes", "strictmodes no") + KEYS.format("666 0 0", "777 0 0", "777 0 0"),
        USER + SSHD.replace("command none", "command /bin/keys"),
        USER + "match Match Address 10.0.0.0/8\nsshd pubkeyauthentication no\n",
        USER + "options '-o PubkeyAuthentication=yes'\nsshd pubkeyauthentication no\n",
        USER + SSHD + "file ?\n",
        USER.replace("locked no", "locked yes\nexpires 20784") + SSHD + MINE,
        USER.replace("user u", "user root") + SSHD + "sshd permitrootlogin without-password\n" + MINE,
    ],
    "sudo": [
        "/etc/sudoers: parsed OK\nexit 0\nrule ext2/ext3 /etc/sudoers",
        "/etc/sudoers.d/x: bad permissions, should be mode 0440\n/etc/sudoers: parsed OK\nexit 1\n"
        "rule ext2/ext3 /etc/sudoers.d/x",
        "exit 0\nrule tmpfs /run/sudoers.d/u\nrule ext2/ext3 /etc/sudoers",
    ],
    "network": [
        UNITS.format("disabled"),
        UNITS.format("disabled") + "ifquery lo\nifquery eth0\nifquery exit 0\nifup exit 0",
        UNITS.format("enabled") + "networkd files",
        UNITS.format("disabled") + "netplan exit 0",
        UNITS.format("disabled") + "netplan exit 0\nnetworkd /etc/systemd/network/1.network:2: unused",
        "unit networking.service disabled enabled\nstanza allow-hotplug eth0\nifquery eth0\n"
        "ifquery exit 0\nifup exit 0",
        "unit NetworkManager.service enabled enabled\nunit networking.service disabled enabled\nifquery exit 1",
    ],
    "/etc/fstab": [
        "Success, no errors or warnings detected\nexit 0",
        "/data\n   [E] unreachable on boot required target: No such file or directory\nexit 1",
        "/pool\n   [W] unreachable source: pool/x: No such file or directory\nexit 0",
    ],
    "/etc/crypttab": ["read"],
}

FAULTS = {
    "ssh server": {
        "sshd: no hostkeys available -- exiting.\r\nexit 1": "no hostkeys",
        '/etc/ssh/sshd_config.d/x.conf line 1: unsupported option "maybe".\nexit 255': "maybe",
        "Privilege separation user sshd does not exist\nexit 255": "user sshd",
        "exit 1": "sshd -t: exit 1",
    },
    "ssh at boot": {
        "login\nunit ssh.service disabled enabled\nunit ssh.socket disabled enabled": "ssh.socket is disabled",
        "login\nunit ssh.service masked enabled": "ssh.service is masked",
    },
    "ssh login": {
        USER.replace("/bin/bash", "/usr/sbin/nologin"): "nologin",
        USER.replace("/bin/bash", "/bin/gone\nno shell"): "/bin/gone",
        USER + "expires 20783": "has expired",
        USER.replace("locked no", "locked yes") + SSHD.replace("usepam yes", "usepam no") + MINE: "is locked",
        USER + SSHD.replace("authentication yes", "authentication no") + MINE: "PubkeyAuthentication no",
        USER + SSHD + "sshd allowusers v\nsshd allowusers w@*\n" + MINE: "AllowUsers v w@*",
        USER + SSHD + "sshd denygroups s*o\n" + MINE: "DenyGroups s*o",
        USER.replace("user u", "user root") + SSHD + "sshd permitrootlogin no\n" + MINE: "PermitRootLogin no",
        USER + SSHD: "without the key that this login used",
        USER + SSHD + KEYS.format("602 1000 1000", "700 1000 1000", "755 1000 1000"): "/home/u/.ssh/k (mode 602)",
        USER + SSHD + KEYS.format("600 1000 1000", "700 1001 1000", "755 1000 1000"): "another user (uid 1001)",
        USER + SSHD + KEYS.format("600 1000 1000", "700 1000 1000", "775 1000 100") + "group 100 v\nname 1000 u": "775",
    },
    "sudo": {
        "/etc/sudoers.d/x:1:17: syntax error\nu ALL=(ALL NOPASSWD\n     ^~~~\nexit 1": "x:1:17: syntax error",
        ">>> /etc/sudoers.d/x: syntax error near line 1 <<<\nparse error in /etc/sudoers.d/x near line 1\nexit 1":
            "line 1",
        "/etc/sudoers.d/x: wrong owner (uid, gid) should be (0, 0)\nexit 1\nloose /etc/sudoers.d/x":
            "/etc/sudoers.d/x is not root's",
        "exit 0\nrule tmpfs /run/sudoers.d/u": "in memory",
    },
    "network": {
        UNITS.format("enabled") + "netplan /etc/netplan/x.yaml:1:49: Error: 'perhaps'\nnetplan password: secret\n"
                                  "netplan exit 1": "'perhaps'",
        UNITS.format("masked") + "netplan exit 0": "systemd-networkd.service is masked",
        UNITS.format("enabled") + "networkd files\nnetworkd /etc/systemd/network/1.network:4: no [SECTION]":
            "1.network:4",
        UNITS.format("disabled") + "ifquery ifquery: interfaces:4: unknown or no method\nifquery exit 1\nifup exit 1":
            "interfaces:4",
        UNITS.format("disabled") + "ifquery eth0\nifquery exit 0\nifup ifup: missing required variable: address\n"
                                   "ifup exit 1": "address",
        "unit networking.service disabled enabled\nifquery eth0\nifquery exit 0\nifup exit 0":
            "networking.service is disabled",
    },
    "/etc/fstab": {
        "/data\n   [E] unreachable on boot required source: UUID=1\nexit 1": "/data: unreachable on boot required "
                                                                             "source: UUID=1",
        "/data\n   [W] unreachable source: /dev/sdz1: No such file or directory\nexit 0": "/dev/sdz1",
        "/data\n   [E] cannot detect on-disk filesystem type (No such file)\nexit 1": "/data: cannot detect",
        "findmnt: /run/x/fstab: parse error at line 15 -- ignored\nexit 1": "line 15",
    },
    "/etc/crypttab": {"read\ngone data UUID=1": "data: its device UUID=1"},
}  # fmt: skip

UNKNOWN = {
    "ssh server": {"missing /usr/sbin/sshd": "/usr/sbin/sshd is not there", "exit 124": "within 10 s"},
    "ssh at boot": {"login": "neither ssh.service nor ssh.socket"},
    "sudo": {"missing /usr/sbin/visudo": "visudo is not there", "/etc/sudoers: parsed OK": "more than is read"},
    "network": {UNITS.format("enabled") + "netplan missing /lib/netplan/generate": "generate is not there"},
    "/etc/fstab": {"findmnt: can't read /run/x/fstab: No such file\nexit 1": "can't read",
                   "missing /usr/bin/findmnt": "findmnt"},
}  # fmt: skip


def conditions(subject: str, said: str) -> list[tuple[str, str, str]]:
    """Returns the conditions of a host of which one row printed this and the others nothing."""
    parts = [
        f"== {row.subject}\n"
        + "".join(f" {line}\n" for line in said.split("\n") if row.subject == subject and line.strip())
        for row in next_boot.ROWS
    ]
    value = parsed(next_boot.conditions, Result(0, "".join(parts).encode()))
    assert isinstance(value, tuple), value
    return [(one.subject, one.state, one.found) for one in value]


@pytest.mark.parametrize(("subject", "said"), [(subject, said) for subject, each in FINE.items() for said in each])
def test_nothing_is_wrong(subject: str, said: str) -> None:
    assert conditions(subject, said) == [(subject, "fine", "")]


@pytest.mark.parametrize(
    ("state", "subject", "said", "found"),
    [
        (state, subject, *pair)
        for state, table in (("fault", FAULTS), ("unknown", UNKNOWN))
        for subject, each in table.items()
        for pair in each.items()
    ],
)
def test_each_fault_is_named(state: str, subject: str, said: str, found: str) -> None:
    ((about, judged, text),) = conditions(subject, said)
    assert (about, judged) == (subject, state)
    assert found in text
    assert "secret" not in text


def test_the_script_asks_this_machine(tmp_path: Path) -> None:
    """It runs under any shell, asks for every row, and leaves nothing behind; a user who is not root is told so."""
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", LOGIN: "ssh"}
    argv = next_boot.conditions.command.argv
    done = subprocess.run(argv, capture_output=True, check=False, cwd=tmp_path, env=env)
    value = parsed(next_boot.conditions, Result(0, done.stdout))
    assert isinstance(value, tuple) or str(value) == "only root can look at it", value
    assert not list(tmp_path.iterdir())


def test_a_hostile_pattern_takes_no_time() -> None:
    """With `.*` for each of sixteen stars a comparison would not end within seconds."""
    began = time.thread_time()
    assert not next_boot._fits("*a" * 16 + "b", "a" * 32)
    assert time.thread_time() - began < 1
