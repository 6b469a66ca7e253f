"""NVIDIA's libraries for the peer-to-peer test: wheels fetched on this machine by hash, copied to a host once and kept
there."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

from msgspec import Struct

from rigwright.catalogue.nccl_wheels import Wheel
from rigwright.core.command import Command, script
from rigwright.core.errors import HostError
from rigwright.core.host_folders import STATE
from rigwright.core.process import children, startup
from rigwright.ssh.transport import Transport

KEPT = f"{STATE}/libraries"
CHUNK_BYTES = 8 << 20
FETCH_S = 1800
_PIP_OPTIONS = (
    "--quiet --require-hashes --no-deps --only-binary=:all: --no-cache-dir --progress-bar=off --retries=2"
    " --platform manylinux1_x86_64 --platform manylinux2014_x86_64"
    " --platform manylinux_2_17_x86_64 --platform manylinux_2_27_x86_64"
).split()
_FETCHING, _HASHING = threading.Lock(), threading.Lock()


class NoWheels(Exception):
    """The libraries are not available; the message is the reason, `fix` says what to do."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(why)
        self.fix = fix


class Local(Struct, frozen=True):
    """A wheel on this machine. `unpacked_bytes`: the size of its libraries."""

    name: str
    version: str
    path: Path
    sha256: str
    unpacked_bytes: int


def cache() -> Path:
    """The folder of fetched wheels on this machine: $XDG_CACHE_HOME/rigwright/wheels, or ~/.cache/rigwright/wheels.
    Raises NoWheels without a home."""
    cache_home, home = os.environ.get("XDG_CACHE_HOME"), startup.home()
    if not cache_home and not home:
        raise NoWheels("wheels cannot be kept here: this user has no home directory", "set HOME, or XDG_CACHE_HOME")
    return Path(cache_home or f"{home}/.cache") / "rigwright" / "wheels"


def find(directory: Path, pinned: Mapping[str, Wheel], on_line: Callable[[str], None]) -> list[Local]:
    """The wheels in a directory of the user. Another version than the pinned one is accepted and reported.

    Raises NoWheels.
    """
    if not directory.is_dir():
        names = ", ".join(f"{name} {wheel.version}" for name, wheel in pinned.items())
        fix = f"p2p_wheels in the inventory, or --wheels: fetch, or a directory with {names}"
        raise NoWheels(f"{directory} is no directory", fix)
    wheels = []
    for name, wheel in pinned.items():
        stem = name.replace("-", "_")
        paths = list(directory.glob(f"{stem}-*.whl"))
        if not paths:
            fix = f"pip download --no-deps --dest {directory} {name}=={wheel.version}, on a machine with internet"
            raise NoWheels(f"{directory} has no {stem}-*.whl", fix)
        local = _local(name, max(paths, key=lambda path: _preference(path, wheel)))
        if local.sha256 != wheel.sha256:
            on_line(f"{local.path.name} is not the pinned {name} {wheel.version}")
        wheels.append(local)
    return wheels


def _preference(path: Path, wheel: Wheel) -> tuple[bool, list[int]]:
    """The pinned version comes before all others, then the newest."""
    version = _version(path)
    return version == wheel.version, [int(number) for number in re.findall(r"\d+", version)]


def fetch(pinned: Mapping[str, Wheel], on_line: Callable[[str], None], folder: Path | None = None) -> list[Local]:
    """The pinned wheels, from the cache or fetched by pip from its index; every hash is checked. Raises NoWheels."""
    folder = folder or cache()
    with _FETCHING:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            paths: dict[str, Path] = {}
            for name, wheel in pinned.items():
                cached = folder.glob(f"{name.replace('-', '_')}-{wheel.version}-*.whl")
                path = next((path for path in cached if _sha256(path) == wheel.sha256), None)
                if path is None:
                    on_line(f"fetching {name} {wheel.version}, {wheel.mb} MB, into {folder}")
                    path = _fetch_wheel(folder, name, wheel, _fetch_elsewhere(pinned))
                paths[name] = path
        except OSError as error:
            todo = "room and rights there; or XDG_CACHE_HOME=FOLDER before the command"
            raise NoWheels(f"wheels cannot be kept here: {error}", todo) from None
    return [_local(name, path, pinned[name].sha256) for name, path in paths.items()]


def _fetch_wheel(folder: Path, name: str, wheel: Wheel, todo: str) -> Path:
    """Fetches a wheel into the folder; pip checks its hash. Raises NoWheels.

    Python looks for pip in its working directory first, so that is a new folder and not the one in which the user is.
    """
    with tempfile.TemporaryDirectory(dir=folder.resolve()) as work:
        requirements = Path(work) / "requirements.txt"
        requirements.write_text(f"{name}=={wheel.version} --hash=sha256:{wheel.sha256}\n", encoding="ascii")
        argv = [sys.executable, "-m", "pip", "download", *_PIP_OPTIONS, "--dest", work, "-r", str(requirements)]
        try:
            done = children.run(argv, FETCH_S, work)
        except subprocess.TimeoutExpired:
            raise NoWheels(f"{name}: not fetched within {FETCH_S // 60} minutes", todo) from None
        fetched_path = next(Path(work).glob("*.whl"), None)
        if done.returncode or fetched_path is None:
            lines = reversed(done.stderr.splitlines())
            message = next((line for line in lines if "ERROR" in line), done.stderr[-200:]).strip()[:200]
            raise NoWheels(f"{name} cannot be fetched: {unreached(done.stderr) or message}", todo)
        return fetched_path.replace(folder / fetched_path.name)


def unreached(output: str) -> str:
    """The reason in pip's output why it could not reach its index, "" without one. Its own error only says that no
    version matches."""
    match = re.search(r"connection broken by '(.*)'|Could not fetch URL \S+: (.*)", output)
    if match is None:
        return ""
    reasons = r"(\[Errno -?\d+\] [^'\")]+|timed out|CERTIFICATE_VERIFY_FAILED|\d{3} Client Error[^'\"]*)"
    reason = re.search(reasons, match[0])
    return f"the package index cannot be reached ({reason[1] if reason else match[0][:120]})"


def _fetch_elsewhere(pinned: Mapping[str, Wheel]) -> str:
    versions = " ".join(f"{name}=={wheel.version}" for name, wheel in pinned.items())
    download = f"pip download --no-deps --dest DIR {versions}"
    return f"on a machine with internet access: {download}; then --wheels DIR (this machine's index: pip config list)"


def _version(path: Path) -> str:
    """The version in the file name of a wheel: NAME-VERSION-..."""
    return path.name.split("-")[1]


def _sha256(path: Path) -> str:
    state = path.stat()
    with _HASHING:
        return _hashed(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=256)
def _hashed(path: Path, size: int, changed_ns: int) -> str:  # noqa: ARG001
    """The sha256 of a file with this size and time of change; computed once for all hosts."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _local(name: str, path: Path, sha256: str = "") -> Local:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(file.file_size for file in archive.infolist() if ".so" in PurePosixPath(file.filename).name)
    except (zipfile.BadZipFile, OSError) as error:
        raise NoWheels(f"{path} is no wheel ({error})", "fetch it again") from None
    if not size:
        raise NoWheels(f"{path} holds no library", "the wheel for Linux")
    return Local(name, _version(path), path, sha256 or _sha256(path), size)


_LOOK = """
folder=$1; shift
for name; do [ -e "$folder/$name/.whole" ] && echo "$name"; done
mkdir -p -m 755 -- "${folder%/*}" && df -Pk -- "${folder%/*}" | awk 'END {print "free", $4}'
"""
_APPEND = 'mkdir -p -m 755 "$1" && if [ "$3" = 0 ]; then cat >"$1/$2"; else cat >>"$1/$2"; fi'
_UNPACK = """
import hashlib, os, shutil, sys, zipfile
folder, sha, name = sys.argv[1:]
wheel, target, new = (os.path.join(folder, name) for name in (sha + ".whl", sha, sha + ".new"))
digest = hashlib.sha256()
with open(wheel, "rb") as file:
    for block in iter(lambda: file.read(1 << 20), b""):
        digest.update(block)
if digest.hexdigest() != sha:
    os.remove(wheel)
    sys.exit("what came is not what was sent")
shutil.rmtree(new, ignore_errors=True)
os.makedirs(new)
with zipfile.ZipFile(wheel) as archive:
    for one in archive.infolist():
        file = os.path.basename(one.filename)
        if ".so" in file:
            with archive.open(one) as source, open(os.path.join(new, file), "wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
open(os.path.join(new, ".whole"), "w").close()
shutil.rmtree(target, ignore_errors=True)
os.rename(new, target)
os.remove(wheel)
link = os.path.join(folder, name)
os.symlink(sha, link + ".new")
os.replace(link + ".new", link)
"""


def kept_on_host(transport: Transport, names: list[str]) -> tuple[set[str], int]:
    """The names (a sha256, or NAME-VERSION) that a host has completely, and the free bytes on its disk."""
    answer = transport.run([script(_LOOK, KEPT, *names, timeout_s=30)])[0]
    lines = answer.text.split("\n")
    free = next((int(line.split()[1]) for line in lines if line.startswith("free ")), 0)
    return {line for line in lines if line in names}, free * 1024


def copy_missing(transport: Transport, local: list[Local], on_line: Callable[[str], None]) -> list[str]:
    """Copies the libraries of the wheels that the host lacks; returns their folders on the host.

    Raises NoWheels (no room), HostError, Unreachable.
    """
    present, free_bytes = kept_on_host(transport, [wheel.sha256 for wheel in local])
    copy(transport, [wheel for wheel in local if wheel.sha256 not in present], free_bytes, on_line)
    return [f"{KEPT}/{wheel.sha256}" for wheel in local]


def copy(transport: Transport, local: list[Local], free_bytes: int, on_line: Callable[[str], None]) -> None:
    """Copies the libraries of these wheels to the host. Raises NoWheels (no room), HostError, Unreachable."""
    needed = sum(wheel.path.stat().st_size + wheel.unpacked_bytes for wheel in local) + (200 << 20)
    if local and needed > free_bytes:
        why = f"/var/lib has {free_bytes >> 20} MiB free, and the libraries want {needed >> 20} for a moment"
        raise NoWheels(why, "sudo apt-get clean; df -h /var")
    for wheel in local:
        try:
            for cmd in _copy_commands(wheel, on_line):
                answer = transport.run([cmd])[0]
                if answer.code != 0:
                    problem = f"it cannot be put on the host: {(answer.error_text.splitlines() or ['no message'])[-1]}"
                    raise HostError(wheel.path.name, problem, "room, and python3", "df -h /var")
        except HostError:  # for example a full disk, which a partial wheel would keep full
            transport.run([script('rm -rf -- "$1/$2.whl" "$1/$2.new"', KEPT, wheel.sha256, timeout_s=60)])
            raise


def _copy_commands(wheel: Local, on_line: Callable[[str], None]) -> Iterator[Command]:
    size = wheel.path.stat().st_size
    with wheel.path.open("rb") as file:
        for number, at in enumerate(range(0, size, CHUNK_BYTES)):
            if number % 4 == 0:
                on_line(f"copying {wheel.path.name}: {at * 100 // size} % of {size // 1000000} MB")
            chunk = file.read(CHUNK_BYTES)
            yield script(_APPEND, KEPT, f"{wheel.sha256}.whl", str(at), stdin=chunk, timeout_s=300)
    unpack = ("python3", "-I", "-c", _UNPACK, KEPT, wheel.sha256, f"{wheel.name}-{wheel.version}")
    yield Command(unpack, timeout_s=300)
