"""No refusal of sudo is remembered: each batch asks for root anew, on this machine and over ssh."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rigwright.core.command import command
from rigwright.core.errors import NoRoot
from rigwright.core.secrets import Secret
from rigwright.inventory.model import Host
from rigwright.ssh.local import Local
from rigwright.ssh.transport import Ssh, Transport
from tests.ssh.shell_server import ShellServer, serving

SUDO = """#!/bin/sh
# Simulates sudo. The rule of the user is the file $SUDO_RULE: `free`, or the password;
# without the file sudo wants one that nobody knows.
echo "$*" >>"$SUDO_RULE.calls"
rule=$(cat "$SUDO_RULE" 2>/dev/null)
export BY_SUDO=yes
if [ "$1" = -n ]; then
  shift
  [ "$rule" != free ] || exec "$@"
  echo "sudo: a password is required" >&2
  exit 1
fi
marker=$4; shift 4
[ "$rule" != free ] || exec "$@"
for attempt in 1 2 3; do
  printf %s "$marker" >&2
  read -r given || exit 1
  [ "$given" != "$rule" ] || exec "$@"
  echo "Sorry, try again." >&2
done
exit 1
"""
BY_SUDO = command("sh", "-c", "echo ${BY_SUDO:-no}")


class Rule:
    """The user's rule in sudoers, in a file. `asked`: for how many passwords a person was asked."""

    def __init__(self, file: Path) -> None:
        self.file, self.asked, self.typed = file, 0, "open sesame"

    def set(self, text: str) -> None:
        """Sets it to `free` or to a password."""
        self.file.write_text(text)

    @property
    def calls(self) -> list[str]:
        """Returns the first option of each call of sudo."""
        return [line.split()[0] for line in self.file.with_name("rule.calls").read_text().splitlines()]

    def type(self, _name: str) -> str:
        """Types the password."""
        self.asked += 1
        return self.typed


@pytest.fixture
def rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rule:
    """Puts a simulated sudo first in PATH for a user who is not root; returns its rule."""
    (tmp_path / "sudo").write_text(SUDO)
    (tmp_path / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SUDO_RULE", str(tmp_path / "rule"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return Rule(tmp_path / "rule")


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShellServer]:
    """Yields a server; the home folder is an empty one."""
    (tmp_path / ".ssh").mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with serving(tmp_path) as server:
        yield server


Open = Callable[[], Transport]


@pytest.fixture(params=["this machine", "ssh"])
def opens(request: pytest.FixtureRequest, box: ShellServer) -> Open:
    """Returns a function that opens a transport to a host whose sudo is simulated."""
    if request.param == "ssh":
        return lambda: Ssh(box.host(ansible_user="ubuntu"))
    return lambda: Local(Host("here", ("all",), {"ansible_connection": "local"}, "hosts.yml:3"))


def test_a_rule_that_comes_late_is_used(rule: Rule, opens: Open) -> None:
    transport = opens()
    with pytest.raises(NoRoot, match="sudo asks for a password, and none was given"):
        transport.run([BY_SUDO])
    rule.set("free")
    assert transport.run([BY_SUDO])[0].text == "yes\n"


def test_a_password_that_sudo_took_is_kept(rule: Rule, opens: Open) -> None:
    rule.set("open sesame")
    transport = opens()
    transport.ask_password = rule.type
    for _ in range(2):
        assert transport.run([BY_SUDO])[0].text == "yes\n"
    assert (set(rule.calls[:-2]), rule.calls[-2:], rule.asked) == ({"-n"}, ["-k", "-k"], 1)
    assert "sesame" not in rule.file.with_name("rule.calls").read_text()
    assert transport.run([command("cat")])[0].text == "", "the password is no input of a command"
    rule.set("free")  # the password is not asked for any more, also in the middle of a connection
    assert transport.run([BY_SUDO])[0].text == "yes\n"
    transport.connect()
    assert transport.run([BY_SUDO])[0].text == "yes\n"
    assert rule.asked == 1


def test_a_password_that_sudo_refused_is_asked_for_again(rule: Rule, opens: Open) -> None:
    rule.set("open sesame")
    transport = opens()
    transport.ask_password = rule.type
    rule.typed = "mistyped"
    with pytest.raises(NoRoot, match="sudo refused the password"):
        transport.run([BY_SUDO])
    rule.typed = "open sesame"
    assert transport.run([BY_SUDO])[0].text == "yes\n"


def test_the_message_about_a_wrong_password_of_the_inventory(rule: Rule) -> None:
    rule.set("open sesame")
    variables = {"ansible_connection": "local", "ansible_become_password": Secret("wrong password")}
    transport = Local(Host("here", ("all",), variables, "hosts.yml:3"))
    with pytest.raises(NoRoot, match=r"sudo refused the password \(Sorry, try again\.\)") as caught:
        transport.run([BY_SUDO])
    assert caught.value.fix == "correct it: hosts.yml:3"
    assert rule.calls == ["-n", "-k"], "the password is sent once"


def test_a_look_asks_nobody_and_needs_no_root(rule: Rule, opens: Open) -> None:
    rule.set("open sesame")
    transport = opens()
    transport.ask_password = rule.type
    with transport.looking(), pytest.raises(NoRoot, match="sudo asks for a password, and none was given") as caught:
        transport.run([BY_SUDO])
    assert caught.value.brief.startswith("sudo wants a password")
    with transport.looking(as_user=True):
        assert transport.run([BY_SUDO])[0].text == "no\n"
    assert rule.asked == 0
    assert transport.run([BY_SUDO])[0].text == "yes\n"
    with transport.looking():
        assert transport.run([BY_SUDO])[0].text == "yes\n"
    assert rule.asked == 1
