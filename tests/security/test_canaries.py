"""Canaries: a different secret in every kind of place; afterwards none of them is in anything that a run writes or
shows.

tests/end_to_end/test_canaries_on_a_host.py does the same on a simulated host.
"""

from __future__ import annotations

import base64
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rigwright import inventory
from rigwright.core.command import Command, Result
from rigwright.core.process.streams import HarmlessStream
from rigwright.engine import events, playbook
from rigwright.engine.host_run import Options
from rigwright.fleet import actions, host_runs
from rigwright.inventory import vault
from tests.cli import workers_here
from tests.cli.run_command import run_command
from tests.fleet.fake_fleet import Fleet, fleet

CANARIES = {
    place: f"canary-{number}-{place}-'\"&\\<"
    for number, place in enumerate(
        ("plain", "env", "file", "command", "vault", "vaultfile", "nested", "list", "sudo", "phrase", "gateway"), 10
    )
}
USED = [place for place in CANARIES if place not in ("sudo", "phrase", "gateway")]
"""The places that the content of a file reads; the others are of the connection."""
OWN = "canary-99-of-the-host"
"""A secret that the host has already, in the file that is replaced."""
PASSWORD = "canary-98-of-the-vault"
_BASE64 = [base64.b64encode(b"x" * n + b"canary-")[-(-n * 8 // 6) : (n + 7) * 8 // 6] for n in range(3)]
TRACE = re.compile(b"canary-[\\w-]*|" + b"|".join(_BASE64))
"""The beginning of a canary, also in base64."""


@dataclass
class Planted:
    """A host that has a canary in every place, and repeats what it is sent in its error messages. `sent`: the files."""

    fleet: Fleet
    folder: Path
    sent: list[bytes] = field(default_factory=list)

    def run(self, name: str, **given: object) -> int:
        """Runs a command with the inventory of the canaries."""
        password_file = str(self.folder / "secrets" / "vault-password")
        return run_command(name, inventory=self.fleet.inventory, vault_password_file=password_file, **given)


def quoted(text: str) -> str:
    """Returns the text as a YAML scalar in single quotes."""
    return "'" + text.replace("'", "''") + "'"


def encrypted(text: str) -> str:
    """Returns the text as ansible-vault writes it."""
    with vault._quiet_import():
        from ansible.parsing import vault as library
    whole: bytes = library.VaultLib([("default", library.VaultSecret(PASSWORD.encode()))]).encrypt(text)
    return whole.decode()


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    """Returns the host with its inventory in the folder `in`; what a run writes is in `out`."""
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(tmp_path / "out" / "history.sqlite"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "out"))
    monkeypatch.setenv("CANARY", CANARIES["env"])
    folder = tmp_path / "in"
    for path in (folder / "secrets", folder / "group_vars", tmp_path / "out"):
        path.mkdir(parents=True)
    planted = Planted(fleet(folder, monkeypatch, "one"), folder)
    for name, text in (("file", CANARIES["file"]), ("vault-password", PASSWORD), ("command", CANARIES["command"])):
        (folder / "secrets" / name).write_text(f"{text}\n")
        (folder / "secrets" / name).chmod(0o600)
    (folder / "group_vars" / "all.yml").write_text(encrypted(f"whole: {quoted(CANARIES['vaultfile'])}\n"))
    vaulted = "".join(f"\n      {line}" for line in encrypted(CANARIES["vault"]).splitlines())
    (folder / "hosts.yml").write_text(f"""all:
  hosts: {{one: }}
  vars:
    ansible_become_password: {quoted(CANARIES["sudo"])}
    ansible_ssh_passphrase: {quoted(CANARIES["phrase"])}
    gateway_password: {quoted(CANARIES["gateway"])}
    hf_token: {quoted(CANARIES["plain"])}
    a: !secret {{env: CANARY}}
    b: !secret {{file: secrets/file}}
    c: !secret {{command: [cat, {folder}/secrets/command]}}
    d: !vault |{vaulted}
    nested: {{deep: {{api_key: {quoted(CANARIES["nested"])}}}, list: [{{token: {quoted(CANARIES["list"])}}}]}}
    templated: '{{{{ a }}}} {{{{ b }}}} {{{{ c }}}} {{{{ d }}}} {{{{ whole }}}} {{{{ hf_token }}}}'
""")
    (folder / "play.yml").write_text("""- name: P
  hosts: all
  tasks:
    - name: 'Token {{ hf_token }}'
      file.present:
        path: /srv/token
        content: '{{ templated }} {{ nested.deep.api_key }} {{ nested.list[0].token }}'
""")
    usual = planted.fleet.answer

    def answer(name: str, cmd: Command) -> Result:
        if cmd.stdin:
            planted.sent.append(cmd.stdin)
            return Result(1, cmd.stdin, b"cannot write: " + cmd.stdin)
        if cmd.argv[-1] == "/srv/token":
            return Result(0, f"regular file|644|root|root|{len(OWN)}\n{OWN}".encode())
        return usual(name, cmd)

    monkeypatch.setattr(planted.fleet, "answer", answer)
    return planted


def test_no_canary_is_in_anything_that_a_run_leaves(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", HarmlessStream(sys.stderr))
    out, play = tmp_path / "out", planted.fleet.playbook
    assert planted.run("plan", playbook=play, json=str(out / "plan.json")) == 2
    provisioned = planted.run("provision", playbook=play, yes=True, json=str(out / "a.json"), html=str(out / "a.html"))
    assert provisioned == 1
    sent = b"".join(planted.sent).decode()
    assert [place for place in USED if CANARIES[place] not in sent] == [], "the canaries were read and used"

    def broken(*_: object) -> None:
        raise ValueError(f"a bug with {sent}")

    monkeypatch.setattr(actions, "plan_host", broken)
    assert planted.run("plan", playbook=play, json=str(out / "bug.json")) == 1
    assert planted.run("inventory.list", json=str(out / "list.json")) == 0
    page, metrics = str(out / "fleet.html"), str(out / "fleet.prom")
    planted.run("fleet.report", playbook=play, html=page, prometheus=metrics, json=str(out / "fleet.json"))
    shown = capsys.readouterr()
    assert "ValueError: a bug with (secret)" in shown.err
    assert "cannot write: (secret)" in shown.out
    texts = {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert {
        "plan.json",
        "a.json",
        "a.html",
        "bug.json",
        "list.json",
        "fleet.html",
        "fleet.prom",
        "history.sqlite",
    } <= texts.keys()
    texts |= {"stdout": shown.out.encode(), "stderr": shown.err.encode()}
    assert {name: TRACE.findall(text) for name, text in texts.items() if TRACE.search(text)} == {}
    assert "CANARY" not in os.environ, "programs that are started later would inherit it"


def test_no_canary_is_in_an_argument_of_a_command(planted: Planted) -> None:
    planted.run("provision", playbook=planted.fleet.playbook, yes=True)
    assert planted.sent
    arguments = " ".join(word for host in planted.fleet.hosts.values() for cmd in host.ran for word in cmd.argv)
    assert "/srv/token" in arguments
    assert TRACE.findall(arguments.encode()) == []


def test_no_canary_is_in_an_event_or_an_order_to_a_worker(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    room = planted.folder / "room.yml"
    room.write_text("- name: P\n  hosts: all\n  tasks:\n    - file.directory: {path: /srv/room}\n")
    found = inventory.read(planted.folder / "hosts.yml", str(planted.folder / "secrets" / "vault-password"))
    (host,) = found.select("all")
    assert CANARIES["env"] in host.variables["templated"].reveal()
    told: list[events.Event] = []
    (run,) = host_runs.prepare([playbook.bind(room, found, host)], Options("run-1"), told.append)
    run.emit(events.OutputLine("one", "a step", f"Authorization: {CANARIES['env']}"))
    assert told == [events.OutputLine("one", "a step", "Authorization: (secret)")]
    workers = workers_here.use(planted.folder / "worker", monkeypatch)
    planted.run("plan", playbook=str(room), executor=workers_here.ADDRESS)
    assert len(workers.orders) == 1
    assert TRACE.findall(workers.orders[0].encode()) == []
