"""Containers: the toolkit at its pin, a true CDI specification, engines that use it, and a GPU seen from within a container."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.checks import Finding, check, of_symptom, of_text
from rigwright.core.containers import Containers
from rigwright.driver import cdi
from rigwright.driver.apt_pin import pin_path
from rigwright.driver.container_toolkit import PACKAGES, PIN, pinned
from rigwright.facts import Facts, dpkg, files, gpu
from rigwright.facts import containers as engines
from rigwright.facts import systemd as units
from rigwright.facts.containers import SmokeTest
from rigwright.facts.gpu import Gpu

_FIX = "invoke provision"


@check(follows=("run.",))
def toolkit_pinned(facts: Facts, *, containers: Containers) -> Iterator[Finding]:
    """The packages of NVIDIA Container Toolkit are at the release of their pin, and held."""
    now, _ = facts.all(dpkg.packages(*PACKAGES), files.file(pin_path(PIN)))
    release = pinned(facts, containers)
    if release is None:
        seen = f"no pin of release {containers.toolkit}"
        yield Finding("container toolkit", "fail", seen, "pinned", "", _FIX, "inventory")
        return
    wrong = [name for name in PACKAGES if name not in now or now[name].version != release.version or not now[name].held]
    seen = f"not at {release.version} and held: {', '.join(wrong)}" if wrong else f"{release.version}, held"
    yield Finding(
        "container toolkit",
        "fail" if wrong else "pass",
        seen,
        "at its pin, held",
        "",
        _FIX,
        "inventory",
    )


@check(follows=("module.", "driver.", "run."))
def specified(facts: Facts) -> Iterator[Finding]:
    """The CDI specification names the loaded driver, every GPU, and only files that exist; the toolkit's units renew it."""
    service, path, *_ = facts.all(units.unit(cdi.REFRESH), units.unit(cdi.REFRESH_PATH), *cdi.ASKED)
    found = cdi.judge(facts)
    wanted = "the loaded driver, every GPU, files that exist"
    if found.problem:
        yield of_symptom(found.symptom, "CDI specification", found.problem, wanted, "host", fix=_FIX)
    else:
        yield Finding("CDI specification", "pass", found.seen, wanted, source="host")
    off = [name for name, unit in ((cdi.REFRESH, service), (cdi.REFRESH_PATH, path)) if unit.enabled != "enabled"]
    off += [cdi.REFRESH_PATH] if path.active != "active" and cdi.REFRESH_PATH not in off else []
    if off:
        cause = "after the next boot or driver change the specification is missing or names the old driver"
        seen = f"{', '.join(off)} not enabled and active"
        yield Finding("CDI renewal", "fail", seen, "enabled, active", cause, _FIX, "host")
    else:
        yield Finding("CDI renewal", "pass", "at boot and after a driver change", "enabled, active")


@check(follows=("module.", "driver.", "gpu.", specified))
def smoke(facts: Facts, *, containers: Containers) -> Iterator[Finding]:
    """A container starts with each GPU, for each engine, and nvidia-smi -L in it lists that GPU and no other.

    It needs no registry: its files are the host's own, or those of `image` in `containers`.
    """
    gpus: tuple[Gpu, ...] = tuple(one for one in facts(gpu.gpus) if not one.lost)
    devices = tuple(str(one.index) for one in gpus)
    if not devices:
        yield Finding("container", "unknown", "no GPU answers", fix="invoke verify --tags driver")
        return
    tests = [engines.smoke_test(engine, devices, containers.image) for engine in containers.engines]
    for engine, results in zip(containers.engines, facts.all(*tests), strict=True):
        wrong = [finding for test, one in zip(results, gpus, strict=True) if (finding := _wrong(engine, test, one))]
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
        cause = (
            "the specification's index is that of another GPU, or the container gets more device nodes than it asks for"
        )
        seen = f"lists {', '.join(test.uuids) or 'no GPU'}"
        return Finding(subject, "fail", seen, wanted, cause, _FIX, "host")
    return None
