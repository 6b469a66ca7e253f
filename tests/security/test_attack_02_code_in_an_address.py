"""No address, user, port or path runs code on this machine, wherever it comes from: every one is checked in one
place."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rigwright.core.errors import InputError
from rigwright.inventory import endpoint, read
from rigwright.inventory.model import Host
from rigwright.ssh import route
from tests.cli.run_command import run_command

HOSTILE = [
    "a\n  Match exec \"touch pwned\"",
    "a\nProxyCommand touch pwned",
    "a\r\nb",
    "a;touch${IFS}pwned",
    "$(touch pwned)",
    "`touch pwned`",
    "a|touch pwned",
    "a&&touch pwned",
    "a>pwned",
    "a\"b",
    "a'b",
    "a b",
    " a",
    "a ",
    "a\t",
    "a\x00",
    "a\x1b]52;c;cHduZWQ=\x07",
    "a\u202eb",
    "-oProxyCommand=touch",
    "-v",
    "a*",
    "!a",
    "a?",
    "~a",
    "#a",
    "a%h%d" + "x" * 300,
    ["a"],
    {"a": 1},
    True,
    1.5,
]  # fmt: skip
NO_ADDRESS = [*HOSTILE[:-1], "root@a", "a:22", "[::1]:22", "[::1]", "::1%a;b", "fe80::1%" + "x" * 20, "a/b", "."]
NO_USER = [*HOSTILE[:-1], "a:b", "a/b", "a\\"]
NO_PORT = [*HOSTILE, 0, 65536, -1, "22 22", "0x16", "22;id", "٢٢"]
NO_PATH = ["a\nb", "a\x00", "a\x1b[2J", "", "x" * 5000, ["a"], 5, True]


@pytest.fixture
def mark(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a file that exists once code ran: an address that is looked up in ssh_config is given to a shell."""
    monkeypatch.chdir(home)
    (home / ".ssh" / "config").write_text('Match exec "true %h %n %r %p"\n  Port 2222\n')
    return home / "pwned"


@pytest.mark.parametrize(
    ("variable", "values"),
    [
        ("ansible_host", NO_ADDRESS),
        ("ansible_ssh_host", NO_ADDRESS),
        ("ansible_user", NO_USER),
        ("ansible_ssh_user", NO_USER),
        ("ansible_port", NO_PORT),
        ("ansible_ssh_port", NO_PORT),
        ("ansible_ssh_private_key_file", NO_PATH),
        ("ansible_private_key_file", NO_PATH),
        ("ssh_known_hosts", NO_PATH),
    ],
)
def test_a_variable_of_a_host(mark: Path, variable: str, values: list[Any]) -> None:
    """Also one that reaches the connection without an inventory, as on a worker."""
    for value in values:
        if value == "":
            continue  # like a variable that is not set
        (mark.parent / "hosts.yml").write_text(_yaml(variable, value))
        inventory = read(mark.parent / "hosts.yml")
        with pytest.raises(InputError) as caught:
            inventory.select("box")
        assert (caught.value.where, caught.value.found.startswith(f"{variable} is ")) == (
            f"{mark.parent}/hosts.yml:4", True), f"{value!r}: {caught.value}"  # fmt: skip
        with pytest.raises(InputError, match=f"{variable} is "):
            route.to(Host("box", (), {variable: value}, "hosts.yml:3"))
    assert not mark.exists()


def _yaml(variable: str, value: Any) -> str:
    import json

    return f"all:\n  hosts:\n    box:\n      {variable}: {json.dumps(value)}\n"


def test_a_rendered_template(mark: Path) -> None:
    (mark.parent / "hosts.yml").write_text(
        "all:\n  hosts:\n    box:\n      ansible_host: \"{{ a }}{{ ';' }}touch pwned\"\n      a: b\n"
    )
    with pytest.raises(InputError, match="ansible_host is "):
        read(mark.parent / "hosts.yml").select("box")


@pytest.mark.parametrize(
    "line", ["box ansible_host='a;touch pwned'", "box ansible_user='a\\\\'", "box ansible_port='1 2'", "-v"]
)
def test_an_ini_inventory(mark: Path, line: str) -> None:
    (mark.parent / "hosts").write_text(line + "\n")
    with pytest.raises(InputError) as caught:
        read(mark.parent / "hosts").select("all")
    assert caught.value.where == f"{mark.parent}/hosts:1"


@pytest.mark.parametrize(
    "text", [*(f"{value}" for value in HOSTILE[:-4]), "a@b@-c", "-a@b", "a\\@b", "b:0", "b:65536", "b:٢٢", "@b", "a@"]
)
def test_the_option_address(mark: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert endpoint.parse(text) is None
    assert run_command("init", host="box", address=text, inventory=str(mark.parent / "inventory")) == 1
    assert "is no address" in capsys.readouterr().err
    assert not mark.exists()


OPTIONS = [
    "HostName a;b",
    "HostName -oProxyCommand=x",
    "HostName $(id)",
    "HostName a\x1b[2Jb",
    "User a b",
    "User -l",
    "User $(id)",
    "Port 0",
    "Port 22x",
    "Port 99999",
    "ProxyJump a;b",
    "ProxyJump -v",
    "ProxyJump a,b c",
    "ProxyJump a@b:99999",
    "HostKeyAlias a b",
    "HostKeyAlias *",
    "CanonicalizeHostname yes\n  CanonicalizeMaxDots x",
    "CanonicalizeHostname yes",
]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("of_gateway", [False, True])
def test_a_result_of_ssh_config(home: Path, option: str, of_gateway: bool) -> None:
    """An error that names ssh_config; the values of a gateway are checked like those of the host."""
    jump = "Host box\n  ProxyJump jump\n" if of_gateway else ""
    (home / ".ssh" / "config").write_text(f"{jump}Host {'jump' if of_gateway else 'box'}\n  {option}\n")
    with pytest.raises(InputError) as caught:
        route.to(Host("box", (), {"ansible_user": None}))
    assert caught.value.where.startswith("ssh_config"), caught.value
    assert caught.value.expected


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ("Match frobnicate\n", "cannot be used"),
        ("Host \"box\n", "cannot be used"),
        ("box\n", "cannot be used"),
        ("Include config\n", "more than 16 levels"),
        ("Host box\n  ProxyJump a\nHost a\n  ProxyJump b\nHost b\n  ProxyJump a\n",
         "box > a > b > a lead to each other"),
        ("".join(f"Host h{n}\n  ProxyJump h{n + 1}\n" for n in range(40)) + "Host box\n  ProxyJump h0\n",
         "lead to each other"),
    ],
)  # fmt: skip
def test_an_ssh_config_that_cannot_be_used(home: Path, config: str, found: str) -> None:
    (home / ".ssh" / "config").write_text(config)
    with pytest.raises(InputError) as caught:
        route.to(Host("box", (), {}))
    assert found in caught.value.found


ACCEPTED: dict[Callable[[Any, str, str], Any], list[Any]] = {
    endpoint.checked_address: ["a", "10.0.0.1", "gpu-1.example.org", "_gateway", "größe.example", "::1", "fe80::1%eth0",
                               "2001:db8::7"],
    endpoint.checked_user: ["ubuntu", "a.b", "a-b_c", "DOMAIN\\ada", "ada@example.org", "_apt", 1000],
    endpoint.checked_port: [22, "2222", 65535],
    endpoint.checked_path: ["~/.ssh/id", "/a b/ü", "x"],
}  # fmt: skip


def test_what_people_use() -> None:
    for check, values in ACCEPTED.items():
        for value in values:
            assert str(check(value, "x", "y")) == str(value)
    assert endpoint.parse("ada@example.org@10.0.0.1:22") == endpoint.Endpoint("10.0.0.1", "ada@example.org", 22)
    assert endpoint.parse("[::1]:2222") == endpoint.Endpoint("::1", "", 2222)


def test_gateways_and_options_of_openssh(home: Path) -> None:
    """ProxyJump with several gateways, users and ports; a gateway that all hosts have, also the gateway itself;
    none."""
    (home / ".ssh" / "config").write_text(
        "Host far\n  HostName 10.0.0.9\n  ProxyJump a@one:2201,ssh://two:2202\nHost two\n  User b\n"
        "  ProxyJump elsewhere\n"
        "Host direct\n  ProxyJump none\nHost *\n  ProxyJump gate\n  ForwardAgent $SSH_AUTH_SOCK\n  Port 24\n"
    )
    hops = route.to(Host("far", (), {"ansible_user": "c"})).all
    assert [(hop.connection.user, hop.connection.host, hop.connection.port) for hop in hops][-3:] == [
        ("a", "one", 2201), ("b", "two", 2202), ("c", "10.0.0.9", 24)]  # fmt: skip
    assert [hop.connection.host for hop in route.to(Host("other", (), {})).all] == ["gate", "other"]
    assert [hop.connection.host for hop in route.to(Host("direct", (), {})).all] == ["direct"]
    assert not any(hop.connection.forward_agent for hop in hops)


def test_included_files_count_as_they_do_for_openssh(home: Path) -> None:
    """Options that protect a login, such as IdentitiesOnly and RevokedHostKeys, may be in an included file."""
    (home / ".ssh" / "more").mkdir()
    (home / ".ssh" / "config").write_text(
        "Include more/*.conf none\nHost box\n  Port 2201\n  Include ~/.ssh/for_box\n  User ada\nMatch all\n"
        "  Include last\n"
    )
    (home / ".ssh" / "more" / "1.conf").write_text("IdentitiesOnly yes\nHost other\n  User eve\n  Port 1\n")
    (home / ".ssh" / "more" / "2.conf").write_text("Port=2203\n")
    (home / ".ssh" / "for_box").write_text("HostName 10.0.0.7\nHost other\n  HostName 10.0.0.8\n")
    (home / ".ssh" / "last").write_text("RevokedHostKeys ~/revoked\nUser bob\n")
    box, other = (route.to(Host(name, (), {})) for name in ("box", "other"))
    assert [(hop.connection.host, hop.connection.user, hop.connection.port) for hop in (box, other)] == [
        ("10.0.0.7", "ada", 2203), ("other", "eve", 1)]  # fmt: skip
    assert [(hop.identities.only, hop.revoked) for hop in (box, other)] == [(True, "~/revoked")] * 2
    for name, hop in (("box", box), ("other", other)):
        said = subprocess.run(
            ["ssh", "-G", "-F", home / ".ssh" / "config", name], capture_output=True, text=True, check=True
        ).stdout
        for option, value in (
            ("hostname", hop.connection.host),
            ("user", hop.connection.user),
            ("port", hop.connection.port),
        ):
            assert f"{option} {value}\n" in said
