"""Checks of the stress of all GPUs: that each stays on the bus, computes rightly, and is as fast and as cool as its
peers.

All of them read the document of a stress in the same run (`invoke stress`); provision and verify do not answer them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from rigwright import catalogue
from rigwright.catalogue.gpus import Tflops
from rigwright.checks import Finding, Verdict, check, of_symptom, of_text, own_past
from rigwright.checks.health import xid_finding
from rigwright.checks.own_past import SAME_CLOCK, SLOWER, SLOWER_LINK, SLOWER_MEMORY, Difference
from rigwright.checks.temperatures import COOL_CORE_C, HOTTER_C, HOTTER_IN_STRESS_C, NEAR_MEMORY_LIMIT_C
from rigwright.core import lazy_re
from rigwright.core.gpu_labels import place
from rigwright.core.numbers import count
from rigwright.core.schema import BusId
from rigwright.facts import Facts, pci
from rigwright.facts.gpu.figures import Dated
from rigwright.features.recorder.checks import LOW_V
from rigwright.features.stress import facts as stress
from rigwright.features.stress.facts import Event, Sensors, Stage, StageResult, Stress, StressedGpu, Supplies

Slots = dict[BusId, str]
MUCH_SLOWER = 0.10
"""From this share on it is a failure, not a warning (assumed)."""
LEAST_OF_PEAK = 0.6
"""cuBLAS reaches 80 to 95 % of a chip's figure with large products; below this share something is wrong (assumed)."""
BRAKED = 0.02
"""From this share of the samples on a brake is a finding; a single sample may be the begin of the load (assumed)."""
CORRECTED = 100
"""From this number of corrected memory errors within a stress the finding is a warning (assumed)."""

LEAST_SHARE = 0.6
"""A supply that delivers less than this share of what its parallel peers do has a poor connection (assumed: good ones
differ by 10 %)."""
LOADED_W = 200.0
"""From this power of the others on the shares of supplies are compared (assumed: below it they need not share)."""
_FAILED = lazy_re.compile(r"lost|fail|error|absent|out of range|config", re.IGNORECASE)
"""Words of ipmitool for a supply that does not deliver, of the sensor type power supply (IPMI 2.0, table 42-3)."""


def _at(gpu: StressedGpu, slots: Slots | None) -> str:
    return place(gpu.bus_id, slots)


def _lost(found: Stress) -> dict[int, Event]:
    """The first loss of each GPU."""
    return {event.gpu: event for event in reversed(found.events) if event.what == "lost" and event.gpu is not None}


# --- supplies


@check(needs=stress.measured)
def supplied(facts: Facts) -> Iterator[Finding]:
    """Under load the 12 V rail stays above 11.5 V, no supply reports a failure, and parallel supplies share the load.
    Read from the management controller, or from the kernel's sensors."""
    found = facts(stress.measured).supplies
    findings = [*_failed_supplies(found), *_shares(found)]
    if found.lowest_12v is not None and found.lowest_12v < LOW_V:
        seen = f"12 V fell to {found.lowest_12v:.2f} V after {found.lowest_at_s or 0:.0f} s"
        findings.append(of_symptom("power.rail_sag", "12 V", seen, f"{LOW_V:g} V or more", "host"))
    yield from findings
    if not findings and found.source is None:
        yield Finding(
            "supplies", "info", "not read: no ipmitool with a management controller, and no sensors of the board"
        )
    elif not findings:
        volts = f"12 V at {found.lowest_12v:.2f} V or more" if found.lowest_12v is not None else "no 12 V reading"
        watts = f"; {', '.join(f'{name} {value:.0f} W' for name, value in found.watts.items())}" if found.watts else ""
        yield Finding("supplies", "pass", f"{volts}{watts}")


def _failed_supplies(found: Supplies) -> Iterator[Finding]:
    for name, words in found.words.items():
        if _FAILED.search(words):
            yield of_symptom("power.supply_lost", name, words, "presence, and no failure", "host")


def _shares(found: Supplies) -> Iterator[Finding]:
    """A finding for each supply at work that delivers much less than the others at the highest load."""
    lost = {name.split()[0] for name, words in found.words.items() if _FAILED.search(words)}
    watts = {name: value for name, value in found.watts.items() if name.split()[0] not in lost}
    for name, value in watts.items():
        others = [other for key, other in watts.items() if key != name]
        if others and median(others) >= LOADED_W and value < LEAST_SHARE * median(others):
            seen = f"delivers {value:.0f} W, and its peers {median(others):.0f} W, at the highest load"
            yield of_symptom("power.share", name, seen, f"{LEAST_SHARE:.0%} of its peers or more", "peers")


# --- drops, hangs, Xids


@check(needs=stress.measured)
def survived(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """No GPU fell off the bus, hung or logged an error of the driver (Xid) under load. A failure names its stage and
    second."""
    found = facts(stress.measured)
    lost = _lost(found)
    for number, event in lost.items():
        yield _loss(found, found.gpus[number], event, slots)
    for event in found.events:
        if event.what == "xid" and event.gpu not in lost:
            yield _xid(found, event, slots)
        elif event.what in ("hang", "error") and not any(one.stage == event.stage for one in lost.values()):
            yield _failure(event)
    if not any(event.what != "wrong" for event in found.events):
        stages = [one.title for one in found.stages if one.outcome != "not run"]
        yield Finding(
            "GPUs under load", "pass", f"{count(len(found.gpus), 'GPU')} stayed through {count(len(stages), 'stage')}"
        )


_POWER = (
    "sudo ipmitool sdr type 'Power Supply': every supply is there and delivers; the 12 V rail under load stays above 11.6 V"
    " (sudo ipmitool sensor | grep -i 12V); tighten each 12 V terminal, one cable per plug; a missing supply goes back in,"
    " or add one; until then sudo nvidia-smi -pl and -lgc lower; then a cold boot, and invoke stress again"
)
_POWER_CAUSE = (
    "It was well while it worked alone, and fell off when others took power at the same time: the 12 V supply gives way"
    " (a supply that is out or too weak, a loose or worn 12 V connection)"
)


def _loss(found: Stress, gpu: StressedGpu, event: Event, slots: Slots | None) -> Finding:
    codes = sorted({one.code for one in found.events if one.what == "xid" and one.gpu == gpu.index and one.code})
    xids = f" (Xid {', '.join(map(str, codes))})" if codes else ""
    others = [one for one in _lost(found).values() if one.gpu != gpu.index]
    also = f"; {count(len(others), 'other GPU')} too" if others else ""
    seen = f"fell off the bus after {event.at_s:.0f} s, in the stage: {event.stage}{xids}{also}"
    alone = event.stage.startswith("alone") or event.stage == "together, 1 GPU"
    known = of_symptom("gpu.off_bus", _at(gpu, slots), seen, "an answer", "host", fix="" if alone else _POWER)
    return known if alone else replace(known, cause=_POWER_CAUSE)


def _xid(found: Stress, event: Event, slots: Slots | None) -> Finding:
    seen = f"Xid {event.code} after {event.at_s:.0f} s, in the stage: {event.stage}"
    if event.gpu is None:
        return Finding("the machine", "warn", seen, "none", "", f"invoke explain 'Xid {event.code}'", "host")
    gpu = found.gpus[event.gpu]
    return xid_finding(_at(gpu, slots), gpu.bus_id, event.code or 0, seen, event.text)


def _failure(event: Event) -> Finding:
    when = f"after {event.at_s:.0f} s: {event.text}"
    if event.what == "hang" and event.stage == "in step":
        return of_symptom("nccl.timeout", "all GPUs in step", f"a hang {when}", "an end", "host")
    fix = "sudo dmesg | grep -e NVRM -e Xid, then invoke explain 'ITS TEXT'"
    return of_text(
        event.text, event.stage, f"{'a hang' if event.what == 'hang' else 'an error'} {when}", "an end", fix=fix
    )


# --- results


_WRONG_LINK = "reseat it, or replace its riser, and invoke stress again; if it stays, its memory: nvidia-smi -q -i INDEX -d ECC; then return it"


@check(needs=stress.measured)
def exact(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """The same products give the same bits each time, and on each GPU of the same model; data that was copied to a GPU
    comes back."""
    found = facts(stress.measured)
    wrong: dict[int, list[Event]] = {}
    for event in found.events:
        if event.what == "wrong" and event.gpu is not None:
            wrong.setdefault(event.gpu, []).append(event)
    for number, events in wrong.items():
        gpu, first = found.gpus[number], events[0]
        seen = f"{count(len(events), 'time')} wrong, first after {first.at_s:.0f} s, in the stage: {first.stage}: {first.text}"
        names = {"INDEX": gpu.bus_id}
        if all(event.text.startswith("all-reduce") for event in events):
            yield of_symptom("nccl.wrong_data", _at(gpu, slots), seen, "the same bits each time", "host", names=names)
        elif all(event.text.startswith("copies") for event in events):
            fix = _WRONG_LINK.replace("INDEX", gpu.bus_id)
            cause = "its PCIe link or its memory changes data"
            yield Finding(_at(gpu, slots), "fail", seen, "the data that was sent", cause, fix, "host")
        else:
            yield of_symptom("gpu.wrong_results", _at(gpu, slots), seen, "the same bits each time", "host", names=names)
    odd = dict(_odd(found))
    for number, seen in odd.items():
        if number not in wrong:
            gpu = found.gpus[number]
            names = {"INDEX": gpu.bus_id}
            yield of_symptom("gpu.wrong_results", _at(gpu, slots), seen, "the bits of its peers", "peers", names=names)
    if not wrong and not odd:
        products = sum(one.number for stage in found.stages for result in stage.results for one in result.products)
        yield Finding("results", "pass", f"{products} products without a wrong bit")


def _odd(found: Stress) -> Iterator[tuple[int, str]]:
    """The GPUs whose product differs from that of most GPUs of the same model; of a draw all."""
    digests: dict[tuple[str, str], dict[int, str]] = {}
    for _, one in found.results("alone"):
        for kind, digest in one.digests.items():
            digests.setdefault((found.gpus[one.gpu].name, kind), {})[one.gpu] = digest
    for (_, name), of in digests.items():
        values = list(of.values())
        most = max(values, key=values.count)
        draw = values.count(most) * 2 <= len(values)
        for number, digest in of.items():
            if len(set(values)) > 1 and (draw or digest != most):
                yield (
                    number,
                    f"a product in {name.upper()} has other bits than {'its peer' if draw else 'those of its peers'}",
                )


# --- heat and brakes


@check(needs=stress.measured, follows=("gpu.",))
def cool(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """Under load no GPU is slowed down by heat or by a power brake, its memory stays below its limit, and none is much
    hotter than its peers."""
    found = facts(stress.measured)
    findings = [finding for gpu in found.gpus for finding in _hot(found, gpu, slots)]
    yield from findings
    if not findings:
        warmth = [one.core_max_c for stage in found.stages for one in stage.results if one.core_max_c is not None]
        seen = (
            f"up to {max(warmth):.0f} C, and nothing slowed the GPUs down" if warmth else "NVML reports no temperatures"
        )
        yield Finding("heat", "pass" if warmth else "info", seen)


def _hot(found: Stress, gpu: StressedGpu, slots: Slots | None) -> Iterator[Finding]:
    at, every = _at(gpu, slots), [one for stage in found.stages for one in stage.results if one.gpu == gpu.index]
    shares: dict[str, float] = {}
    for one in every:
        for reason, share in one.reasons.items():
            shares[reason] = max(shares.get(reason, 0.0), share)
    core, memory = _most(one.core_max_c for one in every), _most(one.memory_max_c for one in every)
    warmth = (
        f" at {core:.0f} C{f' (slowdown at {gpu.slowdown_c} C)' if gpu.slowdown_c else ''}" if core is not None else ""
    )
    near = memory is not None and gpu.memory_most_c is not None and memory >= gpu.memory_most_c - NEAR_MEMORY_LIMIT_C
    core_hot = core is not None and gpu.slowdown_c is not None and core >= gpu.slowdown_c
    by_driver = shares.get("heat, by the driver", 0.0) >= BRAKED
    slowed = True
    if shares.get("power brake", 0.0) >= BRAKED:
        yield of_symptom("power.brake", at, "slowed down by the power supply or the board", "full clocks", "host")
    elif shares.get("heat, by the hardware", 0.0) >= BRAKED or core_hot:
        yield of_symptom("thermal.hardware", at, f"slowed down by heat{warmth}", "full clocks", "host")
    elif near and (by_driver or (memory or 0) >= (gpu.memory_most_c or 0)):
        said = f"its memory is at {memory:.0f} C{', and the driver lowers its clock for it' if by_driver else ''}"
        verdict: Verdict | None = "fail" if by_driver else None
        yield of_symptom("thermal.memory", at, said, f"below {gpu.memory_most_c} C", "host", verdict=verdict)
    elif by_driver and memory is None and core is not None and core <= (gpu.slowdown_c or 0) - COOL_CORE_C:
        said = f"slowed down by the driver for heat, while the core is at {core:.0f} C: its memory, whose temperature NVML does not report"
        yield of_symptom("thermal.memory_junction", at, said, "full clocks", "host", verdict="fail")
    elif by_driver:
        yield of_symptom("thermal.software", at, f"slowed down by the driver{warmth}, for heat", "full clocks", "host")
    elif shares.get("hardware slowdown", 0.0) >= BRAKED:
        yield of_symptom("power.brake", at, f"slowed down by its hardware{warmth}", "full clocks", "host")
    else:
        slowed = False
    peers = [warm for other in _peers(found, gpu) if (warm := _hottest_together(found, other)) is not None]
    own = _hottest_together(found, gpu)
    if not slowed and own is not None and peers and own >= median(peers) + HOTTER_C:
        seen, wanted = f"{own:.0f} C under load, hotter than its peers", f"about {median(peers):.0f} C"
        yield of_symptom("thermal.one_hotter", at, seen, wanted, "peers")


def _peers(found: Stress, gpu: StressedGpu) -> list[StressedGpu]:
    return [other for other in found.gpus if other.name == gpu.name and other is not gpu]


def _hottest_together(found: Stress, gpu: StressedGpu) -> float | None:
    """Its highest temperature in the soak, in which all GPUs work as long as each other; None without one."""
    return _most(one.core_max_c for _, one in found.results("soak") if one.gpu == gpu.index)


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


# --- speed


class Slow(Struct, frozen=True):
    """A GPU that is slower than its peers with one kind of product in one stage: by which share, and at which share of
    their clock."""

    stage: Stage
    kind: str
    by: float
    clock: float | None
    peers: int
    sensors: Sensors


@check(needs=stress.measured, follows=("thermal.", "power.", "gpu.", survived))
def speed(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """Each GPU computes as fast as its peers of the same model: alone, and with all others. A slow GPU is slower at the
    same clocks, or at lower clocks; then the finding has the reason."""
    found = facts(stress.measured)
    findings = []
    for gpu in found.gpus:
        slow = list(_slow(found, gpu))
        if slow:
            findings.append(_slower(gpu, max(slow, key=lambda one: one.by), slots))
    yield from findings
    if not findings:
        yield Finding("speed", "pass", _equal(found))


def _slow(found: Stress, gpu: StressedGpu) -> Iterator[Slow]:
    """Where a GPU is slower than its peers. Stages with the same number of GPUs are compared."""
    peers = {other.index for other in _peers(found, gpu)}
    for name in ("alone", "together", "in step", "soak"):
        results = list(found.results(name))
        most = max((len(stage.gpus) for stage, _ in results), default=0)
        own = [(stage, one) for stage, one in results if one.gpu == gpu.index and len(stage.gpus) == most]
        for stage, one in own:
            for products in one.products:
                others = [
                    rate
                    for other_stage, other in results
                    if other.gpu in peers and len(other_stage.gpus) == most and (rate := other.rate(products.kind))
                ]
                if not others:
                    continue
                by = 1 - products.tflops / median(other.tflops for other in others)
                if by >= SLOWER:
                    clocks = [other.sm_mean_mhz for other in others if other.sm_mean_mhz]
                    clock = products.sm_mean_mhz / median(clocks) if clocks and products.sm_mean_mhz else None
                    yield Slow(stage, products.kind, by, clock, len(others), products)


_SAME_CLOCK_CAUSE = (
    "its clock promises more than it computes: a worn chip, a VBIOS of another card, or memory that is slow"
)
_SAME_CLOCK_FIX = (
    "compare its VBIOS with that of its peers (nvidia-smi -q -i INDEX | grep VBIOS); swap it with another position and invoke stress "
    "again: if the slowness moves with the GPU, return it"
)
_LOWER = {
    "power limit": ("its power limit is lower than that of its peers, or its chip needs more power for the same clock",
                    "invoke limits --show compares the limits; with equal limits: its cooler (heat costs power), else a chip that needs more"),
    "application clocks": ("its clocks are set lower than those of its peers", "invoke limits --show; invoke limits"),
    "heat, by the driver": ("heat", "its cooler: fan, dust, screws crosswise to their torque, new paste"),
    "heat, by the hardware": ("heat", "its cooler: fan, dust, screws crosswise to their torque, new paste"),
    "power brake": ("the power supply or the board brakes it", "invoke explain power.brake"),
    "hardware slowdown": ("its hardware brakes it", "invoke explain power.brake; invoke explain thermal.hardware"),
    "sync boost": ("it runs at the clock of the slowest GPU of its group", "nvidia-smi boost-slider; nvidia-smi -q -d CLOCK"),
}  # fmt: skip


def _slower(gpu: StressedGpu, slow: Slow, slots: Slots | None) -> Finding:
    """The finding on a slow GPU."""
    peers = f"its {count(slow.peers, 'peer')}" if slow.peers > 1 else "its peer"
    seen = f"{slow.by:.0%} slower than {peers} in {slow.kind.upper()} ({slow.stage.title})"
    verdict: Verdict = "fail" if slow.by >= MUCH_SLOWER else "warn"
    wanted = f"within {SLOWER:.0%} of its peers"
    names = gpu.bus_id
    if slow.clock is None:
        cause, fix = "NVML reports no clocks, so their part in it is not known", _SAME_CLOCK_FIX
    elif slow.clock >= 1 - SAME_CLOCK or slow.by > 3 * (1 - slow.clock):
        seen += " at the same clocks"
        cause, fix = _SAME_CLOCK_CAUSE, _SAME_CLOCK_FIX
    else:
        reason = max(slow.sensors.reasons, key=lambda name: slow.sensors.reasons[name], default=None)
        why = f", because: {reason}" if reason else ", for no reason that NVML tells"
        seen += f" at {1 - slow.clock:.0%} lower clocks{why}"
        cause, fix = (
            _LOWER[reason]
            if reason
            else ("a lower clock that NVML does not explain", "nvidia-smi -q -i INDEX -d CLOCK,PERFORMANCE")
        )
    return Finding(_at(gpu, slots), verdict, seen, wanted, cause, fix.replace("INDEX", names), "peers")


def _equal(found: Stress) -> str:
    models: dict[str, list[int]] = {}
    for gpu in found.gpus:
        models.setdefault(gpu.name, []).append(gpu.index)
    alike = max(map(len, models.values()), default=0)
    rates = [one.tflops for stage, result in found.results("soak") for one in result.products]
    speeds = (
        f"{min(rates):.1f} to {max(rates):.1f} TFLOPS in the soak" if rates else "no speed was measured in the soak"
    )
    return f"{speeds}; {'no GPU is slower than its peers' if alike > 1 else 'no GPU has a peer to compare with'}"


@check(needs=stress.measured, follows=("thermal.", "power.", "gpu.", survived, speed))
def as_model(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """Each GPU computes what its model can at its clock, where the catalogue knows that. So GPUs that are all slow are
    found too."""
    found, bus = facts.all(stress.measured, pci.gpus)
    models = {device.bus_id: catalogue.model_of(device.device_id) for device in bus}
    shares: list[float] = []
    for gpu in found.gpus:
        model = models.get(BusId(gpu.bus_id))
        if model is None or model.tflops is None:
            continue
        kinds = dict(_shares_of_peak(found, gpu, model.tflops))
        shares += kinds.values()
        kind = min(kinds, key=lambda name: kinds[name], default="")
        if kind and kinds[kind] < LEAST_OF_PEAK:
            seen = f"{kinds[kind]:.0%} of what the {model.label} can in {kind.upper()} at this clock"
            cause = "the driver, the CUDA libraries or a setting of the machine, if its peers are as slow; else the GPU"
            fix = "invoke explain MODEL; invoke verify; then another driver branch: invoke try --driver BRANCH"
            wanted = f"{LEAST_OF_PEAK:.0%} or more"
            yield Finding(_at(gpu, slots), "warn", seen, wanted, cause, fix.replace("MODEL", model.key), "catalogue")
    if not shares:
        yield Finding(
            "model's speed", "info", "the catalogue has no figure, or no clock was read", fix="docs/guide/stress.md"
        )
    elif min(shares) >= LEAST_OF_PEAK:
        yield Finding(
            "model's speed",
            "pass",
            f"{min(shares):.0%} to {max(shares):.0%} of the models' figures",
            source="catalogue",
        )


def _shares_of_peak(found: Stress, gpu: StressedGpu, peak: Tflops) -> Iterator[tuple[str, float]]:
    """Of each kind of product that it made alone, the share of its model's figure at the clock that it had."""
    for _, one in found.results("alone"):
        for products in one.products if one.gpu == gpu.index else ():
            figure = getattr(peak, products.kind)
            if figure and products.sm_mean_mhz:
                yield products.kind, products.tflops / (figure * products.sm_mean_mhz / peak.at_mhz)


# --- the past


@check(needs=stress.measured, follows=("thermal.", "power.", "gpu.", "pcie.", survived, cool, speed))
def as_before(
    facts: Facts, *, figures_before: dict[str, tuple[Dated, ...]] | None = None, slots: Slots | None = None
) -> Iterator[Finding]:
    """Each GPU is as fast, in products and copies, as in its earlier stresses on this machine, which are in the
    history. Stresses are compared if power limit, driver branch and CUDA runtime are the same and the duration is
    similar; otherwise a difference is shown with the settings that differ, and not judged."""
    found = facts(stress.measured)
    before = figures_before or {}
    dates = []
    yielded = False
    for figures in stress.figures(found):
        gpu = next(one for one in found.gpus if one.uuid == figures.uuid)
        difference = own_past.difference(figures, before.get(gpu.uuid, ()))
        if difference:
            yielded = True
            yield _unlike_before(_at(gpu, slots), difference, gpu.bus_id)
        elif at := own_past.compared_with(figures, before.get(gpu.uuid, ())):
            dates.append(at)
    if not yielded:
        known = any(before.get(gpu.uuid) for gpu in found.gpus)
        nothing = (
            "no earlier stress with these settings" if known else "no earlier stress of these GPUs on this machine"
        )
        seen = f"{count(len(dates), 'GPU')} as fast as {own_past.on_day(min(dates))}" if dates else nothing
        yield Finding("own past", "pass" if dates else "info", seen, source="past")


def _unlike_before(at: str, difference: Difference, bus_id: str) -> Finding:
    """The finding on a GPU whose speed differs from its earlier one."""
    if difference.settings:
        return Finding(at, "info", difference.words, "", "; ".join(difference.settings), "", "past")
    verdict: Verdict = "fail" if difference.unit == "TFLOPS" and difference.by >= MUCH_SLOWER else "warn"
    cause, fix = _cause_since(difference)
    wanted = f"about {difference.then:.1f} {difference.unit}"
    return Finding(at, verdict, difference.words, wanted, cause, fix.replace("INDEX", bus_id), "past")


_LINK_SINCE = "its PCIe link has fewer lanes or a lower generation than then, or it is at another slot"
_LINK_FIX = "sudo lspci -vvv -s INDEX | grep LnkSta; reseat it, another slot or riser"
_MEMORY_SINCE = "a lower memory clock than then, or memory that repairs errors"
_MEMORY_FIX = "nvidia-smi -q -i INDEX -d CLOCK,ECC"
_COOLER = "its cooler: fan, dust, screws crosswise to their torque, new paste; and the room"
_LOWER_SINCE = {
    **_LOWER,
    "power limit": (
        "it reaches the same power limit at a lower clock: heat costs power, or the chip needs more",
        _COOLER,
    ),
    "application clocks": ("its clocks are set lower than then", "invoke limits --show; invoke limits"),
}
_SAME_CLOCK_SINCE = "its clock promises more than it computes: memory or links that became slow, work of others beside it, or a worn chip"
_SAME_CLOCK_SINCE_FIX = "invoke stress again, with nothing else on the machine; if it stays, swap it with another position: if the slowness moves with the GPU, return it"


def _cause_since(difference: Difference) -> tuple[str, str]:
    """Cause and fix of a GPU that became slower with the same settings."""
    if difference.unit != "TFLOPS":
        return (_MEMORY_SINCE, _MEMORY_FIX) if "memory" in difference.name else (_LINK_SINCE, _LINK_FIX)
    if difference.clock is None:
        return "NVML reports no clocks, so their part in it is not known", _SAME_CLOCK_SINCE_FIX
    if difference.clock >= 1 - SAME_CLOCK:
        return _SAME_CLOCK_SINCE, _SAME_CLOCK_SINCE_FIX
    lower = f"its clock is {1 - difference.clock:.0%} lower"
    if difference.hotter_c is not None and difference.hotter_c >= HOTTER_IN_STRESS_C:
        return f"{lower}, and it is {difference.hotter_c:.0f} C hotter than then", _COOLER
    cause, fix = _LOWER_SINCE.get(difference.slowed_by, ("", "nvidia-smi -q -i INDEX -d CLOCK,PERFORMANCE"))
    return f"{lower}{f': {cause}' if cause else ', for no reason that NVML tells'}", fix


# --- copies and counters


@check(needs=stress.measured, follows=("pcie.", "gpu.", survived, cool))
def copies(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """The copies within the memory of a GPU, to it and back are as fast as those of its peers of the same model."""
    found = facts(stress.measured)
    alone = {one.gpu: one for _, one in found.results("alone")}
    findings = [finding for gpu in found.gpus if gpu.index in alone for finding in _copies(found, gpu, alone, slots)]
    yield from findings
    if not findings:
        rates = [
            rate for one in alone.values() for rate in (one.gb_s.to_device, one.gb_s.from_device) if rate is not None
        ]
        seen = f"{min(rates):.1f} to {max(rates):.1f} GB/s between host and GPU" if rates else "not measured"
        yield Finding("copies", "pass" if rates else "info", seen)


_WAYS: tuple[tuple[str, str, float, str, str], ...] = (
    ("memory", "its own memory", SLOWER_MEMORY, "lower memory clocks, or memory that repairs errors",
     "nvidia-smi -q -i INDEX -d CLOCK,ECC: compare memory clock and counters with those of a peer"),
    ("to_device", "copies to it", SLOWER_LINK, "fewer PCIe lanes or a lower generation than its peers have, or the other processor's memory",
     "sudo lspci -vvv -s INDEX | grep LnkSta; lspci -tv; reseat it, another slot or riser"),
    ("from_device", "copies from it", SLOWER_LINK, "fewer PCIe lanes or a lower generation than its peers have, or the other processor's memory",
     "sudo lspci -vvv -s INDEX | grep LnkSta; lspci -tv; reseat it, another slot or riser"),
)  # fmt: skip


def _copies(found: Stress, gpu: StressedGpu, alone: dict[int, StageResult], slots: Slots | None) -> Iterator[Finding]:
    for name, words, share, cause, fix in _WAYS:
        own = getattr(alone[gpu.index].gb_s, name)
        others = [
            rate
            for other in _peers(found, gpu)
            if other.index in alone and (rate := getattr(alone[other.index].gb_s, name))
        ]
        if own is None or not others or own > (1 - share) * median(others):
            continue
        seen = f"{words}: {own:.1f} GB/s, {1 - own / median(others):.0%} slower than its peers"
        yield Finding(
            _at(gpu, slots),
            "warn",
            seen,
            f"about {median(others):.1f} GB/s",
            cause,
            fix.replace("INDEX", gpu.bus_id),
            "peers",
        )


@check(needs=stress.measured, follows=("gpu.", "ecc."))
def counters(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """The counters of memory errors and of replays of the PCIe links did not rise under load."""
    found = facts(stress.measured)
    findings = [finding for gpu in found.gpus for finding in _risen(gpu, slots)]
    yield from findings
    if not findings:
        known = sum(gpu.after.pcie_replays is not None or gpu.after.ecc_uncorrected is not None for gpu in found.gpus)
        seen = f"none rose on {count(known, 'GPU')}" if known else "these GPUs report none"
        yield Finding("counters", "pass" if known else "info", seen)


def _risen(gpu: StressedGpu, slots: Slots | None) -> Iterator[Finding]:
    at, names = _at(gpu, slots), {"INDEX": gpu.bus_id}
    rise = {name: _rise(getattr(gpu.before, name), getattr(gpu.after, name)) for name in gpu.before.__struct_fields__}
    if rise["ecc_uncorrected"]:
        seen = f"{count(rise['ecc_uncorrected'], 'uncorrectable memory error')} under load"
        yield of_symptom("ecc.uncorrectable", at, seen, "none", "host", names=names)
    if rise["ecc_corrected"]:
        seen = f"{count(rise['ecc_corrected'], 'corrected memory error')} under load"
        if rise["ecc_corrected"] >= CORRECTED:
            yield of_symptom("ecc.corrected_many", at, seen, "none", "host", names=names)
        else:
            yield Finding(at, "info", seen, "none")
    if rise["pcie_replays"]:
        seen = f"{count(rise['pcie_replays'], 'replay')} of its PCIe link under load"
        yield of_symptom("pcie.errors", at, seen, "none", "host", names=names)


def _rise(before: int | None, after: int | None) -> int:
    return max(0, after - before) if before is not None and after is not None else 0
