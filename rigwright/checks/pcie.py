"""The PCIe bus of the GPUs: links, memory windows, ACS, errors. Needs no driver."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from rigwright.catalogue import Rig
from rigwright.checks import Finding, check, of_symptom
from rigwright.core.gpu_labels import place
from rigwright.core.schema import BusId
from rigwright.facts import Facts, pcie, system
from rigwright.facts.pcie import Function, Link

AWAKE = 5
"""Up to this performance state a GPU's link runs at full speed (every output that was examined has P0 or P2 under
load)."""
GB_S_OF_LANE = {1: 0.2, 2: 0.4, 3: 0.79, 4: 1.57, 5: 3.15, 6: 6.3}
"""The bandwidth of a lane by generation: 0.8 of its line rate, as measured with Gen3 x1 (0.8 GB/s), Gen3 x16 (12 to 13)
and Gen4 x16 (25)."""


@check()
def links(facts: Facts, *, rig: Rig | None = None, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """Every GPU's link, and every link above it, has the lanes and, if the GPU is active, the speed that both ends
    support. A slot with fewer lanes than the card is reported with its bandwidth."""
    functions, states = facts.all(pcie.functions, pcie.states)
    gpus = [function for function in functions.values() if function.is_gpu]
    fine: Counter[str] = Counter()
    above: set[str] = set()
    for gpu in gpus:
        at = place(gpu.address, slots)
        if not gpu.answers:
            yield of_symptom("gpu.off_bus", at, "its PCI config space reads as all ones", "an answer", "host")
            continue
        peers = [
            function
            for function in gpus
            if function is not gpu and function.ids == gpu.ids and function.most == gpu.most and function.answers
        ]
        child, port = gpu, functions.get(gpu.above)
        wrong = _link(child, port, at, states.get(gpu.address), peers)
        if wrong:
            yield wrong
        elif gpu.now:
            slower = gpu.most is not None and gpu.now.generation < _ceiling(gpu, port).generation
            fine[f"{gpu.now}{f' idle, {_ceiling(gpu, port)} under load' if slower else ''}"] += 1
        yield from _slot(gpu, port, at, (slots or {}).get(BusId(gpu.address), ""), rig)
        while port and (child := functions.get(port.above)) and (port := functions.get(child.above)):
            if child.address not in above and (
                wrong := _link(child, port, f"bridge {child.address} above {at}", None, [])
            ):
                yield wrong
            above.add(child.address)
    if fine:
        yield Finding("links", "pass", ", ".join(f"{number} x {link}" for link, number in fine.items()))
    if not gpus:
        yield of_symptom("gpu.missing", "GPUs", "not on the PCI bus", "a GPU", "host")


def _ceiling(child: Function, port: Function | None) -> Link:
    """The best link that both ends support."""
    ends = [end.most for end in (child, port) if end and end.most]
    return Link(min(end.generation for end in ends), min(end.width for end in ends))


def _link(child: Function, port: Function | None, at: str, state: int | None, peers: list[Function]) -> Finding | None:
    """The finding for a slow or narrow link; None if the link is as good as possible, or its GPU is idle."""
    if child.now is None or child.most is None:
        return None
    most = _ceiling(child, port)
    if child.now.width < most.width:
        return of_symptom("pcie.narrow", at, str(child.now), str(most), "host", verdict="fail")
    if child.now.generation >= most.generation:
        return None
    if state is not None and state <= AWAKE:
        seen = f"{child.now} of {most}, and the GPU is active (P{state})"
        return of_symptom("pcie.slow", at, seen, str(most), "host")
    faster = [peer for peer in peers if peer.now and peer.now.generation == most.generation]
    if state is None and peers and len(faster) == len(peers):
        seen = f"{child.now} of {most}, and the other GPUs are faster"
        return of_symptom("pcie.slow", at, seen, str(most), "peers")
    return None


def _slot(gpu: Function, port: Function | None, at: str, position: str, rig: Rig | None) -> Iterator[Finding]:
    """A finding for a slot that is narrower than its card: a warning if the rig has a full slot there, otherwise
    information."""
    if not port or not port.most or not gpu.most or port.most.width >= gpu.most.width:
        return
    slot = _ceiling(gpu, port)
    has, could = (round(GB_S_OF_LANE[link.generation] * link.width, 1) for link in (slot, gpu.most))
    seen = f"a slot of {slot} for a card of {gpu.most}: about {has:g} GB/s instead of {could:g}"
    if rig is not None and position in rig.gpus and position not in rig.lanes:
        yield of_symptom("pcie.narrow_slot", at, seen, str(gpu.most), "rig", verdict="warn")
    else:
        yield of_symptom("pcie.narrow_slot", at, seen, verdict="info")


@check()
def memory_window(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """The firmware assigned a BAR1 window to every GPU: Above 4G Decoding is on, or not needed."""
    gpus = [gpu for gpu in facts(pcie.functions).values() if gpu.is_gpu and gpu.answers]
    sizes = Counter(gpu.bar1_bytes >> 20 for gpu in gpus)
    for gpu in gpus:
        if not gpu.bar1_bytes:
            at = place(gpu.address, slots)
            yield of_symptom("bios.above4g", at, "no BAR1 window was assigned", "a window", "host")
    if SMALL_MIB in sizes:
        seen = f"{sizes[SMALL_MIB]} x {SMALL_MIB} MiB"
        yield of_symptom("bios.small_bar1", "memory window (BAR1)", seen)
    rest = ", ".join(
        f"{number} x {f'{mib >> 10} GiB' if mib >= 1024 else f'{mib} MiB'}"
        for mib, number in sorted(sizes.items())
        if mib not in (0, SMALL_MIB)
    )
    if rest:
        yield Finding("memory window (BAR1)", "pass", rest)


SMALL_MIB = 256
"""The size of a BAR1 window without Resizable BAR."""
VIRTUAL = "qemu|kvm|vmware|virtualbox|xen|bochs|openstack|google compute|virtual machine|hvm"
"""Words in the board names of virtual machines."""


@check()
def acs(facts: Facts, *, rig: Rig | None = None) -> Iterator[Finding]:
    """No bridge above the GPUs redirects peer-to-peer traffic to the root complex (ACS). A virtual machine needs that;
    for GPUs that do not use PCIe peers it is information."""
    functions, board = facts.all(pcie.functions, system.board)
    bridges = [function.address for function in functions.values() if function.redirects]
    gpus = sum(function.is_gpu for function in functions.values())
    if not bridges or gpus < 2 or re.search(VIRTUAL, str(board).lower()):
        why = "one GPU" if gpus < 2 else "a virtual machine needs it" if bridges else "no bridge redirects"
        yield Finding("ACS", "pass", why)
        return
    short = " ".join(address.removeprefix("0000:") for address in bridges)
    switch = f"for bridge in {short}; do sudo setpci -s $bridge ECAP_ACS+0x6.w=0000; done"
    seen = f"{len(bridges)} bridges above the GPUs redirect peer-to-peer traffic"
    other_path = {"nvlink": "NVLink", "nvswitch": "NVSwitch", "none": "host memory"}.get(rig.p2p.path if rig else "")
    if other_path:
        seen += f"; it does not affect these GPUs (they use {other_path})"
        fix = f"not needed for these GPUs; to switch it off until the next boot: {switch}"
        yield of_symptom("p2p.acs", "ACS", seen, verdict="info", fix=fix)
    else:
        line = {"sudo setpci -s BRIDGE ECAP_ACS+0x6.w=0000": switch}
        yield of_symptom("p2p.acs", "ACS", seen, "none", "catalogue", names=line)


MANY = 100
"""From this number of corrected errors since boot a link is bad; a few are normal when a link is trained (assumed)."""


@check()
def errors(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """The kernel counted no transmission errors (AER) at the GPUs and the ports above them, or few corrected errors."""
    functions = facts(pcie.functions)
    counted = [function for function in functions.values() if function.corrected_errors is not None]
    bad = [function for function in counted if (function.corrected_errors or 0) >= MANY or function.uncorrected_errors]
    for function in bad:
        seen = f"{function.corrected_errors} corrected and {function.uncorrected_errors or 0} other errors since boot"
        at = place(function.address, slots) if function.is_gpu else f"bridge {function.address}"
        yield of_symptom("pcie.errors", at, seen, "none", "host")
    if not bad:
        few = sum(function.corrected_errors or 0 for function in counted)
        seen = f"{few or 'none'}{' corrected' if few else ''} since boot" if counted else "not counted by this kernel"
        yield Finding("PCIe errors (AER)", "pass", seen)
