"""The connection to a host: verified keys for it and every gateway, hosts that are away."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from lab.base.paths import KNOWN_HOSTS, SSH_KEY
from lab.power import switch
from tests.end_to_end.rw import document, invoke, login_variables
from tests.paths import ROOT

pytestmark = pytest.mark.lab
BENCH = str(ROOT / "playbooks" / "bench.yml")


def _inventory(folder: Path, **hosts: dict[str, object]) -> str:
    """Returns the path of a new inventory of these hosts; only host keys that the variables name are known."""
    path = folder / "hosts.yml"
    written = {name: {key: value for key, value in host.items() if value is not None} for name, host in hosts.items()}
    path.write_text(yaml.safe_dump({"all": {"hosts": written}}))
    return str(path)


def test_an_unknown_key_is_refused_and_trust_records_it(plain_host: str, tmp_path: Path) -> None:
    inventory = _inventory(tmp_path, box=login_variables(plain_host, ssh_known_hosts=None))
    refused = document("facts", "--host", "box", "--inventory", inventory, HOME=str(tmp_path))
    assert refused["exit_code"] == 3
    assert "invoke trust --host box" in refused["hosts"]["box"]["error"]["fix"]
    asked = invoke("trust", "--host", "box", "--inventory", inventory, HOME=str(tmp_path))
    assert asked.returncode == 2
    trusted = invoke("trust", "--host", "box", "--inventory", inventory, "--yes", HOME=str(tmp_path))
    assert trusted.returncode == 0
    assert "SHA256:" in trusted.stdout
    assert document("facts", "--host", "box", "--inventory", inventory, HOME=str(tmp_path))["exit_code"] == 0


def test_a_changed_key_is_refused(plain_host: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    known = tmp_path / "known_hosts"
    known.write_text(f"{switch.get(plain_host).address} {other.with_suffix('.pub').read_text()}")
    inventory = _inventory(tmp_path, box=login_variables(plain_host, ssh_known_hosts=str(known)))
    found = document("facts", "--inventory", inventory, HOME=str(tmp_path))
    assert found["exit_code"] == 3
    assert "has changed" in found["hosts"]["box"]["error"]["found"]
    assert f"{known}:1" in found["hosts"]["box"]["error"]["expected"]
    assert "invoke trust --host box; that key then counts" in found["hosts"]["box"]["error"]["fix"]


def test_the_gateway_is_verified_too(plain_host: str, spare_host: str, tmp_path: Path) -> None:
    """ssh_config names a jump host; while the jump host's key is unknown, nothing is sent."""
    jump, far = switch.get(plain_host), switch.get(spare_host)
    config = (
        f"Host jump\n  HostName {jump.address}\n  User ubuntu\n  IdentityFile {SSH_KEY}\nHost far\n"
        f"  HostName {far.address}\n  ProxyJump jump\n"
    )
    (tmp_path / ".ssh").mkdir(mode=0o700)
    (tmp_path / ".ssh" / "config").write_text(config)
    known = {name: line for line in KNOWN_HOSTS.read_text().splitlines() for name in line.split()[0].split(",")}
    mine = tmp_path / ".ssh" / "known_hosts"
    inventory = _inventory(tmp_path, far=login_variables(spare_host, ansible_host="far", ssh_known_hosts=None))
    mine.write_text(known[str(far.address)] + "\n")
    refused = document("facts", "--inventory", inventory, HOME=str(tmp_path))
    assert (refused["exit_code"], "not known" in refused["hosts"]["far"]["error"]["found"]) == (3, True)
    mine.write_text(known[str(far.address)] + "\n" + known[str(jump.address)] + "\n")
    assert document("facts", "--inventory", inventory, HOME=str(tmp_path))["exit_code"] == 0


def test_the_second_of_two_keys_is_the_right_one(plain_host: str, tmp_path: Path) -> None:
    """sshd forgets the channel that was requested together with the first key."""
    config = tmp_path / ".ssh" / "config"
    config.parent.mkdir(mode=0o700)
    wrong = tmp_path / "wrong"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(wrong)], check=True)
    config.write_text(f"Host *\n  IdentityFile {wrong}\n  IdentityFile {SSH_KEY}\n")
    inventory = _inventory(tmp_path, box=login_variables(plain_host, ansible_ssh_private_key_file=None))
    found = document("facts", "--inventory", inventory, HOME=str(tmp_path))
    assert found["exit_code"] == 0, found["hosts"]["box"]["error"]


def test_hosts_side_by_side_and_equal_plans_once(plain_host: str, spare_host: str) -> None:
    done = invoke("plan", "--host", f"{plain_host}:{spare_host}", "--playbook", BENCH)
    assert done.returncode == 2
    assert done.stdout.count("/srv/rigwright-bench/") == 1
    assert f"{plain_host}, {spare_host}" in done.stdout


def test_one_host_that_is_away_does_not_stop_the_others(plain_host: str, tmp_path: Path) -> None:
    inventory = _inventory(
        tmp_path, box=login_variables(plain_host), away=login_variables(plain_host, ansible_port=2222)
    )
    found = document("facts", "--host", "all", "--inventory", inventory)
    assert found["exit_code"] == 3
    assert {name: host["status"] for name, host in found["hosts"].items()} == {"box": "ok", "away": "unreachable"}
    assert "refused" in found["hosts"]["away"]["error"]["found"]
