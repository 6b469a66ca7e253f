"""Runs on several simulated hosts: one command on all, a rollout that stops and resumes, one line per host on the
screen, parallel reboots.

The hosts have no GPUs and no rig, and boot in a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.cli import commands
from tests.end_to_end.conftest import Ssh
from tests.end_to_end.rw import document, invoke, login_variables, not_as_wanted, on_terminal

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]
NAMES = ("t-many1", "t-many2", "t-many3")
ROOM = "- name: P\n  hosts: all\n  tasks:\n    - name: Room\n      file.directory: {path: /srv/room}\n"
BOOT = """- name: P
  hosts: all
  tasks:
    - name: Command line
      grub.cmdline: {kernel_cmdline: [quiet=many]}
    - name: Reboot
      reboot.if_needed: {kernel_cmdline: [quiet=many], with_driver: false}
"""


@pytest.fixture(scope="module")
def hosts(lab_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:  # noqa: ARG001
    """Yields environment variables that name an inventory of three running hosts and one that is down."""
    commands.up(name="t-many", count=3, say=print)
    folder = tmp_path_factory.mktemp("many")
    listed = {name: login_variables(name, p2p_wheels="none") for name in NAMES}
    away = {"t-away": login_variables(NAMES[0], ansible_port=9, p2p_wheels="none")}
    groups = {"up": {"hosts": listed}, "down": {"hosts": away}}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups}}, sort_keys=False))
    for name, text in (("room", ROOM), ("boot", BOOT)):
        (folder / f"{name}.yml").write_text(text)
    yield {"RIGWRIGHT_INVENTORY": str(folder / "hosts.yml"), "XDG_STATE_HOME": str(folder / "state")}
    for name in NAMES:
        commands.down(name=name, say=print)


def play(hosts: dict[str, str], name: str) -> str:
    """Returns the file of a playbook."""
    return str(Path(hosts["RIGWRIGHT_INVENTORY"]).parent / f"{name}.yml")


def test_one_command_on_all(hosts: dict[str, str]) -> None:
    plain = invoke("fleet.run", "--cmd", "id -un", "--host", "up", **hosts)
    assert (plain.returncode, plain.stdout) == (
        0,
        "t-many[1:3] (3 hosts): exit 0\n  ubuntu\n\n3 of 3 hosts: exit 0\n",
    )
    root = invoke("fleet.run", "--cmd", "id -un; ls -d /root/.ssh >/dev/null || exit 9", "--sudo", **hosts)
    assert root.returncode == 3
    assert "t-many[1:3] (3 hosts): exit" in root.stdout
    assert "  root\n" in root.stdout
    assert "error t-away" in root.stdout
    folders = "ls -d /dev/shm/rigwright.* /run/rigwright.* 2>/dev/null | wc -l"
    left = invoke("fleet.run", "--cmd", folders, "--host", "up", "--sudo", **hosts)
    own_folder_only = "t-many[1:3] (3 hosts): exit 0\n  1\n\n3 of 3 hosts: exit 0\n"
    assert left.stdout == own_folder_only


def test_a_host_that_floods_is_named_and_the_others_are_complete(hosts: dict[str, str], ssh: Ssh) -> None:
    flood = "printf '#!/bin/sh\\nexec yes flood\\n'"
    ssh(
        "t-many2",
        f"sudo sh -c 'mv /usr/bin/sudo /usr/bin/sudo.real; {flood.replace(chr(39), chr(34))} >/usr/bin/sudo; "
        "chmod 755 /usr/bin/sudo'",
    )
    try:
        found = document("fleet.check", "--playbook", play(hosts, "room"), **hosts)
    finally:
        ssh("t-many2", "sudo.real mv /usr/bin/sudo.real /usr/bin/sudo")
    said = {name: (host["error"] or {"found": ""})["found"] for name, host in found["hosts"].items()}
    assert found["exit_code"] == 1
    assert said["t-many1"] == said["t-many3"] == ""
    assert said["t-many2"] == "its output is longer than 64 KiB and has not ended"
    assert "refused" in said["t-away"]
    assert all(found["hosts"][name]["kept"]["system.running_kernel"] for name in ("t-many1", "t-many3"))


@pytest.mark.nightly
def test_a_rollout_stops_and_goes_on(hosts: dict[str, str], ssh: Ssh) -> None:
    words = ["--playbook", play(hosts, "room"), "--yes"]
    ssh("t-many2", "echo in the way | sudo tee /srv/room")
    stopped = invoke("provision", "--host", "up", "--serial", "1,50%", *words, **hosts)
    assert stopped.returncode == 1
    assert "Stopped: 1 of 3 hosts failed (t-many2), more than --max-fail 0; not attempted: t-many3" in stopped.stdout
    made = [ssh(name, "test -d /srv/room").returncode for name in NAMES]
    assert made == [0, 1, 1]
    ssh("t-many2", "sudo rm /srv/room")
    done = document("provision", "--resume", "--yes", **hosts)
    assert done["exit_code"] == 0, not_as_wanted(done)
    assert [*done["hosts"]] == ["t-many2", "t-many3"]
    assert done["rollout"]["left"] == []
    assert [ssh(name, "test -d /srv/room").returncode for name in NAMES] == [0, 0, 0]


@pytest.mark.nightly
def test_on_a_terminal_there_is_a_line_for_each(hosts: dict[str, str]) -> None:
    words = ["--playbook", play(hosts, "boot"), "--host", "up", "--reboots", "3"]
    looks = {"TERM": "xterm", "COLUMNS": "80", "LINES": "24", "NO_COLOR": "1"}
    file = Path(hosts["XDG_STATE_HOME"]).parent / "boot.json"
    code, text = on_terminal([("[y/N]", "y")], "provision", *words, "--json", str(file), **hosts, **looks)
    assert (code, "required since" in text) == (0, False), "hosts without GPUs need no peer-to-peer test"
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert re.search(r"• t-many3 +\d:\d\d  Reboot", shown), shown
    assert re.search(r"3 hosts: 3 running, \d:\d\d", shown)
    assert "not attempted" not in shown
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is there again"
    assert _side_by_side(yaml.safe_load(file.read_text())["hosts"])


def _side_by_side(hosts: dict[str, Any]) -> bool:
    """Returns whether all hosts were down at the same time."""
    spans = []
    for host in hosts.values():
        notes = [event for event in host["events"] if event["event"] == "note"]
        begin, end = (
            [event["at_s"] for event in notes if event["text"].startswith(words)]
            for words in ("rebooting, to try the new boot: ", "back after ")
        )
        assert len(begin) == len(end) == 1, notes
        spans.append((begin[0], end[0]))
    return max(begin for begin, _ in spans) < min(end for _, end in spans)
