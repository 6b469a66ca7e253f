"""A command that goes on after the reboot of its own machine: its program, its bounds, and what is refused before the
first change."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rigwright.core.command import Result, quote
from rigwright.core.errors import HostError
from rigwright.core.machine_identity import MachineIdentity
from rigwright.core.templates.host_files import SHIPPED
from rigwright.engine.boot import continuation
from rigwright.engine.host_run import HostRun, Options
from rigwright.facts import FactStore
from rigwright.facts.boot.continuation import Continuation, continuation as fact
from rigwright.inventory.model import LOCAL_MACHINE, Host

RUN = "20261123-124014-5914"


class Machine:
    """This machine in a temporary folder, and the program that goes on in it."""

    def __init__(self, folder: Path, command: str) -> None:
        self.folder, self.state = folder, folder / "state"
        for name in ("bin", "state", "etc", "units", "run"):
            (folder / name).mkdir()
        for name, text in (("systemctl", f'echo "$*" >>{folder}/calls'), ("sync", ":")):
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / "bin" / name).chmod(0o755)
        self.program, self.unit = folder / "continue.sh", folder / "units" / "rigwright-continue.service"
        values = {
            "folder": self.state, "log": folder / "log", "motd": folder / "etc" / "rigwright", "unit": self.unit.name,
            "program": self.program,
            "most_boots": 3, "wait_s": 5, "run": RUN, "directory": quote([str(folder)]), "command": command,
            "title": "provision of localhost",
        }  # fmt: skip
        text = SHIPPED.render("continuation/run.sh.j2", values)
        for path, here in (("/etc/systemd/system", "units"), ("/etc/motd.d", "etc"), ("/run/rigwright", "run")):
            text = text.replace(path, str(folder / here))
        self.program.write_text(text)
        self.unit.touch()

    def boots(self) -> None:
        """Runs the program as the boot does."""
        env = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        subprocess.run(["sh", str(self.program)], env=env, check=True, capture_output=True, timeout=60)

    @property
    def message(self) -> str:
        """Returns the line for the next login; "" without one."""
        file = self.folder / "etc" / "rigwright"
        return file.read_text() if file.exists() else ""


@pytest.mark.parametrize(
    ("command", "code", "how"),
    [
        ("echo it works", "0", "done and proved"),
        ("sh -c 'exit 2'", "2", "done, but not all is as it should be (exit code 2)"),
        ("sh -c 'exit 1'", "1", "failed (exit code 1)"),
        ("/no/such/program", "127", "failed: its program is gone (exit code 127)"),
    ],
)
def test_the_end_is_told_and_nothing_is_left(tmp_path: Path, command: str, code: str, how: str) -> None:
    machine = Machine(tmp_path, command)
    machine.boots()
    run, _at, ended, said = (machine.state / "ended").read_text().splitlines()
    assert (run, ended, said) == (RUN, code, how)
    assert machine.message.startswith(f"rigwright: provision of localhost went on after the reboot: {how}, ")
    assert not machine.unit.exists()
    assert not machine.program.exists()
    assert [file.name for file in machine.state.iterdir()] == ["ended"]
    assert "disable rigwright-continue.service" in (tmp_path / "calls").read_text()


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "true")
    text = machine.program.read_text().replace(f"cd {tmp_path}", f"cd {tmp_path}/gone")
    machine.program.write_text(text)
    machine.boots()
    assert "its program is gone" in machine.message


def test_a_machine_that_does_not_stay_up_is_given_up_after_three_boots(tmp_path: Path) -> None:
    machine = Machine(tmp_path, f"touch {tmp_path}/begun")
    (machine.state / "boots").write_text("3\n")
    machine.boots()
    assert "gave up after 3 boots" in machine.message
    assert not (tmp_path / "begun").exists()
    assert not machine.unit.exists()


def test_another_reboot_that_the_command_orders_keeps_the_unit(tmp_path: Path) -> None:
    machine = Machine(tmp_path, f"sh -c ': >{tmp_path}/run/continues; exit 130'")
    machine.boots()
    assert machine.unit.exists()
    assert machine.program.exists()
    assert machine.message == ""
    assert (machine.state / "boots").read_text() == "1\n"


@pytest.mark.parametrize(("healthy", "told"), [(False, False), (True, True)])
def test_a_trial_that_was_not_confirmed_goes_on_in_what_ran_before(tmp_path: Path, healthy: bool, told: bool) -> None:
    machine = Machine(tmp_path, "sh -c 'exit 1'")
    (tmp_path / "cmdline").write_text(
        f"root=UUID=7d1a ro panic=60 rigwright.trial={RUN} systemd.wants=rigwright-trial.service\n"
    )
    machine.program.write_text(machine.program.read_text().replace("/proc/cmdline", str(tmp_path / "cmdline")))
    if healthy:
        (tmp_path / "run" / "trial-healthy").touch()
    machine.boots()
    assert machine.unit.exists() is not told
    assert ("failed (exit code 1)" in machine.message) is told


def run_of(restart: tuple[str, ...] = ("invoke", "provision"), answer: str = "", **variables: Any) -> HostRun:
    """Returns a run on this machine whose host answers each command with that text."""
    host = Host("here", ("all",), {"ansible_connection": "local", **variables}, "hosts.yml:3")
    transport = SimpleNamespace(run=lambda commands: [Result(0, answer.encode()) for _ in commands])
    store = FactStore()
    return cast(
        "HostRun",
        SimpleNamespace(
            host=host, transport=transport, options=Options(RUN, restart=restart, restart_title="provision"),
            store=store,
            value=lambda _fact: MachineIdentity(machine_id_hash="a1"),
            read_unknown=lambda facts: store.learn([(each, Result(0, answer.encode())) for each in facts]),
        ),
    )  # fmt: skip


def test_an_inventory_that_does_not_name_the_machine_changes_nothing() -> None:
    with pytest.raises(HostError, match="does not say which machine it is") as caught:
        continuation.require_identified(run_of())
    assert "local_machine: {'machine_id_hash': 'a1'}" in caught.value.fix
    continuation.require_identified(run_of(**{LOCAL_MACHINE: {"machine_id_hash": "a1"}}))


@pytest.fixture
def boots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this machine one that boots with systemd, and this user root."""
    real = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: str(path) == "/run/systemd/system" or real(path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.usefixtures("boots")
def test_what_cannot_go_on_is_refused() -> None:
    continuation.require_possible(run_of(), due=True)
    continuation.require_possible(run_of(()), due=False)
    with pytest.raises(HostError, match="this command ends with the reboot"):
        continuation.require_possible(run_of(()), due=True)
    with pytest.raises(HostError, match="this command ends with the reboot"):
        continuation.arm(run_of(()), SHIPPED, "iommu=pt", 200)
    with pytest.raises(HostError, match="/mnt/usb/rigwright is not there after a reboot: it is on /mnt/usb"):
        continuation.require_possible(run_of(answer="/mnt/usb /mnt/usb/rigwright\n"), due=False)


@pytest.mark.usefixtures("boots")
def test_a_sudo_password_cannot_be_typed_after_the_reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(continuation, "_sudo_without_password", lambda: False)
    with pytest.raises(HostError, match="nobody can type the sudo password"):
        continuation.require_possible(run_of(), due=False)


@pytest.mark.parametrize(
    ("release", "systemd", "found"),
    [
        ("5.15.90.1-microsoft-standard-WSL2", True, "it is a WSL guest"),
        ("6.8.0-45-generic", False, "systemd is not its init"),
    ],
)
def test_machines_without_a_boot_of_their_own(
    monkeypatch: pytest.MonkeyPatch, release: str, systemd: bool, found: str
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _path, **_options: release)
    monkeypatch.setattr(Path, "is_dir", lambda _path: systemd)
    with pytest.raises(HostError, match=found):
        continuation.require_possible(run_of(), due=False)


def test_after_three_boots_no_other_is_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(continuation.VARIABLE, RUN)
    with pytest.raises(HostError, match="it has rebooted 3 times for this"):
        continuation.arm(run_of(answer="armed\n3\niommu=pt\n"), SHIPPED, "iommu=pt", 200)
    assert continuation.arm(run_of(answer="armed\n2\niommu=pt\n"), SHIPPED, "iommu=pt", 200)
    monkeypatch.delenv(continuation.VARIABLE)
    assert continuation.arm(run_of(answer="armed\n3\niommu=pt\n"), SHIPPED, "iommu=pt", 200)


def test_the_environment_after_the_reboot_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BMC_PASSWORD", "open sesame")
    monkeypatch.setenv("RIGWRIGHT_INVENTORY", "/srv/my inventory")
    line = continuation._command_line(("python3", "-m", "invoke", "provision"), RUN)
    assert "sesame" not in line
    assert "'RIGWRIGHT_INVENTORY=/srv/my inventory'" in line
    assert line.endswith("python3 -m invoke provision")


def test_what_the_plan_says() -> None:
    assert continuation.message(None) == ""
    assert "has not ended" in continuation.message(Continuation(True))
    ended = fact.parse(Result(0, f"ended\n{RUN}\n2026-11-23 12:41 UTC\n0\ndone and proved\n".encode()))
    assert f"run {RUN} went on after its reboot: done and proved, 2026-11-23 12:41 UTC" in continuation.message(ended)
