"""The conditions that must hold before the first change."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.catalogue.compatibility import card_of
from rigwright.core.change import Change, Note
from rigwright.core.command import command
from rigwright.core.desired import Driver
from rigwright.core.errors import HostError
from rigwright.driver.candidates import fits
from rigwright.driver.module_build import build_problem
from rigwright.driver.old_kernels import boot_room
from rigwright.driver.package_sets import wants_prebuilt
from rigwright.facts import Facts, dpkg, pci, system
from rigwright.facts import driver as state
from rigwright.facts import kernel as kernels
from rigwright.facts.system import OsRelease
from rigwright.operations import operation

_KNOWN = {"ubuntu": ("20.04", "22.04", "24.04", "26.04"), "debian": ("12", "13")}


@operation()
def passed(
    facts: Facts, *, free_mib: dict[str, int] | None = None, secure_boot: bool = False, driver: Driver | None = None
) -> Iterator[Note]:
    """The system is a supported Ubuntu or Debian on x86-64 with enough disk space, and the driver can be installed on it.

    That means: Secure Boot accepts the driver's module, a release of its branch builds for the kernel that runs and for the
    newest one, and no driver came from NVIDIA's .run file. A note names the processes that hold apt's locks.

    `free_mib` names directories (/, /boot, /var, /usr) and the MiB that must be free. Secure Boot accepts the modules that
    Ubuntu built and signed: with a `driver` that may use those it is only a note. Raises HostError; for a full /boot it
    names the old kernels that can be removed.
    """
    release, machine, free, secured, runfile, holders, *_ = facts.all(
        system.os_release,
        system.architecture,
        system.free_mib,
        state.secure_boot,
        state.runfile_version,
        dpkg.lock_holders,
        *(_KERNEL_FACTS if driver else ()),
    )
    if release.version_id not in _KNOWN.get(release.id, ()):
        wanted = "; ".join(f"{name.capitalize()} {', '.join(versions)}" for name, versions in _KNOWN.items())
        raise HostError("preflight", f"the host runs {release.pretty_name}", wanted, "install one of these on it")
    if machine != "x86_64":
        raise HostError("preflight", f"the host is {machine}", "x86_64", "a machine with an x86-64 processor")
    for path, least in (free_mib or {}).items():
        if path not in free:
            raise HostError(
                "preflight", f"free_mib names {path}", f"one of {', '.join(free)}", f"take {path} out of free_mib"
            )
        if free[path] < least:
            todo = boot_room(facts) if path == "/boot" else f"df -h {path}; sudo apt-get clean"
            raise HostError("preflight", f"{path} has {free[path]} MiB free", f"{least} MiB", todo)
    signed = driver is not None and wants_prebuilt(driver, release, secured)
    if secured and signed:
        yield Note("Secure Boot is on: the driver's module comes built and signed by Ubuntu, none is built on the host")
    elif secured and not secure_boot:
        raise HostError(
            "preflight",
            "Secure Boot is on: it refuses a driver module that is built on the host",
            "Secure Boot off, or a machine owner key enrolled at the console",
            _with_secure_boot(release, driver),
        )
    if driver and not signed:
        yield from _kernels(facts, driver)
    if runfile is not None:
        raise HostError(
            "preflight",
            f"a driver{' ' + runfile if runfile else ''} of NVIDIA's .run installer, which no package manager knows",
            "no driver, or one from packages",
            "sudo nvidia-uninstall --silent, then run the same command again",
        )
    if holders:
        names = ", ".join(f"{holder.name} ({holder.pid})" for holder in holders)
        yield Note(f"packages are locked by {names}; rigwright waits for it, ten minutes at most", warn=True)


_KERNEL_FACTS = (system.running_kernel, kernels.newest, pci.gpus, system.today)


def _kernels(facts: Facts, driver: Driver) -> Iterator[Note]:
    """The kernels for which no release of the branch builds its module. Raises HostError if it comes from NVIDIA."""
    running, newest, gpus, today = facts.all(*_KERNEL_FACTS)
    cards = [card for gpu in gpus if (card := card_of(gpu.device_id))]
    for kernel in dict.fromkeys(name for name in (running, newest) if name):
        problem = build_problem(driver, "", kernel, cards, today)
        if problem is None or fits(facts(kernels.module_version(kernel, "nvidia")), driver):
            continue
        if problem.certain and driver.source == "cuda" and driver.modules == "auto":
            raise problem.error
        yield Note(f"{problem.error.found}; {problem.error.expected}; {problem.error.fix}", warn=True)


def _with_secure_boot(release: OsRelease, driver: Driver | None) -> str:
    key = "/var/lib/dkms/mok.pub" if release.id == "debian" else "/var/lib/shim-signed/mok/MOK.der"
    enrol = f"enrol dkms' key (sudo mokutil --import {key}, reboot, confirm at the console) and set secure_boot: true"
    prebuilt = "modules: auto takes Ubuntu's signed module; or " if driver and release.id == "ubuntu" else ""
    return f"{prebuilt}turn Secure Boot off in the firmware, or {enrol}"


@operation()
def settled(facts: Facts) -> Iterator[Change]:
    """cloud-init has finished on a fresh machine. If it is not installed or disabled, there is nothing to wait for."""
    if facts(system.cloud_init) in ("running", "not started", "not run"):
        wait = command("timeout", "900", "cloud-init", "status", "--wait", timeout_s=930, long=True)
        yield Change("run", "cloud-init", "still running", "finished", (wait,))
