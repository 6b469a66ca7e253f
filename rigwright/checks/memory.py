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
    """Every memory module runs at its rated speed. Modules of several sizes or speeds are reported, and channels with
    fewer modules than others, by the names of the slots."""
    slots = facts(memory.modules)
    filled = [slot for slot in slots or () if slot.size_mib]
    if not filled:
        seen = (
            f"the firmware describes {count(len(slots), 'slot')}, and no module"
            if slots
            else "the firmware describes none"
        )
        seen = "not known: the kernel shows no table of the firmware, as in a container" if slots is None else seen
        yield Finding("memory modules", "info", seen)
        return
    slow = [slot for slot in filled if slot.speed_mt_s and slot.rated_mt_s and slot.speed_mt_s < slot.rated_mt_s]
    kinds = Counter(f"{slot.size_mib >> 10} GiB, {slot.speed_mt_s or '?'} MT/s" for slot in filled)
    seen = "; ".join(f"{number} of {kind}" for kind, number in kinds.most_common())
    if slow:
        rated = max(slot.rated_mt_s or 0 for slot in slow)
        cause = "modules of another speed, two in a channel, the processor's limit, or the firmware's setting"
        fix = (
            "sudo dmidecode -t memory; the board's manual says which speed goes with the processor and the modules; "
            "then the firmware's memory speed"
        )
        seen = f"{len(slow)} of {count(len(filled), 'module')} below their speed: {seen}"
        yield Finding("memory modules", "warn", seen, f"{rated} MT/s", cause, fix, "host")
    elif len(kinds) > 1:
        cause = "channels that are filled differently give the processor less bandwidth"
        yield Finding("memory modules", "info", seen, "modules of one kind", cause, "", "host")
    else:
        yield Finding("memory modules", "pass", seen)
    yield from _channels(slots or ())


def _channels(slots: Sequence[Module]) -> Iterator[Finding]:
    """A finding if channels have different numbers of modules; none if the name of a slot does not contain its
    channel."""
    modules = {slot.channel: 0 for slot in slots}
    for slot in slots:
        modules[slot.channel] += bool(slot.size_mib)
    most = max(modules.values(), default=0)
    fewer: dict[int, list[str]] = {}
    for name, number in sorted(modules.items()):
        if number < most:
            fewer.setdefault(number, []).append(name)
    if "" in modules or not fewer:
        return
    groups = "; ".join(
        f"{', '.join(names)}: {count(number, 'module') if number else 'no module'}"
        for number, names in sorted(fewer.items())
    )
    total = sum(map(len, fewer.values()))
    seen = f"{total} of {len(modules)} channels have fewer modules than the others ({groups})"
    cause = (
        "the names of the slots say so, and boards name them differently; a channel with fewer modules gives the "
        "processor less bandwidth"
    )
    fix = "sudo dmidecode -t memory; the board's manual says which slots are a channel, and which to fill first"
    yield Finding("memory channels", "info", seen, f"{count(most, 'module')} in each channel", cause, fix, "host")


NEARLY = 0.9
"""The kernel reports at least this share of the memory of the modules: firmware and kernel keep the rest (assumed)."""


@check()
def beside_gpus(facts: Facts) -> Iterator[Finding]:
    """The host has at least as much memory as all GPUs; otherwise a checkpoint of all GPUs at once does not fit
    (assumed; frameworks differ). Less is information."""
    pages, gpus = facts.all(memory.huge_pages, pci.gpus)
    models = [model for gpu in gpus if (model := catalogue.model_of(gpu.device_id))]
    known = [model.memory_mib for model in models if model.memory_mib is not None]
    host = round(pages.memory_kib / (1 << 20))
    if len(known) < len(gpus) or not known:
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
    """The kernel has reserved the huge pages of the inventory, and transparent huge pages have the inventory's mode."""
    now = facts(memory.huge_pages)
    if hugepages.count is not None:
        seen, wanted = f"{now.total} of {now.size_kib >> 10} MiB", str(hugepages.count)
        if now.total == hugepages.count:
            yield Finding("huge pages", "pass", seen)
        elif now.total < hugepages.count:
            cause = "the memory is fragmented, so the kernel found no more"
            yield Finding("huge pages", "fail", seen, wanted, cause, "sudo reboot; or invoke provision", "inventory")
        else:
            fix = "grep -rn nr_hugepages /etc/sysctl.conf /etc/sysctl.d; sudo dmesg | grep -i hugepage"
            yield Finding("huge pages", "fail", seen, wanted, "another program or file reserves them", fix, "inventory")
    if hugepages.transparent is not None:
        subject, seen = "transparent huge pages", now.transparent or "none"
        if now.transparent == hugepages.transparent:
            yield Finding(subject, "pass", seen, source="inventory")
        else:
            fix = "invoke provision; another program may set it: systemctl list-units | grep -e tuned -e hugepage"
            yield Finding(subject, "fail", seen, hugepages.transparent, "", fix, "inventory")
