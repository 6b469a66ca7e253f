"""known_hosts files: the keys of a host, the lines that apply, and fast lookups of many hosts in a long file."""

from __future__ import annotations

import copy
import datetime
import os
import time
from pathlib import Path

import paramiko
import pytest
from paramiko.hostkeys import HostKeys

from rigwright.core.errors import UsageError
from rigwright.inventory.model import Host
from rigwright.ssh import known_hosts, route
from tests.machine_speed import within

KEYS = [paramiko.ECDSAKey.generate() for _ in range(3)]


def line(names: str, key: paramiko.PKey) -> str:
    """Returns a line of known_hosts."""
    return f"{names} {key.get_name()} {key.get_base64()} a comment\n"


def _keys(file: Path, name: str) -> list[paramiko.PKey]:
    return [record.key for record in known_hosts.records_of(file, name)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Returns a known_hosts file with all kinds of lines."""
    hashed = HostKeys.hash_host("hidden")
    path = tmp_path / "known_hosts"
    path.write_text(
        "# a comment\n\n"
        + line("plain,10.0.0.1", KEYS[0])
        + line("plain", KEYS[1])
        + line(hashed, KEYS[1])
        + line("[plain]:2222", KEYS[2])
        + line("@revoked plain", KEYS[2])
        + line("*.example.org", KEYS[2])
        + line("*.example.com,!no.*,x", KEYS[0])
        + line("@cert-authority plain", KEYS[2])
        + "cut ecdsa-sha2-nistp256 AAAAE2VjZHNh\ncut ssh-ed25519 ???\ncut no_events-of AAAA\ncut\n"
        "|1|broken|hash ssh-rsa AAAA\n"
    )
    return path


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("plain", KEYS[:2]),
        ("10.0.0.1", KEYS[:1]),
        ("hidden", KEYS[1:2]),
        ("[plain]:2222", KEYS[2:]),
        ("a.example.org", KEYS[2:]),
        ("A.Example.ORG", KEYS[2:]),
        ("PLAIN", KEYS[:2]),
        ("example.org", []),
        ("no.example.com", []),
        ("yes.example.com", KEYS[:1]),
        ("cut", []),
        ("@revoked", []),
        ("other", []),
    ],
)
def test_a_name_has_the_keys_of_its_own_lines(file: Path, name: str, keys: list[paramiko.PKey]) -> None:
    assert _keys(file, name) == keys


def test_the_first_key_of_a_kind_counts(file: Path) -> None:
    known = HostKeys()
    known_hosts.learn(known, known_hosts.records_of(file, "plain"), "plain")
    assert known.check("plain", KEYS[0])
    assert not known.check("plain", KEYS[1])
    known_hosts.learn(known, known_hosts.records_of(file, "hidden"), "hidden")
    assert known.check("hidden", KEYS[1])


def test_it_reads_as_paramiko_does(file: Path) -> None:
    """Except for lines after which paramiko ignores the rest of the file."""
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(one for one in lines if not one.startswith(("cut", "|1|broken", "@"))))
    theirs = HostKeys()
    theirs.load(str(file))
    for name in ("plain", "10.0.0.1", "hidden", "[plain]:2222", "other"):
        ours = HostKeys()
        known_hosts.learn(ours, known_hosts.records_of(file, name), name)
        assert dict(ours.lookup(name) or {}) == dict(theirs.lookup(name) or {}), name


def test_a_file_that_changed_is_read_again(file: Path) -> None:
    assert not list(known_hosts.records_of(file, "later"))
    with file.open("a") as more:
        more.write(line("later", KEYS[0]))
    assert _keys(file, "later") == KEYS[:1]
    file.unlink()
    assert not list(known_hosts.records_of(file, "later"))
    assert not list(known_hosts.records_of(file.parent, "a folder is no file"))


def test_many_hosts_and_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    names = (f"host{number},10.1.{number // 250}.{number % 250}" for number in range(3000))
    path.write_text("".join(line(name, KEYS[0]) for name in names))
    began = time.process_time()
    for number in range(200):
        assert _keys(path, f"host{number}") == KEYS[:1]
    assert within(time.process_time() - began, 2)  # a comparison of all pairs takes a minute


def test_the_line_and_the_date_of_a_key(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (record,) = known_hosts.records_of(file, "[plain]:2222")
    os.utime(file, (1_790_000_000, 1_790_000_000))
    day = datetime.date.fromtimestamp(1_790_000_000)
    assert (record.where, record.since) == (f"{file}:6", f"in a file that last changed on {day}")
    assert record.removal == f"ssh-keygen -R '[plain]:2222' -f {file}"
    monkeypatch.setenv("HOME", str(tmp_path))
    for key in KEYS[:2]:
        written = known_hosts.trust("[10.0.0.7]:2222", key)
    assert written == tmp_path / ".config" / "rigwright" / "known_hosts"
    assert os.stat(written.parent).st_mode & 0o777 == 0o700
    (record,) = known_hosts.records_of(written, "[10.0.0.7]:2222")
    assert (record.key, record.since) == (KEYS[1], f"since {datetime.date.today()}")


def test_a_connection_changes_nothing_of_the_configuration_that_all_share() -> None:
    """Connections to hosts run in parallel."""
    first, second = (route.to(Host(name, (), {"ansible_user": name, "ansible_port": 7})).connection for name in "ab")
    config = first.config
    assert config is second.config
    before = copy.deepcopy([config._config, config._modifications, config._deletions])
    first.connect_kwargs["sock"], first.user, first.inline_ssh_env, first.note = "own", "anna", False, "own"
    first.close()
    assert [config._config, config._modifications, config._deletions] == before
    assert (second.user, second.host, second.inline_ssh_env, "sock" in second.connect_kwargs) == ("b", "b", True, False)
    assert not hasattr(second, "note")


def test_the_message_about_a_file_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(known_hosts, "OWN", tmp_path / "file" / "known_hosts")
    with pytest.raises(UsageError) as caught:
        known_hosts.trust("servbadge", paramiko.ECDSAKey.generate())
    assert str(caught.value) == (
        f"{tmp_path}/file/known_hosts: cannot be written: File exists\n"
        "  expected: a place for known_hosts that you may write\n"
        f"  fix:      make {tmp_path}/file writable for this user"
    )


def test_hashed_names_of_many_hosts_are_compared_once_a_login(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    names = [f"10.1.{number // 250}.{number % 250}" for number in range(1000)]
    path.write_text("".join(line(paramiko.HostKeys.hash_host(name), KEYS[0]) for name in names))
    began = time.process_time()
    for name in names[:50]:
        for _ in range(5):
            assert _keys(path, name) == KEYS[:1]
    assert _keys(path, "10.9.9.9") == []
    assert within(time.process_time() - began, 0.5)  # 1.5 s where each question compares


@pytest.mark.parametrize(
    "name", ["|1|", "|1||", "|1|a|b", "|1|YWJj|YWJj", "|2|YWJj|YWJj", "|1|" + "A" * 27 + "=|x", "|1|a|b|c"]
)
def test_a_damaged_hashed_name_is_no_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(line(name, KEYS[0]) + line("plain", KEYS[1]))
    assert _keys(path, "abc") == []
    assert _keys(path, "plain") == [KEYS[1]]
