"""The host's memory: its modules, its size beside that of the GPUs, and huge pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rigwright import catalogue
from rigwright.checks import Finding, check
from rigwright.core.desired import Hugepages
from rigwright.core.numbers import count
from rigwright.facts import Facts, memory, pci
from rigwright.facts.memory import Module


@check()
def modules(facts: Facts) -> Iterator[Finding]:
    """Every memory module runs at the speed that it is made for; modules of several sizes or speeds are reported, and
    channels with fewer modules than others, as the names of the slots tell them."""
    slots = facts(memory.modules)
    found = [one for one in slots or () if one.size_mib]
    if not found:
        without = "not known: the kernel shows no table of the firmware, as in a container"
        none = (
            f"the firmware describes {count(len(slots), 'slot')}, and no module"
            if slots
            else "the firmware describes none"
        )
        yield Finding("memory modules", "info", without if slots is None else none)
        return
    slow = [one for one in found if one.speed_mt_s and one.rated_mt_s and one.speed_mt_s < one.rated_mt_s]
    kinds = Counter(f"{one.size_mib >> 10} GiB, {one.speed_mt_s or '?'} MT/s" for one in found)
    seen = "; ".join(f"{number} of {kind}" for kind, number in kinds.most_common())
    if slow:
        rated = max(one.rated_mt_s or 0 for one in slow)
        cause = "modules of another speed, two in a channel, the processor's limit, or the firmware's setting"
        fix = "sudo dmidecode -t memory; the board's manual says which speed goes with the processor and the modules; then the firmware's memory speed"
        shown = f"{len(slow)} of {count(len(found), 'module')} below their speed: {seen}"
        yield Finding("memory modules", "warn", shown, f"{rated} MT/s", cause, fix, "host")
    elif len(kinds) > 1:
        cause = "channels that are filled differently give the processor less bandwidth"
        yield Finding("memory modules", "info", seen, "modules of one kind", cause, "", "host")
    else:
        yield Finding("memory modules", "pass", seen)
    yield from _channels(slots or ())


def _channels(slots: Sequence[Module]) -> Iterator[Finding]:
    """A finding if channels have different numbers of modules. Nothing where a slot's name tells no channel: then none
    is known."""
    names = {one.channel for one in slots}
    if "" in names or len(names) < 2:
        return
    filled = Counter(dict.fromkeys(names, 0))
    filled.update(one.channel for one in slots if one.size_mib)
    most = max(filled.values())
    fewer = sorted(name for name in names if filled[name] < most)
    if not fewer:
        return
    groups = [
        (number, [name for name in fewer if filled[name] == number])
        for number in sorted({filled[name] for name in fewer})
    ]
    told = "; ".join(
        f"{', '.join(some)}: {count(number, 'module') if number else 'no module'}" for number, some in groups
    )
    seen = f"{len(fewer)} of {len(names)} channels have fewer modules than the others ({told})"
    cause = "the names of the slots say so, and boards name them differently; a channel with fewer modules gives the processor less bandwidth"
    fix = "sudo dmidecode -t memory; the board's manual says which slots are a channel, and which to fill first"
    yield Finding("memory channels", "info", seen, f"{count(most, 'module')} in each channel", cause, fix, "host")


NEARLY = 0.9
"""The kernel reports less memory than the modules have: firmware and kernel keep some (assumed: up to a tenth)."""


@check()
def beside_gpus(facts: Facts) -> Iterator[Finding]:
    """Reports the host's memory beside that of all GPUs: with less, a checkpoint of all GPUs at once does not fit
    (assumed; frameworks differ)."""
    pages, gpus = facts.all(memory.huge_pages, pci.gpus)
    models = [catalogue.model_of(one.device_id) for one in gpus]
    sizes = [model.memory_mib if model else None for model in models]
    host = round(pages.memory_kib / (1 << 20))
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) or not known:
        yield Finding("host memory", "info", f"{host} GiB; the memory of the GPUs is not known")
        return
    of_gpus = sum(known) >> 10
    seen = f"{host} GiB, {of_gpus} GiB on the GPUs"
    if host >= NEARLY * of_gpus:
        yield Finding("host memory", "pass", seen)
        return
    cause = "what is loaded or saved for all GPUs at once goes through the host's memory"
    fix = "more memory; or sharded checkpoints (torch.distributed.checkpoint), loaded rank by rank"
    yield Finding("host memory", "info", seen, f"{of_gpus} GiB or more", cause, fix)


@check()
def hugepages_in_force(facts: Facts, *, hugepages: Hugepages) -> Iterator[Finding]:
    """The kernel has reserved the huge pages of the inventory, and transparent ones have its mode."""
    now = facts(memory.huge_pages)
    if hugepages.count is not None:
        seen = f"{now.total} of {now.size_kib >> 10} MiB"
        if now.total == hugepages.count:
            yield Finding("huge pages", "pass", seen)
        else:
            few = now.total < hugepages.count
            cause = (
                "the memory is fragmented, so the kernel found no more"
                if few
                else "another program or file reserves them"
            )
            fix = (
                "sudo reboot; or invoke provision"
                if few
                else "grep -rn nr_hugepages /etc/sysctl.conf /etc/sysctl.d; sudo dmesg | grep -i hugepage"
            )
            yield Finding("huge pages", "fail", seen, str(hugepages.count), cause, fix, "inventory")
    if hugepages.transparent is not None:
        right = now.transparent == hugepages.transparent
        fix = (
            ""
            if right
            else "invoke provision; another program may set it: systemctl list-units | grep -e tuned -e hugepage"
        )
        wanted = "" if right else hugepages.transparent
        yield Finding(
            "transparent huge pages",
            "pass" if right else "fail",
            now.transparent or "none",
            wanted,
            "",
            fix,
            "inventory",
        )
