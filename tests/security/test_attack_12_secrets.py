"""Attack 12: secrets of the inventory in orders to workers, in plans, in the history, in listings; and no other place
for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from rigwright import inventory
from rigwright.core.errors import InputError
from rigwright.core.secrets import Secret
from rigwright.engine import parameters, playbook, plugins
from rigwright.engine.host_run import HostRun, Options
from rigwright.fleet import host_runs
from rigwright.report.tables.inventory import listing
from tests.cli import workers_here
from tests.cli.run_command import run_command
from tests.fleet.fake_fleet import fleet

CANARY = "canary-5f2c"
NAMES = ("ansible_ssh_passphrase", "ansible_vault_identity", "ssh_agent_token", "ssh_note")
"""Variables with the beginnings that a connection's variables have."""
CONTENT = "- name: P\n  hosts: all\n  tasks:\n    - name: Token\n      file.present: {path: /srv/token, content: %s}\n"


def runs(folder: Path, variables: dict[str, str], play: str) -> list[HostRun]:
    """Returns the run of one host with these variables."""
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"one": variables}}}))
    (folder / "play.yml").write_text(play)
    found = inventory.read(folder / "hosts.yml")
    return host_runs.prepare(
        [playbook.bind(folder / "play.yml", found, found.select("one")[0])], Options("run-1"), print
    )


def test_an_order_has_only_what_a_connection_and_the_playbook_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {**dict.fromkeys(NAMES, CANARY), "nested": {"password": CANARY}, "ansible_user": "ada", "room": "/srv"}
    variables |= {"ansible_become_password": CANARY, "other": CANARY}
    play = "- name: P\n  hosts: all\n  tasks:\n    - file.directory: {path: '{{ room }}/x'}\n"
    orders, hosts = sent(tmp_path, monkeypatch, variables, play)
    assert hosts["one"]["status"] == "pending"
    assert CANARY not in orders[0]
    written = json.loads(json.loads(orders[0])["files"][str(tmp_path / "hosts.yml")])
    assert written["all"]["hosts"] == {"one": {"ansible_user": "ada", "room": "/srv"}}


@pytest.mark.parametrize(
    ("variables", "play", "what"),
    [
        ({"hf_token": CANARY}, CONTENT % '"{{ hf_token }}"', "the step 'Token'"),
        ({"api_token": CANARY, "ansible_host": "{{ api_token }}"}, CONTENT % "x", "ansible_host"),
    ],
)
def test_work_that_needs_a_secret_is_not_sent(
    variables: dict[str, Any], play: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, hosts = sent(tmp_path, monkeypatch, variables, play)
    assert orders == []
    assert hosts["one"]["error"]["found"] == f"{what} needs a secret of the inventory, which is not sent to workers"
    assert CANARY not in str(hosts)


def sent(
    folder: Path, patch: pytest.MonkeyPatch, variables: dict[str, Any], play: str
) -> tuple[list[str], dict[str, Any]]:
    """Plans a host with these variables by a worker; returns the orders, and the hosts of the document."""
    made = fleet(folder, patch, "one")
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"one": variables}}}))
    (folder / "play.yml").write_text(play)
    workers, file = workers_here.use(folder / "worker", patch), folder / "out.json"
    words = {"inventory": made.inventory, "playbook": made.playbook, "executor": workers_here.ADDRESS}
    run_command("plan", host="one", json=str(file), **words)
    return workers.orders, json.loads(file.read_text())["hosts"]


def test_only_what_goes_to_stdin_takes_a_secret() -> None:
    """All other parameters become arguments of commands, or stand in a run's script."""
    taking = {
        f"{name}.{parameter}"
        for name in plugins.known("operations")
        for function in [plugins.find("operations", name)]
        if function
        for parameter, hint in parameters.types(function).items()
        if Secret in get_args(hint)
    }
    assert taking == {"file.present.content", "file.template.template", "mok.enrolled.password"}
    checks = [plugins.find("checks", name) for name in plugins.known("checks")]
    assert not any(Secret in get_args(hint) for one in checks if one for hint in parameters.types(one).values())


@pytest.mark.parametrize(
    "parameter", ["owner: '{{ hf_token }}'", "mode: '{{ hf_token }}'", "leads_to: 'x{{ hf_token }}'"]
)
def test_a_secret_elsewhere_is_refused_before_anything_is_connected(parameter: str, tmp_path: Path) -> None:
    play = CONTENT % f"x, {parameter}"
    with pytest.raises(InputError, match="holds a secret") as caught:
        runs(tmp_path, {"hf_token": CANARY}, play)
    assert caught.value.where == f"{tmp_path / 'play.yml'}:5"


def test_a_templated_sudo_password_stays_a_secret(tmp_path: Path) -> None:
    (run,) = runs(tmp_path, {"word": CANARY, "ansible_become_password": "{{ word }}-x"}, CONTENT % "x")
    assert run.host.variables["ansible_become_password"] == Secret(f"{CANARY}-x")


def test_a_token_in_a_file_is_in_no_plan_and_no_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(tmp_path / "history.sqlite"))
    hosts = fleet(tmp_path, monkeypatch, "one")
    (tmp_path / "hosts.yml").write_text(f"all:\n  hosts: {{one: }}\n  vars: {{hf_token: {CANARY}}}\n")
    (tmp_path / "play.yml").write_text(CONTENT % '"token: {{ hf_token }}"')
    code = run_command(
        "plan", inventory=hosts.inventory, playbook=hosts.playbook, host="one", json=str(tmp_path / "plan.json")
    )
    shown = capsys.readouterr()
    (change,) = json.loads((tmp_path / "plan.json").read_text())["hosts"]["one"]["changes"]
    assert (code, change["after"]) == (2, "(secret), mode 0600")
    assert "(secret), mode 0600" in shown.out
    for text in (shown.out, shown.err, (tmp_path / "plan.json").read_text()):
        assert CANARY not in text
    assert CANARY.encode() not in b"".join(path.read_bytes() for path in tmp_path.glob("history.sqlite*"))


def test_a_listing_has_no_secret_at_any_depth(tmp_path: Path) -> None:
    variables = {"app": {"password": CANARY, "keys": [{"key": CANARY}]}, "db": [{"token": CANARY}], "site": "cellar"}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"one": variables}}}))
    shown = listing(inventory.read(tmp_path), ["one"])
    assert CANARY not in json.dumps(shown)
    assert shown["_meta"]["hostvars"]["one"]["site"] == "cellar"


def test_a_vault_refuses_only_what_needs_it(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n6230653230\n3961\n")
    value = "!vault |\n        $ANSIBLE_VAULT;1.1;AES256\n        6230653230"
    (tmp_path / "hosts.yml").write_text(f"all:\n  hosts: {{one: }}\n  vars:\n    ansible_become_password: {value}\n")
    (host,) = inventory.read(tmp_path).select("one")
    with pytest.raises(InputError) as caught:
        host.variables["ansible_become_password"].reveal()
    assert "--vault-password-file FILE" in caught.value.fix
