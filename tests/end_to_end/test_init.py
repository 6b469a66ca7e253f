"""`invoke init` on a new machine: it drafts the machine's description from its facts and changes nothing on it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.base.paths import INVENTORY, SSH_KEY
from lab.cli import commands
from lab.power import switch
from rigwright import inventory
from tests.end_to_end.conftest import Ssh
from tests.end_to_end.rw import invoke, on_terminal
from tests.paths import ROOT

pytestmark = pytest.mark.lab
NAME = "t-first"
SAME = ("Is it the same? [y/N] ", "y")


@pytest.fixture(scope="module")
def address(lab_root: None) -> Iterator[str]:  # noqa: ARG001
    """Yields USER@ADDRESS of a fresh simulated server with four V100s whose firmware does not name the board."""
    commands.down(name=NAME, say=print)
    commands.up(name=NAME, rig="servbadge", say=print)
    for path in _names():
        path.write_text("\n")
    yield f"ubuntu@{switch.get(NAME).address}"
    commands.down(name=NAME, say=print)


def _names() -> list[Path]:
    """Returns the paths of the firmware files that name the machine."""
    return [switch.get(NAME).hw / "dmi/id" / name for name in ("sys_vendor", "product_name", "board_name")]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Returns a user's inventory, beside a home folder whose ssh has the login key; `HOME` is `own.parent`."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(f"Host *\n  IdentityFile {SSH_KEY}\n")
    shutil.copytree(ROOT / "inventory", tmp_path / "inventory")
    return tmp_path / "inventory"


def _mark(ssh: Ssh) -> str:
    """Makes a file on the machine that says when the test began; returns the machine's list of packages as a digest."""
    return ssh(NAME, "sudo touch /tmp/before-init; dpkg-query -W | sha256sum").stdout


def _changed(ssh: Ssh) -> str:
    """Returns the files of the machine that were written since `_mark`, one on a line, and the digest of its
    packages."""
    return ssh(
        NAME,
        "sudo find /etc /usr /var/lib /boot /root /home -type f -newer /tmp/before-init | sort; "
        "dpkg-query -W | sha256sum",
    ).stdout


def test_a_person_at_a_terminal(address: str, own: Path, ssh: Ssh) -> None:
    packages = _mark(ssh)
    answers = [SAME, ("Which rig is it?", "servbadge")]
    code, text = on_terminal(
        answers, "init", "--host", "servbadge", "--address", address, "--inventory", str(own), HOME=str(own.parent)
    )
    assert code == 0, text
    assert "SHA256:" in text
    found = inventory.read(own).hosts["servbadge"]
    assert f"ubuntu@{found.address}" == address
    assert found.variables["rig"] == "servbadge"
    assert found.variables["slots"] == {
        "0000:06:00.0": "SXM2-1", "0000:07:00.0": "SXM2-2", "0000:0a:00.0": "SXM2-3", "0000:0b:00.0": "SXM2-4",
    }  # fmt: skip
    assert found.variables["limits"]["power_limit_w"] == 200
    assert "invoke plan --host servbadge" in text
    assert _changed(ssh) == packages, "only the packages' digest is expected: no file was written"


def test_an_address_given_to_provision_is_offered_a_name(address: str, own: Path) -> None:
    answers = [("A name to describe it under", "mine"), SAME, ("Which rig is it?", ""), ("How many watts", "2200")]
    code, text = on_terminal(answers, "plan", "--host", address, "--inventory", str(own), HOME=str(own.parent))
    assert code in (1, 2), text
    assert "drafted" in text
    assert "watts: 2200" in (own / "rigs" / "mine.yml").read_text()
    assert inventory.read(own).hosts["mine"].variables["rig"] == "mine"
    assert "Branch fits the GPUs" in text or "Acquire::http::Proxy" in text, text


@pytest.mark.nightly
def test_without_a_terminal_it_says_what_to_type(address: str, own: Path) -> None:
    home = str(own.parent)
    words = ("--address", address, "--inventory", str(own))
    asked = invoke("plan", "--host", address, "--inventory", str(own), HOME=home)
    assert (asked.returncode, f"invoke init --host NAME --address {address}" in asked.stdout) == (1, True)
    key = invoke("init", "--host", "mine", *words, HOME=home)
    assert (key.returncode, "once the key is compared" in key.stderr) == (2, True)
    which = invoke("init", "--host", "mine", *words, "--yes", HOME=home)
    assert (which.returncode, "servbadge or t181" in which.stderr, "--rig servbadge" in which.stderr) == (1, True, True)
    other = invoke("init", "--host", "mine", *words, "--rig", "dgx-2", HOME=home)
    assert (other.returncode, "dgx-2 has no position for the Tesla V100-SXM2-16GB" in other.stderr) == (1, True)
    assert not (own / "host_vars").exists()
    done = invoke("init", "--host", "mine", *words, "--rig", "t181", HOME=home)
    assert done.returncode == 0, done.stderr
    assert inventory.read(own).hosts["mine"].variables["rig"] == "t181"
    again = invoke("init", "--host", "mine", *words, "--rig", "t181", HOME=home)
    assert (again.returncode, "in the inventory already" in again.stderr) == (1, True)


def test_a_board_that_says_its_name_is_known(address: str, own: Path) -> None:
    words = ("--address", address, "--inventory", str(own), "--yes")
    for path, name in zip(_names(), ("GIGABYTE", "T180-G20-ZB3", "MT70-T18-00"), strict=True):
        path.write_text(name + "\n")
    done = invoke("init", "--host", "mine", *words, HOME=str(own.parent))
    for path in _names():
        path.write_text("\n")
    assert (done.returncode, "It is the rig servbadge" in done.stdout) == (0, True), done.stderr
    assert inventory.read(own).hosts["mine"].variables["rig"] == "servbadge"


def test_a_machine_without_gpus(plain_host: str, own: Path) -> None:
    address = f"ubuntu@{switch.get(plain_host).address}"
    done = invoke(
        "init", "--host", "mine", "--address", address, "--inventory", str(own), "--yes", HOME=str(own.parent)
    )
    assert (done.returncode, "no NVIDIA GPU is on the PCI bus" in done.stderr) == (1, True)
    assert "mine" not in inventory.read(own).hosts


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--host", "my box", "--address", "a@b"], "'my box' is no name for a host"),
        (["--host", "box", "--address", "a b"], "'a b' is no address"),
        (["--host", "box", "--address", "a@b:99999"], "is no address"),
        (["--host", "box", "--address", "x@127.0.0.1:1"], "connection was refused"),
    ],
)
def test_mistakes(own: Path, words: list[str], found: str) -> None:
    before = sorted(path.read_text() for path in own.rglob("*.yml"))
    done = invoke("init", *words, "--inventory", str(own), HOME=str(own.parent))
    assert done.returncode in (1, 3)
    assert found in done.stderr
    assert sorted(path.read_text() for path in own.rglob("*.yml")) == before


CARDS = "t-cards"


@pytest.mark.nightly
def test_cards_that_no_file_describes_and_a_card_added_later(lab_root: None, own: Path) -> None:  # noqa: ARG001
    home = str(own.parent)
    commands.down(name=CARDS, say=print)
    commands.up(name=CARDS, rig="second-hand", say=print)
    try:
        address = f"ubuntu@{switch.get(CARDS).address}"
        words = ("--host", "mine", "--inventory", str(own))
        done = invoke("init", *words, "--address", address, "--yes", "--supply-w", "650", HOME=home)
        assert done.returncode == 0, done.stderr
        assert "NVIDIA GeForce GTX 1070 Ti (10de:1b82) is drafted from NVIDIA's list" in done.stdout
        assert "the slowest decides the speed" in done.stdout
        assert inventory.read(own).hosts["mine"].variables["driver"]["branch"] == "580"
        listed = yaml.safe_load((INVENTORY / "hosts.yml").read_text())["all"]["children"]["gpu"]["hosts"][CARDS]
        (own / "group_vars").mkdir()
        (own / "group_vars" / "all.yml").write_text(yaml.safe_dump({"cuda_repository": listed["cuda_repository"]}))
        planned = invoke("plan", *words, HOME=home)
        assert planned.returncode == 2, planned.stdout
        assert "CUDA: up to 12.9, by NVIDIA GeForce GTX 1070 Ti" in planned.stdout, planned.stderr
        same = invoke("init", *words, HOME=home)
        assert (same.returncode, "are those of the inventory" in same.stdout) == (0, True)
        file = own / "host_vars" / "mine.yml"
        text = file.read_text()
        line = "slots: {'0000:08:00.0': PCIE-1, '0000:09:00.0': PCIE-2}\n"
        assert line in text
        file.write_text(text.replace(line, "slots:\n  '0000:08:00.0': PCIE-1  # the old one\n"))
        rig = own / "rigs" / "mine.yml"
        rig.write_text(rig.read_text().replace(", PCIE-2: '10de:2187'}", "}  # one card"))
        shown = invoke("init", *words, HOME=home)
        assert "PCIE-2 0000:09:00.0: NVIDIA GeForce GTX 1650 SUPER is new" in shown.stdout, shown.stderr
        assert "Nothing was written" in shown.stdout
        assert invoke("init", *words, "--update", HOME=home).returncode == 0
        assert inventory.read(own).hosts["mine"].variables["slots"]["0000:09:00.0"] == "PCIE-2"
        assert "# the old one" in file.read_text()
        assert "{PCIE-1: '10de:1b82', PCIE-2: '10de:2187'}  # one card" in rig.read_text()
    finally:
        commands.down(name=CARDS, say=print)
