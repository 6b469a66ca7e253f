"""A machine for apt in separate folders: the facts' real scripts run with the real apt and change nothing else."""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rigwright.core.command import Result
from rigwright.driver.apt_pin import pin_path
from rigwright.driver.resolve import PIN
from rigwright.facts import Fact, FactStore, Missing
from rigwright.facts.apt import dpkg

V100 = b"0000:06:00.0 0x030200 1db1\n"


def run(*argv: str, config: Path | None = None, status: int = 0) -> str:
    """Runs a program that must exit with `status`; returns its stdout, and also its stderr if `status` is not 0."""
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C",
        **({"APT_CONFIG": str(config)} if config else {}),
    }
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == status, f"{argv[:3]}: {done.returncode}, {done.stdout[-500:]}{done.stderr[-2000:]}"
    return done.stdout + (done.stderr if status else "")


class Machine:
    """A machine with one V100, an initially empty dpkg status, and the given sources."""

    def __init__(self, folder: Path, os_release: str, sources: Sequence[str], *, secure_boot: bool = False) -> None:
        self.folder, self.store = folder, FactStore()
        self.known = {
            "pci.gpus": V100,
            "pci.nvswitches": V100,
            "system.os_release": os_release.encode(),
            "driver.secure_boot": b" 1\n" if secure_boot else b"",
            f"files.file({pin_path(PIN)})": b"absent\n",
        }
        left_out = shutil.ignore_patterns("sources.list*", "preferences*", "apt.conf*")
        shutil.copytree("/etc/apt", folder / "etc", ignore=left_out)
        for name in (
            "etc/sources.list.d",
            "etc/preferences.d",
            "etc/apt.conf.d",
            "lists/partial",
            "cache/archives/partial",
        ):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "etc/sources.list").write_text("".join(f"{line}\n" for line in sources))
        (folder / "status").touch()
        self.config = folder / "apt.conf"
        self.config.write_text(
            f'Dir::Etc "{folder}/etc"; Dir::State::lists "{folder}/lists"; Dir::Cache "{folder}/cache";\n'
            f'Dir::State::status "{folder}/status"; APT::Architecture "amd64"; APT::Architectures "amd64";\n'
            'Acquire::Languages "none"; Acquire::Retries "2";\n'
        )
        run("apt-get", "-q", "update", config=self.config)

    def answer(self, fact: Fact[Any]) -> Result:
        """Returns the result of a fact: the real scripts with the real apt, on these folders."""
        if fact.name in self.known:
            return Result(0, self.known[fact.name])
        places = {
            "/var/cache/rigwright": "scratch",
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
        """Calls the function, reads the facts that it needs, and returns its result."""
        for _ in range(9):
            try:
                found = function(self.store, *args, **parameters)
                return list(found) if isinstance(found, Iterator) else found
            except Missing as wanted:
                self.store.learn((fact, self.answer(fact)) for fact in wanted.facts)
        raise AssertionError("facts that never settle")

    def install(self, words: Sequence[str], *, held: Sequence[str] = ()) -> None:
        """Writes a dpkg status in which exactly these packages, NAME=VERSION, are installed."""
        stanzas = run("apt-cache", "show", *words, config=self.config).strip().split("\n\n")
        text = ""
        for stanza in stanzas:
            want = "hold" if stanza.split("\n")[0].removeprefix("Package: ") in held else "install"
            text += re.sub(r"\n", f"\nStatus: {want} ok installed\n", stanza, count=1) + "\n\n"
        (self.folder / "status").write_text(text)

    def pin(self, text: bytes, name: str = PIN) -> None:
        """Writes rigwright's preferences file of that name; an empty text removes it."""
        path = self.folder / "etc/preferences.d" / Path(pin_path(name)).name
        path.write_bytes(text) if text else path.unlink(missing_ok=True)

    def next_upgrade(self) -> dict[str, str]:
        """Returns the effect of `upgrade` and `dist-upgrade`: the new version of each package, "" for removed."""
        found: tuple[dpkg.Move, ...] = dpkg.next_upgrade.parse(self.answer(dpkg.next_upgrade))
        return {move.name: move.version for move in found}


def archive(folder: Path, origin: str, label: str, packages: str) -> str:
    """Makes a flat archive of package descriptions without packages; returns its line for sources.list."""
    folder.mkdir(parents=True)
    defaults = "Architecture: amd64\nMaintainer: nobody <nobody@example.org>\nFilename: ./none.deb\nSize: 1\n"
    stanzas = [stanza.strip() for stanza in packages.strip().split("\n\n")]
    index = "".join(
        f"{stanza}\n{defaults}SHA256: {hashlib.sha256(stanza.encode()).hexdigest()}\n\n" for stanza in stanzas
    )
    text = index.encode()
    lines = ""
    for name, content in (("Packages", text), ("Packages.gz", gzip.compress(text))):
        (folder / name).write_bytes(content)
        lines += f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}\n"
    head = f"Origin: {origin}\nLabel: {label}\nSuite: stable\nDate: Fri, 20 Nov 2026 00:00:00 UTC\n"
    (folder / "Release").write_text(f"{head}SHA256:\n{lines}")
    return f"deb [trusted=yes] file:{folder} ./"
