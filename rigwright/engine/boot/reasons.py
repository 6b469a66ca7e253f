"""Why a boot that was tried once is not healthy, or ended by itself: what the host wrote down in it, compared with
before the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from rigwright.core import lazy_re
from rigwright.facts import pstore
from rigwright.facts.boot.trial import Trial, Words

_OF_CONTAINERS = lazy_re.compile(r"(docker|podman|cni|virbr|lxcbr|lxdbr|veth|cali|flannel)\S*|br-[0-9a-f]{12}")
"""Names of interfaces that container engines and libvirt make: their addresses come and go with these programs."""


class Reason(Struct, frozen=True):
    """Why a trial ended, and the last lines of its journal or of its kernel."""

    text: str
    said: tuple[str, ...] = ()


def unfinished(before: Words, then: Words) -> str:
    """systemd still starts units, and had started all of them before."""
    if then.get("state") != ("starting",) or before.get("state") == ("starting",):
        return ""
    return f"systemd did not finish its start{_list_with(': it waits for ', then.get('job', ()))}"


def failed_units(before: Words, then: Words) -> str:
    """A service that was active before has failed."""
    failed = [unit for unit in then.get("failed", ()) if unit in before.get("active", ()) and unit not in _SSH]
    return f"{', '.join(failed[:4])} failed, and ran before" if failed else ""


def addresses(before: Words, then: Words) -> str:
    """An interface has no address of a family that it had before, and no other interface has that address."""
    had, has = (_addresses(words) for words in (before, then))
    if not has and before and not had:
        return ""
    if not has:
        return f"it had no network: no interface had an address{_list_with(', before: ', _pairs(had))}"
    elsewhere = {address for _, address in has}
    lost = [pair for pair in had - has if pair[1] not in elsewhere and not _of_family(has, *pair)]
    return f"the address {_list_with('', _pairs(lost))} was missing" if lost else ""


def moved_addresses(before: Words, then: Words) -> str:
    """An interface has another address than before: a controller that connects to the old one does not reach it."""
    had, has = (_addresses(words) for words in (before, then))
    old = [pair for pair in had - has if _of_family(has, *pair)]
    new = [pair for pair in has - had if _of_family(had, *pair)]
    return (
        f"it had other addresses: {_list_with('', _pairs(new))} (before: {_list_with('', _pairs(old))})"
        if old and new
        else ""
    )


def _addresses(words: Words) -> frozenset[tuple[str, str]]:
    """Pairs of interface and address, without those of container engines."""
    pairs = (text.split() for text in words.get("address", ()))
    return frozenset((pair[0], pair[1]) for pair in pairs if len(pair) == 2 and not _OF_CONTAINERS.fullmatch(pair[0]))


def _of_family(pairs: frozenset[tuple[str, str]], name: str, address: str) -> bool:
    """Whether an interface has an address of the family (IPv4, IPv6) of another address."""
    return any(other == name and (":" in this) == (":" in address) for other, this in pairs)


def _pairs(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [" ".join(pair) for pair in sorted(pairs)]


def default_route(before: Words, then: Words) -> str:
    """There is no default route, and there was one before. Without any address that follows from it."""
    if not then.get("address"):
        return ""
    lost = [key for key in ("route", "route6") if before.get(key) and not then.get(key)]
    return f"it had no default route (before: {'; '.join(before[key][0] for key in lost)})" if lost else ""


def ssh_server(before: Words, then: Words) -> str:
    """No ssh server runs, and one did before, or nothing is known of before."""
    if then.get("ssh") or (before and not before.get("ssh")):
        return ""
    return f"no ssh server ran{_list_with(' (', then.get('sshd', ()), ')')}"


def full_disk(before: Words, then: Words) -> str:
    """A file system is full that was not before."""
    full = [folder for folder in then.get("full", ()) if folder not in before.get("full", ())]
    return f"{' and '.join(full)} {'was' if len(full) == 1 else 'were'} full" if full else ""


def refused_login(_before: Words, then: Words) -> str:
    """What sshd wrote of logins that it refused."""
    return _list_with("sshd said: ", tuple(dict.fromkeys(then.get("login", ()))))


def no_logins(_before: Words, then: Words) -> str:
    """The file that keeps users from logging in is there."""
    return "/run/nologin was there, which keeps users out" if "nologin" in then else ""


def packet_filter(before: Words, then: Words) -> str:
    """A unit that loads rules of a packet filter was started, and had not been before."""
    new = [unit for unit in then.get("filter", ()) if before and unit not in before.get("filter", ())]
    return _list_with("a packet filter was started that did not run before: ", new)


Rule = Callable[[Words, Words], str]
"""Tells what is worse in a boot (the second argument) than before it (the first, {} where nothing is known); "" for
nothing."""
_UNHEALTHY: tuple[Rule, ...] = (unfinished, addresses, default_route, ssh_server, full_disk, failed_units)
_KEPT_OUT: tuple[Rule, ...] = (moved_addresses, no_logins, refused_login, packet_filter)


def worse(before: Words, then: Words) -> tuple[str, ...]:
    """What is worse in a boot than before it, so that the boot is not healthy; () for nothing. `before` is {} where
    nothing is known."""
    if then.get("shell") or then.get("state") == ("maintenance",):
        return (f"it ended in an emergency shell{_list_with('; failed: ', then.get('failed', ()))}",)
    return tuple(text for rule in _UNHEALTHY if (text := rule(before, then)))


def obstacles_to_login(before: Words, then: Words) -> tuple[str, ...]:
    """What can keep a controller out of a boot that is healthy otherwise; () for nothing."""
    return tuple(text for rule in _KEPT_OUT if (text := rule(before, then)))


_SSH = ("ssh.service", "sshd.service")


def _list_with(intro: str, texts: Sequence[str], end: str = "") -> str:
    """Texts after an introduction; "" without any."""
    more = f" and {len(texts) - 4} more" if len(texts) > 4 else ""
    return f"{intro}{', '.join(texts[:4])}{more}{end}" if texts else ""


def reason(
    trial: Trial, unhealthy: Sequence[str], panic: pstore.Records | None = None, seen: Sequence[str] = ()
) -> Reason:
    """Why a trial ended.

    `unhealthy`: why rigwright did not confirm it. `panic`: what pstore kept since the trial was prepared. `seen`: what
    the controller saw while it waited for the host.
    """
    then, said = trial.words, trial.said
    if panic and panic.line:
        said = (*said, *panic.lines)
    if unhealthy:
        text = f"it was not healthy: {'; '.join(unhealthy)}"
    elif trial.stage == "not tried":
        text = "GRUB could not write grubenv, and started what ran before in its place"
    elif panic and panic.line and not then:
        began = "systemd was started, and then the" if trial.systemd else "the"
        text = f"{began} kernel stopped: {_TIME.sub('', panic.line)}"
    elif not trial.systemd:
        text = (
            "it never reached systemd: it found no root file system, the kernel panicked or hung, or the power failed"
        )
        text += _no_words(panic)
    elif not then:
        text = "systemd was started, and the host was reset before it wrote down more: a hang, a panic or a power cut"
        text += _no_words(panic)
    else:
        text = _of_words(trial, seen)
    return Reason(text, said)


def _of_words(trial: Trial, sightings: Sequence[str]) -> str:
    """Why a boot that wrote down how it was ended by itself: all causes that fit."""
    causes = worse(trial.before, trial.words)
    if trial.words.get("shell"):
        return "; ".join(causes)
    causes = (*causes, *sightings, *obstacles_to_login(trial.before, trial.words))
    return (
        "; ".join(causes) or "it ran, with network and an ssh server as before, and no controller confirmed it in time"
    )


_TIME = lazy_re.compile(r"^(?:\[[^\]]{1,30}\] ?){1,2}")
"""The time since the start of the kernel, and its processor or thread, before a line of its log."""


def _no_words(panic: pstore.Records | None) -> str:
    """Why there are no last words of the kernel, to follow a reason."""
    if panic is None or not panic.is_listed:
        return ""
    if panic.backend:
        late = ", and keeps none of the time before it was loaded" if panic.is_module else ""
        return f"; pstore ({panic.backend}) has no record of a panic{late}"
    if panic.uefi:
        return "; a panic's message would be lost: the kernel has no pstore backend (efi_pstore is not loaded)"
    why = "the host has no place for it (pstore has no backend: no UEFI, ERST or ramoops)"
    return f"; a panic's message would be lost: {why}"
