"""Checks of the stress of all GPUs: that each stays on the bus, computes rightly, and is as fast and as cool as its
peers.

All of them read the document of a stress in the same run (`invoke stress`); provision and verify do not answer them.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from rigwright import catalogue
from rigwright.checks import AGAIN, Finding, Verdict, check, of_symptom, of_text, own_past
from rigwright.checks.health import xid_finding
from rigwright.checks.own_past import SAME_CLOCK, SLOWER, SLOWER_LINK, SLOWER_MEMORY, Difference
from rigwright.checks.p2p import hang
from rigwright.checks.supplies import FAILED, unit_of
from rigwright.checks.temperatures import COOL_CORE_C, HOTTER_C, HOTTER_IN_STRESS_C, NEAR_MEMORY_LIMIT_C
from rigwright.core.gpu_labels import place
from rigwright.core.numbers import count
from rigwright.core.schema import BusId
from rigwright.facts import Facts, pci
from rigwright.facts.gpu.figures import Dated
from rigwright.features.recorder.checks import LOW_V
from rigwright.features.stress import facts as stress
from rigwright.features.stress.facts import (
    LEAST_SAMPLE_SHARE,
    Event,
    Products,
    Stage,
    StageResult,
    Stress,
    StressedGpu,
    highest,
)

Slots = dict[BusId, str]
MUCH_SLOWER = 0.10
"""From this share on it is a failure, not a warning (assumed)."""
LEAST_OF_PEAK = 0.6
"""cuBLAS reaches 80 to 95 % of a chip's figure with large products; below this share something is wrong (assumed)."""
CORRECTED = 100
"""From this number of corrected memory errors within a stress the finding is a warning (assumed)."""
LEAST_SHARE = 0.6
"""A supply that delivers less than this share of what its parallel peers do has a poor connection (assumed: good ones
differ by 10 %)."""
LOADED_W = 200.0
"""From this power of the others on the shares of supplies are compared (assumed: below it they need not share)."""
FALLEN_V = 0.2
"""A rail lower by so much than in an earlier stress gets worse (assumed: controllers read in steps of 0.06 V)."""
SAME_LOAD = 0.05
"""An earlier stress that drew less power by up to this share drew as much (assumed)."""


# --- supplies


@check(needs=stress.measured)
def supplied(facts: Facts, *, figures_before: dict[str, tuple[Dated, ...]] | None = None) -> Iterator[Finding]:
    """Under load the 12 V rail stays above 11.5 V and does not fall slowly from stress to stress, no supply reports a
    failure, and parallel supplies share the load. Read from the management controller, or from the kernel's sensors."""
    document = facts(stress.measured)
    supplies = document.supplies
    failed = {name: words for name, words in supplies.words.items() if FAILED.search(words)}
    wanted = "presence, and no failure"
    findings = [of_symptom("power.supply_lost", name, words, wanted, "host") for name, words in failed.items()]
    failed_units = set(map(unit_of, failed))
    watts = {name: value for name, value in supplies.watts.items() if unit_of(name) not in failed_units}
    for name, value in watts.items():
        others = [other for key, other in watts.items() if key != name]
        if others and median(others) >= LOADED_W and value < LEAST_SHARE * median(others):
            seen = f"delivers {value:.0f} W, and its peers {median(others):.0f} W, at the highest load"
            findings.append(of_symptom("power.share", name, seen, f"{LEAST_SHARE:.0%} of its peers or more", "peers"))
    if supplies.lowest_12v is not None and supplies.lowest_12v < LOW_V:
        seen = f"12 V fell to {supplies.lowest_12v:.2f} V after {supplies.lowest_at_s or 0:.0f} s"
        findings.append(of_symptom("power.rail_sag", "12 V", seen, f"{LOW_V:g} V or more", "host"))
    else:
        findings += _fall_of_12v(document, figures_before or {})
    yield from findings
    if not findings and supplies.source is None:
        seen = "not read: no ipmitool with a management controller, and no sensors of the board"
        yield Finding("supplies", "info", seen)
    elif not findings:
        volts = f"12 V at {supplies.lowest_12v:.2f} V or more" if supplies.lowest_12v is not None else "no 12 V reading"
        by_unit = ", ".join(f"{name} {value:.0f} W" for name, value in supplies.watts.items())
        yield Finding("supplies", "pass", f"{volts}; {by_unit}" if by_unit else volts)


def _fall_of_12v(document: Stress, before: dict[str, tuple[Dated, ...]]) -> Iterator[Finding]:
    """A finding if the 12 V rail is lower than in an earlier stress that drew as much power."""
    now, now_w = document.supplies.lowest_12v, sum(gpu.power_max_w or 0 for gpu in stress.figures(document))
    runs: dict[str, list[Dated]] = {}
    for dated in (dated for of_gpu in before.values() for dated in of_gpu if dated.figures.lowest_12v is not None):
        runs.setdefault(dated.run, []).append(dated)
    comparable = [
        (dated[0].figures.lowest_12v or 0.0, dated[0].at)
        for dated in runs.values()
        if sum(each.figures.power_max_w or 0 for each in dated) >= (1 - SAME_LOAD) * now_w
    ]
    then, at = max(comparable, default=(0.0, ""))
    if now is not None and then - now >= FALLEN_V:
        volts = ", ".join(f"{each:.2f}" for each, _ in sorted(comparable, key=lambda pair: pair[1])[-_SHOWN_VOLTS:])
        seen = f"12 V fell to {now:.2f} V; lowest of each stress: {volts}, {now:.2f} V"
        wanted = f"about {then:.2f} V, as {own_past.on_day(at)}"
        yield Finding("12 V", "warn", seen, wanted, _WORSE_JOINT, _WORSE_JOINT_FIX, "past")


_SHOWN_VOLTS = 6
_WORSE_JOINT = "a high-current connection gets worse (loose, warm or corroded), or a supply does"
_WORSE_JOINT_FIX = (
    "under load find the warm connection or plug; sudo poweroff; crimped ring terminals bolted together in place of"
    " wound wires, tighten all 12 V terminals; then invoke stress again: below 11.4 V GPUs fall off the bus"
)


# --- drops, hangs, Xids


@check(needs=stress.measured)
def survived(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """No GPU fell off the bus, hung or logged an error of the driver (Xid) under load. A failure names its stage and
    second."""
    document = facts(stress.measured)
    events = document.events
    losses = {event.gpu: event for event in reversed(events) if event.what == "lost" and event.gpu is not None}
    for number, loss in losses.items():
        yield _loss(document, document.gpus[number], loss, len(losses) - 1, slots)
    for event in events:
        xid = f"Xid {event.code} after {event.at_s:.0f} s, in the stage: {event.stage}"
        if event.what == "xid" and event.gpu is None:
            yield Finding("the machine", "warn", xid, "none", "", f"invoke explain 'Xid {event.code}'", "host")
        elif event.what == "xid" and event.gpu is not None and event.gpu not in losses:
            bus_id = document.gpus[event.gpu].bus_id
            yield xid_finding(place(bus_id, slots), bus_id, event.code or 0, xid, event.text)
        elif event.what in ("hang", "error") and event.stage not in {loss.stage for loss in losses.values()}:
            yield _failure(document, event)
    for error in document.errors:
        lacks = error.where == "NCCL"
        seen = f"no all-reduce: {error.what}" if lacks else error.what
        fix = f"{'sudo apt-get install libnccl2, on the host; then ' if lacks else ''}the same command again"
        yield Finding("stress", "unknown", seen, "all stages to their end", "", fix)
    if all(event.what == "wrong" for event in events):
        stages = [stage for stage in document.stages if stage.outcome != "not run"]
        seen = f"{count(len(document.gpus), 'GPU')} stayed through {count(len(stages), 'stage')}"
        whole = bool(stages) and len(stages) == len(document.stages)
        yield Finding("GPUs under load", "pass" if whole else "unknown", seen, "", "", AGAIN)


_POWER_FIX = (
    "sudo ipmitool sdr type 'Power Supply': every supply is there and delivers; the 12 V rail under load stays above"
    " 11.6 V (sudo ipmitool sensor | grep -i 12V); tighten each 12 V terminal, one cable per plug; a missing supply"
    " goes back in, or add one; until then sudo nvidia-smi -pl and -lgc lower; then a cold boot, and invoke stress"
    " again"
)
_POWER_CAUSE = (
    "It was well while it worked alone, and fell off when others took power at the same time: the 12 V supply gives way"
    " (a supply that is out or too weak, a loose or worn 12 V connection)"
)


def _loss(document: Stress, gpu: StressedGpu, loss: Event, others: int, slots: Slots | None) -> Finding:
    codes = sorted(
        {event.code for event in document.events if event.what == "xid" and event.gpu == gpu.index and event.code}
    )
    xids = f" (Xid {', '.join(map(str, codes))})" if codes else ""
    also = f"; {count(others, 'other GPU')} too" if others else ""
    seen = f"fell off the bus after {loss.at_s:.0f} s, in the stage: {loss.stage}{xids}{also}"
    alone = loss.stage.startswith("alone") or loss.stage == "together, 1 GPU"
    at, fix = place(gpu.bus_id, slots), "" if alone else _POWER_FIX
    finding = of_symptom("gpu.off_bus", at, seen, "an answer", "host", fix=fix)
    return finding if alone else replace(finding, cause=_POWER_CAUSE)


def _failure(document: Stress, event: Event) -> Finding:
    seen = f"{'a hang' if event.what == 'hang' else 'an error'} after {event.at_s:.0f} s: {event.text}"
    if event.what == "hang" and event.stage == "in step":
        names = [gpu.name for gpu in document.gpus]
        return hang(document.versions.driver, names, "all GPUs in step", seen, "an end")
    fix = "sudo dmesg | grep -e NVRM -e Xid, then invoke explain 'ITS TEXT'"
    return of_text(event.text, event.stage, seen, "an end", fix=fix)


# --- results


_WRONG_COPY_FIX = (
    "reseat it, or replace its riser, and invoke stress again; if it stays, its memory: nvidia-smi -q -i INDEX -d ECC;"
    " then return it"
)


@check(needs=stress.measured)
def exact(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """The same products give the same bits each time, and on each GPU of the same model; data that was copied to a GPU
    comes back."""
    document = facts(stress.measured)
    wrong: dict[int, list[Event]] = {}
    for event in document.events:
        if event.what == "wrong" and event.gpu is not None:
            wrong.setdefault(event.gpu, []).append(event)
    for number, events in wrong.items():
        bus_id, first = document.gpus[number].bus_id, events[0]
        at, names = place(bus_id, slots), {"INDEX": bus_id}
        seen = f"{count(len(events), 'time')} wrong, first after {first.at_s:.0f} s, in the stage: {first.stage}"
        seen += f": {first.text}"
        if all(event.text.startswith("copies") for event in events):
            cause, fix = "its PCIe link or its memory changes data", _WRONG_COPY_FIX.replace("INDEX", bus_id)
            yield Finding(at, "fail", seen, "the data that was sent", cause, fix, "host")
        else:
            all_reduce = all(event.text.startswith("all-reduce") for event in events)
            key = "nccl.wrong_data" if all_reduce else "gpu.wrong_results"
            yield of_symptom(key, at, seen, "the same bits each time", "host", names=names)
    unlike = dict(_unlike_peers(document))
    for number, seen in unlike.items():
        if number not in wrong:
            bus_id = document.gpus[number].bus_id
            at, names = place(bus_id, slots), {"INDEX": bus_id}
            yield of_symptom("gpu.wrong_results", at, seen, "the bits of its peers", "peers", names=names)
    if not wrong and not unlike:
        results = [result for stage in document.stages for result in stage.results]
        number = sum(products.number for result in results for products in result.products)
        yield Finding("results", "pass", f"{number} products without a wrong bit")


def _unlike_peers(document: Stress) -> Iterator[tuple[int, str]]:
    """The GPUs whose product differs from that of most GPUs of the same model; all of them if no product is in the
    majority."""
    digests: dict[tuple[str, str], dict[int, str]] = {}
    for _, result in document.results("alone"):
        for kind, digest in result.digests.items():
            digests.setdefault((document.gpus[result.gpu].name, kind), {})[result.gpu] = digest
    for (_, product), by_gpu in digests.items():
        values = list(by_gpu.values())
        most = max(values, key=values.count)
        draw = values.count(most) * 2 <= len(values)
        peers = "its peer" if draw else "those of its peers"
        for number, digest in by_gpu.items():
            if len(set(values)) > 1 and (draw or digest != most):
                yield number, f"a product in {product.upper()} has other bits than {peers}"


# --- heat and brakes


@check(needs=stress.measured, follows=("gpu.",))
def cool(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """Under load no GPU is slowed down by heat or by a power brake, its memory stays below its limit, and none is much
    hotter than its peers."""
    document = facts(stress.measured)
    findings = [finding for gpu in document.gpus for finding in _hot(document, gpu, slots)]
    yield from findings
    if not findings:
        hottest_c = highest(result.core_max_c for stage in document.stages for result in stage.results)
        if hottest_c is None:
            yield Finding("heat", "info", "NVML reports no temperatures")
        else:
            yield Finding("heat", "pass", f"up to {hottest_c:.0f} C, and nothing slowed the GPUs down")


def _hot(document: Stress, gpu: StressedGpu, slots: Slots | None) -> Iterator[Finding]:
    results = document.results_of(gpu)
    core_c = highest(result.core_max_c for _, result in results)
    memory_c = highest(result.memory_max_c for _, result in results)
    brakes = {
        reason for _, result in results for reason, share in result.reasons.items() if share >= LEAST_SAMPLE_SHARE
    }
    by_driver = "heat, by the driver" in brakes
    slowdown = f" (slowdown at {gpu.slowdown_c} C)" if gpu.slowdown_c else ""
    warmth = f" at {core_c:.0f} C{slowdown}" if core_c is not None else ""
    limit_c = gpu.memory_most_c
    near = memory_c is not None and limit_c is not None and memory_c >= limit_c - NEAR_MEMORY_LIMIT_C
    core_hot = core_c is not None and gpu.slowdown_c is not None and core_c >= gpu.slowdown_c
    key, seen, wanted = "", "", "full clocks"
    verdict: Verdict | None = None
    if "power brake" in brakes:
        key, seen = "power.brake", "slowed down by the power supply or the board"
    elif "heat, by the hardware" in brakes or core_hot:
        key, seen = "thermal.hardware", f"slowed down by heat{warmth}"
    elif near and (by_driver or (memory_c or 0) >= (limit_c or 0)):
        key, wanted, verdict = "thermal.memory", f"below {limit_c} C", "fail" if by_driver else None
        seen = f"its memory is at {memory_c:.0f} C{', and the driver lowers its clock for it' if by_driver else ''}"
    elif by_driver and memory_c is None and core_c is not None and core_c <= (gpu.slowdown_c or 0) - COOL_CORE_C:
        key, verdict = "thermal.memory_junction", "fail"
        seen = f"slowed down by the driver for heat, while the core is at {core_c:.0f} C"
        seen += ": its memory, whose temperature NVML does not report"
    elif by_driver:
        key, seen = "thermal.software", f"slowed down by the driver{warmth}, for heat"
    elif "hardware slowdown" in brakes:
        key, seen = "power.brake", f"slowed down by its hardware{warmth}"
    if key:
        yield of_symptom(key, place(gpu.bus_id, slots), seen, wanted, "host", verdict=verdict)
        return
    own_c, *others_c = (
        highest(result.core_max_c for _, result in document.results("soak") if result.gpu == each.index)
        for each in (gpu, *_peers(document, gpu))
    )
    peers_c = [hottest_c for hottest_c in others_c if hottest_c is not None]
    if own_c is not None and peers_c and own_c >= median(peers_c) + HOTTER_C:
        seen, wanted = f"{own_c:.0f} C under load, hotter than its peers", f"about {median(peers_c):.0f} C"
        yield of_symptom("thermal.one_hotter", place(gpu.bus_id, slots), seen, wanted, "peers")


def _peers(document: Stress, gpu: StressedGpu) -> list[StressedGpu]:
    return [other for other in document.gpus if other.name == gpu.name and other is not gpu]


# --- speed


class Slow(Struct, frozen=True):
    """A GPU that is slower than its peers with one kind of product in one stage: by which share, and at which share of
    their clock (None: not known)."""

    stage: Stage
    products: Products
    by: float
    clock: float | None
    peers: int


@check(needs=stress.measured, follows=("thermal.", "power.", "gpu.", survived))
def speed(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """Each GPU computes as fast as its peers of the same model: alone, and with all others. A slow GPU is slower at the
    same clocks, or at lower clocks; then the finding has the reason."""
    document = facts(stress.measured)
    findings = []
    for gpu in document.gpus:
        if slow := max(_slow(document, gpu), key=lambda slow: slow.by, default=None):
            findings.append(_slower(gpu, slow, slots))
    yield from findings
    if findings:
        return
    rates = [products.tflops for _, result in document.results("soak") for products in result.products]
    speeds = (
        f"{min(rates):.1f} to {max(rates):.1f} TFLOPS in the soak" if rates else "no speed was measured in the soak"
    )
    alike = any(_peers(document, gpu) for gpu in document.gpus)
    compared = "no GPU is slower than its peers" if alike else "no GPU has a peer to compare with"
    yield Finding("speed", "pass", f"{speeds}; {compared}")


def _slow(document: Stress, gpu: StressedGpu) -> Iterator[Slow]:
    """Where a GPU is slower than its peers. Stages with the same number of GPUs are compared."""
    peers = {other.index for other in _peers(document, gpu)}
    for name in ("alone", "together", "in step", "soak"):
        results = list(document.results(name))
        most = max((len(stage.gpus) for stage, _ in results), default=0)
        results = [(stage, result) for stage, result in results if len(stage.gpus) == most]
        own = [(stage, products) for stage, one in results if one.gpu == gpu.index for products in one.products]
        for stage, products in own:
            others = [rate for _, other in results if other.gpu in peers and (rate := other.products_of(products.kind))]
            by = 1 - products.tflops / median(other.tflops for other in others) if others else 0.0
            if by >= SLOWER:
                clocks = [other.sm_mean_mhz for other in others if other.sm_mean_mhz]
                clock = products.sm_mean_mhz / median(clocks) if clocks and products.sm_mean_mhz else None
                yield Slow(stage, products, by, clock, len(others))


_NO_CLOCKS = "NVML reports no clocks, so their part in it is not known"
_SAME_CLOCK_CAUSE = (
    "its clock promises more than it computes: a worn chip, a VBIOS of another card, or memory that is slow"
)
_SAME_CLOCK_FIX = (
    "compare its VBIOS with that of its peers (nvidia-smi -q -i INDEX | grep VBIOS); swap it with another position and"
    " invoke stress again: if the slowness moves with the GPU, return it"
)
_COOLER = "its cooler: fan, dust, screws crosswise to their torque, new paste"
_LOWER = {
    "power limit": ("its power limit is lower than that of its peers, or its chip needs more power for the same clock",
                    "invoke limits --show compares the limits; with equal limits: its cooler (heat costs power), else a"
                    " chip that needs more"),
    "application clocks": ("its clocks are set lower than those of its peers", "invoke limits --show; invoke limits"),
    "heat, by the driver": ("heat", _COOLER),
    "heat, by the hardware": ("heat", _COOLER),
    "power brake": ("the power supply or the board brakes it", "invoke explain power.brake"),
    "hardware slowdown": ("its hardware brakes it", "invoke explain power.brake; invoke explain thermal.hardware"),
    "sync boost": ("it runs at the clock of the slowest GPU of its group",
                   "nvidia-smi boost-slider; nvidia-smi -q -d CLOCK"),
}  # fmt: skip
"""By the reason for lower clocks: cause and fix."""


def _slower(gpu: StressedGpu, slow: Slow, slots: Slots | None) -> Finding:
    """The finding on a slow GPU."""
    peers = f"its {count(slow.peers, 'peer')}" if slow.peers > 1 else "its peer"
    seen = f"{slow.by:.0%} slower than {peers} in {slow.products.kind.upper()} ({slow.stage.title})"
    verdict: Verdict = "fail" if slow.by >= MUCH_SLOWER else "warn"
    if slow.clock is None:
        cause, fix = _NO_CLOCKS, _SAME_CLOCK_FIX
    elif slow.clock >= 1 - SAME_CLOCK or slow.by > 3 * (1 - slow.clock):
        seen += " at the same clocks"
        cause, fix = _SAME_CLOCK_CAUSE, _SAME_CLOCK_FIX
    else:
        reasons = slow.products.reasons
        reason = max(reasons, key=lambda name: reasons[name], default=None)
        why = f", because: {reason}" if reason else ", for no reason that NVML tells"
        seen += f" at {1 - slow.clock:.0%} lower clocks{why}"
        unexplained = "a lower clock that NVML does not explain", "nvidia-smi -q -i INDEX -d CLOCK,PERFORMANCE"
        cause, fix = _LOWER[reason] if reason else unexplained
    wanted, fix = f"within {SLOWER:.0%} of its peers", fix.replace("INDEX", gpu.bus_id)
    return Finding(place(gpu.bus_id, slots), verdict, seen, wanted, cause, fix, "peers")


@check(needs=stress.measured, follows=("thermal.", "power.", "gpu.", survived, speed))
def as_model(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """Each GPU computes what its model can at its clock, where the catalogue knows that. So GPUs that are all slow are
    found too."""
    document, bus = facts.all(stress.measured, pci.gpus)
    models = {device.bus_id: catalogue.model_of(device.device_id) for device in bus}
    shares: list[float] = []
    for gpu in document.gpus:
        model, alone = models.get(BusId(gpu.bus_id)), document.alone.get(gpu.index)
        peak = model.tflops if model else None
        kinds = {
            products.kind: products.tflops / (figure * products.sm_mean_mhz / peak.at_mhz)
            for products in (alone.products if alone else ())
            if peak and (figure := getattr(peak, products.kind)) and products.sm_mean_mhz
        }
        shares += kinds.values()
        kind = min(kinds, key=lambda name: kinds[name], default=None)
        if model and kind and kinds[kind] < LEAST_OF_PEAK:
            seen = f"{kinds[kind]:.0%} of what the {model.label} can in {kind.upper()} at this clock"
            cause = "the driver, the CUDA libraries or a setting of the machine, if its peers are as slow; else the GPU"
            fix = f"invoke explain {model.key}; invoke verify; then another driver branch: invoke try --driver BRANCH"
            at, wanted = place(gpu.bus_id, slots), f"{LEAST_OF_PEAK:.0%} or more"
            yield Finding(at, "warn", seen, wanted, cause, fix, "catalogue")
    if not shares:
        seen = "the catalogue has no figure, or no clock was read"
        yield Finding("model's speed", "info", seen, fix="docs/guide/stress.md")
    elif min(shares) >= LEAST_OF_PEAK:
        seen = f"{min(shares):.0%} to {max(shares):.0%} of the models' figures"
        yield Finding("model's speed", "pass", seen, source="catalogue")


# --- the past


@check(needs=stress.measured, follows=("thermal.", "power.", "gpu.", "pcie.", survived, cool, speed))
def as_before(
    facts: Facts, *, figures_before: dict[str, tuple[Dated, ...]] | None = None, slots: Slots | None = None
) -> Iterator[Finding]:
    """Each GPU is as fast, in products and copies, as in its earlier stresses on this machine, which are in the
    history. Stresses are compared if power limit, driver branch and CUDA runtime are the same and the duration is
    similar; otherwise a difference is shown with the settings that differ, and not judged."""
    document, before = facts(stress.measured), figures_before or {}
    by_uuid = {gpu.uuid: gpu for gpu in reversed(document.gpus)}
    differs, dates = False, []
    for figures in stress.figures(document):
        bus_id, earlier = by_uuid[figures.uuid].bus_id, before.get(figures.uuid, ())
        if difference := own_past.difference(figures, earlier):
            differs = True
            yield _unlike_before(place(bus_id, slots), difference, bus_id)
        elif at := own_past.compared_with(figures, earlier):
            dates.append(at)
    if differs:
        return
    if dates:
        seen = f"{count(len(dates), 'GPU')} as fast as {own_past.on_day(min(dates))}"
    elif any(before.get(gpu.uuid) for gpu in document.gpus):
        seen = "no earlier stress with these settings"
    else:
        seen = "no earlier stress of these GPUs on this machine"
    yield Finding("own past", "pass" if dates else "info", seen, source="past")


def _unlike_before(at: str, difference: Difference, bus_id: str) -> Finding:
    """The finding on a GPU whose speed differs from its earlier one."""
    if difference.settings:
        return Finding(at, "info", difference.words, "", "; ".join(difference.settings), "", "past")
    verdict: Verdict = "fail" if difference.unit == "TFLOPS" and difference.by >= MUCH_SLOWER else "warn"
    cause, fix = _cause_since(difference)
    wanted = f"about {difference.then:.1f} {difference.unit}"
    return Finding(at, verdict, difference.words, wanted, cause, fix.replace("INDEX", bus_id), "past")


_LINK_SINCE = (
    "its PCIe link has fewer lanes or a lower generation than then, or it is at another slot",
    "sudo lspci -vvv -s INDEX | grep LnkSta; reseat it, another slot or riser",
)
_MEMORY_SINCE = (
    "a lower memory clock than then, or memory that repairs errors",
    "nvidia-smi -q -i INDEX -d CLOCK,ECC",
)
_ROOM = f"{_COOLER}; and the room"
_LOWER_SINCE = {
    **_LOWER,
    "power limit": (
        "it reaches the same power limit at a lower clock: heat costs power, or the chip needs more",
        _ROOM,
    ),
    "application clocks": ("its clocks are set lower than then", "invoke limits --show; invoke limits"),
}
_SAME_CLOCK_SINCE_CAUSE = (
    "its clock promises more than it computes: memory or links that became slow, work of others beside it, or a worn"
    " chip"
)
_SAME_CLOCK_SINCE_FIX = (
    "invoke stress again, with nothing else on the machine; if it stays, swap it with another position: if the slowness"
    " moves with the GPU, return it"
)


def _cause_since(difference: Difference) -> tuple[str, str]:
    """Cause and fix of a GPU that became slower with the same settings."""
    if difference.unit != "TFLOPS":
        return _MEMORY_SINCE if "memory" in difference.name else _LINK_SINCE
    if difference.clock is None:
        return _NO_CLOCKS, _SAME_CLOCK_SINCE_FIX
    if difference.clock >= 1 - SAME_CLOCK:
        return _SAME_CLOCK_SINCE_CAUSE, _SAME_CLOCK_SINCE_FIX
    lower = f"its clock is {1 - difference.clock:.0%} lower"
    if difference.hotter_c is not None and difference.hotter_c >= HOTTER_IN_STRESS_C:
        return f"{lower}, and it is {difference.hotter_c:.0f} C hotter than then", _ROOM
    cause, fix = _LOWER_SINCE.get(difference.slowed_by, ("", "nvidia-smi -q -i INDEX -d CLOCK,PERFORMANCE"))
    return f"{lower}{f': {cause}' if cause else ', for no reason that NVML tells'}", fix


# --- copies and counters


@check(needs=stress.measured, follows=("pcie.", "gpu.", survived, cool))
def copies(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """The copies within the memory of a GPU, to it and back are as fast as those of its peers of the same model."""
    document = facts(stress.measured)
    alone = document.alone
    findings = [finding for gpu in document.gpus for finding in _slow_copies(document, gpu, alone, slots)]
    yield from findings
    if not findings:
        rates = [rate for result in alone.values() for rate in (result.gb_s.to_device, result.gb_s.from_device)]
        known = [rate for rate in rates if rate is not None]
        seen = f"{min(known):.1f} to {max(known):.1f} GB/s between host and GPU" if known else "not measured"
        yield Finding("copies", "pass" if known else "unknown", seen, "", "", AGAIN)


_LINK = (
    "fewer PCIe lanes or a lower generation than its peers have, or the other processor's memory",
    "sudo lspci -vvv -s INDEX | grep LnkSta; lspci -tv; reseat it, another slot or riser",
)
_MEMORY = (
    "lower memory clocks, or memory that repairs errors",
    "nvidia-smi -q -i INDEX -d CLOCK,ECC: compare memory clock and counters with those of a peer",
)
_COPIES = (
    ("memory", "its own memory", SLOWER_MEMORY, *_MEMORY),
    ("to_device", "copies to it", SLOWER_LINK, *_LINK),
    ("from_device", "copies from it", SLOWER_LINK, *_LINK),
)
"""The name of each kind of copies, the same in words, the share that counts, cause and fix."""


def _slow_copies(
    document: Stress, gpu: StressedGpu, alone: dict[int, StageResult], slots: Slots | None
) -> Iterator[Finding]:
    compared = [alone[each.index].gb_s for each in _peers(document, gpu) if each.index in alone]
    for name, words, share, cause, fix in _COPIES if gpu.index in alone else ():
        own = getattr(alone[gpu.index].gb_s, name)
        others = [rate for gb_s in compared if (rate := getattr(gb_s, name))]
        if own is not None and others and own <= (1 - share) * median(others):
            seen = f"{words}: {own:.1f} GB/s, {1 - own / median(others):.0%} slower than its peers"
            wanted, fix = f"about {median(others):.1f} GB/s", fix.replace("INDEX", gpu.bus_id)
            yield Finding(place(gpu.bus_id, slots), "warn", seen, wanted, cause, fix, "peers")


@check(needs=stress.measured, follows=("gpu.", "ecc."))
def counters(facts: Facts, *, slots: Slots | None = None) -> Iterator[Finding]:
    """The counters of memory errors and of replays of the PCIe links did not rise under load."""
    gpus = facts(stress.measured).gpus
    findings = [finding for gpu in gpus for finding in _risen(gpu, slots)]
    yield from findings
    if not findings:
        known = sum(gpu.after.pcie_replays is not None or gpu.after.ecc_uncorrected is not None for gpu in gpus)
        seen = f"none rose on {count(known, 'GPU')}" if known else "these GPUs report none"
        yield Finding("counters", "pass" if known else "info", seen)


def _risen(gpu: StressedGpu, slots: Slots | None) -> Iterator[Finding]:
    at = place(gpu.bus_id, slots)
    for name, noun, of, key in (
        ("ecc_uncorrected", "uncorrectable memory error", "", "ecc.uncorrectable"),
        ("ecc_corrected", "corrected memory error", "", "ecc.corrected_many"),
        ("pcie_replays", "replay", " of its PCIe link", "pcie.errors"),
    ):
        before, after = getattr(gpu.before, name), getattr(gpu.after, name)
        rise = after - before if before is not None and after is not None else 0
        seen = f"{count(rise, noun)}{of} under load"
        if name == "ecc_corrected" and 0 < rise < CORRECTED:
            yield Finding(at, "info", seen, "none")
        elif rise > 0:
            yield of_symptom(key, at, seen, "none", "host", names={"INDEX": gpu.bus_id})
