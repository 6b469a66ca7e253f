"""The driver's resolution and its pin against Debian's real package lists, read from the mirror that this machine uses.

Not among the ordinary tests, because it needs the network; CONTRIBUTING.md says how it is run. apt gets folders of its own
for everything it reads and writes, so nothing of the machine changes and no root is needed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rigwright.facts import Fact, FactStore, Missing
from rigwright.facts import apt as dpkg
from rigwright.operations import driver as operations
from rigwright.preferences import pin_path
from rigwright.resolution import PIN, moves_it, resolved
from rigwright.shell import Result
from rigwright.wanted import Driver

pytestmark = [pytest.mark.network, pytest.mark.timeout(600)]

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
V100 = b"0000:06:00.0 0x030200 1db1\n"


def _run(*argv: str, config: Path | None = None) -> str:
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C",
        **({"APT_CONFIG": str(config)} if config else {}),
    }
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, f"{argv[:3]}: {done.stderr[-2000:]}"
    return done.stdout


def _mirror() -> str:
    """The Debian mirror among this machine's own sources."""
    for line in _run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").splitlines():
        if re.search(r"/debian/?$", line):
            return line.rstrip("/")
    raise AssertionError("no Debian mirror among this machine's apt sources (a URL that ends in /debian)")


class Machine:
    """A Debian of that release with four V100, as apt sees it: folders of its own, and a dpkg status that is empty at first."""

    def __init__(self, folder: Path, release: str, *suites: str) -> None:
        self.folder, self.release, self.store = folder, release, FactStore()
        url = _mirror()
        shutil.copytree(
            "/etc/apt", folder / "etc", ignore=shutil.ignore_patterns("sources.list*", "preferences*", "apt.conf*")
        )
        for name in (
            "etc/sources.list.d",
            "etc/preferences.d",
            "etc/apt.conf.d",
            "lists/partial",
            "cache/archives/partial",
        ):
            (folder / name).mkdir(parents=True, exist_ok=True)
        signed = f"[arch=amd64 signed-by={KEYRING}]" if KEYRING.exists() else "[arch=amd64]"
        parts = "main contrib non-free non-free-firmware"
        (folder / "etc/sources.list").write_text("".join(f"deb {signed} {url} {suite} {parts}\n" for suite in suites))
        (folder / "status").touch()
        self.config = folder / "apt.conf"
        self.config.write_text(
            f'Dir::Etc "{folder}/etc"; Dir::State::lists "{folder}/lists"; Dir::Cache "{folder}/cache";\n'
            f'Dir::State::status "{folder}/status"; APT::Architecture "amd64"; APT::Architectures "amd64";\n'
            'Acquire::Languages "none"; Acquire::Retries "2";\n'
        )
        _run("apt-get", "-q", "update", config=self.config)

    def answer(self, fact: Fact[Any]) -> Result:
        """What the machine says: the real scripts with the real apt, on these folders."""
        known = {
            "pci.gpus": V100,
            "pci.nvswitches": V100,
            "os.release": f"ID=debian\nVERSION_ID={self.release}\n".encode(),
            "driver.secure_boot": b"",
            f"files.file({pin_path(PIN)})": b"absent\n",
        }
        if fact.name in known:
            return Result(0, known[fact.name])
        places = {
            "/run/rigwright": "run",
            "/etc/apt": "etc",
            "/var/lib/apt/lists": "lists",
            "/var/lib/dpkg/status": "status",
        }
        argv = list(fact.command.argv)
        for place, own in places.items():
            argv = [word.replace(place, str(self.folder / own)) for word in argv]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "APT_CONFIG": str(self.config)}
        done = subprocess.run(argv, capture_output=True, env=environment, stdin=subprocess.DEVNULL, check=False)
        return Result(done.returncode, done.stdout, done.stderr)

    def ask(self, function: Any, *args: Any, **parameters: Any) -> Any:
        """The function's answer, facts read as it asks for them."""
        for _ in range(9):
            try:
                found = function(self.store, *args, **parameters)
                return list(found) if isinstance(found, Iterator) else found
            except Missing as wanted:
                self.store.learn((fact, self.answer(fact)) for fact in wanted.facts)
        raise AssertionError("facts that never settle")

    def install(self, moves: tuple[dpkg.Move, ...]) -> None:
        """dpkg's status says that all of it is installed."""
        words = [f"{move.name}={move.version}" for move in moves if move.version]
        stanzas = _run("apt-cache", "show", *words, config=self.config).strip().split("\n\n")
        text = "".join(re.sub(r"\n", "\nStatus: install ok installed\n", one, count=1) + "\n\n" for one in stanzas)
        (self.folder / "status").write_text(text)

    def next_upgrade(self) -> tuple[dpkg.Move, ...]:
        """What `upgrade` and `dist-upgrade` would do."""
        found: tuple[dpkg.Move, ...] = dpkg.next_upgrade.parse(self.answer(dpkg.next_upgrade))
        return found


@pytest.fixture(scope="module")
def machines() -> Iterator[dict[str, Machine]]:
    """Debian 12, Debian 13, and a Debian 12 with the sources of both; in a folder that apt's own user may read."""
    folder = Path(tempfile.mkdtemp(prefix="rigwright-apt-"))
    folder.chmod(0o755)
    found = {"12": Machine(folder / "12", "12", "bookworm"), "13": Machine(folder / "13", "13", "trixie")}
    shutil.copytree(folder / "12/lists", folder / "both/lists")
    shutil.copytree(folder / "13/lists", folder / "both/lists", dirs_exist_ok=True)
    found["both"] = Machine(folder / "both", "12", "bookworm", "trixie")
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
    """Its own, or the second one that it keeps for servers; everything of the driver is of one release."""
    found = machines[release].ask(resolved, Driver(branch), None)
    assert (found.source, found.version.split(".")[0]) == ("distribution", branch)
    assert package in found.closure
    assert all(found.version in version for version in found.closure.values()), found.closure


def test_the_pin_keeps_535_where_debian_12_and_13_are_both_sources(machines: dict[str, Machine]) -> None:
    """Without it apt moves the same machine to 550."""
    old, both = machines["12"], machines["both"]
    found = old.ask(resolved, Driver("535"), None)
    changes = old.ask(operations.pinned_exactly, driver=Driver("535"))
    pin = next(one.stdin for change in changes for one in change.commands if one.stdin)

    both.install(
        next(v.moves for f, v in old.store.known.items() if f.name.startswith("archive.simulated(nvidia-kernel"))
    )
    unpinned = {move.name: move.version for move in both.next_upgrade()}
    print("without the pin:", {name: version for name, version in unpinned.items() if name in found.closure})
    assert unpinned["nvidia-kernel-dkms"].startswith("550."), unpinned

    (both.folder / "etc/preferences.d" / Path(pin_path(PIN)).name).write_bytes(pin)
    pinned = both.next_upgrade()
    print(f"with it: {len(pinned)} moves of {len(unpinned)}")
    assert "libc6" in [move.name for move in pinned], "the rest of the system still moves"
    assert [move for move in pinned if moves_it(move, found)] == []
