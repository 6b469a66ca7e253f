"""The Python environment for training: its interpreter, and torch for the GPUs of the host, by hash."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from msgspec import Struct

from rigwright import catalogue
from rigwright.catalogue import torch_locks
from rigwright.core import lazy_re
from rigwright.core.change import Change, Note
from rigwright.core.command import script
from rigwright.core.desired import Driver
from rigwright.core.errors import HostError
from rigwright.core.numbers import count
from rigwright.facts import Fact, Facts, Unavailable, files, pci
from rigwright.facts.apt import archive as apt_archive, dpkg
from rigwright.features.training import facts as facts_of
from rigwright.features.training.facts import FOLDER, MARK, REQUIREMENTS, Place
from rigwright.features.training.variables import Training
from rigwright.operations import apt, operation
from rigwright.operations.file import ENTER

UNPACKED = 1.8
"""Unpacked wheels of torch and of NVIDIA's libraries are so many times as large as the wheels (assumed)."""
SPARE_MIB = 500
BUILD_S = 5400
"""4 GB over a line of 10 Mbit/s take 55 minutes."""

_LINE = lazy_re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,80})==(?P<version>[0-9A-Za-z.+!-]{1,60})"
    r"(?: *;[^#]{0,200}?)?(?P<hashes>(?: +--hash=sha256:[0-9a-f]{64})+)"
)

_RECORD = f"""
umask 022; mkdir -p -m 755 {FOLDER} && cat >{REQUIREMENTS}.new && printf '%s\\n' "$1" >{FOLDER}/record.new &&
sync {REQUIREMENTS}.new {FOLDER}/record.new && mv -f {REQUIREMENTS}.new {REQUIREMENTS} &&
  mv -f {FOLDER}/record.new {FOLDER}/record
"""

_BUILD = f"""{ENTER}
path=$1 owner=$2 python=$3 sha=$4 name=${{1##*/}}; shift 4
enter "${{path%/*}}" make || exit 1
rm -rf -- "./$name" && mkdir -m 755 -- "./$name" || exit 1
(here=$(pwd -P) && cd -P -- "./$name" && inside "$here" "$name" && chown -- "$owner:" .) || exit 1
home=$(getent passwd -- "$owner" | cut -d: -f6)
exec runuser -u "$owner" -- env HOME="$home" PIP_DISABLE_PIP_VERSION_CHECK=1 sh -c '
path=$1 python=$2 sha=$3; shift 3
umask 022; cd -- "$path" && "$python" -I -m venv . && mkdir .tmp || exit 1
TMPDIR=$path/.tmp ./bin/python -I -m pip install --no-input --no-cache-dir --progress-bar=off --require-hashes \\
  --no-deps --only-binary=:all: "$@" -r {REQUIREMENTS} || exit 1
./bin/python -I -m pip check && ./bin/python -I -c "import torch" && rm -rf .tmp &&
  printf "%s\\n" "$sha" >{MARK}.new && sync . && mv -f {MARK}.new {MARK}
' sh "$path" "$python" "$sha" "$@"
"""
"""Root makes the folder; everything in it is made by its owner, so root runs nothing that the owner can change."""

_TAKE_AWAY = f"""{ENTER}
path=$1 name=${{1##*/}}
if [ -d "${{path%/*}}" ]; then enter "${{path%/*}}" && rm -rf -- "./$name" || exit 1; fi
rm -rf {FOLDER}
"""


class Wanted(Struct, frozen=True):
    """What an environment is made of. `requirements`: the lines for pip. `size_bytes`: of the wheels, 0 where that is
    not known."""

    title: str
    requirements: tuple[str, ...]
    first: str
    size_bytes: int

    @property
    def content(self) -> bytes:
        """The requirements file."""
        return "".join(f"{line}\n" for line in self.requirements).encode()

    @property
    def sha256(self) -> str:
        """The digest of the requirements file, with which an environment is marked."""
        return hashlib.sha256(self.content).hexdigest()


@operation()
def python_installed(facts: Facts, *, training: Training) -> Iterator[Change]:
    """The interpreter of the environment is installed with what makes environments: `training.python`, or the host's
    python3.

    Raises HostError when no source of the host has it.
    """
    place = facts(_place(training))
    if place.python is None or not place.venv:
        name = f"python{training.python or '3'}"
        names = [name, f"{name}-venv"]
        there, offered = facts.all(dpkg.packages(*names), apt_archive.offered(tuple(names)))
        installed = [name for name in names if name in there and there[name].installed]
        if lacks := [name for name in names if name not in installed and not offered.versions.get(name)]:
            problem = f"no source of the host has {' and '.join(lacks)}"
            expected = "a Python that the host's apt has, with its -venv package (on Ubuntu in universe)"
            fix = "leave `python` out: the host's python3; or " if training.python else ""
            fix += "add a source that has it, then sudo apt-get update, on the host"
            raise HostError("training.python", problem, expected, fix)
        yield from apt.packages(facts, names=names)


@operation()
def environment(facts: Facts, *, training: Training, driver: Driver) -> Iterator[Change | Note]:
    """`training.path` is a Python environment with torch and all that it needs, each by its hash, owned by
    `training.owner`.

    The line of wheels has kernels for the oldest and the newest GPU and runs on the driver. Before the first change
    these are named: no torch for a GPU or driver, a Python without wheels, a folder of others, no such user, too little
    room, no way to the wheels. An environment that was made of other requirements is made anew.
    """
    asked = [files.file(training.lock)] if training.lock else []
    place, gpus, *_ = facts.all(_place(training), pci.gpus, *asked)
    if place.kind == "other":
        problem = f"{training.path} is there, and rigwright did not make it"
        expected = "no such path, an empty folder, or the environment of an earlier run"
        raise HostError("training.path", problem, expected, "another path, such as /opt/train")
    if not place.user:
        fix = f"another owner; or sudo adduser {training.owner}, on the host"
        raise HostError("training.owner", f"the host has no user {training.owner}", "a user of the host", fix)
    python = training.python or place.python
    if python is None:
        raise Unavailable("the host has no python3 yet")
    if training.lock:
        wanted = _of_file(facts, training.lock)
    else:
        wanted = _of_catalogue([gpu.device_id for gpu in gpus], training, driver, python)
    if place.whole == wanted.sha256 and place.folder_owner == training.owner:
        return
    yield Note(f"{wanted.title}, for Python {python}")
    _room(training, place, wanted)
    source: tuple[str, ...] = ("--no-index", f"--find-links={training.wheels}") if training.wheels else ()
    if training.index:  # a hash proves each wheel, so http will do
        host = urlsplit(training.index).hostname or ""
        source = (f"--index-url={training.index}", f"--trusted-host={host}")
    listed = [facts_of.wheels(training.wheels)] if training.wheels else []
    way, *there = facts.all(facts_of.route(wanted.first, training.python or "", training.wheels or "", source), *listed)
    if training.wheels:
        _require_wheels(training.wheels, there[0], wanted)
    if way.works is None:
        yield Note(f"whether pip reaches the wheels is not known yet: {way.said}", warn=True)
    elif not way.works:
        raise _no_way(training, way.said)
    after = f"{wanted.title}: {count(len(wanted.requirements), 'wheel')}"
    if wanted.size_bytes:
        after += f", {_gb(wanted.size_bytes)} to load, {_gb(wanted.size_bytes * UNPACKED)} on the disk"
    before = {"own": "another environment" if place.whole else "not whole", "empty": "empty folder"}.get(place.kind, "")
    words = (training.path, training.owner, f"python{training.python or '3'}", wanted.sha256, *source)
    build = script(_BUILD, *words, timeout_s=BUILD_S, long=True)
    commands = (script(_RECORD, training.path, stdin=wanted.content), build)
    after += f", owner {training.owner}"
    disruptive = place.kind == "own" and bool(place.whole)
    yield Change("change" if before else "add", training.path, before, after, commands, disruptive=disruptive)


@operation()
def removed(facts: Facts) -> Iterator[Change]:
    """The environment that rigwright made is not on the host, with all that its owner installed into it."""
    path = facts(facts_of.recorded)
    if path is not None:
        yield Change("remove", path, "Python environment", "", (script(_TAKE_AWAY, path, timeout_s=600),))


def _place(training: Training) -> Fact[Place]:
    return facts_of.place(training.path, training.owner, training.python or "")


def _of_catalogue(device_ids: Sequence[str], training: Training, driver: Driver, python: str) -> Wanted:
    if not device_ids:
        fix = "lspci -nn -d 10de: shows them; or training.lock, a file with the hashes of a torch"
        raise HostError("training.torch", "the host has no NVIDIA GPU", "a GPU", fix)
    models = []
    for device_id in device_ids:
        if (model := catalogue.model_of(device_id)) is None:
            problem = f"the catalogue does not know the GPU 10de:{device_id}"
            fix = "training.lock, a file with the hashes of a torch that has kernels for it"
            raise HostError("training.torch", problem, "GPUs of the catalogue", fix)
        models.append(model)
    choice = torch_locks.torch_for(models, driver, training.torch)
    known = choice.lock.pythons
    if python not in known:
        problem = f"torch {choice.lock.torch} ({choice.line}) has no wheel for Python {python}"
        fix = f"training: {{python: '{known[-1]}'}}, where apt has it"
        raise HostError("training.python", problem, f"{', '.join(known[:-1])} or {known[-1]}", fix)
    wheels = choice.lock.of(python)
    oldest = min(models, key=lambda model: tuple(map(int, model.compute_capability.split("."))))
    title = f"torch {choice.lock.torch} of the line {choice.line}"
    title += f", with kernels for the {oldest.name} ({oldest.architecture})"
    smallest, size_bytes = min(wheels, key=lambda wheel: wheel.bytes), sum(wheel.bytes for wheel in wheels)
    return Wanted(title, tuple(wheel.requirement for wheel in wheels), smallest.requirement, size_bytes)


def _of_file(facts: Facts, path: str) -> Wanted:
    """What the requirements file of the owner names. Raises HostError for a missing file, or one without a torch with
    its hash."""
    file, example = facts(files.file(path)), "uv pip compile --generate-hashes writes one"
    if file is None or file.kind != "file":
        raise HostError("training.lock", f"the host has no file {path}", "a requirements file with hashes", example)
    if file.sha256 and not file.content:
        fix = "only the wheels of this machine: without the hashes of other systems"
        raise HostError("training.lock", f"{path} has more than 64 KiB", "a smaller file", fix)
    joined = re.sub(r"\\\n\s*", " ", file.text)
    lines = [line.strip() for line in joined.splitlines()]
    lines = [re.sub(r" +#.*", "", line) for line in lines if line and not line.startswith("#")]
    torch = None
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            expected = "NAME==VERSION --hash=sha256:..., nothing else"
            raise HostError("training.lock", f"{path} has the line '{line[:80]}'", expected, example)
        if torch is None and match["name"] == "torch":
            torch = match
    if torch is None:
        raise HostError("training.lock", f"{path} names no torch", "torch==VERSION --hash=sha256:...", example)
    return Wanted(f"torch {torch['version']} of {path}", tuple(lines), min(lines, key=len), 0)


def _room(training: Training, place: Place, wanted: Wanted) -> None:
    """Raises HostError when the wheels and what is unpacked from them have no room."""
    needed = round(wanted.size_bytes * (1 + UNPACKED)) // (1 << 20) + SPARE_MIB
    if place.free_mib < needed:
        problem = f"{training.path} has {place.free_mib} MiB of room"
        expected = f"{needed} MiB: {_gb(wanted.size_bytes)} of wheels, and what is unpacked from them"
        fix = "training: {path: ...} on a larger disk; df -h; sudo apt-get clean"
        raise HostError("training.path", problem, expected, fix)


def _require_wheels(folder: str, there: frozenset[str] | None, wanted: Wanted) -> None:
    """Raises HostError for a folder that is missing or lacks wheels. Lines with a condition are left to pip."""
    if there is None:
        problem = f"the host has no folder {folder}"
        raise HostError("training.wheels", problem, "a folder with all wheels", _fetch(folder))
    needed = [match for line in wanted.requirements if ";" not in line and (match := _LINE.fullmatch(line))]
    lacking = [wheel for wheel in needed if f"{facts_of.project(wheel['name'])}=={wheel['version']}" not in there]
    if lacking:
        names = ", ".join(f"{wheel['name']}=={wheel['version']}" for wheel in lacking[:4])
        more = f" and {len(lacking) - 4} more" if len(lacking) > 4 else ""
        problem = f"{folder} lacks {len(lacking)} of {count(len(needed), 'wheel')}: {names}{more}"
        raise HostError("training.wheels", problem, "all wheels", _fetch(folder))


def _fetch(folder: str) -> str:
    return f"fetch them where there is a network (docs/guide/training.md, Without a network), and copy them to {folder}"


def _no_way(training: Training, said: str) -> HostError:
    """The error of a first wheel that pip did not get."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["pip said nothing"]
    message = next((line for line in reversed(lines) if "ERROR" in line), lines[-1])[:300]
    if "do not match" in said.lower() and "hash" in said.lower():
        fix = "another index or folder; the wheel there was changed"
        return HostError("training", f"a wheel is not the one of the lock: {message}", "the sha256 of the lock", fix)
    if training.wheels:
        problem = f"pip takes none of the wheels in {training.wheels}: {message}"
        return HostError("training.wheels", problem, "all wheels of the lock", _fetch(training.wheels))
    at = f"the index {training.index}" if training.index else "the package index"
    fix = "a route or a proxy in /etc/pip.conf; training: {index: http://...} of a mirror"
    fix += "; or training: {wheels: /folder}, on the host"
    return HostError("training", f"pip gets nothing from {at}: {message}", "a package index that the host reaches", fix)


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
