"""A kept connection (--keep) to a host that boots again, or that has another key meanwhile: the next run logs in anew, or is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.base.paths import KNOWN_HOSTS, SSH_KEY, USER
from lab.faults import inject
from lab.host import login
from lab.power import switch
from tests.end_to_end import conftest

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]
LATE_S = 10.0
"""A run that waited for a connection that is gone would take longer: TCP gives up after minutes, rigwright after 20 s."""

PLAY = "- name: P\n  hosts: all\n  tasks:\n    - {name: Room, file.directory: {path: /run/kept-test}}\n"
_LOGINS = "sudo journalctl -q -b -o cat -t sshd | grep -c '^Accepted'"


class Controller:
    """The program `rigwright` of a user with an empty home folder, who keeps connections to one host."""

    def __init__(self, folder: Path, host: str) -> None:
        self.folder, self.host = folder, host
        self.script = folder / "bin" / "rigwright"  # folder / "rigwright" is that of the sockets
        self.script.parent.mkdir()
        self.script.write_text("from rigwright.cli import start\nstart.rigwright()\n")
        (folder / "play.yml").write_text(PLAY)
        self.known_hosts = folder / "known"
        shutil.copy(KNOWN_HOSTS, self.known_hosts)
        variables = {"ansible_host": str(switch.get(host).address), "ansible_user": USER, "ansible_ssh_private_key_file": str(SSH_KEY),
                     "ssh_known_hosts": str(self.known_hosts)}  # fmt: skip
        self.inventory = folder / "hosts.yml"
        self.inventory.write_text(json.dumps({"all": {"hosts": {host: variables}}}))
        own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SSH_"))}
        self.environment = {**own, "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}

    def run(self, command: str, *words: str) -> dict[str, Any]:
        """Runs a command; returns its document."""
        argv = [sys.executable, str(self.script), command, "--host", self.host, "--inventory", str(self.inventory)]
        argv += ["--playbook", "play.yml", "--json", "-", *words]
        done = subprocess.run(
            argv, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["exit_code"] == done.returncode, done.stderr
        return found

    def plan(self, *words: str) -> tuple[int, Any]:
        """Plans; returns the exit code and the error of the host. It must not take long."""
        began = time.monotonic()
        found = self.run("plan", *words)
        took_s = time.monotonic() - began
        assert took_s < LATE_S
        return found["exit_code"], found["hosts"][self.host]["error"]

    def keeps(self) -> None:
        """Waits until a run needs no login."""
        for _ in range(20):
            before = self.logins()
            assert before > 0
            assert self.plan("--keep", "10m") == (0, None)
            if self.logins() == before + 1:  # that of the question itself
                return
            time.sleep(0.5)
        pytest.fail("no connection is kept")

    def logins(self) -> int:
        """The logins since the host's boot, with that of this question."""
        return int(conftest.ssh(self.host, _LOGINS).stdout)


@pytest.fixture
def controller(spare_host: str) -> Iterator[Controller]:
    """Yields a controller that has provisioned the host and keeps a connection to it."""
    folder = Path(tempfile.mkdtemp(prefix="rw-"))  # a short path, as sockets need it
    found = Controller(folder, spare_host)
    try:
        assert found.run("provision", "--yes", "--keep", "10m")["exit_code"] == 0
        found.keeps()
        yield found
    finally:
        argv = [sys.executable, str(found.script), "connections.close"]
        subprocess.run(argv, env=found.environment, cwd=folder, check=True, capture_output=True, timeout=60)
        shutil.rmtree(folder)


def power_off_and_on(name: str) -> None:
    """Cuts the power of the host, and waits until login works in the next boot."""
    switch.cut(name)
    switch.on(switch.get(name))
    login.wait(switch.get(name))


@pytest.mark.parametrize("boots", [conftest.reboot, power_off_and_on])
def test_a_run_after_a_boot_logs_in_anew_and_sees_that_boot(
    controller: Controller, boots: Callable[[str], None]
) -> None:
    boots(controller.host)
    before = controller.logins()
    assert controller.plan("--keep", "10m") == (2, None), "the directory in /run is gone"
    assert controller.logins() > before + 1
    assert controller.run("provision", "--yes", "--keep", "10m")["exit_code"] == 0
    controller.keeps()


def test_a_host_with_another_key_after_a_boot_is_refused_as_without_it(controller: Controller) -> None:
    conftest.reboot(controller.host)  # the lab's own ssh knows the key from before only
    inject.fault(controller.host, "key-changed", "", print)
    code, error = controller.plan("--keep", "10m")
    assert code == 3
    assert "the host key has changed" in error["found"]
    assert controller.plan() == (code, error)
    assert controller.plan("--keep", "10m") == (code, error)


def test_a_key_that_is_revoked_in_known_hosts_ends_the_kept_connection(controller: Controller) -> None:
    lines = controller.known_hosts.read_text().splitlines()
    controller.known_hosts.write_text("".join(f"@revoked {line}\n" for line in lines))
    code, error = controller.plan("--keep", "10m")
    assert code == 3
    assert "revoked" in error["found"]
    assert controller.plan() == (code, error)
