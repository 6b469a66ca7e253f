"""NVIDIA's Data Center GPU Manager on hosts with data centre GPUs: at one release, held, and running."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright import catalogue
from rigwright.core.change import Change, Note
from rigwright.core.desired import CudaSource, Driver
from rigwright.core.errors import HostError
from rigwright.core.gpu_labels import place
from rigwright.core.schema import BusId
from rigwright.core.templates.host_files import SHIPPED, Templates
from rigwright.driver.apt_pin import held_back
from rigwright.driver.resolve import brings_driver, repository
from rigwright.facts import Facts, Unavailable, pci
from rigwright.facts.apt import archive as apt_archive, dpkg
from rigwright.features.dcgm import packages as manager
from rigwright.features.dcgm.facts import UNIT
from rigwright.operations import _pinned_packages, apt, operation, systemd

_ALTERNATIVE = (
    "metrics: textfile in place of dcgm: rigwright's metrics, by Prometheus' node_exporter (docs/guide/guard.md)"
)


@operation()
def possible(facts: Facts, *, dcgm: bool, slots: dict[BusId, str] | None = None) -> Iterator[Note]:
    """DCGM supports every GPU of the host. Raises HostError for a GeForce or TITAN, with an alternative.

    DCGM runs there too, but its diagnostics skip the card, and it has no profiling counters: nothing that nvidia-smi
    lacks.
    """
    for device in facts(pci.gpus) if dcgm else ():
        model = catalogue.model_of(device.device_id)
        if model and any(word in model.name for word in ("GeForce", "TITAN")):
            problem = f"{place(device.bus_id, slots)} ({model.name}): DCGM's diagnostics skip it"
            problem += ", and it has no profiling counters"
            raise HostError("dcgm", problem, "data centre or workstation GPUs", _ALTERNATIVE)
    yield from ()


@operation()
def pinned(
    facts: Facts,
    *,
    dcgm: bool,
    driver: Driver,
    cuda_repository: CudaSource | None = None,
    templates: Templates = SHIPPED,
) -> Iterator[Change]:
    """apt's preferences hold the packages of DCGM at one release: the newest when the pin is written.

    They are the core and the plugins for the CUDA of the driver's branch.
    """
    if not dcgm:
        return
    release = manager.wanted_release(facts, driver, cuda_repository)
    yield from _pinned_packages.pin(facts, manager.PIN, manager.packages(driver), release, templates)


@operation()
def installed(
    facts: Facts, *, dcgm: bool, driver: Driver, cuda_repository: CudaSource | None = None
) -> Iterator[Change]:
    """The packages of DCGM are installed at the release of the pin, from NVIDIA's repository, without a driver.

    apt first simulates the installation. Raises HostError when it would install a driver, or cannot install them.
    """
    if not dcgm:
        return
    names = manager.packages(driver)
    now, os_release, _ = facts.all(dpkg.packages(*names), *manager.ASKED[::-1])
    release = manager.wanted_release(facts, driver, cuda_repository)
    if not _pinned_packages.not_at(release, names, now):
        return
    words = tuple(f"{name}={release}" for name in names)
    plan = facts(apt_archive.simulated(words, "", repository(os_release, cuda_repository)))
    if plan.error and plan.held:
        raise held_back("dcgm", plan.held, f"{words[0]} cannot be installed")
    if plan.error:
        fix = "sudo apt-get check, on the host, names packages that are broken already"
        raise HostError("dcgm", f"apt cannot install {words[0]}: {plan.error}", "packages that fit together", fix)
    if drivers := [move for move in plan.moves if brings_driver(move)]:
        problem = f"{words[0]} would bring {drivers[0].name} {drivers[0].version}, a driver"
        raise HostError("dcgm", problem, "DCGM and nothing of the driver", "another mirror of NVIDIA's repository")
    yield _pinned_packages.install(f"DCGM {release} ({len(names)} packages)", names, release, now)


@operation()
def held(facts: Facts, *, dcgm: bool, driver: Driver) -> Iterator[Change]:
    """The packages of DCGM are held: upgrades do not change them. Known when they are installed."""
    if not dcgm:
        return
    names = manager.packages(driver)
    now = facts(dpkg.packages(*names))
    if any(name not in now or not now[name].installed for name in names):
        raise Unavailable("known when DCGM is installed")
    yield from apt.hold(facts, names=list(names))


@operation()
def running(facts: Facts, *, dcgm: bool) -> Iterator[Change]:
    """nvidia-dcgm.service is enabled and runs. Raises Unavailable while DCGM is not installed."""
    if dcgm:
        yield from systemd.service(facts, name=UNIT)
