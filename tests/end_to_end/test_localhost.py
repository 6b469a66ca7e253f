"""A host provisions itself: `--host localhost` inside of a simulated host, without ssh, through its own reboot."""

from __future__ import annotations

import io
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.cli import commands
from lab.host.login import SSH_CONFIG
from lab.power import switch
from tests.end_to_end.conftest import Ssh
from tests.paths import ROOT

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(900)]
NAME = "t-localhost"
INVOKE = "cd rigwright && .venv/bin/invoke"
LEFT = "ls /etc/systemd/system/rigwright-continue.service /etc/rigwright/continue.sh"
NOT_NEEDED = {
    "ansible",
    "ansible_test",
    "mypy",
    "mypyc",
    "dask",
    "distributed",
    "hypothesis",
    "_pytest",
    "__pycache__",
    "pip",
}
"""Packages that only tests and workers need."""
INVOKE_PROGRAM = (
    "#!/home/ubuntu/rigwright/.venv/bin/python\nimport sys\nfrom invoke.main import program\nsys.exit(program.run())\n"
)


def _send(archive: bytes) -> None:
    """Unpacks an archive into ~/rigwright of the host's sudoer."""
    words = ["ssh", "-F", str(SSH_CONFIG), "-o", "BatchMode=yes", NAME, "mkdir -p rigwright && tar xf - -C rigwright"]
    subprocess.run(words, input=archive, check=True, timeout=120)


def _checkout() -> bytes:
    """Returns an archive of what a user of the checkout needs, with a virtual environment of the host's own Python."""
    libraries = Path(sysconfig.get_path("purelib"))
    library = f".venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in ("rigwright", "lab", "onhost", "playbooks", "templates", "tasks.py", "pyproject.toml"):
            archive.add(ROOT / name, name, filter=lambda entry: None if "__pycache__" in entry.name else entry)
        for path in libraries.iterdir():
            if path.name not in NOT_NEEDED and not path.name.startswith("__editable__"):
                archive.add(
                    path, f"{library}/{path.name}", filter=lambda entry: None if "__pycache__" in entry.name else entry
                )
        for name, text in ((".venv/pyvenv.cfg", "home = /usr/bin\n"), (".venv/bin/invoke", INVOKE_PROGRAM)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
        link = tarfile.TarInfo(".venv/bin/python")
        link.type, link.linkname = tarfile.SYMTYPE, "/usr/bin/python3"
        archive.addfile(link)
    return made.getvalue()


@pytest.fixture(scope="module")
def host(lab_root: None) -> Iterator[str]:  # noqa: ARG001
    """Yields the name of a servbadge without a driver that has a checkout, and describes itself in its inventory."""
    from tests.end_to_end.conftest import ssh

    commands.down(name=NAME, say=print)
    commands.up(name=NAME, rig="servbadge", say=print)
    try:
        python = ssh(NAME, "python3 -c 'import sys; print(*sys.version_info[:2])'").stdout.split()
        if python != [str(part) for part in sys.version_info[:2]]:
            version = ".".join(python)
            pytest.fail(
                f"the host has Python {version}, and the libraries of .venv are for another one: "
                f"rm -r .venv; PYTHON=python{version} scripts/setup --test"
            )
        _send(_checkout())
        done = ssh(NAME, f"{INVOKE} init --local", 120)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "localhost, which is this machine" in done.stdout
        given = yaml.safe_load((ROOT / ".lab" / "inventory" / "hosts.yml").read_text())["all"]["children"]["gpu"][
            "hosts"
        ][NAME]
        lab = {name: given[name] for name in ("cuda_repository", "container_repository")} | {"p2p_wheels": "none"}
        with (switch.get(NAME).root / "home/ubuntu/rigwright/inventory/host_vars/localhost.yml").open("a") as file:
            file.write(yaml.safe_dump(lab))
        yield NAME
    finally:
        commands.down(name=NAME, say=print)


def test_it_provisions_itself_through_its_own_reboot(host: str, ssh: Ssh) -> None:
    boots = switch.get(host).boots
    before = boots.read_text()
    plan = ssh(host, f"{INVOKE} plan --host localhost", 120)
    assert "! reboot" in plan.stdout, plan.stdout + plan.stderr
    first = ssh(host, f"{INVOKE} provision --host localhost --yes", 300)
    assert "this machine reboots in 10 s, and then goes on by itself" in first.stdout + first.stderr, first.stdout
    assert first.returncode == 130
    ends = time.monotonic() + 300
    while boots.read_text() == before or "has not ended" in (told := _told(host, ssh)) or not told:
        assert time.monotonic() < ends, "the machine did not go on, or did not end"
        time.sleep(2)
    assert "went on after its reboot: done and proved" in told
    assert len(boots.read_text().splitlines()) == len(before.splitlines()) + 1
    message = ssh(host, "cat /etc/motd.d/rigwright").stdout
    assert message.startswith("rigwright: provision of localhost went on after the reboot: done and proved, ")
    assert ssh(host, f"sudo {LEFT}").stdout == ""
    assert "rigwright-fallback" not in ssh(host, "cat /boot/grub/custom.cfg").stdout
    login = ssh(host, "sudo sh -c 'echo exit | timeout 20 script -qc \"login -f ubuntu\" /dev/null'").stdout
    assert message.strip() in login
    owner = ssh(host, "stat -c %U .local/state/rigwright/history.sqlite").stdout.strip()
    assert owner == "ubuntu"
    second = ssh(host, f"{INVOKE} provision --host localhost --yes", 300)
    assert "localhost: 0 changes" in second.stdout, second.stdout + second.stderr
    assert second.returncode == 0
    assert ssh(host, "ls /etc/motd.d/rigwright").stdout == ""
    assert _told(host, ssh) == ""


def _told(host: str, ssh: Ssh) -> str:
    """Returns what `plan` says of the continuation; "" when it says nothing, or the host is down."""
    try:
        done = ssh(host, f"{INVOKE} plan --host localhost", 60)
    except subprocess.TimeoutExpired:
        return ""
    return next((line for line in done.stdout.splitlines() if "reboot" in line and "…" in line), "")


def test_a_copied_inventory_is_refused(host: str, ssh: Ssh) -> None:
    copied = (
        "cp -r inventory copied && sed -i 's/product_uuid: ./product_uuid: f/; "
        "s/board_serial: .*/board_serial: ZZ9PLURAL/' copied/hosts.yml"
    )
    done = ssh(
        host, f"cd rigwright && {copied} && .venv/bin/invoke provision --host localhost --inventory copied --yes", 60
    )
    assert done.returncode == 1
    assert "localhost is another machine (board serial ZZ9PLURAL) than this one" in done.stdout + done.stderr


def test_a_checkout_that_no_boot_mounts_is_refused_before_the_first_change(host: str, ssh: Ssh) -> None:
    ssh(host, "sudo mkdir -p /mnt/usb && sudo mount -t tmpfs none /mnt/usb && sudo cp -a rigwright /mnt/usb/", 60)
    try:
        word = "sed -i 's/iommu=pt/iommu=pt, pcie_aspm=off/' inventory/host_vars/localhost.yml"
        run = ".venv/bin/python -m invoke provision --host localhost --yes"
        done = ssh(host, f"cd /mnt/usb/rigwright && sudo {word} && {run}", 120)
        assert "is not there after a reboot: it is on tmpfs" in done.stdout + done.stderr, done.stdout
        assert "pcie_aspm" not in ssh(host, "cat /etc/default/grub.d/zz-rigwright.cfg").stdout
    finally:
        ssh(host, "sudo umount /mnt/usb")
