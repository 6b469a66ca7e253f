"""The Python environment for training: its folder and what is in it, the way to the wheels, and what its torch can do.

/var/lib/rigwright/training has `record` (the path of the environment) and requirements.txt; a whole environment has a
file `.rigwright` with the sha256 of the requirements that it was made of.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

from msgspec import Struct

from rigwright.core import features, host_text
from rigwright.core.command import Result, script
from rigwright.core.control_characters import one_line
from rigwright.core.host_folders import STATE
from rigwright.core.schema import Release
from rigwright.core.typed_json import typed
from rigwright.facts import Fact, Unreadable
from rigwright.features.training.torch_build import ProvedBuild

FOLDER = f"{STATE}/training"
REQUIREMENTS = f"{FOLDER}/requirements.txt"
MARK = ".rigwright"

Kind = Literal["absent", "empty", "own", "other"]


class Place(Struct, frozen=True):
    """A folder for an environment, and what the host has for it.

    `kind`: absent, empty, own (rigwright made it), other. `whole`: the sha256 of the requirements of a whole
    environment, else "". `folder_owner`: "" without a folder. `python`: the version of the interpreter (3.11), None
    without one; `venv`: it can make environments. `user`: the wanted owner exists.
    """

    kind: Kind
    folder_owner: str
    whole: str
    python: Release | None
    venv: bool
    user: bool
    free_mib: int


_PLACE = f"""
path=$1 owner=$2 python=python${{3:-3}}
kind=absent folder=
if [ -e "$path" ] || [ -L "$path" ]; then
  kind=other folder=$(stat -c %U -- "$path")
  if [ -d "$path" ] && [ ! -L "$path" ]; then
    if [ "$(cat {FOLDER}/record 2>/dev/null)" = "$path" ]; then kind=own
    elif [ -z "$(ls -A -- "$path" 2>/dev/null | head -n 1)" ]; then kind=empty; fi
  fi
fi
echo "kind $kind"; echo "folder $folder"
whole=; [ $kind = own ] && [ -x "$path/bin/python" ] && [ ! -L "$path/{MARK}" ] &&
  whole=$(head -c 64 "$path/{MARK}" 2>/dev/null | tr -cd 0-9a-f)
echo "whole $whole"
version= venv=no
if command -v "$python" >/dev/null; then
  version=$("$python" -IB -c 'import sys; print("%d.%d" % sys.version_info[:2])' </dev/null)
  "$python" -IB -c 'import ensurepip, venv' </dev/null 2>/dev/null && venv=yes
fi
echo "python $version"; echo "venv $venv"
id -u -- "$owner" >/dev/null 2>&1 && echo 'user yes' || echo 'user no'
at=$path; while [ ! -d "$at" ]; do at=${{at%/*}}; at=${{at:-/}}; done
echo "free $(df -Pm -- "$at" | awk 'END {{print $4}}')"
"""


def _place(result: Result) -> Place:
    said = dict(line.partition(" ")[::2] for line in result.lines)
    if said["kind"] not in get_args(Kind):
        raise ValueError(f"kind {said['kind']}")
    python, whole = said["python"], said["whole"]
    if python and not re.fullmatch(r"3\.\d{1,2}", python):
        raise ValueError(f"Python {python}")
    return Place(
        said["kind"],  # type: ignore[arg-type]
        one_line(said["folder"])[:64],
        whole if re.fullmatch(r"[0-9a-f]{64}", whole) else "",
        Release(python) if python else None,
        said["venv"] == "yes",
        said["user"] == "yes",
        host_text.integer(said["free"]),
    )


def place(path: str, owner: str, python: str) -> Fact[Place]:
    """The folder at a path, with the interpreter python3.11 for the version "3.11", or python3 for ""."""
    return Fact(f"training.place({path}, {owner}, {python})", script(_PLACE, path, owner, python, reads=True), _place)


def _recorded(result: Result) -> str | None:
    text = result.text.strip()
    if not text:
        return None
    if not re.fullmatch(r"/[A-Za-z0-9._+/-]{1,200}", text) or "/../" in f"{text}/":
        raise Unreadable("the record of the training environment names no path")
    return text


recorded = Fact(
    "training.recorded", script(f"[ ! -f {FOLDER}/record ] || head -c 400 {FOLDER}/record", reads=True), _recorded
)
"""The path of the environment that rigwright made; None if it made none."""

_ASK = """
import sys, urllib.error, urllib.request
try:
    urllib.request.urlopen(sys.argv[1], timeout=20).close()
except urllib.error.HTTPError:
    pass
except Exception as error:
    print("no:", error)
    sys.exit(1)
"""
"""Whether an index answers at all, for a host without pip."""

_ROUTE = """
line=$1 wheels=$2 python=python${3:-3} ask=$4; shift 4
if [ -n "$wheels" ]; then [ -d "$wheels" ] || { echo "no: the host has no folder $wheels"; exit 0; }; fi
if ! "$python" -m pip --version >/dev/null 2>&1; then
  bundled=$("$python" -IB -c 'import ensurepip, os
print(os.path.join(os.path.dirname(ensurepip.__file__), "_bundled"))' 2>/dev/null)
  for found in /usr/share/python-wheels/pip-*.whl "$bundled"/pip-*.whl; do
    [ ! -e "$found" ] || { PYTHONPATH=$found; export PYTHONPATH; }
  done
fi
if ! "$python" -m pip --version >/dev/null 2>&1; then
  for option; do
    case $option in --index-url=*) "$python" -IB -c "$ask" "${option#*=}/" 2>&1 || exit 0;; esac
  done
  echo 'unknown: the host has no pip yet'; exit 0
fi
work=$(mktemp -d) || exit 1
printf '%s\\n' "$line" >"$work/requirements.txt"
if timeout 100 "$python" -m pip --disable-pip-version-check --no-input --no-cache-dir --retries 1 --timeout 15 \\
  download --quiet --no-deps --only-binary=:all: --require-hashes --dest "$work/got" "$@" \\
  -r "$work/requirements.txt" >"$work/said" 2>&1 </dev/null
then echo yes; else echo 'no: '; tail -c 4000 "$work/said"; fi
rm -rf -- "$work"
"""


class Route(Struct, frozen=True):
    """Whether pip gets the first wheel. `works` None: cannot be known before pip is there. `said`: pip's words, or the
    reason."""

    works: bool | None
    said: str


def _route(result: Result) -> Route:
    head, *rest = result.lines
    word, _, reason = head.partition(":")
    if word not in ("yes", "no", "unknown"):
        raise ValueError("neither yes nor no")
    said = "\n".join([reason.strip(), *rest]).strip()[:4000]
    return Route({"yes": True, "no": False, "unknown": None}[word], said)


def route(requirement: str, python: str, wheels: str, options: tuple[str, ...]) -> Fact[Route]:
    """Whether pip gets a wheel by its hash, with these options. It is the smallest one, and is removed again."""
    name = f"training.route({requirement}, {python}, {wheels}, {options})"
    return Fact(name, script(_ROUTE, requirement, wheels, python, _ASK, *options, timeout_s=150), _route)


_WHEEL = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._]{0,80})-(?P<version>[0-9][A-Za-z0-9.+!_]{0,60})"
    r"(-[0-9][^-]{0,40})?(-[^-]{1,200}){3}\.whl"
)


def project(name: str) -> str:
    """The name of a project as pip compares it: Typing.Extensions and typing_extensions are typing-extensions."""
    return re.sub("[-_.]+", "-", name).lower()


def _wheels(result: Result) -> frozenset[str] | None:
    if result.lines[:1] == ["absent"]:
        return None
    matches = filter(None, map(_WHEEL.fullmatch, result.lines))
    return frozenset(f"{project(match['name'])}=={match['version']}" for match in matches)


def wheels(folder: str) -> Fact[frozenset[str] | None]:
    """The wheels of a folder, as NAME==VERSION; None without the folder. Files with other names are left out."""
    text = """if [ -d "$1" ]; then find "$1/" -maxdepth 1 -name '*.whl' -printf '%f\\n' | head -n 5000
else echo absent; fi"""
    return Fact(f"training.wheels({folder})", script(text, folder, reads=True), _wheels)


def _proof(result: Result) -> ProvedBuild:
    text = next((line for line in reversed(result.lines) if line.startswith("{")), "")
    if not text:
        raise Unreadable(one_line(result.error_text)[-300:] or "the interpreter printed nothing")
    build = typed(host_text.json_value(text), ProvedBuild)
    if len(build.gpus) > 64 or len(build.architectures) > 64:
        raise ValueError("too many GPUs or architectures")
    return build


def proof(path: str, owner: str) -> Fact[ProvedBuild]:
    """What the torch at a path does: the import, its architectures, a product on each GPU. It runs as the owner."""
    code = features.host_programs()["torch_build.py"].read_text(encoding="utf-8")
    text = 'cd / && exec runuser -u "$2" -- "$1/bin/python" -IB -c "$3"'
    return Fact(f"training.proof({path}, {owner})", script(text, path, owner, code, timeout_s=300), _proof)
