"""Containers: the toolkit at its pin, a true CDI specification, engines that use it, and a GPU seen from within a
container."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from rigwright.checks import Finding, check, of_symptom, of_text
from rigwright.driver.apt_pin import pin_path
from rigwright.facts import Facts, files, systemd as units
from rigwright.facts.apt import dpkg
from rigwright.facts.gpu import gpus as gpu
from rigwright.facts.gpu.gpus import Gpu
from rigwright.features.containers import cdi, facts as engines
from rigwright.features.containers.facts import SmokeTest
from rigwright.features.containers.toolkit import PACKAGES, PIN, pinned_release
from rigwright.features.containers.variables import Containers

_FIX = "invoke provision --playbook train"


@check(follows=("run.",))
def toolkit_pinned(facts: Facts, *, containers: Containers) -> Iterator[Finding]:
    """The packages of NVIDIA Container Toolkit are at the release of their pin, and held."""
    now, _ = facts.all(dpkg.packages(*PACKAGES), files.file(pin_path(PIN)))
    release = pinned_release(facts, containers)
    if release is None:
        seen = f"no pin of release {containers.toolkit}"
        yield Finding("container toolkit", "fail", seen, "pinned", "", _FIX, "inventory")
        return
    wrong = [name for name in PACKAGES if name not in now or now[name].version != release or not now[name].held]
    seen = f"not at {release} and held: {', '.join(wrong)}" if wrong else f"{release}, held"
    yield Finding("container toolkit", "fail" if wrong else "pass", seen, "at its pin, held", "", _FIX, "inventory")


@check(follows=("module.", "driver.", "run."))
def specified(facts: Facts) -> Iterator[Finding]:
    """The CDI specification names the loaded driver, every GPU, and only files that exist; the toolkit's units renew
    it."""
    service, path, *_ = facts.all(units.unit(cdi.REFRESH), units.unit(cdi.REFRESH_PATH), *cdi.ASKED)
    judgement = cdi.judge(facts)
    wanted = "the loaded driver, every GPU, files that exist"
    if judgement.problem:
        yield of_symptom(judgement.symptom, "CDI specification", judgement.problem, wanted, "host", fix=_FIX)
    else:
        yield Finding("CDI specification", "pass", judgement.seen, wanted, source="host")
    off = [name for name, unit in ((cdi.REFRESH, service), (cdi.REFRESH_PATH, path)) if unit.enabled != "enabled"]
    off += [cdi.REFRESH_PATH] if path.active != "active" and cdi.REFRESH_PATH not in off else []
    if off:
        cause = "after the next boot or driver change the specification is missing or names the old driver"
        seen = f"{', '.join(off)} not enabled and active"
        yield Finding("CDI renewal", "fail", seen, "enabled, active", cause, _FIX, "host")
    else:
        yield Finding("CDI renewal", "pass", "at boot and after a driver change", "enabled, active")


@check(follows=("run.",))
def docker_configured(facts: Facts, *, containers: Containers) -> Iterator[Finding]:
    """docker answers and knows the runtime nvidia, and a reload of systemd does not take the GPUs away from its
    containers.

    With the systemd driver for control groups runc needs a link in /dev/char for each device node; without it, systemd
    writes rules without the GPUs at the next daemon-reload."""
    if "docker" not in containers.engines:
        yield Finding("docker", "pass", "not wanted")
        return
    now, nodes = facts.all(engines.docker, engines.nodes)
    seen, wanted = f"has the runtimes {', '.join(now.runtimes)}", "the runtime nvidia"
    if "nvidia" in now.runtimes:
        yield Finding("docker", "pass", seen, wanted)
    else:
        yield of_symptom("container.runtime_unknown", "docker", seen, wanted, "host", fix=_FIX)
    subject = "docker's control groups"
    if now.cgroup_driver == "systemd" and nodes.without_link:
        key, wanted = "container.cgroup_lost", "links in /dev/char"
        seen = f"cgroup driver systemd, and no link in /dev/char for {', '.join(nodes.without_link[:3])}"
        fix = "sudo nvidia-ctk system create-dev-char-symlinks --create-all, at every boot too; or "
        fix += '"exec-opts": ["native.cgroupdriver=cgroupfs"] in /etc/docker/daemon.json and a restart of docker'
        yield of_symptom(key, subject, seen, wanted, "host", verdict="warn", fix=fix)
    else:
        yield Finding(subject, "pass", f"cgroup driver {now.cgroup_driver}")


@check(follows=("module.", "driver.", "run."))
def nodes_open(facts: Facts) -> Iterator[Finding]:
    """Every user may open the device nodes, which containers of users (rootless) need: an engine cannot give them more
    rights."""
    closed = [f"{path} {mode}" for path, mode in facts(engines.nodes).modes.items() if int(mode, 8) & 0o006 != 0o006]
    if closed:
        cause = "NVreg_DeviceFileMode in /etc/modprobe.d, or a udev rule, keeps other users out"
        fix = "grep -r NVreg_DeviceFile /etc/modprobe.d; without it 0666 is the driver's own mode."
        fix += " If it is meant: run containers as root or with that group"
        seen = f"not open to users: {', '.join(closed[:4])}"
        yield Finding("containers of users", "warn", seen, "0666", cause, fix, "host")
    else:
        yield Finding("containers of users", "pass", "may open the device nodes", "0666")


_NO_IMAGE = re.compile(r"image not known|[Nn]o such image|Unable to find image")
"""What podman and docker say of an image that is not on the host."""


@check(follows=("module.", "driver.", "gpu.", specified))
def smoke(facts: Facts, *, containers: Containers) -> Iterator[Finding]:
    """A container starts with each GPU, for each engine, and nvidia-smi -L in it lists that GPU and no other.

    It needs no registry: its files are the host's own, or those of `image` in `containers`.
    """
    every, specifications = facts.all(gpu.gpus, engines.specifications)
    gpus: tuple[Gpu, ...] = tuple(device for device in every if not device.lost)
    used = cdi.in_force(specifications)
    devices = tuple(cdi.device_of(used, device.index) for device in gpus)
    if not devices:
        yield Finding("container", "unknown", "no GPU answers", fix="invoke verify --tags driver")
        return
    tests = [engines.smoke_test(engine, devices, containers.image) for engine in containers.engines]
    for engine, results in zip(containers.engines, facts.all(*tests), strict=True):
        if containers.image and any(_NO_IMAGE.search(test.error) for test in results):
            seen, cause = f"the host has no image {containers.image}", "rigwright loads no images"
            fix = f"sudo {engine} pull {containers.image}, on the host; or leave `image` out of `containers`"
            yield Finding(f"{engine} container", "fail", seen, "the image of the smoke container", cause, fix)
            continue
        wrong = list(filter(None, map(partial(_wrong, engine), results, gpus)))
        yield from wrong
        if not wrong:
            yield Finding(f"{engine} container", "pass", f"starts on each of {len(gpus)} GPUs and lists it")


def _wrong(engine: str, test: SmokeTest, device: Gpu) -> Finding | None:
    """The finding about a container that did not list its GPU alone; None if it did."""
    subject, wanted = f"{engine} container with GPU {test.device}", f"nvidia-smi -L lists {device.uuid}"
    if test.error:
        fix = f"{engine} run ... nvidia-smi -L, on the host; invoke explain 'ITS TEXT'"
        return of_text(test.error, subject, test.error[:300], wanted, fix=fix)
    if test.uuids != (device.uuid,):
        cause = "the specification's index is that of another GPU, or "
        cause += "the container gets more device nodes than it asks for"
        seen = f"lists {', '.join(test.uuids) or 'no GPU'}"
        return Finding(subject, "fail", seen, wanted, cause, _FIX, "host")
    return None
