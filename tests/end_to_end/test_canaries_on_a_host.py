"""Canaries in every kind of place of an inventory; a run on a simulated host leaves none of them anywhere but in the
file that needs them."""

from __future__ import annotations

import base64
import os
import re
import threading
import time
from pathlib import Path

import pytest
import yaml

from lab.host import login
from lab.power import switch
from tests.end_to_end.conftest import ssh
from tests.end_to_end.rw import invoke, login_variables
from tests.security.test_canaries import PASSWORD, TRACE, encrypted

pytestmark = pytest.mark.lab
SUDO, ENV, FILE, COMMAND, VAULT, WHOLE, TOKEN, OLD, PHRASE, GATEWAY = (
    f"canary-{number}-x'y" for number in range(10, 20)
)
PLACES = "/var/lib/rigwright /run /tmp /var/tmp /dev/shm /var/log /etc /root /home /opt /usr/local"


class Watch:
    """Reads the arguments and the environment of every process until the end of the block, and keeps the traces of
    secrets.

    The environment of rigwright itself has the one that the caller put there.
    """

    def __init__(self, trace: re.Pattern[bytes] = TRACE) -> None:
        self._trace = trace
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.seen: set[str] = set()
        self.rounds = 0

    def _look(self) -> None:
        while not self._done.is_set():
            self.rounds += 1
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    argv, environment = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
                except OSError:
                    continue
                if b"-m\0invoke\0" in argv:
                    environment = environment.replace(f"CANARY={ENV}".encode(), b"")
                if found := self._trace.findall(argv + environment):
                    self.seen.add(f"{argv!r}: {found!r}")
            time.sleep(0.01)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def planted(folder: Path, host: str) -> str:
    """Writes an inventory of the host with a canary in every kind of place; returns its path."""
    for name in ("secrets", "group_vars/all"):
        (folder / name).mkdir(parents=True)
    variables = login_variables(host) | {
        "ansible_become_password": "{{ sudo_word }}",
        "ansible_ssh_passphrase": PHRASE,
        "gateway_password": GATEWAY,
        "nested": {"deep": [{"token": TOKEN}]},
        "templated": "{{ a }} {{ b }} {{ c }} {{ whole }} {{ nested.deep[0].token }}",
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {host: variables}}}))
    texts = {
        "file": f"{FILE}\n",
        "vault-password": PASSWORD,
        "sudo": f"{SUDO}\nuser: x\n",
        "command": f"{COMMAND}\nx\n",
    }
    for name, text in texts.items():
        (folder / "secrets" / name).write_text(text)
        (folder / "secrets" / name).chmod(0o600)
    vaulted = "".join(f"\n  {line}" for line in encrypted(VAULT).splitlines())
    (folder / "group_vars/all/plain.yml").write_text(
        f"sudo_word: !secret {{command: [cat, {folder}/secrets/sudo]}}\n"
        "a: !secret {env: CANARY}\nb: !secret {file: secrets/file}\n"
        f"c: !secret {{command: [cat, {folder}/secrets/command]}}\nd: !vault |{vaulted}\n"
    )
    (folder / "group_vars/all/vault.yml").write_text(encrypted(yaml.safe_dump({"whole": WHOLE})))
    return str(folder)


def test_a_run_leaves_no_canary(spare_host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(out))
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(out / "history.sqlite"))
    where = planted(tmp_path / "in", spare_host)
    play = tmp_path / "play.yml"
    play.write_text(
        "- name: P\n  hosts: all\n  tasks:\n"
        "    - file.present: {path: /srv/token, content: '{{ templated }} {{ d }}'}\n"
        "    - name: Fails, and tells the secret\n      when: fails is defined\n"
        "      file.present: {path: /proc/token, content: '{{ d }}'}\n"
    )
    script = (
        f"chpasswd <<'END'\nubuntu:{SUDO}\nEND\necho {base64.b64encode(OLD.encode()).decode()} | base64 -d >/srv/token"
    )
    word = base64.b64encode(script.encode()).decode()
    assert login.ssh(switch.get(spare_host), f"echo {word} | base64 -d | sudo sh", 60).returncode == 0
    disk = switch.get(spare_host).root
    sudoers = (disk / "etc/sudoers").read_bytes()
    (disk / "etc/sudoers").write_bytes(sudoers.replace(b"%sudo", b"#sudo"))
    (disk / "etc/sudoers.d/90-cloud-init-users").write_text("ubuntu ALL=(ALL) PASSWD: ALL\n")
    words = ["--inventory", where, "--vault-password-file", str(tmp_path / "in/secrets/vault-password")]
    words += ["--playbook", str(play), "--host", spare_host]
    with Watch() as watch:
        done = {
            "plan": invoke("plan", *words, "--json", str(out / "plan.json"), CANARY=ENV),
            "provision": invoke(
                "provision", *words, "--yes", "--json", str(out / "a.json"), "--html", str(out / "a.html"), CANARY=ENV
            ),
            "again": invoke("provision", *words, "--yes", CANARY=ENV),
        }
        (Path(where) / "group_vars/all/fails.yml").write_text("fails: true\n")
        done["fails"] = invoke("provision", *words, "--yes", "--json", str(out / "fails.json"), CANARY=ENV)
        done["list"] = invoke("inventory.list", "--inventory", where, "--json", "-", CANARY=ENV)
    (disk / "etc/sudoers.d/90-cloud-init-users").write_text("ubuntu ALL=(ALL) NOPASSWD:ALL\n")
    outcomes = {name: one.returncode for name, one in done.items()}
    assert outcomes == {"plan": 2, "provision": 0, "again": 0, "fails": 1, "list": 0}, done["provision"].stdout
    assert "(secret) -> (secret)" in done["plan"].stdout
    written = ssh(spare_host, "sudo stat -c '%a %U' /srv/token; sudo cat /srv/token").stdout
    assert written == f"600 root\n{ENV} {FILE} {COMMAND} {WHOLE} {TOKEN} {VAULT}"

    texts = {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert {"plan.json", "a.json", "a.html", "fails.json", "history.sqlite"} <= texts.keys()
    texts |= {name: (one.stdout + one.stderr).encode() for name, one in done.items()}
    assert {name: TRACE.findall(text) for name, text in texts.items() if TRACE.search(text)} == {}
    assert (watch.rounds > 20, watch.seen) == (True, set())
    folders = "/var/lib/rigwright/runs /var/lib/rigwright/originals"
    kept = ssh(spare_host, f"sudo find {folders} -name token -printf '%m '; sudo stat -c %a {folders}").stdout
    assert kept == "644 644 644 700\n700\n", (
        "the file of the owner that was replaced is kept where only root can read it"
    )
    assert ssh(spare_host, f"find {folders} -type f").stdout == ""
    found = ssh(
        spare_host,
        f"sudo grep -raoE 'canary-[0-9]+' {PLACES}; sudo journalctl -q --no-pager | grep -oE 'canary-[0-9]+'",
        60,
    )
    assert {line.rpartition(":")[2] for line in found.stdout.split()} == {OLD[:9]}, found.stdout
    assert {"/".join(line.split("/")[:5]) for line in found.stdout.split()} == set(folders.split())
    assert "CANARY" not in os.environ
