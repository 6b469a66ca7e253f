"""A site worker as docs/guide/rollouts.md sets it up: installed from wheels, a systemd unit, TLS. It is killed at rest
and at work, and comes back.

The commands, the certificates and the unit are those of the page. The worker and its scheduler are hosts of the lab,
which have no network but the lab's; the controller is this machine.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.base.paths import KNOWN_HOSTS, SSH_KEY
from lab.cli import commands
from lab.power import switch
from tests.end_to_end.conftest import ssh
from tests.end_to_end.rw import document, inventory, start, until
from tests.paths import ROOT

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(900)]

WORKER, SCHEDULER, TARGETS = "t-worker", "t-scheduler", ("t-target1", "t-target2")
PAGE = (ROOT / "docs" / "guide" / "rollouts.md").read_text(encoding="utf-8")
UNIT, USER = "rigwright-worker", "/var/lib/rigwright-worker"
STEPS = 12


def as_root(name: str, script: str) -> str:
    """Runs a script as root in /root/site of a host; returns its output."""
    at = switch.get(name).root / "root/site"
    at.mkdir(exist_ok=True)
    (at / "script").write_text(f"set -e\ncd /root/site\n{script}\n")
    done = ssh(name, "sudo sh /root/site/script", 300)
    assert done.returncode == 0, f"{name}: {script}\n{done.stdout}{done.stderr}"
    return str(done.stdout).strip()


def block(first: str) -> str:
    """Returns the indented block of the page that begins with this text, without its indentation."""
    found = re.search(rf"^    {re.escape(first)}(?:.*\n)(?:(?:    .*)?\n)*?(?=\S|\Z)", PAGE, re.MULTILINE)
    assert found, f"docs/guide/rollouts.md has no block that begins with {first!r}"
    return re.sub("^    ", "", found[0], flags=re.MULTILINE)


def exports(role: str) -> dict[str, str]:
    """Returns the variables that the page lets the process of a role export."""
    lines = re.findall(r"^    export (\w+)=(.*)$", PAGE, re.MULTILINE)
    return {name: value for name, value in lines if f"TLS__{role.upper()}__" in name or "CA_FILE" in name}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of wheels that the page's commands make, in a copy of the checkout."""
    source = tmp_path_factory.mktemp("source")
    for name in ("rigwright", "lab", "onhost", "playbooks", "templates"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "tasks.py"):
        shutil.copy(ROOT / name, source)
    script = block(".venv/bin/pip freeze").replace(".venv/bin/pip", f"{sys.executable} -m pip")
    done = subprocess.run(["sh", "-ec", script], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list((source / "wheels").glob("rigwright-*.whl"))
    return source / "wheels"


@dataclass(frozen=True)
class Site:
    """A running site: the folder with certificates, inventory and playbooks, and the scheduler's address."""

    folder: Path
    address: str

    def start(self, task: str, *words: str, inventory: str = "") -> subprocess.Popen[str]:
        """Starts a command of the controller that gives its hosts to the worker."""
        own = {name: value.replace("$PWD", str(self.folder)) for name, value in exports("client").items()}
        own["XDG_STATE_HOME"] = str(self.folder / "state")
        given = (
            "--inventory",
            inventory or str(self.folder / "hosts.yml"),
            "--host",
            "all",
            "--executor",
            self.address,
        )
        return start(task, *given, *words, "--json", str(self.folder / "out.json"), **own)

    def end(self, run: subprocess.Popen[str]) -> dict[str, str]:
        """Waits for a command, which must succeed; returns the status of each host."""
        said, _ = run.communicate(timeout=240)
        assert run.returncode == 0, f"{said}\n{as_root(WORKER, f'journalctl -u {UNIT} -n 60 --no-pager')}"
        document: dict[str, Any] = json.loads((self.folder / "out.json").read_text())
        return {name: host["status"] for name, host in document["hosts"].items()}

    def play(self, name: str, steps: int) -> tuple[str, ...]:
        """Returns the words of a playbook with so many steps, of which each makes a folder."""
        tasks = [{"name": f"{name} {n:02}", "file.directory": {"path": f"/srv/{name}{n:02}"}} for n in range(steps)]
        file = self.folder / f"{name}.yml"
        file.write_text(yaml.safe_dump([{"name": "P", "hosts": "all", "tasks": tasks}], sort_keys=False))
        return ("--playbook", str(file), "--yes")

    def registered(self) -> int:
        """Returns how many workers the scheduler has; the worker's host asks it, with the worker's certificate."""
        program = (
            "import sys; from distributed import Client; print(len(Client(sys.argv[1], "
            'timeout=5).scheduler_info()["workers"]))'
        )
        settings = " ".join(f"{n}={v}" for n, v in _in_etc({**exports("worker"), **_as_client()}).items())
        done = ssh(WORKER, f"sudo env {settings} /opt/rigwright/.venv/bin/python -c '{program}' {self.address}", 60)
        return int(done.stdout) if done.returncode == 0 else 0


def _as_client() -> dict[str, str]:
    return {
        f"DASK_DISTRIBUTED__COMM__TLS__CLIENT__{kind}": f"$PWD/worker.{end}"
        for kind, end in (("CERT", "pem"), ("KEY", "key"))
    }


def _in_etc(variables: dict[str, str]) -> dict[str, str]:
    return {name: value.replace("$PWD", "/etc/rigwright-worker") for name, value in variables.items()}


def shown(name: str, what: str, service: str) -> int:
    """Returns a number that systemd shows of a unit."""
    return int(as_root(name, f"systemctl show -P {what} {service}"))


def is_killed_and_started_again(name: str, service: str) -> None:
    """Kills the process of a unit, and waits until systemd has started another one."""
    before = shown(name, "NRestarts", service)
    as_root(name, f"systemctl kill --signal=KILL {service}")
    until(lambda: shown(name, "NRestarts", service) > before, f"systemd starts {service} again")


def unit(role: str, address: str) -> str:
    """Returns the page's unit for a role, without sudo's password; of the scheduler with the changes that the page
    names."""
    text = re.sub(r"^Environment=RIGWRIGHT_BECOME.*\n", "", block("[Unit]"), flags=re.MULTILINE)
    if role == "worker":
        return text.replace("tls://10.0.0.5:8786", address)
    text = text.replace("TLS__WORKER__", "TLS__SCHEDULER__").replace("rigwright-worker", "rigwright-scheduler")
    text = text.replace("worker.pem", "scheduler.pem").replace("worker.key", "scheduler.key")
    (command,) = set(re.findall(r"`(dask scheduler --protocol tls --no-dashboard)`", PAGE))
    return re.sub(r"^ExecStart=.*", f"ExecStart=/opt/rigwright/.venv/bin/{command}", text, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def site(wheels: Path, lab_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:  # noqa: ARG001
    """Yields a site with a scheduler, a worker and two hosts, set up with the commands of the page."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(["sh", "-ec", block("umask 077")], cwd=folder, check=True, capture_output=True)

    try:
        commands.up(name=WORKER, rig="desktop", say=print)
        shutil.copytree(wheels, switch.get(WORKER).root / "root/site/wheels")
        for script in (
            "export DEBIAN_FRONTEND=noninteractive; apt-get -qq update; apt-get -qq install python3-venv",
            block("umask 022"),
        ):
            as_root(WORKER, script)
        commands.up(name=SCHEDULER, copy_of=WORKER, say=print)
        commands.up(name="t-target", count=len(TARGETS), say=print)
        address = f"tls://{switch.get(SCHEDULER).address}:8786"
        hosts = {name: {"ansible_host": str(switch.get(name).address), "ansible_user": "ubuntu"} for name in TARGETS}
        (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
        for name, role in ((SCHEDULER, "scheduler"), (WORKER, "worker")):
            at = switch.get(name).root / "root/site"
            for file in ("ca.pem", f"{role}.pem", f"{role}.key"):
                shutil.copy(folder / file, at)
            shutil.copy(SSH_KEY, at / "id_ed25519")
            shutil.copy(KNOWN_HOSTS, at / "known_hosts")
            made = re.sub(r"^install .*sudo-password.*\n", "", block("useradd"), flags=re.MULTILINE)
            if role == "scheduler":
                made = re.sub(r"^install .*\.ssh\n", "", made, flags=re.MULTILINE).replace("worker", "scheduler")
            as_root(name, made)
            (switch.get(name).root / f"etc/systemd/system/rigwright-{role}.service").write_text(unit(role, address))
            as_root(name, block("systemctl enable").splitlines()[0].replace("rigwright-worker", f"rigwright-{role}"))
        yield Site(folder, address)
    finally:
        for name in (WORKER, SCHEDULER, *TARGETS):
            commands.down(name=name, say=print)


def test_the_worker_is_killed_and_comes_back(site: Site) -> None:
    until(lambda: site.registered() == 1, "the worker is at the scheduler", 90)
    assert site.end(site.start("provision", *site.play("first", 2))) == dict.fromkeys(TARGETS, "changed")
    assert site.end(site.start("provision", *site.play("first", 2))) == dict.fromkeys(TARGETS, "ok")

    before = shown(WORKER, "MainPID", UNIT)
    is_killed_and_started_again(WORKER, UNIT)
    until(lambda: site.registered() == 1, "the new worker is at the scheduler", 90)
    assert shown(WORKER, "MainPID", UNIT) != before
    assert site.end(site.start("provision", *site.play("second", 2))) == dict.fromkeys(TARGETS, "changed")


def test_the_worker_is_killed_at_work(site: Site) -> None:
    """The slice goes to the worker that systemd starts again. Each step is done once."""
    until(lambda: site.registered() == 1, "the worker is at the scheduler", 90)

    def said(name: str) -> str:
        return str(ssh(name, "sudo journalctl -q -t rigwright -o cat --no-pager").stdout)

    run = site.start("provision", *site.play("cut", STEPS))
    until(lambda: any("begins the step 'cut 01'" in said(name) for name in TARGETS), "a host is at work", 90)
    as_root(WORKER, f"systemctl kill --signal=KILL {UNIT}")
    assert set(site.end(run).values()) <= {"ok", "changed"}
    for name in TARGETS:
        begun = Counter(re.findall(r"begins the step '(cut \d\d)'", said(name)))
        assert sorted(begun) == [f"cut {number:02}" for number in range(STEPS)]
        assert sum(times > 1 for times in begun.values()) <= 1
        assert ssh(name, "ls -d /srv/cut* | wc -l").stdout.strip() == str(STEPS)


def test_the_scheduler_is_restarted(site: Site) -> None:
    """The worker ends or connects again; in both cases it is at the new scheduler after a while, without anybody's
    help."""
    is_killed_and_started_again(SCHEDULER, "rigwright-scheduler")
    until(lambda: site.registered() == 1, "the worker is at the new scheduler", 90)
    assert site.end(site.start("provision", *site.play("third", 1))) == dict.fromkeys(TARGETS, "changed")


def test_a_plan_of_a_gpu_machine_is_that_of_the_controller(site: Site) -> None:
    """The worker reads a hundred facts and resolves the driver with its own catalogue and templates. The machine is the
    worker's own host."""
    here = inventory(site.folder / "here", **{WORKER: {}})
    there = inventory(
        site.folder / "there", **{WORKER: {"ansible_ssh_private_key_file": None, "ssh_known_hosts": None}}
    )
    own = document("plan", "--inventory", here, "--host", WORKER)["hosts"][WORKER]
    until(lambda: site.registered() == 1, "the worker is at the scheduler", 90)
    run = site.start("plan", inventory=there)
    said, _ = run.communicate(timeout=240)
    assert run.returncode == 2, said
    found = json.loads((site.folder / "out.json").read_text())["hosts"][WORKER]
    assert (found["status"], found["error"]) == ("pending", None)
    assert len(found["changes"]) > 10
    assert found["changes"] == own["changes"]


def test_its_rights_are_few(site: Site) -> None:
    """The service has no capability, and its files are its own."""
    until(lambda: site.registered() == 1, "the worker is at the scheduler", 90)
    pid = shown(WORKER, "MainPID", UNIT)
    status = as_root(WORKER, f'grep -E "^(Cap(Eff|Bnd)|NoNewPrivs|Seccomp):" /proc/{pid}/status')
    assert re.findall(r"\t(\w+)", status) == ["0000000000000000", "0000000000000000", "1", "2"]
    assert as_root(WORKER, f"stat -c %U:%a {USER}/.ssh/id_ed25519") == "rigwright-worker:600"
    assert ssh(WORKER, "cat /etc/rigwright-worker/worker.key").returncode != 0
