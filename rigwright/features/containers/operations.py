"""Container engines that reach the GPUs: NVIDIA Container Toolkit at one release, an engine, and a CDI specification
that is true."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from rigwright.core import host_text
from rigwright.core.change import Change, Note
from rigwright.core.command import command
from rigwright.core.desired import CudaSource
from rigwright.core.errors import HostError
from rigwright.core.numbers import numbers
from rigwright.core.schema import FileName, Word
from rigwright.core.templates.host_files import SHIPPED, Templates
from rigwright.driver.apt_pin import pin_path
from rigwright.facts import Facts, Unavailable, driver as state, files, systemd as units
from rigwright.facts.apt import archive as apt_archive, dpkg, sources as apt_sources
from rigwright.features.containers import cdi, facts as engines, toolkit as nvidia_toolkit
from rigwright.features.containers.facts import DAEMON_JSON, Engines
from rigwright.features.containers.toolkit import PACKAGES, PIN, pinned_release, wanted_release
from rigwright.features.containers.variables import Containers
from rigwright.operations import _pinned_packages, apt, file, operation

WITH_CDI = "4.1.0"
"""The first podman whose --device takes a CDI device (its release notes)."""
BESIDE_PODMAN = ("netavark", "aardvark-dns", "uidmap", "slirp4netns", "fuse-overlayfs")
"""Packages that podman recommends: its networks, and what containers of users need. Those that the host's sources have
are installed."""
PACKAGE_OF = {"podman": "podman", "docker": "docker.io"}
DOCKER = "docker.service"


@operation()
def possible(facts: Facts, *, containers: Containers, container_repository: CudaSource | None = None) -> Iterator[Note]:
    """The host can have the engines and the toolkit of `containers`, and nothing of others on it works against them.

    Raises HostError for a toolkit that no source has, docker from snap, a podman without CDI, a daemon.json that is no
    JSON, a daemon.json that names other CDI folders, and two CDI specifications of one folder that define the same GPU.
    """
    asked = (engines.engines, files.file(DAEMON_JSON), engines.specifications)
    there, daemon, specifications, *_ = facts.all(*asked, *nvidia_toolkit.ASKED)
    wanted_release(facts, containers, container_repository)
    if "docker" in containers.engines:
        if there.snap:
            problem = "docker is a snap: it is confined, and sees neither the toolkit's runtime nor CDI specifications"
            fix = "sudo snap remove docker; then run the same command again"
            raise HostError("containers", problem, "docker.io, or docker-ce", fix)
        daemon_json(daemon)
    if "podman" in containers.engines:
        _check_podman(facts, there)
    for device, one, other in cdi.conflicts(specifications):
        problem = f"{one} and {other} both define {engines.KIND}={device}, and then engines find none"
        fix = f"sudo rm {one if other == cdi.PATH else other}, and take out what writes it"
        fix += "; then run the same command again"
        raise HostError("containers", problem, "one specification of the GPUs in a folder", fix)
    for path in (specification.path for specification in specifications if specification.path != cdi.PATH):
        text = f"{path} is a CDI specification that nobody renews; {cdi.PATH} takes its place: sudo rm {path}"
        yield Note(text, warn=True, foreign=True)


def _check_podman(facts: Facts, there: Engines) -> None:
    """Raises HostError for a podman, installed or offered, that takes no CDI device."""
    version = there.podman
    if not version:
        offered = facts(apt_archive.offered(("podman", *BESIDE_PODMAN))).versions.get("podman", ())
        version = offered[0].version if offered else ""
    plain = version.split(":")[-1].split("+")[0].split("-")[0]
    if plain and numbers(plain) < numbers(WITH_CDI):
        todo = "containers: {engine: docker}, or a newer distribution"
        raise HostError("containers", f"podman {plain} takes no CDI device", f"podman {WITH_CDI} or newer", todo)


def daemon_json(daemon: Any) -> dict[str, Any]:
    """The settings in /etc/docker/daemon.json; {} without the file. Raises HostError for a file that is no JSON
    object."""
    fix = "correct it on the host (python3 -m json.tool shows the place); then run the same command again"
    if daemon is None:
        return {}
    is_file, empty = daemon.kind in ("file", "link"), daemon.sha256 == hashlib.sha256().hexdigest()
    if not is_file or (daemon.sha256 and not daemon.content and not empty):
        raise HostError(DAEMON_JSON, "it is no file of at most 64 KiB", "a JSON object", fix)
    if not daemon.text.strip():
        return {}
    try:
        value = host_text.json_value(daemon.text)
    except json.JSONDecodeError as error:
        raise HostError(f"{DAEMON_JSON}:{error.lineno}", f"no JSON: {error.msg}", "a JSON object", fix) from None
    except ValueError as error:
        raise HostError(DAEMON_JSON, str(error)[:200], "a JSON object", fix) from None
    if not isinstance(value, dict):
        raise HostError(DAEMON_JSON, "its value is no object", "a JSON object", fix)
    folders = value.get("cdi-spec-dirs")
    if folders and not (isinstance(folders, list) and "/var/run/cdi" in folders):
        problem = "cdi-spec-dirs leaves out /var/run/cdi, so docker reads other CDI specifications than podman"
        raise HostError(DAEMON_JSON, problem, "cdi-spec-dirs with /var/run/cdi, or without the key", fix)
    return value


@operation()
def repository_present(
    facts: Facts, *, container_repository: CudaSource | None = None, templates: Templates = SHIPPED
) -> Iterator[Change | Note]:
    """NVIDIA's repository of the toolkit is a source of the host, trusted by its own key only.

    A source of that repository which the host already has is left as it is. Raises HostError if that one is trusted
    without a signature, or by another key.
    """
    listed, keyring = apt.source_paths(PIN)
    remote = nvidia_toolkit.repository(container_repository)
    asked = (apt_sources.keyring(keyring), apt_sources.sources, files.file(listed), files.file(keyring))
    keys, every, *_ = facts.all(*asked)
    if theirs := nvidia_toolkit.foreign_sources(facts, remote):
        yield from apt.require_signed(facts, theirs, remote.fingerprint)
        return
    own = [source for source in every if source.ours and source.is_of(remote.url) and not source.trusted]
    if keys == (remote.fingerprint,) and any(source.signed_by == (keyring,) for source in own):
        return
    offered = facts(apt_archive.offered(PACKAGES, remote))
    yield from apt.source(facts, name=FileName(PIN), url=Word(remote.url), key=offered.key, templates=templates)


@operation()
def toolkit_pinned(
    facts: Facts,
    *,
    containers: Containers,
    container_repository: CudaSource | None = None,
    templates: Templates = SHIPPED,
) -> Iterator[Change]:
    """apt's preferences hold the four packages of the toolkit at one release.

    `latest` is the newest release when the pin is written; the pin keeps it from then on.
    """
    release = wanted_release(facts, containers, container_repository)
    yield from _pinned_packages.pin(facts, PIN, PACKAGES, release, templates)


@operation()
def toolkit_installed(
    facts: Facts, *, containers: Containers, container_repository: CudaSource | None = None
) -> Iterator[Change]:
    """The packages of the toolkit are installed at the release of the pin."""
    now, *_ = facts.all(dpkg.packages(*PACKAGES), *nvidia_toolkit.ASKED)
    release = wanted_release(facts, containers, container_repository)
    if wrong := _pinned_packages.not_at(release, PACKAGES, now):
        subject = f"container toolkit {release} ({len(wrong)} packages)"
        yield _pinned_packages.install(subject, PACKAGES, release, now)


@operation()
def toolkit_held(facts: Facts, *, containers: Containers) -> Iterator[Change]:
    """Every package of the toolkit is held: upgrades do not change it. Known when it is pinned and installed."""
    now, _ = facts.all(dpkg.packages(*PACKAGES), files.file(pin_path(PIN)))
    release = pinned_release(facts, containers)
    if release is None or any(name not in now or now[name].version != release for name in PACKAGES):
        raise Unavailable("known when the toolkit is pinned and installed")
    yield from apt.hold(facts, names=list(PACKAGES))


@operation()
def engine_installed(facts: Facts, *, containers: Containers) -> Iterator[Change]:
    """Each engine of `containers` is installed, from the host's distribution. An installed one, such as docker-ce,
    stays as it is.

    With podman come the packages that it recommends for networks and for containers of users, as far as the host's
    sources have them. Raises HostError where no source has an engine.
    """
    there = facts(engines.engines)
    lacking = [name for name in containers.engines if not getattr(there, name)]
    names = [PACKAGE_OF[name] for name in lacking]
    if not names:
        return
    beside = BESIDE_PODMAN if "podman" in lacking else ()
    offered = facts(apt_archive.offered((*names, *beside))).versions
    if absent := [name for name in names if not offered.get(name)]:
        problem = f"no source of the host has the package {' and '.join(absent)}"
        expected = "an engine that the host's apt has (on Ubuntu in universe)"
        others = [name for name in PACKAGE_OF if PACKAGE_OF[name] not in absent]
        fix = "add a source that has it, then sudo apt-get update, on the host"
        fix += f"; or another engine: containers: {{engine: {others[0]}}}" if len(others) == 1 else ""
        raise HostError("containers.engine", problem, expected, fix)
    yield from apt.packages(facts, names=[*names, *(name for name in beside if offered.get(name))])


@operation()
def specified(facts: Facts) -> Iterator[Change]:
    """The CDI specification is true: it names the loaded driver's version, every GPU, and only files that exist.

    The toolkit's own units make it at boot, after a driver change, and here. Known when the toolkit is installed and
    the driver loaded.
    """
    versions = (engines.toolkit_version, state.loaded_version, state.library_version)
    renewals = (units.unit(cdi.REFRESH), units.unit(cdi.REFRESH_PATH))
    toolkit, loaded, library, service, path, *_ = facts.all(*versions, *renewals, *cdi.ASKED)
    if not toolkit:
        raise Unavailable("known when the toolkit is installed")
    if not loaded:
        raise Unavailable("known when the driver is loaded")
    if library != loaded:
        found = f"driver {loaded} is loaded, and its libraries are {library or 'not there'}: nvidia-ctk cannot ask it"
        raise Unavailable(found, "invoke provision")
    for name, unit in ((cdi.REFRESH, service), (cdi.REFRESH_PATH, path)):
        if unit.load in ("not-found", "masked"):
            fix = f"sudo systemctl unmask {name}"
            if unit.load == "not-found":
                fix = "sudo apt-get install --reinstall nvidia-container-toolkit-base"
            expected = "the unit of the toolkit that renews the specification"
            raise HostError("containers", f"{name} is {unit.load}", expected, fix)
        if unit.enabled != "enabled":
            enable = command("systemctl", "enable", name)
            yield Change("change", name, unit.at_boot, "enabled at boot", (enable,), units=(name,))
    if path.active != "active":
        name = cdi.REFRESH_PATH
        again = (command("systemctl", "reset-failed", name),) if path.active == "failed" else ()
        commands = (*again, command("systemctl", "start", name))
        yield Change("run", name, path.active, "watches the driver", commands, units=(name,))
    if problem := cdi.judge(facts).problem:
        again = (command("systemctl", "reset-failed", cdi.REFRESH),) if service.active == "failed" else ()
        make = command("systemctl", "start", cdi.REFRESH, timeout_s=120)
        yield Change("run", cdi.PATH, problem, f"made again for driver {loaded}", (*again, make))


@operation()
def docker_configured(facts: Facts, *, containers: Containers) -> Iterator[Change]:
    """docker has the runtime nvidia, as `nvidia-ctk runtime configure` sets it up, and nothing that stands in
    daemon.json is lost.

    The daemon is started again where it does not know the runtime; with running containers, which then stop, that is
    disruptive. Known when docker and the toolkit are installed. Raises HostError for a daemon.json that is no JSON, and
    if nvidia-ctk would change a setting of others.
    """
    if "docker" not in containers.engines:
        return
    there, daemon, toolkit = facts.all(engines.engines, files.file(DAEMON_JSON), engines.toolkit_version)
    stands = daemon_json(daemon)
    if not there.docker or not toolkit:
        raise Unavailable("known when docker and the toolkit are installed")
    wanted, now = facts.all(engines.docker_configuration, engines.docker)
    changes = []
    if wanted != stands:
        others = [key for key in stands if key not in ("runtimes", "features") and wanted.get(key) != stands[key]]
        kept = {"nvidia", *(wanted.get("runtimes") or {})}
        others += [f"runtimes.{key}" for key in stands.get("runtimes") or {} if key not in kept]
        if others:
            problem = f"nvidia-ctk runtime configure would change {', '.join(others)}"
            raise HostError(
                DAEMON_JSON, problem, "the settings of others as they are", "another release of the toolkit"
            )
        text = json.dumps(wanted, indent=4) + "\n"
        mode, owner, group = (daemon.mode, daemon.owner, daemon.group) if daemon else ("0644", "root", "root")
        changes = list(file.differing(facts, DAEMON_JSON, text.encode(), mode, owner, group))
        yield from changes
    if changes or "nvidia" not in now.runtimes:
        restart = command("systemctl", "restart", DOCKER, timeout_s=180)
        before = f"knows {', '.join(now.runtimes)}" + (f"; {now.running} running containers" if now.running else "")
        after = "knows the runtime nvidia" + ("; they stop" if now.running else "")
        yield Change("run", "docker", before, after, (restart,), disruptive=now.running > 0, units=(DOCKER,))
