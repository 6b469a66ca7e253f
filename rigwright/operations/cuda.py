"""The CUDA toolkits, and which of them is the default."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright import catalogue
from rigwright.catalogue.compatibility import card_of, check_toolkit, runs_toolkit
from rigwright.core.change import Action, Change, Note
from rigwright.core.command import command
from rigwright.core.desired import Cuda, CudaSource, Driver
from rigwright.core.errors import HostError
from rigwright.core.numbers import numbers
from rigwright.core.templates.host_files import SHIPPED, Templates
from rigwright.driver.apt_pin import held_back
from rigwright.driver.resolve import brings_driver, repository
from rigwright.facts import Facts, Unavailable, cuda as toolkits, files, pci, system
from rigwright.facts.apt import archive as apt_archive, dpkg
from rigwright.operations import apt, file, operation


@operation()
def environment(facts: Facts, *, cuda: Cuda, templates: Templates = SHIPPED) -> Iterator[Change]:
    """The toolkit's compiler is on the PATH of every user from the next login on, and the dynamic linker finds its
    runtime. Known when the toolkit is installed."""
    profile, linker = "/etc/profile.d/rigwright-cuda.sh", "/etc/ld.so.conf.d/rigwright-cuda.conf"
    of_toolkit = toolkits.nvcc(cuda.toolkit), toolkits.runtime(cuda.toolkit)
    release, runtime, *_ = facts.all(*of_toolkit, files.file(profile), files.file(linker))
    if not release:
        raise Unavailable("known when the toolkit is installed")
    values = {"home": f"/usr/local/cuda-{cuda.toolkit}"}
    yield from file.differing(facts, profile, templates.render("cuda/profile.sh.j2", values).encode())
    if not runtime:
        yield from file.differing(facts, linker, templates.render("cuda/ld.so.conf.j2", values).encode())
        yield Change("run", "ldconfig", "does not find libcudart", "finds it", (command("ldconfig"),))


@operation()
def toolkit(facts: Facts, *, cuda: Cuda, driver: Driver, cuda_repository: CudaSource | None = None) -> Iterator[Change]:
    """Each toolkit is installed (cuda-toolkit-12-2 for 12.2, in /usr/local/cuda-12.2) without its own driver.

    Raises HostError if the driver's branch is too old for the toolkit, if no source has it (the message has available
    ones), or if apt's simulation installs a driver.
    """
    for release in cuda.toolkits:
        check_toolkit(driver, release)
    names = {_package(release): release for release in cuda.toolkits}
    now, os_release = facts.all(dpkg.packages(*names), system.os_release)
    lacking = {name: release for name, release in names.items() if name not in now or not now[name].installed}
    if not lacking:
        return
    remote = repository(os_release, cuda_repository)
    every = facts(apt_archive.offered(tuple(lacking), remote)).versions
    for name, release in lacking.items():
        offered = every.get(name, ())
        if not offered:
            raise _nowhere(facts, release, driver, remote)
        word = f"{name}={offered[0].version}"
        plan = facts(apt_archive.simulated((word,), "", remote))
        if plan.error and plan.held:
            raise held_back("cuda.toolkit", plan.held, f"{word} cannot be installed")
        if plan.error:
            problem = f"apt cannot install {word}: {plan.error}"
            fix = "another toolkit; sudo apt-get check, on the host, names packages that are broken already"
            raise HostError("cuda.toolkit", problem, "packages that fit together", fix)
        drivers = [move for move in plan.moves if brings_driver(move)]
        if drivers:
            problem = f"{word} would bring {drivers[0].name} {drivers[0].version}, a driver"
            fix = "another repository or toolkit"
            raise HostError("cuda.toolkit", problem, "a toolkit and nothing of the driver", fix)
        before = now[name].version if name in now else ""
        action: Action = "change" if name in now else "add"
        yield Change(action, name, before, offered[0].version, (apt.install([word]),))


@operation()
def held(facts: Facts, *, cuda: Cuda) -> Iterator[Change]:
    """Every package of each toolkit is held. Known when the toolkits are installed."""
    dashed = [release.replace(".", "-") for release in cuda.toolkits]
    there = facts(dpkg.matching(*(pattern for word in dashed for pattern in (f"*-{word}", f"*-{word}-*"))))
    names = sorted(name for name, package in there.items() if package.installed)
    if any(_package(release) not in names for release in cuda.toolkits):
        raise Unavailable("known when the toolkit is installed")
    yield from apt.hold(facts, names=names)


@operation()
def default(facts: Facts, *, cuda: Cuda) -> Iterator[Change | Note]:
    """/usr/local/cuda is the toolkit `toolkit`, by the alternative `cuda` of NVIDIA's packages.

    Without that alternative nothing is changed: the PATH of `cuda.environment` has the default. Known when the toolkit
    is installed. `remove` and `rollback` do not change the choice.
    """
    home = f"/usr/local/cuda-{cuda.toolkit}"
    release, now = facts.all(toolkits.nvcc(cuda.toolkit), toolkits.alternative)
    if not release:
        raise Unavailable("known when the toolkit is installed")
    if now is None:
        if cuda.beside:
            text = f"{home}/bin is on the PATH, and /usr/local/cuda is left alone"
            yield Note(f"no alternative `cuda` is registered: {text}")
    elif home not in now.choices:
        raise HostError(
            "cuda.default",
            f"update-alternatives knows {', '.join(now.choices) or 'nothing'} as /usr/local/cuda, and not {home}",
            "the alternative that the toolkit's packages register",
            f"sudo apt-get install --reinstall cuda-toolkit-{cuda.toolkit.replace('.', '-')}-config-common",
        )
    elif now.value != home:
        before = f"{now.value}{', the newest' if now.automatic else ''}"
        choose = command("update-alternatives", "--set", "cuda", home)
        yield Change("change", "/usr/local/cuda", before, home, (choose,))


def _package(toolkit: str) -> str:
    return f"cuda-toolkit-{toolkit.replace('.', '-')}"


def _nowhere(facts: Facts, wanted: str, driver: Driver, remote: apt_archive.Repository) -> HostError:
    """The error for a toolkit that no source has, with the available ones and those that driver and GPUs support."""
    known = {_package(name): name for name in catalogue.toolkits()}
    offered, gpus = facts.all(apt_archive.offered(tuple(known), remote), pci.gpus)
    cards = {str(gpu.bus_id): card for gpu in gpus if (card := card_of(gpu.device_id))}
    have = [name for package, name in known.items() if offered.versions.get(package)]
    fit = [name for name in have if runs_toolkit(cards, driver, name)]
    nearest = next((name for name in fit if numbers(name) > numbers(wanted)), fit[-1] if fit else "")
    there = f"{remote.url} has {', '.join(have)}" if have else f"{remote.url} has none that is known"
    return HostError(
        "cuda.toolkit",
        f"no source has {_package(wanted)}",
        f"a toolkit that is there, and that the GPUs and driver {driver.version or driver.branch} run: "
        f"{', '.join(fit) or 'none'}; {there}",
        f"cuda: {{toolkit: '{nearest}'}}"
        if nearest
        else "another driver branch, or cuda_repository: a mirror that has it",
    )
