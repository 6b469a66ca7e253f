"""Container engines, NVIDIA Container Toolkit, and the CDI specifications that tell an engine how a container reaches
the GPUs.

An engine reads every specification in /etc/cdi and /var/run/cdi; one in /var/run/cdi precedes one in /etc/cdi, and a
device that two files of one folder define does not exist (CDI specification and its Go library in podman and docker).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rigwright.core import host_text
from rigwright.core.command import Result, command, script
from rigwright.core.control_characters import one_line
from rigwright.facts import Fact, Unavailable, Unreadable
from rigwright.facts.gpu.nvidia_smi import successful_output

KIND = "nvidia.com/gpu"
MOST_FILES, MOST_BYTES, MOST_PATHS, LONGEST_PATH = 32, 262144, 1000, 500
DAEMON_JSON = "/etc/docker/daemon.json"


class Engines(Struct, frozen=True):
    """The versions of the engines, "" for an engine that is not installed; podman-docker is no docker. `snap`: docker
    is a snap."""

    podman: str
    docker: str
    snap: bool


_ENGINES = """
echo engines
podman=$(command -v podman) && [ "${podman#/snap/}" = "$podman" ] &&
  echo "podman $(podman --version 2>/dev/null | head -c 200)"
docker=$(command -v docker) && [ "${docker#/snap/}" = "$docker" ] &&
  echo "docker $(docker --version 2>/dev/null | head -c 200)"
{ [ -e /snap/bin/docker ] || [ -d /snap/docker ]; } && echo snap
:
"""


def _engines(result: Result) -> Engines:
    head, *lines = result.lines
    if head != "engines":
        raise ValueError("no list of engines")
    versions = {"podman": "", "docker": ""}
    for line in lines:
        if line.startswith("docker podman"):  # the command docker of the package podman-docker
            continue
        if match := re.match(r"(podman|docker) .*?(\d{1,5}(?:\.\d{1,5}){1,3})", line[:300]):
            versions[match[1]] = match[2]
    return Engines(versions["podman"], versions["docker"], "snap" in lines)


engines = Fact("containers.engines", script(_ENGINES), _engines)
"""The container engines of the host."""


class Specification(Struct, frozen=True):
    """A CDI specification for GPUs: its devices with their nodes, and the files of the host that its containers get.

    `versions`: the driver versions that it names. `problem`: why it cannot be read; "" if it can.
    """

    path: str
    devices: Mapping[str, tuple[str, ...]]
    nodes: tuple[str, ...]
    mounts: tuple[str, ...]
    versions: tuple[str, ...]
    problem: str = ""

    @property
    def folder(self) -> str:
        """/etc/cdi or /var/run/cdi."""
        return self.path.rpartition("/")[0]

    @property
    def paths(self) -> tuple[str, ...]:
        """Every device node and file of the host that it names, each once."""
        inner = (node for nodes in self.devices.values() for node in nodes)
        return tuple(dict.fromkeys((*self.nodes, *inner, *self.mounts)))


_SPECIFICATIONS = f"""
echo specifications
for folder in /etc/cdi /var/run/cdi; do
  for file in "$folder"/*.json "$folder"/*.yaml; do
    [ -f "$file" ] && grep -q -F {KIND} -- "$file" && printf '\\0%s\\0' "$file" &&
      head -c {MOST_BYTES + 1} -- "$file" | tr -d '\\000'
  done
done; :
"""


def _specifications(result: Result) -> tuple[Specification, ...]:
    first, *parts = result.text.split("\0")
    if first.strip() != "specifications" or len(parts) % 2:
        raise ValueError("no list of specifications")
    if len(parts) > 2 * MOST_FILES:
        raise Unreadable(f"more than {MOST_FILES} CDI specifications of {KIND}", "ls /etc/cdi /var/run/cdi")
    read = [_specification(path, text) for path, text in zip(parts[::2], parts[1::2], strict=True)]
    return tuple(one for one in read if one is not None)


specifications = Fact("containers.specifications", script(_SPECIFICATIONS, reads=True), _specifications)
"""Every CDI specification of the kind nvidia.com/gpu, in the order in which later ones precede."""


def _specification(path: str, text: str) -> Specification | None:
    """The specification in a file; None for one of another kind."""
    if not re.fullmatch(r"/(etc|var/run)/cdi/[^/\n]{1,200}", path):
        raise ValueError(f"{path[:80]!r} is no path of a specification")
    try:
        value = _value(path, text)
        if value.get("kind") != KIND:
            return None
        devices = {}
        for device in _mappings(value.get("devices")):
            devices[_text(device.get("name"))] = _host_paths(_mapping(device.get("containerEdits")), "deviceNodes")
        edits = _mapping(value.get("containerEdits"))
        nodes, mounts = _host_paths(edits, "deviceNodes"), _host_paths(edits, "mounts")
        specification = Specification(path, devices, nodes, mounts, _versions(edits, mounts))
    except ValueError as error:
        return Specification(path, {}, (), (), (), one_line(str(error))[:200])
    if len(specification.paths) > MOST_PATHS:
        return Specification(path, {}, (), (), (), f"it names more than {MOST_PATHS} files")
    return specification


def _value(path: str, text: str) -> Mapping[str, Any]:
    """The mapping in a JSON or YAML file. Raises ValueError for one that is too long, too deep, has aliases, or is no
    mapping."""
    if len(text) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES} bytes")
    if path.endswith(".json"):
        return _mapping(host_text.json_value(text))
    import yaml

    try:
        depth = 0
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("an alias")
            starts = isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent))
            depth += starts - isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent))
            if depth > host_text.NESTING:
                raise ValueError(f"more than {host_text.NESTING} levels")
        return _mapping(yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"no YAML{f', line {mark.line + 1}' if mark else ''}") from None


def _mapping(value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError("a value where a mapping belongs")
    return value


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError("a value where a list belongs")
    return [_mapping(one) for one in value]


def _text(value: Any) -> str:
    if not isinstance(value, (str, int)) or isinstance(value, bool) or not str(value).isprintable():
        raise ValueError("a name or path that is no text")
    return str(value)


def _host_paths(edits: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """The paths on the host of the device nodes or mounts."""
    paths = tuple(_text(each.get("hostPath") or each.get("path")) for each in _mappings(edits.get(key)))
    for path in paths:
        if not path.startswith("/") or len(path) > LONGEST_PATH:
            raise ValueError(f"{path[:80]!r} is no path")
    return paths


def _versions(edits: Mapping[str, Any], mounts: Sequence[str]) -> tuple[str, ...]:
    """The driver versions that the libraries and hooks of the specification name."""
    named = (re.search(r"/lib(?:cuda|nvidia-ml)\.so\.(\d{3}(?:\.\d{1,4}){1,2})$", path) for path in mounts)
    versions = [match[1] for match in named if match]
    for hook in _mappings(edits.get("hooks")):
        words = hook.get("args")
        for word in words if isinstance(words, list) else ():
            match = re.fullmatch(r"--host-driver-version=(\d{3}(?:\.\d{1,4}){1,2})", str(word))
            versions += [match[1]] if match else []
    return tuple(dict.fromkeys(versions))


_PRESENT = """
echo present
n=0; for path; do n=$((n + 1)); case $path in /dev/*) [ -c "$path" ] ;; *) [ -e "$path" ];; esac || echo "$n"; done; :
"""


def missing(paths: tuple[str, ...]) -> Fact[tuple[str, ...]]:
    """Those of the paths that are not there; below /dev only a character device counts."""

    def parse(result: Result) -> tuple[str, ...]:
        head, *numbers = result.lines
        if head != "present":
            raise ValueError("no list")
        return tuple(paths[host_text.integer(number) - 1] for number in numbers)

    name = f"containers.missing({paths[0] if paths else ''} and {len(paths)} paths in all)"
    return Fact(name, script(_PRESENT, *paths, reads=True), parse)


_TOOLKIT = "command -v nvidia-ctk >/dev/null || { echo none; exit 0; }; nvidia-ctk --version 2>/dev/null | head -n 1"


def _toolkit(result: Result) -> str:
    if result.text.strip() == "none":
        return ""
    match = re.search(r"version (\d{1,4}\.\d{1,4}\.\d{1,4})", result.text[:500])
    if match is None:
        raise ValueError("no version")
    return match[1]


toolkit_version = Fact("containers.toolkit_version", script(_TOOLKIT), _toolkit)
"""The version of nvidia-ctk: 1.18.1; "" if it is not installed."""


_CONFIGURATION = f"""
command -v nvidia-ctk >/dev/null || {{ echo none; exit 0; }}
echo configuration
exec nvidia-ctk runtime configure --runtime=docker --config={DAEMON_JSON} --dry-run 2>/dev/null
"""


def _configuration(result: Result) -> dict[str, Any]:
    head, _, text = result.text.partition("\n")
    if head == "none":
        raise Unavailable("nvidia-ctk is not installed")
    if head != "configuration" or result.code != 0:
        fix = f"nvidia-ctk runtime configure --runtime=docker --config={DAEMON_JSON} --dry-run"
        raise Unreadable(f"nvidia-ctk cannot configure docker (exit {result.code})", fix)
    return dict(_mapping(host_text.json_value(text[text.find("{") :])))


docker_configuration = Fact("containers.docker_configuration", script(_CONFIGURATION), _configuration)
"""The settings that `nvidia-ctk runtime configure --runtime=docker` would write to /etc/docker/daemon.json. Nothing is
written."""


class Docker(Struct, frozen=True):
    """What the docker daemon says: the names of its runtimes, its driver for control groups (systemd, cgroupfs), the
    number of running containers."""

    runtimes: tuple[str, ...]
    cgroup_driver: str
    running: int


_DOCKER = """
command -v docker >/dev/null || { echo none; exit 0; }
docker info --format '{"runtimes": {{json .Runtimes}}, "cgroup_driver": {{json .CgroupDriver}}, '\\
'"running": {{json .ContainersRunning}}}' 2>&1
"""


def _docker(result: Result) -> Docker:
    text = result.text.strip()
    if text == "none":
        raise Unavailable("docker is not installed")
    if not text.startswith("{") or result.code != 0:
        why, fix = (
            one_line(text)[:200] or f"exit {result.code}",
            "sudo systemctl status docker; journalctl -u docker -b",
        )
        raise Unavailable(f"docker does not answer: {why}", fix)
    value = _mapping(host_text.json_value(text))
    runtimes = tuple(sorted(map(_text, _mapping(value["runtimes"]))))
    return Docker(runtimes, _text(value["cgroup_driver"]), host_text.integer(value["running"]))


docker = Fact("containers.docker", script(_DOCKER), _docker)
"""The docker daemon that runs. Raises Unavailable if it does not answer."""


class Nodes(Struct, frozen=True):
    """The device nodes of NVIDIA in /dev with their modes (0666), and those without a link in /dev/char, by which
    systemd finds them."""

    modes: Mapping[str, str]
    without_link: tuple[str, ...]


_NODES = """
echo nodes
for node in /dev/nvidia*; do
  [ -c "$node" ] || continue
  at=$(stat -c '%a %t %T' -- "$node") || continue
  set -- $at
  link=/dev/char/$(printf %d "0x$2"):$(printf %d "0x$3"); linked=no; [ ! -e "$link" ] || linked=yes
  echo "$1 $linked $node"
done; :
"""


def _nodes(result: Result) -> Nodes:
    head, *lines = result.lines
    if head != "nodes":
        raise ValueError("no list of nodes")
    modes, without_link = {}, []
    for line in lines:
        row = re.fullmatch(r"([0-7]{1,4}) (yes|no) (/dev/nvidia[\w-]{0,40})", line)
        if row is None:
            raise ValueError("a line that is no node")
        modes[row[3]] = row[1].zfill(4)
        without_link += [row[3]] if row[2] == "no" else []
    return Nodes(modes, tuple(without_link))


nodes = Fact("containers.nodes", script(_NODES, reads=True), _nodes)
"""The device nodes that containers get."""


def _mig(result: Result) -> tuple[str, ...]:
    names: list[str] = []
    gpu, number = "", 0
    for line in host_text.lines(successful_output(result)):
        if match := re.match(r"GPU (\d{1,3}):", line):
            gpu, number = match[1], 0
        elif re.match(r"\s{1,8}MIG ", line) and gpu:
            names.append(f"{gpu}:{number}")
            number += 1
    return tuple(names)


mig_devices = Fact("containers.mig_devices", command("nvidia-smi", "-L"), _mig)
"""The MIG devices by the name that CDI gives them: 0:1 is the second one of GPU 0; () without MIG."""


class SmokeTest(Struct, frozen=True):
    """What a container printed that had one GPU: `uuids` of the GPUs that it saw; `error`: the engine's last words, ""
    if it ran."""

    device: str
    uuids: tuple[str, ...]
    error: str


_SMOKE = """
engine=$1 image=$2; shift 2
command -v "$engine" >/dev/null || { echo absent; exit 0; }
top=$(mktemp -d /var/tmp/rigwright-smoke.XXXXXX) || exit 1
made=
trap 'cd /; [ -z "$made" ] || "$engine" rmi -f "$made" >/dev/null 2>&1; rm -rf -- "$top"' EXIT
root=$top/root
mkdir -p -- "$root" && cd -- "$root" && mkdir -p bin etc dev proc sys tmp usr/bin usr/lib/x86_64-linux-gnu run
ln -s usr/lib lib; mkdir -p usr/lib64; ln -s usr/lib64 lib64
for program in /bin/sh /usr/bin/env; do cp -L -- "$program" bin/; done
for file in /bin/sh /usr/bin/nvidia-smi $(ldconfig -p | awk '/libnvidia-ml.so.1/{print $NF; exit}'); do
  ldd "$file" 2>/dev/null | grep -oE '/[^ ]+'
done | sort -u >"$top/libraries"
for name in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1; do
  ldconfig -p | awk -v name="$name" '$1 == name && /x86-64/ {print $NF; exit}' >>"$top/libraries"
done
grep -vE '/lib(nvidia|cuda)' "$top/libraries" | sort -u | while read -r file; do
  mkdir -p -- ".${file%/*}" && cp -nL -- "$file" ".$file"
done
if [ -z "$image" ] && [ "$engine" = docker ]; then
  image=rigwright-smoke-$$
  tar -c . | docker import - "$image" >/dev/null && made=$image || exit 1
fi
echo smoke
for device; do
  case $engine-$image in
  podman-) set -- podman run --rm --network=none --device "@KIND@=$device" --rootfs "$root" ;;
  podman-*) set -- podman run --rm --network=none --pull=never --device "@KIND@=$device" "$image" ;;
  *) set -- docker run --rm --pull=never --network=none --runtime=nvidia -e "NVIDIA_VISIBLE_DEVICES=$device" \\
    -e NVIDIA_DRIVER_CAPABILITIES=utility "$image" ;;
  esac
  timeout 60 "$@" nvidia-smi -L >"$top/out" 2>"$top/err"; code=$?
  echo "device $device $code"
  head -c 4000 "$top/out" | sed 's/^/out /'
  grep -v 'level=\\(info\\|warn\\)' "$top/err" | tail -c 1200 | tail -n 3 | sed 's/^/err /'
done
"""


def smoke_test(engine: str, devices: tuple[str, ...], image: str) -> Fact[tuple[SmokeTest, ...]]:
    """Starts a container with each GPU by its index, and runs nvidia-smi -L in it; nothing of it stays.

    Without an `image` the container's files are the host's own C library and shell; nvidia-smi and its library come
    from the CDI specification. Raises Unavailable if the engine is not installed.
    """

    def parse(result: Result) -> tuple[SmokeTest, ...]:
        head, *lines = result.lines or [""]
        if head == "absent":
            raise Unavailable(f"{engine} is not installed")
        if head != "smoke":
            why = one_line(result.error_text)[-200:] or f"exit {result.code}"
            raise Unreadable(f"no container could be made: {why}")
        tests: list[SmokeTest] = []
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "device":
                device, _, code = rest.partition(" ")
                tests.append(SmokeTest(device, (), "" if code == "0" else f"exit {host_text.integer(code)}"))
            elif word == "out" and (match := re.search(r"\(UUID: (GPU-[0-9a-f-]{36})\)", rest)):
                tests[-1] = replace(tests[-1], uuids=(*tests[-1].uuids, match[1]))
            elif word == "err" and tests[-1].error:
                tests[-1] = replace(tests[-1], error=f"{tests[-1].error}; {one_line(rest)[:300]}")
        if [test.device for test in tests] != list(devices):
            raise ValueError("not every device")
        return tuple(tests)

    name = f"containers.smoke_test({engine},{','.join(devices)},{image})"
    code, limit_s = _SMOKE.replace("@KIND@", KIND), 60 + 60 * len(devices)
    return Fact(name, script(code, engine, image, *devices, timeout_s=limit_s), parse)
