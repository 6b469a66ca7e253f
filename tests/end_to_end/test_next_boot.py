"""A host that nobody could log in to after a boot is not rebooted: plan, verify and provision say why, and go on when
it is corrected."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.bench import trials
from lab.power import switch
from tests.end_to_end.conftest import Ssh
from tests.end_to_end.rw import document, login_variables, not_as_wanted

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]
PLAY = trials.VM_PLAY + "  checks:\n    - name: Login after a boot\n      boot.host_comes_back:\n"
SSHD, IFACE = "/etc/ssh/sshd_config.d/zz.conf", "/etc/network/interfaces"
STATIC = "auto lo\\niface lo inet loopback\\nauto lan0\\niface lan0 inet %s\\n"


@dataclass(frozen=True)
class Fault:
    """Shell text that breaks a host without an effect on what runs, and that corrects it; words of the report."""

    breaks: str
    corrects: str
    subject: str
    says: str


FAULTS = {
    "sshd_config": Fault(f"echo 'Foo yes' >{SSHD}", f"rm {SSHD}", "ssh server",
                         f"sshd -t: {SSHD}: line 1: Bad configuration option: Foo"),
    "ssh disabled": Fault("systemctl -q disable ssh", "systemctl -q enable ssh", "ssh at boot",
                          "ssh.service is disabled"),
    "AllowUsers": Fault(f"echo 'AllowUsers root' >{SSHD}", f"rm {SSHD}", "ssh login", "AllowUsers root"),
    "another key": Fault(
        "mkdir /etc/ssh/keys; echo 'ssh-ed25519 AAAA x' >/etc/ssh/keys/ubuntu; "
        f"echo 'AuthorizedKeysFile /etc/ssh/keys/%u' >{SSHD}",
        f"rm -r {SSHD} /etc/ssh/keys", "ssh login", "/etc/ssh/keys/ubuntu: without the key that this login used",
    ),
    "sudoers": Fault(
        "echo 'ubuntu ALL=(ALL NOPASSWD' >/etc/sudoers.d/zz", "rm /etc/sudoers.d/zz", "sudo",
        "/etc/sudoers.d/zz:1:17: syntax error",
    ),
    "interfaces": Fault(f"printf '{STATIC % 'sttic'}' >{IFACE}", f"rm {IFACE}", "network",
                        f"{IFACE}:4: unknown or no method"),
    "no address": Fault(f"printf '{STATIC % 'static'}' >{IFACE}", f"rm {IFACE}", "network",
                        "missing required variable: address"),
    "networkd": Fault(
        "systemctl -q enable systemd-networkd; printf '[Match]\\nName lan0\\n' >/etc/systemd/network/1.network",
        "systemctl -q disable systemd-networkd; rm /etc/systemd/network/1.network", "network",
        "/etc/systemd/network/1.network:2",
    ),
    "fstab": Fault(
        "echo 'UUID=0f0f0f0f-0000-4000-8000-000000000000 /data ext4 defaults 0 2' >>/etc/fstab",
        "sed -i '/^UUID=0f/d' /etc/fstab",
        "/etc/fstab", "/data: unreachable on boot required source: UUID=0f0f0f0f",
    ),
    "crypttab": Fault("echo 'data /dev/sdz9 none luks' >/etc/crypttab", "rm /etc/crypttab", "/etc/crypttab",
                      "its device /dev/sdz9"),
}  # fmt: skip


@pytest.fixture
def given(spare_host: str, tmp_path: Path) -> list[str]:
    """Returns the words of a command about a fresh host that wants a kernel parameter, and so a reboot."""
    variables = login_variables(spare_host, kernel_cmdline=["pcie_aspm=off"], reboot={"trial": False})
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {spare_host: variables}}}))
    (tmp_path / "play").write_text(PLAY)
    return ["--host", spare_host, "--inventory", str(tmp_path / "hosts.yml"), "--playbook", str(tmp_path / "play")]


def of(found: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of the only host of a document."""
    (host,) = found["hosts"].values()
    assert isinstance(host, dict)
    return host


def test_a_host_that_would_be_lost_is_not_rebooted(given: list[str], spare_host: str, ssh: Ssh) -> None:
    boots = switch.get(spare_host).boots
    before = boots.read_text()
    files = "sudo sha256sum /boot/grub/grub.cfg; ls /etc/default/grub.d"
    as_it_was = ssh(spare_host, files).stdout
    wanted = of(document("plan", *given))
    assert (wanted["status"], wanted["error"]) == ("pending", None)
    for name, fault in FAULTS.items():
        assert ssh(spare_host, f'sudo sh -c "{fault.breaks}"').returncode == 0, name
        for words in (["plan"], ["provision", "--yes"]):
            refused = document(words[0], *given, *words[1:])
            error = of(refused)["error"]
            assert error, f"{name}: {words[0]} did not refuse"
            assert (refused["exit_code"], error["where"]) == (1, "Reboot"), error
            assert f"{fault.subject}: " in error["found"], (name, error)
            assert fault.says in error["found"], (name, error)
        bad = [one for one in of(document("verify", *given))["findings"] if one["check"] == "boot.host_comes_back"]
        assert [(one["subject"], one["verdict"], fault.says in one["seen"]) for one in bad] == [
            (fault.subject, "fail", True)
        ], name
        assert ssh(spare_host, f'sudo sh -c "{fault.corrects}"').returncode == 0, name
        again = of(document("plan", *given))
        assert (again["status"], again["error"]) == ("pending", None), name
    assert ssh(spare_host, files).stdout == as_it_was
    assert boots.read_text() == before
    done = document("provision", *given, "--yes")
    assert done["hosts"][spare_host]["error"] is None, not_as_wanted(done)
    assert len(boots.read_text().splitlines()) == len(before.splitlines()) + 1
    assert "pcie_aspm=off" in ssh(spare_host, "cat /proc/cmdline").stdout
    back = [*given[:4], "--yes"]
    ssh(spare_host, f"echo 'Foo yes' | sudo tee {SSHD}")
    refused = of(document("rollback", *back))["error"]
    assert "Bad configuration option: Foo" in refused["found"]
    ssh(spare_host, f"sudo rm {SSHD}")
    assert document("rollback", *back)["exit_code"] == 0
    assert "pcie_aspm=off" not in ssh(spare_host, "cat /proc/cmdline").stdout
