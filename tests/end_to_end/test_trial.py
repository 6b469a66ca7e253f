"""A new boot that fails is followed by what ran before, by itself; a healthy one becomes permanent."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.bench import trials
from lab.faults import inject
from lab.host import login
from lab.power import switch
from tests.end_to_end.conftest import Ssh, reboot
from tests.end_to_end.rw import invoke, start, until
from tests.end_to_end.test_rigs import server_with_driver

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]
NAME, RIG = "t-trial", "servbadge"
PLAY = """- name: P
  hosts: gpu
  tasks:
    - name: Kernel command line
      grub.cmdline:
    - name: Reboot
      reboot.if_needed:
"""
LEFT = (
    "ls /boot/grub/custom.cfg /boot/initrd-rigwright-fallback /var/lib/rigwright/trial /etc/rigwright "
    "/etc/systemd/system/rigwright-trial.service"
)


@pytest.fixture(scope="module")
def host(lab_root: None, snapshots: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:  # noqa: ARG001
    """Yields a folder for inventories of a servbadge with a driver, and a playbook in it."""
    with server_with_driver(NAME, RIG, snapshots) as server:
        server.does("sudo update-grub 2>/dev/null")  # the snapshot's grub.cfg is older than its packages
        folder = tmp_path_factory.mktemp("trial")
        (folder / "play.yml").write_text(PLAY)
        yield folder


def provision(folder: Path, **changed: Any) -> dict[str, Any]:
    """Runs the playbook with these variables; returns the host's part of the document."""
    given = {"kernel_cmdline": [], "reboot": {"confirm_within_s": 30}, "p2p_wheels": "none", **changed}
    inventory = trials.variables(folder / "inventory", NAME, **given)
    found: dict[str, Any] = trials.provision(NAME, inventory, "--playbook", str(folder / "play.yml"))["hosts"][NAME]
    return found


def nothing_left(ssh: Ssh) -> None:
    """Asserts that a trial has left nothing on the host."""
    done = ssh(NAME, f"sudo {LEFT}")
    assert done.stdout == "", done.stdout
    assert "next_entry=r" not in ssh(NAME, "sudo grub-editenv /boot/grub/grubenv list").stdout


@pytest.mark.nightly
def test_a_healthy_trial_becomes_permanent(host: Path, ssh: Ssh) -> None:
    word = "pcie_aspm=off"
    inventory = trials.variables(host / "inventory", NAME, kernel_cmdline=[word])
    plan = invoke("plan", "--host", NAME, "--inventory", inventory, "--playbook", str(host / "play.yml"))
    assert "the new boot is tried once" in plan.stdout, plan.stdout
    done = provision(host, kernel_cmdline=[word])
    assert done["error"] is None
    assert "the new boot is healthy; it is permanent now" in [event.get("text") for event in done["events"]]
    assert f"ro {word} panic=60 rigwright.trial=" in trials.command_line(NAME)
    nothing_left(ssh)
    reboot(NAME)
    assert trials.command_line(NAME).endswith(f"ro {word}")
    assert provision(host, kernel_cmdline=[word])["status"] == "ok"


def fails(host: Path, ssh: Ssh, kind: trials.Kind) -> dict[str, Any]:
    """Provisions a host whose new boot fails as `kind` says; asserts that it is as before."""
    before = ssh(NAME, "sudo sha256sum /boot/grub/grub.cfg /etc/default/grub.d/zz-rigwright.cfg").stdout
    inject.fault(NAME, kind.fault, "", print)
    try:
        done = provision(host, kernel_cmdline=["pcie_aspm=off", trials.WORD])
    finally:
        inject.heal(NAME, kind.fault, print)
    assert kind.says in done["error"]["found"], done["error"]
    assert "the host went back to what ran before" in done["error"]["found"]
    assert trials.WORD not in trials.command_line(NAME)
    nothing_left(ssh)
    assert ssh(NAME, "sudo sha256sum /boot/grub/grub.cfg /etc/default/grub.d/zz-rigwright.cfg").stdout == before
    assert len(ssh(NAME, "nvidia-smi -L").stdout.splitlines()) == 4
    return done


@pytest.mark.nightly
def test_no_gpus(host: Path, ssh: Ssh) -> None:
    """The fault "new-no-gpus": rigwright sees it over ssh, and does not wait for the unit."""
    fails(host, ssh, trials.KINDS["no GPUs"])
    inventory = trials.variables(host / "inventory", NAME, kernel_cmdline=["pcie_aspm=off", trials.WORD])
    plan = invoke("plan", "--host", NAME, "--inventory", inventory, "--playbook", str(host / "play.yml"))
    assert "was tried in run" in plan.stdout, plan.stdout
    assert "0 of 4 GPUs" in plan.stdout


@pytest.mark.nightly
def test_an_emergency_shell(host: Path, ssh: Ssh) -> None:
    """The fault "new-emergency": the unit runs in an emergency shell, too."""
    fails(host, ssh, trials.KINDS["emergency shell"])


@pytest.mark.trials
def test_grub_that_cannot_write(host: Path, ssh: Ssh) -> None:
    """Nothing in the running host shows it; the trial is not booted, and the next boot is not one either."""
    says = trials.Kind("grubenv-read-only", "", "GRUB could not write grubenv")
    fails(host, ssh, says)


@pytest.mark.trials
@pytest.mark.parametrize("name", ["wrong root", "panic", "no network", "no ssh"])
def test_other_failures(host: Path, ssh: Ssh, name: str) -> None:
    """The faults "new-no-root", "new-panic", "new-no-network" and "new-no-ssh"; each takes one to two minutes."""
    fails(host, ssh, trials.KINDS[name])


def acts(script: str, more: str = "", only: str = "ConditionKernelCommandLine=rigwright.trial") -> str:
    """Returns a unit that runs a script in boots that are tried only."""
    return (
        f"[Unit]\n{more}{only}\n[Service]\nType=oneshot\nExecStart=/bin/sh -c '{script}'\n[Install]\n"
        "WantedBy=multi-user.target\n"
    )


CONF = "/etc/ssh/sshd_config.d/lab-breaks.conf"
BEFORE_SSH = "Before=ssh.service ssh.socket sshd.service\nDefaultDependencies=no\nAfter=local-fs.target\n"
BROKEN = {
    "systemd that never finishes its start": (
        acts("exec sleep infinity").replace("Type=oneshot", "Type=oneshot\nTimeoutStartSec=infinity"),
        "systemd did not finish its start: it waits for lab-breaks.service",
    ),
    "a service that fails": (
        acts("! grep -q rigwright.trial /proc/cmdline || exit 1; exec sleep infinity", only="").replace(
            "oneshot", "exec"
        ),
        "lab-breaks.service failed, and ran before",
    ),
    "a user that sshd refuses": (
        acts(
            f"if grep -q rigwright.trial /proc/cmdline; then echo AllowUsers nobody >{CONF}; else rm -f {CONF}; fi",
            BEFORE_SSH,
            only="",
        ),
        "not allowed because not listed in AllowUsers",
    ),
    "no way back to the controller": (
        acts(
            "sleep 1; ip route flush table main; ip route add blackhole default",
            "After=network.target\nBefore=ssh.service\n",
        ),
        "no answer",
    ),
    "/run/nologin that stays": (
        acts("sleep 2; echo closed >/run/nologin", "After=systemd-user-sessions.service\nBefore=ssh.service\n"),
        "/run/nologin was there, which keeps users out",
    ),
}
"""Units that break boots that are tried, and words of the reason that is reported."""


@pytest.mark.trials
@pytest.mark.parametrize("name", BROKEN)
def test_boots_that_units_break(host: Path, ssh: Ssh, name: str) -> None:
    """The unit acts in the trial only, so what ran before comes back; the reason names what differs from before."""
    unit, says = BROKEN[name]
    path = "/etc/systemd/system/lab-breaks.service"
    ssh(
        NAME,
        f"printf %s {shlex.quote(unit)} | sudo tee {path} && sudo systemctl daemon-reload && "
        "sudo systemctl enable --now lab-breaks",
    )
    try:
        done = provision(host, kernel_cmdline=["pcie_aspm=off", trials.WORD])
        print(done["error"], [event["text"] for event in done["events"] if event["event"] == "note"])
        assert says in done["error"]["found"], done["error"]
        assert "the host went back to what ran before" in done["error"]["found"]
        assert trials.WORD not in trials.command_line(NAME)
    finally:
        ssh(
            NAME,
            f"sudo rm -f {CONF}; sudo systemctl disable lab-breaks; sudo rm -f {path}; sudo systemctl daemon-reload",
        )
    nothing_left(ssh)


@pytest.mark.trials
def test_a_hang_needs_a_person_and_then_boots_what_was(host: Path) -> None:
    """The host hangs until somebody switches it off and on; the run has gone by then, and the next one reports it."""
    inject.fault(NAME, "new-hangs", "", print)
    inventory = trials.variables(
        host / "inventory", NAME, kernel_cmdline=[trials.WORD], reboot={"confirm_within_s": 30}
    )
    one = switch.get(NAME)
    before = len(one.boots.read_text().splitlines())
    words = ("--host", NAME, "--inventory", inventory, "--playbook", str(host / "play.yml"), "--yes")
    with start("provision", *words) as run:
        until(lambda: len(one.boots.read_text().splitlines()) > before, "the trial")
        run.kill()
    inject.heal(NAME, "new-hangs", print)  # off and on
    login.wait(one, 60)
    assert " rigwright.fallback=" in trials.command_line(NAME)
    done = provision(host, kernel_cmdline=["pcie_aspm=off"])
    notes = [event.get("text") or "" for event in done["events"]]
    assert any("it never reached systemd" in note for note in notes), notes
