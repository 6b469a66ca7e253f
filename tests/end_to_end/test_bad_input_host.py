"""A faulty host stops a run before the first change; after an interrupted run, the same command repairs the host.

The module uses one simulated servbadge, which is bare at the beginning of each test; `provisioned` gives it another
disk for a test.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.cli import commands
from lab.host import login, network
from lab.power import switch
from tests.end_to_end.conftest import training
from tests.end_to_end.plugs.machine import Nspawn
from tests.end_to_end.rw import INVENTORY, document, invoke, not_as_wanted, on_terminal, start, until
from tests.end_to_end.test_canaries_on_a_host import Watch
from tests.paths import ROOT

pytestmark = pytest.mark.lab
NAME = "t-bad"
OLD = {"modules": "dkms"}
"""For a release that is too old for the kernel of the machine that runs the tests: the lab's modules build for every
kernel."""
PASSWORD = 's3cret "pw" $HOME \'x'
PWNED = "/tmp/rigwright-pwned"
SUDOERS = "/etc/sudoers.d/90-cloud-init-users"

Root = Callable[[str], str]
Inventory = Callable[..., str]


@pytest.fixture(scope="module")
def bad(lab_root: None) -> Iterator[str]:  # noqa: ARG001
    """Yields a bare simulated servbadge, which each test leaves as it was."""
    boots()
    yield NAME
    commands.down(name=NAME, say=print)


def boots(snapshot: Path | None = None) -> None:
    """Boots the host with an empty disk, or with a copy of a snapshot."""
    commands.down(name=NAME, say=print)
    commands.up(name=NAME, rig="servbadge", snapshot=snapshot, say=print)


@pytest.fixture
def spoilt(bad: str) -> Iterator[str]:
    """Yields the bare host for a test that changes it; the next test has an empty disk again."""
    yield bad
    boots()


@pytest.fixture(scope="module")
def provisioned_disk(bad: str, snapshots: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a snapshot of the disk of the host after a whole `provision`; the host has an empty one again."""
    snapshots.mkdir(mode=0o700, exist_ok=True)
    made = snapshots / f"provisioned-{bad}"
    done = document("provision", "--inventory", host_as(bad, tmp_path_factory.mktemp("whole"), one={}), "--yes")
    assert only_needs_the_test(done), not_as_wanted(done)
    commands.take_snapshot(bad, made)
    boots()
    return made


@pytest.fixture
def provisioned(spoilt: str, provisioned_disk: Path) -> str:
    """Returns the name of the host, which is provisioned for one test."""
    boots(provisioned_disk)
    return spoilt


@pytest.fixture(scope="module")
def root(bad: str) -> Root:
    """Returns `root(script)`, which runs a script as root on the host by plain ssh and returns its output."""

    def run(script: str) -> str:
        word = base64.b64encode(script.encode()).decode()
        done = login.ssh(switch.get(bad), f"echo {word} | base64 -d | sudo sh", 60)
        assert done.returncode == 0, f"{script}: {done.stderr}"
        return done.stdout

    return run


def host_as(bad: str, folder: Path, **hosts: dict[str, Any]) -> str:
    """Returns the path of an inventory that lists the one host under each name, with these variables."""
    groups = yaml.safe_load((INVENTORY / "hosts.yml").read_text())["all"]["children"]
    given = groups["gpu"]["hosts"][bad] | yaml.safe_load((INVENTORY / "host_vars" / f"{bad}.yml").read_text())
    given["ssh_known_hosts"] = str(ROOT / ".lab" / "known_hosts")
    given["p2p_wheels"] = "none"
    text = yaml.safe_dump({"gpu": {"hosts": {name: {**given, **changed} for name, changed in hosts.items()}}})
    folder.mkdir(exist_ok=True)
    (folder / "hosts.yml").write_text(text)
    return str(folder)


@pytest.fixture
def inventory(bad: str, tmp_path: Path) -> Inventory:
    """Returns `inventory(a={...}, b={...})`: host_as in a folder of the test."""
    return functools.partial(host_as, bad, tmp_path / "inventory")


def state(root: Root) -> str:
    """Returns everything on the host that a run could change: packages, holds, files, units (by the links that enable
    them), users, the boot."""
    return root(
        "dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\\n'; apt-mark showhold; "
        "ls /var/lib/rigwright 2>&1;"
        " find /etc /boot /usr/local /usr/share/keyrings /var/lib/apt/extended_states /usr/lib/systemd/system -xdev ! "
        "-type d"
        " -printf '%p %s %T@ %m %u %l\\n' | sort; find /run/systemd/system /run/systemd/transient -type l -printf '%p "
        "%l\\n' | sort;"
        " cat /proc/sys/kernel/random/boot_id /etc/passwd"
    )


def stopped(root: Root, where: str, *words: str, code: int = 1, playbook: str = "") -> dict[str, Any]:
    """Runs `provision --yes`, which must exit with this code, report one error per host and change nothing.

    Returns the hosts of its JSON document.
    """
    before = state(root)
    more = ["--playbook", playbook] if playbook else []
    done = invoke("provision", "--inventory", where, "--host", "all", "--yes", "--json", "-", *more, *words)
    found = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    for name, host in found["hosts"].items():
        error = host["error"]
        assert error, f"{name}: {host['status']}"
        assert error["where"]
        assert error["found"]
        assert error["expected"] or error["fix"], f"{name}: neither what was wanted nor what to do: {error}"
        assert len(re.findall("^error ", done.stderr, re.MULTILINE)) == len(found["hosts"])
        assert host["rebooted"] is False
        assert not any(change["done"] for change in host["changes"])
    assert state(root) == before
    hosts: dict[str, Any] = found["hosts"]
    return hosts


def says(host: dict[str, Any], *words: str) -> None:
    """Asserts that the host's error contains all these words."""
    text = " ".join(host["error"].values())
    for word in words:
        assert word in text


# --- unreachable: 3


def test_what_is_not_our_host_is_unreachable(bad: str, root: Root, inventory: Inventory, tmp_path: Path) -> None:
    for name in ("other", "stranger", "locked"):
        words = ["-N", "phrase" if name == "locked" else "", "-C", name, "-f", str(tmp_path / name)]
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", *words], check=True)
    address = str(switch.get(bad).address)
    (tmp_path / "changed").write_text(f"{address} {(tmp_path / 'other.pub').read_text()}")
    hosts = stopped(
        root,
        inventory(
            unknown={"ssh_known_hosts": str(tmp_path / "none")},
            changed={"ssh_known_hosts": str(tmp_path / "changed")},
            stranger={"ansible_ssh_private_key_file": str(tmp_path / "stranger")},
            locked={"ansible_ssh_private_key_file": str(tmp_path / "locked")},
            nobody={"ansible_user": "nobody"},
            closed={"ansible_port": 9},
        ),
        code=3,
    )
    assert {host["status"] for host in hosts.values()} == {"unreachable"}
    says(hosts["unknown"], "host key is not known", "invoke trust --host unknown")
    says(hosts["changed"], "host key has changed", "invoke trust --host changed; that key then counts")
    says(hosts["stranger"], "login as ubuntu was refused", "ssh-copy-id")
    says(hosts["nobody"], "login as nobody was refused", "is nobody the right user? If not, set ansible_user")
    says(hosts["closed"], "refused", "ansible_port")
    says(hosts["locked"], "encrypted")
    assert "ssh-copy-id" not in hosts["locked"]["error"]["fix"], "the host has the key: it is the passphrase"


# --- sudo


@contextmanager
def sudo_line(line: str, bad: str, root: Root) -> Iterator[None]:
    """Adds a line to sudoers for the user, and a password; both are removed from outside the host, without sudo."""
    disk = switch.get(bad).root
    kept = (disk / "etc/sudoers").read_bytes()
    root(f"chpasswd <<'END'\nubuntu:{PASSWORD}\nEND\n")
    try:
        (disk / "etc/sudoers").write_bytes(kept.replace(b"%sudo", b"#sudo"))
        (disk / SUDOERS.lstrip("/")).write_text(line + "\n")
        yield
    finally:
        (disk / "etc/sudoers").write_bytes(kept)
        (disk / SUDOERS.lstrip("/")).write_text("ubuntu ALL=(ALL) NOPASSWD:ALL\n")
        root("passwd -l ubuntu >/dev/null; rm -rf /run/sudo/ts/*")


def test_sudo_with_a_password(bad: str, root: Root, inventory: Inventory, tmp_path: Path) -> None:
    playbook = tmp_path / "play.yml"
    playbook.write_text(
        "- name: A file\n  hosts: all\n  tasks:\n"
        "    - file.present: {path: '/etc/rigwright-test-{{ inventory_hostname }}', content: x}\n"
    )
    where = inventory(
        right={"ansible_become_password": PASSWORD},
        wrong={"ansible_become_password": "not it"},
        none={},
    )
    with sudo_line("ubuntu ALL=(ALL) PASSWD: ALL", bad, root), Watch(re.compile(re.escape(PASSWORD.encode()))) as watch:
        words = ["--inventory", where, "--playbook", str(playbook), "--yes", "--json", str(tmp_path / "json")]
        done = invoke("provision", "--host", "right", *words)
        others = invoke("provision", "--host", "wrong:none", "--inventory", where, "--playbook", str(playbook), "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert root("ls /etc/rigwright-test-*; rm /etc/rigwright-test-*").split() == ["/etc/rigwright-test-right"]
    assert others.returncode == 1
    assert "sudo refused the password" in others.stdout
    assert "sudo asks for a password, and none was given" in others.stdout
    assert watch.rounds > 10
    assert watch.seen == set(), "the password stands in a process's arguments or environment"
    shown = "".join([done.stdout, done.stderr, others.stdout, others.stderr, (tmp_path / "json").read_text()])
    assert PASSWORD not in shown
    word = base64.b64encode(PASSWORD.encode()).decode()
    places = "/var/lib/rigwright /run /tmp /var/tmp /dev/shm /var/log /etc /root /home"
    assert root(f"echo {word} | base64 -d | grep -rslF -f - {places} || :") == ""
    root("rm -rf /var/lib/rigwright")


def test_the_second_line_of_a_password_is_no_command(bad: str, root: Root, inventory: Inventory) -> None:
    where = inventory(one={"ansible_become_password": f"{PASSWORD}\ntouch {PWNED}"})
    with sudo_line("ubuntu ALL=(ALL) PASSWD: ALL", bad, root):
        invoke("plan", "--host", "one", "--inventory", where, "--tags", "boot")
    assert root(f"ls {PWNED} 2>/dev/null || :; rm -f {PWNED}") == ""


def test_sudo_that_is_refused(bad: str, root: Root, inventory: Inventory) -> None:
    where = inventory(right={"ansible_become_password": PASSWORD}, none={})
    with sudo_line("nobody ALL=(ALL) ALL", bad, root):
        found = document("plan", "--inventory", where, "--host", "all")
    assert found["exit_code"] == 1
    for host in found["hosts"].values():
        assert "sudo" in host["error"]["found"]
        assert host["error"]["fix"]
    found_text = found["hosts"]["right"]["error"]["found"]
    assert "refused the password" not in found_text, "the password is right; the user is not in sudoers"


def test_sudo_at_a_terminal(bad: str, root: Root, inventory: Inventory) -> None:
    words = ["plan", "--inventory", inventory(one={}), "--host", "one", "--tags", "boot"]
    with sudo_line("Defaults timestamp_type=global\nubuntu ALL=(ALL) PASSWD: ALL", bad, root):
        assert on_terminal([("sudo password on one: ", "not it")], *words)[0] == 1
        code, text = on_terminal([("sudo password on one: ", PASSWORD)], *words)
        assert (code, "Plan:" in text) == (2, True), text
        assert PASSWORD not in text
        code, text = on_terminal([("sudo password on one: ", "\x04")], *words)
        assert "Traceback" not in text, "Ctrl-D at the password"
        word = base64.b64encode(PASSWORD.encode()).decode()
        assert login.ssh(switch.get(bad), f"echo {word} | base64 -d | sudo -S -v").returncode == 0
        done = invoke(*words)
        assert done.returncode == 2, "a ticket is there: no password is needed"


def test_consent_at_a_terminal(root: Root, inventory: Inventory) -> None:
    words = ["provision", "--inventory", inventory(one={}), "--host", "one", "--tags", "boot"]
    before = state(root)
    code, text = on_terminal([("[y/N]", "n")], *words, COLUMNS="80")
    assert (code, "nothing was changed" in text) == (2, True)
    assert [line for line in text.splitlines() if len(line) > 80 and " " in line.strip()] == []  # a path may be longer
    code, text = on_terminal([("[y/N]", "\x04")], *words)
    assert "Traceback" not in text, "Ctrl-D at the question"
    assert code in (2, 130)
    code, text = on_terminal([("[y/N]", "\x03")], *words)
    assert (code, "Traceback" in text) == (130, False)
    assert state(root) == before
    piped = invoke("plan", *words[1:], COLUMNS="80")
    assert "\x1b" not in piped.stdout
    assert "! reboot" in piped.stdout


# --- facts of the host


def test_a_repository_signed_by_another_key(root: Root, inventory: Inventory) -> None:
    url = f"http://{network.gateway()}:8080/cuda/ubuntu2204/x86_64"
    says(
        stopped(root, inventory(one={"cuda_repository": {"url": url}}))["one"],
        url,
        "the key file",
        "not the expected key",
    )


def test_disk_full(root: Root, inventory: Inventory) -> None:
    root("mount -t tmpfs -o size=32m full /var; head -c 40M /dev/zero >/var/full 2>/dev/null || :")
    try:
        found = document("provision", "--inventory", inventory(one={}), "--host", "one", "--yes")
    finally:
        root("umount /var")
    assert found["exit_code"] == 1
    says(found["hosts"]["one"], "/var has 0 MiB free", "df -h /var")
    assert not any(change["done"] for change in found["hosts"]["one"]["changes"])


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("/etc/default/grub", 'GRUB_CMDLINE_LINUX="unterminated'),
        ("/boot/grub/grub.cfg", "if [ x ; then"),
        pytest.param("/boot/grub/grub.cfg", "menuentry 'unterminated {", marks=pytest.mark.nightly),
    ],
    ids=["defaults", "menu", "menu that cannot be read at all"],
)
def test_grub_files_that_do_not_parse(root: Root, inventory: Inventory, file: str, line: str) -> None:
    root(f"cp -a {file} /root/kept; cat >>{file} <<'END'\n{line}\nEND\n")
    try:
        host = stopped(root, inventory(one={}))["one"]
    finally:
        root(f"mv /root/kept {file}")
    says(host, file, "update-grub")


def test_a_cuda_repository_that_cannot_be_reached(root: Root, inventory: Inventory) -> None:
    url = f"http://{network.gateway()}:9/cuda"
    root("echo 'Acquire::Retries 0;' >/etc/apt/apt.conf.d/00test")
    try:
        host = stopped(root, inventory(one={"cuda_repository": {"url": url}}))["one"]
    finally:
        root("rm /etc/apt/apt.conf.d/00test")
    says(host, url)


HOSTILE = f"""$(touch {PWNED}) `touch {PWNED}` "a' ; touch {PWNED} #
touch {PWNED}"""


def test_hostile_values_never_reach_a_shell(root: Root, inventory: Inventory, tmp_path: Path) -> None:
    tasks = {
        "user": "user.present: {name: '{{ hostile }}'}",
        "option": "user.present: {name: '-o{{ hostile }}', groups: ['{{ hostile }}']}",
        "package": "apt.packages: {names: ['{{ hostile }}']}",
        "aptoption": f"apt.packages: {{names: ['-oAPT::Update::Pre-Invoke::=touch {PWNED}']}}",
        "unit": "systemd.service: {name: '{{ hostile }}'}",
    }
    plays = "".join(f"- name: {name}\n  hosts: {name}\n  tasks:\n    - {task}\n" for name, task in tasks.items())
    (tmp_path / "plays.yml").write_text(plays)
    variables = {"hostile": HOSTILE}
    found = document(
        "plan",
        "--inventory",
        inventory(**dict.fromkeys(tasks, variables)),
        "--playbook",
        str(tmp_path / "plays.yml"),
        "--host",
        "all",
    )
    for name in ("package", "aptoption", "unit"):
        assert found["error"] or found["hosts"][name]["error"], name
    path = "/etc/rigwright-test/{{ hostile | replace('/', '|') | replace('\\n', ' ') }}"
    (tmp_path / "apply.yml").write_text(
        "- name: Files\n  hosts: all\n  tasks:\n"
        f"    - file.present: {{path: \"{path}\", content: '{{{{ hostile }}}}'}}\n"
        "    - user.present: {name: '{{ hostile }}'}\n"
    )
    done = invoke(
        "provision", "--inventory", inventory(one=variables), "--playbook", str(tmp_path / "apply.yml"), "--yes"
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert root("cat /etc/rigwright-test/*") == HOSTILE
    assert root(f"ls {PWNED} 2>/dev/null || :") == ""
    assert not Path(PWNED).exists()
    root("rm -rf /etc/rigwright-test /var/lib/rigwright")


# --- interrupted runs


class Provision:
    """A `provision --yes` that runs in the background of the test."""

    def __init__(self, where: str) -> None:
        words = ["--inventory", where, "--yes", "--json", f"{where}.json"]
        self.json = Path(f"{where}.json")
        self.process = start("provision", *words)

    def until_module_is_built(self, bad: str) -> None:
        """Waits until the driver's postinst runs: the packages are unpacked and not yet configured."""
        built = "ps -eo args | grep '[n]vidia-dkms.*postinst configure'"
        until(lambda: login.ssh(switch.get(bad), built).returncode == 0, "the driver's installation", 120)

    def end(self) -> tuple[int, str]:
        """Waits for the end of the run; returns the exit code and the output."""
        out, _ = self.process.communicate(timeout=120)
        return self.process.returncode, out


def only_needs_the_test(done: dict[str, Any]) -> bool:
    """Whether a run changed the host, and it needs no more than the peer-to-peer test, for which the inventory has no
    libraries."""
    host = done["hosts"]["one"]
    checks = {finding["check"] for finding in host["owed"]}
    return (done["exit_code"], host["error"], host["status"], len(checks)) == (0, None, "changed", 1)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_second_person_and_ctrl_c_in_the_middle_and_the_same_command_again(
    spoilt: str, root: Root, inventory: Inventory
) -> None:
    where = inventory(one={})
    run = Provision(where)
    run.until_module_is_built(spoilt)
    root("pkill -STOP -f '[n]vidia-dkms.*postinst'")  # it goes on when all is seen
    second = invoke("provision", "--inventory", where, "--yes")
    run.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert run.process.poll() is None, "SIGTERM, as the first Ctrl-C, waits for dpkg"
    interrupted = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    code, text = run.end()
    assert time.monotonic() - interrupted < 60, "it waits no longer for dpkg, which is stopped"
    assert (
        "finishing 'Driver installed', which must not be interrupted; press Ctrl-C again to stop waiting for it" in text
    )
    assert "left in the middle of 'Driver installed', which continues on the host" in text
    assert second.returncode == 1
    assert re.search(r"run \S+ by \S+@\S+ is changing it", second.stdout), second.stdout
    assert "Traceback" not in second.stdout + second.stderr
    assert (code, "Traceback" in text) == (130, False), text
    assert "interrupted" in text
    found = json.loads(run.json.read_text())
    assert found["exit_code"] == 130
    steps = {step["name"]: step["status"] for step in found["hosts"]["one"]["steps"]}
    assert steps["Driver pinned"] == "changed", "what was done before Ctrl-C is told as done"
    assert any(change["done"] for change in found["hosts"]["one"]["changes"])
    assert "Driver Version" not in root("nvidia-smi || :")
    waits_for_the_job_and_finishes(Provision(where), spoilt, root)


def waits_for_the_job_and_finishes(run: Provision, bad: str, root: Root) -> None:
    """The module of the interrupted run is still being built. The connection of the next run is lost while it waits for
    that."""
    assert run.process.stdout
    text = ""
    for line in run.process.stdout:
        text += line
        if "a job of an earlier run is still at work" in line:
            assert "nvidia" not in root("lsmod")
            assert Nspawn(bad, "servbadge").cut_connections()
            root("pkill -CONT -f '[n]vidia-dkms.*postinst'")
    assert run.process.wait(60) == 0, text
    assert "a job of an earlier run is still at work" in text
    done = json.loads(run.json.read_text())
    assert only_needs_the_test(done), not_as_wanted(done)
    assert done["hosts"]["one"]["rebooted"]
    assert root("dpkg --audit") == ""
    assert "535.261.03" in root("cat /proc/driver/nvidia/version")


@pytest.mark.nightly
def test_gpus_in_use_refuse_the_reboot(provisioned: str, root: Root, inventory: Inventory) -> None:
    boot = root("cat /proc/sys/kernel/random/boot_id")
    where = inventory(one={"kernel_cmdline": ["iommu=pt", "nohz=off"]})
    with training(provisioned):
        done = document("provision", "--inventory", where, "--yes")
    error = done["hosts"]["one"]["error"]
    assert done["exit_code"] == 2
    assert "python3 train.py (4242)" in error["found"]
    assert "--disrupt" in error["fix"]
    assert root("cat /proc/sys/kernel/random/boot_id") == boot


@pytest.mark.nightly
def test_gpus_in_use_refuse_another_driver(provisioned: str, root: Root, inventory: Inventory) -> None:
    """After the driver's packages have changed, nvidia-smi can no longer list the processes that use the GPUs."""
    boot = root("cat /proc/sys/kernel/random/boot_id")
    with training(provisioned):
        done = document("provision", "--inventory", inventory(one={"driver": {"branch": "535.183.01"} | OLD}), "--yes")
    assert root("cat /proc/sys/kernel/random/boot_id") == boot, "rebooted under a training that ran"
    assert done["exit_code"] == 2
    assert re.search(r"sleep \(\d+\)|python3 train.py \(4242\)", done["hosts"]["one"]["error"]["found"])


@pytest.mark.nightly
def test_power_cut_in_the_middle_of_the_driver(provisioned: str, root: Root, inventory: Inventory) -> None:
    where = inventory(one={"driver": {"branch": "550"} | OLD})
    run = Provision(where)
    run.until_module_is_built(provisioned)
    commands.power_cut(provisioned)
    time.sleep(1)
    commands.power_on(provisioned)
    code, text = run.end()
    assert (code, "the machine went down in the middle of it" in text) == (1, True), text
    assert "run the same command again" in text
    assert root("dpkg --audit") != "", "the cut came too late to prove anything"
    done = document("provision", "--inventory", where, "--yes")
    assert only_needs_the_test(done), not_as_wanted(done)
    assert root("dpkg --audit") == ""
    assert "550.163.01" in root("cat /proc/driver/nvidia/version")
    assert "535" not in root("dpkg-query -W -f '${Package} ${db:Status-Abbrev}\\n' '*nvidia*' | grep ' .i' || :")
    again = document("provision", "--inventory", where, "--yes")["hosts"]["one"]
    assert (again["status"], again["changes"]) == ("ok", [])
