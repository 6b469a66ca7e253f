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
from rigwright.core.command import Command, script
from rigwright.core.desired import Driver
from rigwright.core.errors import HostError
from rigwright.core.numbers import count
from rigwright.facts import Fact, Facts, Unavailable, files, pci
from rigwright.facts.apt import archive as apt_archive
from rigwright.facts.apt import dpkg
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
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,80})==(?P<version>[0-9A-Za-z.+!-]{1,60})(?: *;[^#]{0,200}?)?(?P<hashes>(?: +--hash=sha256:[0-9a-f]{64})+)"
)

_RECORD = f"""
umask 022; mkdir -p -m 755 {FOLDER} && cat >{REQUIREMENTS}.new && printf '%s\\n' "$1" >{FOLDER}/record.new &&
sync {REQUIREMENTS}.new {FOLDER}/record.new && mv -f {REQUIREMENTS}.new {REQUIREMENTS} && mv -f {FOLDER}/record.new {FOLDER}/record
"""

_BUILD = (
    ENTER
    + """
path=$1 owner=$2 python=$3 sha=$4 name=${1##*/}; shift 4
enter "${path%/*}" make || exit 1
rm -rf -- "./$name" && mkdir -m 755 -- "./$name" && chown -- "$owner:" "./$name" || exit 1
home=$(getent passwd -- "$owner" | cut -d: -f6)
exec runuser -u "$owner" -- env HOME="$home" PIP_DISABLE_PIP_VERSION_CHECK=1 sh -c '
path=$1 python=$2 sha=$3; shift 3
umask 022; cd -- "$path" && "$python" -I -m venv . && mkdir .tmp || exit 1
TMPDIR=$path/.tmp ./bin/python -I -m pip install --no-input --no-cache-dir --progress-bar=off --require-hashes --no-deps --only-binary=:all: \\
  "$@" -r """
    + REQUIREMENTS
    + """ || exit 1
./bin/python -I -m pip check && ./bin/python -I -c "import torch" && rm -rf .tmp && printf "%s\\n" "$sha" >"""
    + MARK
    + """.new && sync ."""
    + """ && mv -f """
    + f"""{MARK}.new {MARK}"""
    + """
' sh "$path" "$python" "$sha" "$@"
"""
)
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
        there, asked = facts.all(dpkg.packages(*names), apt_archive.offered(tuple(names)))
        lacks = [
            each for each in names if not asked.versions.get(each) and not (each in there and there[each].installed)
        ]
        if lacks:
            fix = "leave `python` out: the host's python3; or " if training.python else ""
            raise HostError(
                "training.python",
                f"no source of the host has {' and '.join(lacks)}",
                "a Python that the host's apt has, with its -venv package (on Ubuntu in universe)",
                f"{fix}add a source that has it, then sudo apt-get update, on the host",
            )
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
        found = f"{training.path} is there, and rigwright did not make it"
        raise HostError(
            "training.path",
            found,
            "no such path, an empty folder, or the environment of an earlier run",
            "another path, such as /opt/train",
        )
    if not place.user:
        raise HostError(
            "training.owner",
            f"the host has no user {training.owner}",
            "a user of the host",
            f"another owner; or sudo adduser {training.owner}, on the host",
        )
    python = training.python or place.python
    if python is None:
        raise Unavailable("the host has no python3 yet")
    wanted = (
        _of_file(facts, training.lock)
        if training.lock
        else _of_catalogue([gpu.device_id for gpu in gpus], training, driver, python)
    )
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
        _all_there(training.wheels, there[0], wanted)
    if way.works is None:
        yield Note(f"whether pip reaches the wheels is not known yet: {way.said}", warn=True)
    elif not way.works:
        raise _no_way(training, way.said)
    disk = (
        f", {_gb(wanted.size_bytes)} to load, {_gb(wanted.size_bytes * UNPACKED)} on the disk"
        if wanted.size_bytes
        else ""
    )
    before = {"own": "another environment" if place.whole else "not whole", "empty": "empty folder"}.get(place.kind, "")
    yield Change(
        "change" if before else "add",
        training.path,
        before,
        f"{wanted.title}: {count(len(wanted.requirements), 'wheel')}{disk}, owner {training.owner}",
        (script(_RECORD, training.path, stdin=wanted.content), _build(training, wanted, source)),
        disruptive=place.kind == "own" and bool(place.whole),
    )


@operation()
def removed(facts: Facts) -> Iterator[Change]:
    """The environment that rigwright made is not on the host, with all that its owner installed into it."""
    path = facts(facts_of.recorded)
    if path is not None:
        yield Change("remove", path, "Python environment", "", (script(_TAKE_AWAY, path, timeout_s=600),))


def _place(training: Training) -> Fact[Place]:
    return facts_of.place(training.path, training.owner, training.python or "")


def _build(training: Training, wanted: Wanted, source: Sequence[str]) -> Command:
    interpreter = f"python{training.python or '3'}"
    return script(
        _BUILD, training.path, training.owner, interpreter, wanted.sha256, *source, timeout_s=BUILD_S, long=True
    )


def _of_catalogue(device_ids: Sequence[str], training: Training, driver: Driver, python: str) -> Wanted:
    models = [model for one in device_ids if (model := catalogue.model_of(one))]
    if not device_ids:
        raise HostError(
            "training.torch",
            "the host has no NVIDIA GPU",
            "a GPU",
            "lspci -nn -d 10de: shows them; or training.lock, a file with the hashes of a torch",
        )
    if len(models) < len(device_ids):
        unknown = next(one for one in device_ids if catalogue.model_of(one) is None)
        raise HostError(
            "training.torch",
            f"the catalogue does not know the GPU 10de:{unknown}",
            "GPUs of the catalogue",
            "training.lock, a file with the hashes of a torch that has kernels for it",
        )
    choice = torch_locks.torch_for(models, driver, training.torch)
    if python not in choice.lock.pythons:
        found = f"torch {choice.lock.torch} ({choice.line}) has no wheel for Python {python}"
        known = choice.lock.pythons
        raise HostError(
            "training.python",
            found,
            f"{', '.join(known[:-1])} or {known[-1]}",
            f"training: {{python: '{known[-1]}'}}, where apt has it",
        )
    wheels = choice.lock.of(python)
    oldest = min(models, key=lambda model: tuple(map(int, model.compute_capability.split("."))))
    title = f"torch {choice.lock.torch} of the line {choice.line}, with kernels for the {oldest.name} ({oldest.architecture})"
    smallest = min(wheels, key=lambda one: one.bytes)
    return Wanted(
        title, tuple(one.requirement for one in wheels), smallest.requirement, sum(one.bytes for one in wheels)
    )


def _of_file(facts: Facts, path: str) -> Wanted:
    """What the requirements file of the owner names. Raises HostError for one that is not there, or that pins no torch
    by hash."""
    file, example = facts(files.file(path)), "uv pip compile --generate-hashes writes one"
    if file is None or file.kind != "file":
        raise HostError("training.lock", f"the host has no file {path}", "a requirements file with hashes", example)
    if file.sha256 and not file.content:
        raise HostError(
            "training.lock",
            f"{path} has more than 64 KiB",
            "a smaller file",
            "only the wheels of this machine: without the hashes of other systems",
        )
    joined = re.sub(r"\\\n\s*", " ", file.text)
    lines = [line.strip() for line in joined.splitlines()]
    lines = [re.sub(r" +#.*", "", line) for line in lines if line and not line.startswith("#")]
    for line in lines:
        if not _LINE.fullmatch(line):
            raise HostError(
                "training.lock",
                f"{path} has the line '{line[:80]}'",
                "NAME==VERSION --hash=sha256:..., nothing else",
                example,
            )
    torch = next((match for line in lines if (match := _LINE.fullmatch(line)) and match["name"] == "torch"), None)
    if torch is None:
        raise HostError("training.lock", f"{path} names no torch", "torch==VERSION --hash=sha256:...", example)
    return Wanted(f"torch {torch['version']} of {path}", tuple(lines), min(lines, key=len), 0)


def _room(training: Training, place: Place, wanted: Wanted) -> None:
    """Raises HostError when the wheels and what is unpacked from them have no room."""
    needed = round(wanted.size_bytes * (1 + UNPACKED)) // (1 << 20) + SPARE_MIB
    if place.free_mib < needed:
        found = f"{training.path} has {place.free_mib} MiB of room"
        expected = f"{needed} MiB: {_gb(wanted.size_bytes)} of wheels, and what is unpacked from them"
        raise HostError(
            "training.path", found, expected, "training: {path: ...} on a larger disk; df -h; sudo apt-get clean"
        )


def _all_there(folder: str, there: frozenset[str] | None, wanted: Wanted) -> None:
    """Raises HostError for a folder that is not there, or that lacks wheels. A line with a condition may be for other
    machines: pip knows."""
    if there is None:
        raise HostError(
            "training.wheels", f"the host has no folder {folder}", "a folder with all wheels", _fetch(folder)
        )
    needed = [match for line in wanted.requirements if ";" not in line and (match := _LINE.fullmatch(line))]
    lacks = [f"{one['name']}=={one['version']}" for one in needed]
    lacks = [
        one for one in lacks if f"{facts_of.project(one.partition('==')[0])}=={one.partition('==')[2]}" not in there
    ]
    if lacks:
        named = f"{', '.join(lacks[:4])}{f' and {len(lacks) - 4} more' if len(lacks) > 4 else ''}"
        found = f"{folder} lacks {len(lacks)} of {count(len(needed), 'wheel')}: {named}"
        raise HostError("training.wheels", found, "all wheels", _fetch(folder))


def _fetch(folder: str) -> str:
    return f"fetch them where there is a network (docs/guide/training.md, Without a network), and copy them to {folder}"


def _no_way(training: Training, said: str) -> HostError:
    """The error of a first wheel that pip did not get."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    message = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "pip said nothing")[
        :300
    ]
    if "do not match" in said.lower() and "hash" in said.lower():
        return HostError(
            "training",
            f"a wheel is not the one of the lock: {message}",
            "the sha256 of the lock",
            "another index or folder; the wheel there was changed",
        )
    if training.wheels:
        found = f"pip takes none of the wheels in {training.wheels}: {message}"
        return HostError("training.wheels", found, "all wheels of the lock", _fetch(training.wheels))
    at = f"the index {training.index}" if training.index else "the package index"
    fix = "a route or a proxy in /etc/pip.conf; training: {index: http://...} of a mirror; or training: {wheels: /folder}, on the host"
    return HostError("training", f"pip gets nothing from {at}: {message}", "a package index that the host reaches", fix)


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
