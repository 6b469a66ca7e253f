"""The driver's resolution and its pin against Debian's real package lists, read from this machine's mirror.

The ordinary test run leaves this file out, because it needs the network; docs/develop/tests.md has the command. apt
uses separate folders for everything that it reads and writes, so the machine stays unchanged and no root is needed.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rigwright.core.desired import Driver
from rigwright.driver.package_sets import BESIDE
from rigwright.driver.resolve import resolved
from rigwright.facts.apt import archive as apt_archive
from rigwright.operations import driver as operations
from tests.driver.apt_machine import Machine, run

pytestmark = [pytest.mark.network, pytest.mark.timeout(900)]

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def _mirror() -> str:
    """Returns the Debian mirror from this machine's own sources."""
    for line in run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").splitlines():
        if re.search(r"/debian/?$", line):
            return line.rstrip("/")
    raise AssertionError("no Debian mirror among this machine's apt sources (a URL that ends in /debian)")


def _debian(folder: Path, release: str, *suites: str) -> Machine:
    signed = f"[arch=amd64 signed-by={KEYRING}]" if KEYRING.exists() else "[arch=amd64]"
    parts = "main contrib non-free non-free-firmware"
    sources = [f"deb {signed} {_mirror()} {suite} {parts}" for suite in suites]
    return Machine(folder, f"ID=debian\nVERSION_ID={release}\n", sources)


@pytest.fixture(scope="module")
def machines() -> Iterator[dict[str, Machine]]:
    """Yields Debian 12, Debian 13, and a Debian 12 with both sources, in a folder that apt's own user may read."""
    folder = Path(tempfile.mkdtemp(prefix="rigwright-apt-"))
    folder.chmod(0o755)
    found = {"12": _debian(folder / "12", "12", "bookworm"), "13": _debian(folder / "13", "13", "trixie")}
    shutil.copytree(folder / "12/lists", folder / "both/lists")
    shutil.copytree(folder / "13/lists", folder / "both/lists", dirs_exist_ok=True)
    found["both"] = _debian(folder / "both", "12", "bookworm", "trixie")
    yield found
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("release", "branch", "package"),
    [
        ("12", "535", "nvidia-kernel-dkms"),
        ("12", "470", "nvidia-tesla-470-kernel-dkms"),
        ("13", "535", "nvidia-tesla-535-kernel-dkms"),
        ("13", "550", "nvidia-kernel-dkms"),
    ],
)
def test_debian_has_the_real_branch(machines: dict[str, Machine], release: str, branch: str, package: str) -> None:
    """The branch is Debian's default or its second one for servers; all driver packages have one release."""
    found = machines[release].ask(resolved, Driver(branch), None)
    assert (found.source, found.version.split(".")[0]) == ("distribution", branch)
    assert package in found.closure
    beside = {name: version for name, version in found.closure.items() if not found.of_release(name)}
    assert beside.keys() <= set(BESIDE), beside


def test_the_pin_keeps_535_where_debian_12_and_13_are_both_sources(machines: dict[str, Machine]) -> None:
    """Without the pin, apt upgrades the same machine to 550."""
    old, both = machines["12"], machines["both"]
    found = old.ask(resolved, Driver("535"), None)
    (change,) = old.ask(operations.pinned_exactly, driver=Driver("535"))
    own = "apt_archive.simulated(nvidia-kernel-dkms=535"
    moves = next(value.moves for fact, value in old.store.known.items() if fact.name.startswith(own))

    both.install([f"{move.name}={move.version}" for move in moves])
    unpinned = both.next_upgrade()
    print("without the pin:", {name: version for name, version in unpinned.items() if name in found.closure})
    assert unpinned["nvidia-kernel-dkms"].startswith("550."), unpinned

    both.pin(change.commands[0].stdin)
    pinned = both.next_upgrade()
    print(f"with it {len(pinned)} packages move, without it {len(unpinned)}")
    assert "libc6" in pinned, "the rest of the system still moves"
    assert [name for name in pinned if name in found.closure] == []
    assert [name for name, version in pinned.items() if "nvidia" in name and version.startswith("550.")] == []


def test_the_private_lists_are_small_and_need_no_memory(machines: dict[str, Machine]) -> None:
    """Of Debian 12 with all components: one cache, and no translations. They are beside /run, and in the room that is
    checked."""
    machine = machines["12"]
    machine.config.write_text(machine.config.read_text().replace('Acquire::Languages "none";', ""))
    fact = apt_archive.offered(("nvidia-kernel-dkms",))
    assert "/run/" not in fact.command.argv[2]
    assert machine.answer(fact).code == 0
    sizes = {
        str(path.relative_to(machine.folder)): path.stat().st_size >> 20
        for path in (machine.folder / "scratch").rglob("*")
        if path.is_file() and "/etc/" not in str(path)
    }
    host = sum(path.stat().st_size for path in (machine.folder / "lists").glob("*Packages*")) >> 20
    print(f"private lists {sum(sizes.values())} MiB, the host's own {host} MiB", {k: v for k, v in sizes.items() if v})
    assert not [name for name in sizes if "Translation" in name or "srcpkgcache" in name]
    assert sum(sizes.values()) < apt_archive.LISTS_MIB + 2 * host
    assert sum(sizes.values()) < 110
