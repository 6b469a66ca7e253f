"""Removes the packages that rigwright installed, and restores the marks that it changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from rigwright.core import lazy_re
from rigwright.core.change import Change, Note
from rigwright.core.command import command, script
from rigwright.core.errors import HostError
from rigwright.core.numbers import count
from rigwright.core.shortening import first_of
from rigwright.facts import Facts, Unavailable, footprint, own_packages, system
from rigwright.facts.apt import dpkg
from rigwright.facts.own_packages import Installed, OwnPackage
from rigwright.operations import apt, operation

_OF_DRIVER = lazy_re.compile(
    r"(lib|firmware-|xserver-xorg-video-|linux-(modules|objects|signatures)-)?nvidia.*|(lib)?cuda.*"
)
_OF_NVIDIA = lazy_re.compile(r".*(@nvidia[.]com|pkg-nvidia-devel@).*")
_MOST_NAMED = 12
_OLDER = "an earlier version of rigwright installed packages and did not record them"


class _Removal(Struct, frozen=True):
    """`go`: packages to remove, with versions. `left`: packages of which only configuration is left. `stay`: the names
    of other packages, by reason."""

    go: dict[str, str]
    left: tuple[str, ...]
    stay: dict[str, list[str]]
    notes: tuple[str, ...] = ()


@operation()
def removable(facts: Facts) -> Iterator[Note]:
    """apt removes the packages that rigwright installed and no others, by its own simulation.

    Notes say which of them stay and why: another package needs them, somebody marked them as manually installed or
    holds them, or they are the running kernel. Raises HostError if apt would do anything else; Unavailable while dpkg
    has half-installed packages.
    """
    removal = _removal(facts)
    if removal.go:
        if facts(dpkg.dpkg_audit):
            raise Unavailable("known when dpkg is whole")
        _require_agreement(facts, removal.go)
    for reason, names in removal.stay.items():
        yield Note(f"{', '.join(sorted(names))}: {'stay' if len(names) > 1 else 'stays'}, {reason}")
    yield from map(Note, removal.notes)


@operation()
def removed(facts: Facts) -> Iterator[Change]:
    """The packages that rigwright installed are removed with their configuration: driver, CUDA, engines and
    dependencies.

    Packages from before rigwright stay in their present version; so do the packages of `own_packages.removable`. If an
    earlier version of rigwright installed packages without a record, packages of the driver that rigwright held are
    removed, and automatic packages of NVIDIA that no other needs. Images and volumes of Docker stay in /var/lib/docker.
    A reboot unloads the driver's module.
    """
    removal = _removal(facts)
    changes = [
        Change("remove", name, version, "", disruptive=True, leads_to="reboot" if "nvidia" in name else "")
        for name, version in removal.go.items()
    ]
    changes += [Change("remove", name, "its configuration", "", disruptive=True) for name in removal.left]
    if not changes:
        return
    *first, last = changes
    commands = (
        *((script(_DISABLE, *removal.go, timeout_s=120), apt.remove(list(removal.go))) if removal.go else ()),
        apt.purge_left([*removal.go, *removal.left]),
    )
    yield from first
    yield Change(last.action, last.subject, last.before, "", commands, disruptive=True, leads_to=last.leads_to)


@operation()
def marks_restored(facts: Facts) -> Iterator[Change]:
    """Packages whose mark rigwright changed are marked as automatically or manually installed, as before."""
    record = facts(own_packages.record)
    for mark in ("auto", "manual"):
        names = [each.name for each in record.packages if each.kind == f"was-{mark}"]
        if names:
            commands = (command("apt-mark", mark, *names), own_packages.RECORD_WORK)
            yield Change("change", f"apt-mark {mark}", f"{len(names)} not", ", ".join(names), commands)


_DISABLE = r"""
dpkg -L -- "$@" 2>/dev/null |
  sed -nE 's,^(/usr)?/lib/systemd/system/([A-Za-z0-9:._-]+\.(service|socket|timer|path))$,\2,p' |
  sort -u | while read -r unit; do systemctl disable --quiet -- "$unit" 2>/dev/null </dev/null || :; done
"""
"""Disables the units of packages: a purge leaves the link to a unit that rigwright enabled."""


def _removal(facts: Facts) -> _Removal:
    record, holds = facts.all(own_packages.record, footprint.recorded_holds)
    own = [each for each in record.packages if not each.kind.startswith("was-")]
    if not own and (record.whole or not holds):
        return _Removal({}, (), {})
    installed, kernel = facts.all(own_packages.installed, system.running_kernel)
    stay: dict[str, list[str]] = {}
    go: set[str] = set()
    for each in own:
        if each.there and each.name in installed:
            reason = _why_it_stays(each, holds, kernel)
            stay.setdefault(reason, []).append(each.name) if reason else go.add(each.name)
    unrecorded = set() if record.whole else set(_unrecorded(installed, holds, kernel)) - {each.name for each in own}
    go |= unrecorded
    for root, names in own_packages.needed(installed, go).items():
        stay.setdefault(f"{root} needs {'them' if len(names) > 1 else 'it'}", []).extend(names)
        go -= set(names)
    notes = _there_before(installed, holds, {each.name for each in own}) if record.whole else []
    if unrecorded & go:
        notes.append(f"{_OLDER}; these are taken for its: {', '.join(sorted(unrecorded & go))}")
    left = tuple(sorted(each.name for each in own if not each.there))
    return _Removal({name: installed[name].version for name in sorted(go)}, left, stay, tuple(notes))


def _why_it_stays(package: OwnPackage, holds: frozenset[str], kernel: str) -> str:
    """Why one of rigwright's packages is not removed; "" if it is."""
    if package.kind == "left":
        return "somebody installed it after rigwright had removed it"
    if package.kind == "auto" and not package.automatic:
        return "somebody marked it as manually installed (apt-mark manual)"
    if package.held and package.name not in holds:
        return "somebody holds it (apt-mark hold)"
    if _is_kernel(package.name, kernel):
        return f"the kernel {kernel} runs"
    return ""


def _is_kernel(name: str, kernel: str) -> bool:
    return name in (f"linux-image-{kernel}", f"linux-image-unsigned-{kernel}")


def _there_before(installed: Mapping[str, Installed], holds: Iterable[str], own: set[str]) -> list[str]:
    """The note on packages of the driver that rigwright held and did not install."""
    names = sorted(name for name in holds if name in installed and name not in own and _OF_DRIVER.fullmatch(name))
    if not names:
        return []
    were, it = ("were there before rigwright and stay", "them")
    if len(names) == 1:
        were, it = ("was there before rigwright and stays", "it")
    text = f"{count(len(names), 'package')} of the driver and of CUDA {were}: {first_of(names, _MOST_NAMED)}"
    return [f"{text}; sudo apt-get purge, on the host, removes {it}"]


def _unrecorded(installed: Mapping[str, Installed], holds: frozenset[str], kernel: str) -> Iterator[str]:
    """What an earlier version may have installed: packages of NVIDIA that it held, and automatic ones without a
    hold."""
    for name, package in installed.items():
        of_nvidia = _OF_DRIVER.fullmatch(name) or _OF_NVIDIA.fullmatch(package.maintainer)
        came_along = package.automatic and not package.held
        if of_nvidia and (name in holds or came_along) and not _is_kernel(name, kernel):
            yield name


def _require_agreement(facts: Facts, go: Mapping[str, str]) -> None:
    """Raises HostError unless apt would remove exactly these packages."""
    answer = facts(own_packages.purge(tuple(go)))
    others = sorted(answer.removes - go.keys())
    stay = sorted(go.keys() - answer.removes)
    found = answer.error
    if not found and others:
        found = f"apt would also remove {', '.join(others[:_MOST_NAMED])}"
    elif not found and answer.installs:
        found = f"apt would install {', '.join(answer.installs[:_MOST_NAMED])} instead"
    elif not found and stay:
        found = f"apt would not remove {', '.join(stay[:_MOST_NAMED])}"
    if found:
        fix = "sudo apt-get check, on the host, names packages that are broken already; "
        fix += "invoke remove without --driver leaves the packages"
        raise HostError("remove", found, "a plan for the packages that rigwright installed, and no others", fix)
