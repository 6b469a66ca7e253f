"""The conditions that must hold before the first change."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator

from rigwright import catalogue
from rigwright.catalogue.compatibility import card_of
from rigwright.core.change import Change, Note
from rigwright.core.command import command
from rigwright.core.desired import Driver, SecureBoot
from rigwright.core.errors import HostError
from rigwright.driver.candidates import fits
from rigwright.driver.module_build import build_problem
from rigwright.driver.old_kernels import boot_room
from rigwright.driver.package_sets import wants_prebuilt
from rigwright.driver.secure_boot_advice import NOT_TRUSTED, steps
from rigwright.facts import Facts, driver as state, kernel as kernels, pci, system
from rigwright.facts.apt import dpkg
from rigwright.facts.secure_boot import signing_key
from rigwright.operations import operation


@operation(momentary=True)
def passed(
    facts: Facts,
    *,
    free_mib: dict[str, int] | None = None,
    secure_boot: SecureBoot | None = None,
    driver: Driver | None = None,
) -> Iterator[Note]:
    """The system is a supported Ubuntu or Debian on x86-64 with enough disk space, and the driver can be installed.

    That means: Secure Boot accepts the driver's module, a release of its branch builds for the running and the newest
    kernel, no driver is installed from NVIDIA's .run file, and the host's clock differs by less than a day from this
    machine's. A note has the processes that hold apt's locks.

    `free_mib`: the MiB that must be free in /, /boot, /var, /usr, /run; /boot needs more if its initramfs is larger.
    Secure Boot accepts modules that Ubuntu built and signed, and modules signed with an enrolled key or one that
    `mok.enrolled` will enrol. Raises HostError; for a full /boot with the old kernels that can be removed.
    """
    images = (kernels.largest_initramfs_mib,) if "/boot" in (free_mib or {}) else ()
    clock_s, release, machine, free, secured, runfile, holders, *_ = facts.all(
        system.clock_s,
        system.os_release,
        system.architecture,
        system.free_mib,
        state.secure_boot,
        state.runfile_version,
        dpkg.lock_holders,
        *(_KERNEL_FACTS if driver else ()),
        *images,
    )
    yield from _clock(clock_s, int(time.time()))
    supported = catalogue.supported_releases()
    if release.version_id not in supported.get(release.id, ()):
        wanted = "; ".join(f"{name.capitalize()} {', '.join(versions)}" for name, versions in supported.items())
        raise HostError("preflight", f"the host runs {release.pretty_name}", wanted, "install one of these on it")
    if machine != "x86_64":
        raise HostError("preflight", f"the host is {machine}", "x86_64", "a machine with an x86-64 processor")
    for path, least in (free_mib or {}).items():
        if path not in free:
            problem, expected = f"free_mib names {path}", f"one of {', '.join(free)}"
            raise HostError("preflight", problem, expected, f"take {path} out of free_mib")
        wanted = f"{least} MiB"
        if path == "/boot" and (image := facts(kernels.largest_initramfs_mib)) + _BESIDE_MIB > least:
            least = image + _BESIDE_MIB
            why = f"update-initramfs writes the new file beside the old one, of {image} MiB, and it becomes larger"
            wanted = f"{least} MiB: {why}"
        if free[path] < least:
            todo = f"df -h {path}; sudo apt-get clean"
            todo = boot_room(facts) if path == "/boot" else system.RUN_ROOM if path == "/run" else todo
            raise HostError("preflight", f"{path} has {free[path]} MiB free", wanted, todo)
    signed = driver is not None and wants_prebuilt(driver, release, secured)
    if secured and signed:
        yield Note("Secure Boot is on: the driver's module comes built and signed by Ubuntu, none is built on the host")
    elif secured and secure_boot is None and facts(signing_key).state != "enrolled":
        raise HostError("preflight", NOT_TRUSTED, "Secure Boot off, or an enrolled key", steps(release, driver))
    if driver and not signed:
        yield from _kernels(facts, driver)
    if runfile is not None:
        problem = f"a driver{runfile and f' {runfile}'} of NVIDIA's .run installer, which no package manager knows"
        fix = "sudo nvidia-uninstall --silent, then run the same command again"
        raise HostError("preflight", problem, "no driver, or one from packages", fix)
    if holders:
        names = ", ".join(f"{holder.name} ({holder.pid})" for holder in holders)
        yield Note(f"packages are locked by {names}; rigwright waits for it, ten minutes at most", warn=True)


_BESIDE_MIB = 48
"""Space for GRUB's files and for an initramfs that becomes larger with the driver's modules (assumed)."""
_MOST_APART_S, _NOTED_APART_S = 86_400, 900
"""The greatest allowed difference of the clocks, and the least with a note: reading the facts can take minutes
(assumed)."""


def _clock(host_s: int, here_s: int) -> Iterator[Note]:
    """A note for clocks that differ. Raises HostError if apt and TLS would judge validity wrongly."""
    apart_s = abs(host_s - here_s)
    if apart_s < _NOTED_APART_S:
        return
    problem = f"the host's clock says {_in_words(host_s)}, and this machine's {_in_words(here_s)}"
    todo = (
        "on the host: sudo timedatectl set-ntp true, or sudo apt-get install chrony; without a time server: "
        f"sudo date -u -s '{_in_words(here_s).removesuffix(' UTC')}'; then sudo hwclock --systohc"
    )
    if apart_s < _MOST_APART_S:
        yield Note(f"{problem}; {todo}", warn=True)
        return
    expected = "less than a day between them: apt and TLS refuse what is not valid by the host's clock"
    expected += " (not valid yet, expired)"
    raise HostError("preflight", problem, expected, f"{todo}; if this machine's clock is the wrong one, correct that")


def _in_words(seconds: int) -> str:
    """The time in UTC: 1970-01-01 00:03 UTC; the number if no calendar has it."""
    try:
        at = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
    except OverflowError:
        return f"{seconds} s since 1970"
    return f"{at:%Y-%m-%d %H:%M} UTC"


_KERNEL_FACTS = (system.running_kernel, kernels.newest, pci.gpus, system.today)


def _kernels(facts: Facts, driver: Driver) -> Iterator[Note]:
    """A note for each kernel for which no release of the branch builds; HostError if the driver comes from NVIDIA."""
    running, newest, gpus, today = facts.all(*_KERNEL_FACTS)
    cards = [card for gpu in gpus if (card := card_of(gpu.device_id))]
    for kernel in dict.fromkeys(name for name in (running, newest) if name):
        problem = build_problem(driver, "", kernel, cards, today)
        if problem is None or fits(facts(kernels.module_version(kernel, "nvidia")), driver):
            continue
        if problem.certain and driver.source == "cuda" and driver.modules == "auto":
            raise problem.error
        yield Note(f"{problem.error.found}; {problem.error.expected}; {problem.error.fix}", warn=True)


@operation()
def settled(facts: Facts) -> Iterator[Change]:
    """cloud-init has finished on a fresh machine, or is disabled or not installed."""
    if facts(system.cloud_init) in ("running", "not started", "not run"):
        wait = command("timeout", "900", "cloud-init", "status", "--wait", timeout_s=930, long=True)
        yield Change("run", "cloud-init", "still running", "finished", (wait,))
