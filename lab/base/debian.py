"""Builds Debian trees with mmdebstrap from the mirror that this machine's apt uses, and runs their build scripts in a
chroot."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lab.base.paths import CACHE, CHECKOUT, folder
from lab.base.programs import run
from rigwright.core.errors import HostError

KEYRING = CHECKOUT / "lab" / "host" / "keys" / "debian-archive-keyring.gpg"
DEADLINE_S = 1800

Say = Callable[[str], None]
Progress = Callable[[], str]


def bootstrap(root: Path, suite: str, packages: str, say: Say) -> None:
    """Installs a configured minimal Debian of that suite, with `packages` (names with commas), in `root`.

    apt installs it, and takes no release that is not signed by a key of KEYRING. Raises HostError with the last lines
    of the log.
    """
    argv = ["mmdebstrap", "--mode=root", "--variant=minbase", f"--include={packages}", f"--keyring={KEYRING}"]
    found = mirror(suite)
    narrate([*argv, suite, str(root), *([found] if found else [])], say)


def in_chroot(root: Path, argv: Sequence[str], say: Say, progress: Progress | None = None) -> None:
    """Runs a program in the tree `root`, with its own /proc. `progress`: as for narrate. Raises HostError when it
    fails."""
    narrate(["chroot", str(root), *argv], say, root / "proc", progress)


def narrate(argv: Sequence[str], say: Say, proc: Path | None = None, progress: Progress | None = None) -> None:
    """Runs `argv` with its output in .lab/cache/build.log, and says every ten seconds how far it is: the log's last
    line.

    `argv` runs in its own namespaces: an interrupted build leaves no mount. `proc`: where it gets a /proc. `progress`
    returns what to say instead of the log's last line; "" for that line.
    """
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    if proc:  # util-linux before 2.39 cannot mount on a directory that is no mount point yet
        namespaces += ["sh", "-c", 'mount -t proc proc "$0" && exec "$@"', str(proc)]
    log = folder(CACHE) / "build.log"
    ends, spoken, last = time.monotonic() + DEADLINE_S, time.monotonic(), ""
    with log.open("a") as out, log.open(errors="replace") as back:
        begun = log.stat().st_size
        back.seek(0, os.SEEK_END)
        child = subprocess.Popen(
            [*namespaces, *argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment(),
            start_new_session=True,
        )
        try:
            while child.poll() is None:
                time.sleep(0.2)
                last = (back.read().splitlines() or [last])[-1]
                if time.monotonic() - spoken > 10:
                    spoken = time.monotonic()
                    text = (progress() if progress else "") or last
                    if text:
                        say(f"  {text.removeprefix('I: ')[:100]}")
                if time.monotonic() > ends:
                    raise HostError("lab", f"{argv[0]}: no end after {DEADLINE_S} s", fix=f"read {log}")
        finally:
            if child.poll() is None:
                child.kill()
            child.wait()
    if child.returncode != 0:
        said = log.read_bytes()[begun:].decode(errors="replace").strip().splitlines()
        words = " / ".join([line for line in said if line.startswith("E: ")][:3] or said[-3:])
        raise HostError(
            "lab",
            f"{argv[0]}: exit {child.returncode}: {words}",
            fix=f"read {log}; is the Debian mirror reachable, and its release signed by a key of lab/host/keys?",
        )


def environment() -> dict[str, str]:
    """Returns a minimal environment for a build, with the proxy that the machine's own apt uses."""
    keep = {k: v for k, v in os.environ.items() if k.lower().endswith("_proxy")}
    own = proxy()
    if own:
        keep.setdefault("http_proxy", own)
    return {**keep, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root"}


def proxy() -> str:
    """Returns the http proxy of the machine's own apt; "" without one."""
    apt = run(["apt-config", "shell", "p", "Acquire::http::Proxy"], check=False).stdout
    found = re.fullmatch(r"p='(.+)'", apt.strip())
    return found[1] if found and found[1] != "DIRECT" else ""


def mirror(suite: str, apt: Path = Path("/etc/apt")) -> str | None:
    """Returns the http(s) mirror of a suite in the machine's apt sources, or that of another Debian release there.

    Returns None without one: mmdebstrap has a default.
    """
    found: dict[str, str] = {}
    for path in (apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))):
        text = path.read_text(errors="replace") if path.is_file() else ""
        if path.suffix == ".list":
            for url, named in re.findall(r"^deb\s+(?:\[[^]]*\]\s+)?(https?://\S+)\s+(\S+)\s", text, re.M):
                found.setdefault(named, url)
        elif path.suffix == ".sources":
            for stanza in re.split(r"\n\s*\n", text):
                fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, re.M))
                uri = fields.get("URIs", "").split()
                if "deb" in fields.get("Types", "deb").split() and uri and uri[0].startswith("http"):
                    for named in fields.get("Suites", "").split():
                        found.setdefault(named, uri[0])
    return next((found[name] for name in (suite, *RELEASES) if name in found), None)


RELEASES = ("bookworm", "trixie")
"""The Debian releases that the lab knows. Every mirror has all of them."""
