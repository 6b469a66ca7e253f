"""Checks that docs/reference/errors.md quotes the messages that a run prints for mistakes in files and on the command
line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.run_command import run_command
from tests.paths import ROOT

HOSTS = "gpu:\n  hosts:\n    servbadge: {ansible_host: 192.0.2.10}\n"
VARIABLES = "rig: servbadge\ndriver: {branch: '535'}\n"
PLAY = "- name: A play\n  hosts: all\n  tasks:\n    - name: A task\n      "
VARS, LIST, INI, TASKS = "inventory/host_vars/servbadge.yml", "inventory/hosts.yml", "inventory/hosts", "p.yml"

MISTAKES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "unknown host": ({}, {"host": "servbadg"}),
    "pattern without hosts": ({}, {"host": "gpu:!servbadge"}),
    "undeclared group": ({INI: "[v10]\nx\n[v100:vars]\na=1\n"}, {}),
    "cycle of groups": (
        {LIST: "all:\n  children:\n    a:\n      children:\n        b:\n    b:\n      children:\n        a:\n"},
        {},
    ),
    "duplicate host": ({INI: "[gpu]\nx\ny\nx\n"}, {}),
    "misspelt variable": ({VARS: VARIABLES + "limts: auto\n"}, {}),
    "misspelt key": ({VARS: VARIABLES + "limits: {power_limit: 200}\n"}, {}),
    "wrong type of a value": ({VARS: "driver: {branch: 535}\n"}, {}),
    "unknown rig": ({VARS: "rig: servbage\n"}, {}),
    "misspelt key of a task": ({TASKS: PLAY + "nmae: x\n      apt.clean:\n"}, {}),
    "misspelt operation": ({TASKS: PLAY + "apt.package: {names: [x]}\n"}, {}),
    "misspelt parameter": ({TASKS: PLAY + "apt.packages: {nmaes: [x]}\n"}, {}),
    "missing parameter": ({TASKS: PLAY + "apt.packages:\n"}, {}),
    "variable missing in task and inventory": ({TASKS: PLAY + "cuda.held:\n"}, {}),
    "misspelt tag": ({}, {"tags": "drivr", "playbook": str(ROOT / "playbooks" / "provision.yml")}),
    "undefined variable": ({TASKS: PLAY + 'apt.packages: {names: "{{ nothere }}"}\n'}, {}),
    "template error": ({TASKS: PLAY + 'apt.packages: {names: "{{ rig |"}\n'}, {}),
    "tab": ({VARS: "driver:\n\tbranch: '535'\n"}, {}),
    "`!vault` without encrypted text": ({VARS: "ansible_become_password: !vault x\n"}, {}),
    "misspelt source of a secret": ({VARS: VARIABLES + "hf_token: !secret {enw: HF_TOKEN}\n"}, {}),
    "secret as an argument of a command": (
        {VARS: VARIABLES + "hf_token: canary-7\n", TASKS: PLAY + 'apt.packages: {names: ["{{ hf_token }}"]}\n'},
        {},
    ),
    "invalid kernel parameter": ({VARS: VARIABLES + "kernel_cmdline: ['iommu=pt; reboot']\n"}, {}),
    "missing ssh key": (
        {LIST: HOSTS.replace("192.0.2.10", "192.0.2.10, ansible_ssh_private_key_file: ~/.ssh/gpu")},
        {},
    ),
}


def _documented() -> dict[str, str]:
    """Returns the first message of each row of the page's first table, without the position of the mistake."""
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    table = page.partition("before connecting (1)")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| `(.+?)`(?:, | \|)", table, re.M)
    return {name: re.sub(r"^\S+:[\d:]+ ", "", message).replace("\\|", "|") for name, message in rows}


def test_every_documented_mistake_is_tried() -> None:
    assert sorted(_documented()) == sorted(MISTAKES)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_documented_message_is_printed(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files, options = MISTAKES[mistake]
    files = {LIST: HOSTS, VARS: VARIABLES, TASKS: PLAY + "apt.clean:\n", **files}
    if INI in files:
        del files[LIST]
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RIGWRIGHT_INVENTORY", raising=False)
    code = run_command("plan", **{"inventory": "inventory", "playbook": TASKS, **options})
    printed = " ".join("".join(capsys.readouterr()).split())
    assert _documented()[mistake].replace("playbooks/provision.yml", str(ROOT / "playbooks/provision.yml")) in printed
    assert code == 1
