"""The sources of an inventory's secrets: the environment, a private file, a command, ansible-vault."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rigwright import inventory
from rigwright.core.errors import InputError
from rigwright.core.secrets import Secret
from rigwright.inventory import secret_sources as sources, vault
from rigwright.inventory.model import Host
from tests.paths import ROOT

CANARY = "canary-7f3a"


def written(folder: Path, variables: str, name: str = "hosts.yml") -> Path:
    """Writes an inventory whose group `all` has these variables, with the hosts one and two; returns its path."""
    lines = "".join(f"    {line}\n" for line in variables.splitlines())
    (folder / name).write_text(f"all:\n  hosts: {{one: , two: }}\n  vars:\n    site: cellar\n{lines}")
    return folder


def one(folder: Path, variables: str = "", password_file: str = "") -> Host:
    """Returns the host `one`, ready to connect."""
    return inventory.read(written(folder, variables), password_file).select("one")[0]


def encrypted(text: str, password: str = "vault-word") -> str:
    """Returns the text as `ansible-vault encrypt` writes it."""
    with vault._quiet_import():
        from ansible.parsing import vault as library
    whole: bytes = library.VaultLib([("default", library.VaultSecret(password.encode()))]).encrypt(text)
    return whole.decode()


def tagged(text: str, password: str = "vault-word") -> str:
    """Returns the text as a `!vault` value of YAML."""
    return "!vault |\n" + "".join(f"  {line}\n" for line in encrypted(text, password).splitlines())


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    """Returns a file with the password of the vault."""
    file = tmp_path / ".vault-password"
    file.write_text("vault-word\n")
    file.chmod(0o600)
    return str(file)


def test_each_source_gives_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", CANARY)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/pw").write_text(f"{CANARY}\n")
    (tmp_path / "secrets/pw").chmod(0o400)
    variables = (
        "a: !secret {env: CANARY}\nb: !secret {file: secrets/pw}\n"
        f"c: !secret {{command: [printf, '%s\\r\\nurl: x\\n', {CANARY}]}}\n"
        "d: {inside: [!secret {env: CANARY}]}\ne: '{{ d.inside[0] }}'\n"
    )
    found = one(tmp_path, variables).variables
    texts = [found["a"], found["b"], found["c"], found["d"]["inside"][0], found["e"]]
    assert [text.reveal() for text in texts] == [CANARY] * 5
    assert "CANARY" not in os.environ, "programs that are started later would inherit it"
    assert "canary" not in str(found)


BAD = [
    ("no source", "{}", "without one source", "{env: NAME}"),
    ("two sources", "{env: A, file: b}", "without one source", ""),
    ("unknown source", "{enw: A}", "unknown source of a secret 'enw'; did you mean 'env'", ""),
    ("a command as a text", "{command: pass show x}", "'command' of a secret is 'pass show x'", "no shell runs it"),
    ("no variable", "{env: RIGWRIGHT_NO_SUCH}", "RIGWRIGHT_NO_SUCH, from which a secret comes, is not set", "export"),
    ("no file", "{file: secrets/none}", "none, from which a secret comes, cannot be read (No such file", ""),
    ("a folder", "{file: .}", "cannot be read (Is a directory)", ""),
    ("an open file", "{file: secrets/open}", "open has the mode 0640: others can read", "chmod 600 "),
    ("an empty file", "{file: secrets/empty}", "the secret is empty", ""),
    ("a short one", "{file: secrets/short}", "the secret has 3 characters", "choose a longer one"),
    ("a large file", "{file: secrets/large}", "is larger than 65536 bytes", ""),
    ("no program", "{command: [rigwright-no-such]}", "rigwright-no-such, from which a secret comes, cannot be",
     "install"),
    ("a failure", "{command: [sh, -c, 'echo locked >&2; exit 4']}", "failed (exit 4): locked", "in a terminal"),
    ("no output", "{command: ['true']}", "the secret is empty", ""),
    ("no text", "{command: [printf, '\\377\\377\\377\\377']}", "printed no UTF-8", ""),
]  # fmt: skip


@pytest.mark.parametrize(("given", "found", "fix"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_source_that_gives_nothing_is_an_error_of_the_host_that_needs_it(
    given: str, found: str, fix: str, tmp_path: Path
) -> None:
    for name, content, mode in (("open", "x" * 9, 0o640), ("empty", "\n", 0o600), ("short", "abc", 0o600),
                                ("large", "x" * 70_000, 0o600)):  # fmt: skip
        (tmp_path / "secrets").mkdir(exist_ok=True)
        (tmp_path / "secrets" / name).write_text(content)
        (tmp_path / "secrets" / name).chmod(mode)
    with pytest.raises(InputError) as caught:
        one(tmp_path, f"a: !secret {given}").variables["a"].reveal()
    assert caught.value.where == f"{tmp_path / 'hosts.yml'}:5"
    assert found in caught.value.found
    assert fix in caught.value.expected + caught.value.fix


def test_a_command_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "COMMAND_S", 0.3)
    slow = one(tmp_path, "a: !secret {command: [sh, -c, 'echo asks >&2; exec sleep 60']}").variables["a"]
    with pytest.raises(InputError, match=r"did not end within 0.3 s: asks"):
        slow.reveal()
    monkeypatch.setattr(sources, "COMMAND_S", 20)
    loud = one(tmp_path, "a: !secret {command: [sh, -c, 'echo canary-7f3a; head -c 9000000 /dev/zero; cat']}")
    assert loud.variables["a"].reveal() == CANARY


def test_a_source_is_asked_once_and_only_when_it_is_needed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    ask = f"a: !secret {{command: [sh, -c, 'echo asked >>{log}; echo {CANARY}']}}"
    for _ in range(2):
        hosts = inventory.read(written(tmp_path, f"{ask}\nansible_become_password: '{{{{ a }}}}'")).select("all")
    assert not log.exists()
    with ThreadPoolExecutor(4) as threads:
        texts = threads.map(lambda host: host.variables["ansible_become_password"].reveal(), hosts * 4)
    assert set(texts) == {CANARY}
    assert log.read_text() == "asked\n"


def test_sources_are_asked_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "host_vars").mkdir()
    for name, other in (("one", "two"), ("two", "one")):  # each waits until the other runs too
        code = f"touch {name}; until [ -e {other} ]; do sleep 0.01; done; echo {CANARY}"
        command = f"a: !secret {{command: [sh, -c, 'cd {tmp_path}; {code}']}}\n"
        (tmp_path / "host_vars" / f"{name}.yml").write_text(command)
    hosts = inventory.read(written(tmp_path, "")).select("all")
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda host: host.variables["a"].reveal(), hosts)) == [CANARY] * 2


def test_what_is_named_as_a_secret_is_one(tmp_path: Path) -> None:
    variables = (
        "hf_token: canary-7f3a\napp: {api_key: canary-7f3a, limit: '5', tokens: [a]}\nmax_token: 4096\n"
        "x: '{{ hf_token }}'"
    )
    found = one(tmp_path, variables).variables
    assert found["hf_token"] == found["app"]["api_key"] == Secret(CANARY)
    assert found["app"]["limit"] == "5"
    assert found["max_token"] == 4096
    assert found["x"].reveal() == CANARY


def test_a_password_that_cannot_be_hidden_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has 3 characters"):
        one(tmp_path, "ansible_become_password: abc")
    with pytest.raises(InputError, match="no text of one line"):
        one(tmp_path, "pw: !secret {command: [printf, 'canary']}\nansible_become_password: \"{{ pw }}\\nx\"").variables[
            "ansible_become_password"
        ].reveal()


def test_a_vault_value_opens_with_the_password(
    tmp_path: Path, password_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = f"a: {tagged(CANARY)}"
    assert one(tmp_path, variables, password_file).variables["a"].reveal() == CANARY
    sources.forget()
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", password_file)
    assert one(tmp_path, variables).variables["a"].reveal() == CANARY
    program = tmp_path / ".ask"
    program.write_text("#!/bin/sh\necho vault-word\n")
    program.chmod(0o755)
    sources.forget()
    assert one(tmp_path, variables, str(program)).variables["a"].reveal() == CANARY


def test_a_whole_vault_file_has_its_place_among_the_variables(tmp_path: Path, password_file: str) -> None:
    for folder in ("group_vars/all", "host_vars"):
        (tmp_path / folder).mkdir(parents=True)
    text = (
        f"b_word: {CANARY}\nboth: low\nurl: 'https://{{{{ site }}}}/{CANARY}'\npin: 123456\nyes_no: true\n"
        f"ansible_user: ada\nansible_become_method: sudo\ndriver: {{branch: '535'}}"
    )
    (tmp_path / "group_vars/all/a.yml").write_text(encrypted(text))
    (tmp_path / "group_vars/all/b.yml").write_text("mine: '{{ b_word }}'\nboth: high\n")
    found = one(tmp_path, "", password_file)
    assert (found.variables["b_word"], found.variables["both"]) == (Secret(CANARY), "high")
    assert found.variables["mine"].reveal() == CANARY
    assert found.variables["url"].reveal() == f"https://cellar/{CANARY}"
    assert (found.variables["pin"].reveal(), found.variables["yes_no"]) == ("123456", True)
    assert (found.login, found.secret) == ("ada@one", frozenset())
    assert found.variables["driver"] == {"branch": "535"}
    assert found.origin("b_word") == f"{tmp_path}/group_vars/all/a.yml:1"


def test_without_the_password_only_the_host_that_needs_it_fails(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/all.yml").write_text(encrypted(f"vault_word: {CANARY}"))
    host = one(tmp_path, f"a: {tagged(CANARY)}\nb: 'x{{{{ vault_word }}}}'\nc: '{{{{ site }}}}'")
    assert host.variables["c"] == "cellar"
    for name in ("a", "b"):
        with pytest.raises(InputError) as caught:
            host.variables[name].reveal()
        assert "--vault-password-file FILE, or ANSIBLE_VAULT_PASSWORD_FILE, opens" in caught.value.fix
    assert f"{tmp_path}/group_vars/all.yml" in caught.value.fix
    assert "vault_word" in caught.value.found


VAULTS: list[tuple[str, Callable[[], str], str, str]] = [
    ("another password", lambda: encrypted(CANARY, "another"), "ansible-vault cannot open it", "is another one"),
    ("damaged", lambda: encrypted(CANARY).replace("\n3", "\nx3", 1), "is damaged", ""),
    ("no encryption", lambda: "plain", "a !vault without encrypted text", "$ANSIBLE_VAULT;"),
]


@pytest.mark.parametrize(("text", "found", "fix"), [row[1:] for row in VAULTS], ids=[row[0] for row in VAULTS])
def test_a_vault_that_cannot_be_opened(
    text: Callable[[], str], found: str, fix: str, tmp_path: Path, password_file: str
) -> None:
    lines = "".join(f"  {line}\n" for line in text().splitlines())
    with pytest.raises(InputError) as caught:
        one(tmp_path, f"a: !vault |\n{lines}", password_file).variables["a"].reveal()
    assert found in caught.value.found
    assert fix in caught.value.expected + caught.value.fix


def test_hosts_in_a_vault_and_an_open_password_file(tmp_path: Path, password_file: str) -> None:
    Path(password_file).chmod(0o644)
    with pytest.raises(InputError, match="others can read the secret") as caught:
        one(tmp_path, f"a: {tagged(CANARY)}", password_file).variables["a"].reveal()
    assert caught.value.fix == f"chmod 600 {password_file}"
    (tmp_path / "hosts.yml").write_text(encrypted("all: {hosts: {one: }}"))
    with pytest.raises(InputError, match="a list of hosts that ansible-vault encrypted"):
        inventory.read(tmp_path)


def test_without_the_library_a_vault_says_what_to_install(
    tmp_path: Path, password_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tagged(CANARY)
    monkeypatch.setitem(sys.modules, "ansible.parsing", None)
    with pytest.raises(InputError) as caught:
        one(tmp_path, f"a: {text}", password_file).variables["a"].reveal()
    assert "pip install 'rigwright[vault]'" in caught.value.fix


def test_what_is_not_used_is_not_imported(tmp_path: Path) -> None:
    """Also with a secret in the inventory: reading and selecting imports neither subprocess nor Ansible, and makes no
    folder of Ansible's."""
    written(tmp_path, f"a: {tagged(CANARY)}\nb: !secret {{command: [pass, show, x]}}")
    code = (
        "import sys; before = set(sys.modules)\n"
        "from pathlib import Path; from rigwright import inventory; "
        f"inventory.read(Path({str(tmp_path)!r})).select('one')\n"
        "print(sorted(name for name in set(sys.modules) - before if name.split('.')[0] in ('ansible', 'subprocess')\n"
        "             or name == 'rigwright.inventory.vault'))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_ansible_makes_no_folder(tmp_path: Path, password_file: str) -> None:
    written(tmp_path, f"a: {tagged(CANARY)}")
    home = tmp_path / "home"
    home.mkdir()
    code = (
        "from pathlib import Path; from rigwright import inventory; "
        f"print(inventory.read(Path({str(tmp_path)!r}), {password_file!r}).select('one')[0].variables['a'].reveal() "
        f"== {CANARY!r})"
    )
    environment = {**os.environ, "HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "True\n", done.stderr
    assert "[WARNING]" not in done.stderr
    assert list(home.iterdir()) == []
