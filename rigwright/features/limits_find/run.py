"""Plans a sweep over the limits of a host's GPUs, runs it, and proves that the limits are as before."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Sequence

from msgspec.structs import replace

from rigwright import catalogue
from rigwright.core.command import script
from rigwright.core.desired import Limits
from rigwright.core.errors import HostError, Interrupted, RigwrightError, Unreachable, UsageError
from rigwright.core.gpu_labels import SHORT_UUID
from rigwright.core.numbers import count
from rigwright.engine import onhost_program, own_programs
from rigwright.engine.gpu_use import gpu_use
from rigwright.engine.host_run import HostRun
from rigwright.engine.host_variables import HostVariables
from rigwright.engine.onhost_program import OnhostProgram
from rigwright.engine.p2p import nccl_test, wheels as wheel_copy
from rigwright.engine.p2p.nccl_test import NcclTestOptions
from rigwright.facts import Unavailable, Unreadable, pci, system, systemd
from rigwright.facts.gpu import gpus as gpu
from rigwright.facts.gpu.gpus import Gpu, Locks
from rigwright.facts.nccl.document import FOLDER
from rigwright.facts.own_programs import at_work
from rigwright.features.limits_find import facts as limits_sweep, points as limit_points
from rigwright.features.limits_find.facts import SweepDocument
from rigwright.features.limits_find.options import LimitsFindOptions
from rigwright.features.limits_find.points import Group, Point, Supplies, Sweep, SweepPlan
from rigwright.features.power.draw import setting_of

NAME = "sweep"
SETTLE_S, MEASURED_S = 30.0, 70.0
"""Times of each point: the driver limits an average, and the chip warms up for a minute (assumed)."""
SIMULATED_SETTLE_S, SIMULATED_MEASURED_S = 1.5, 1.5
"""A simulated GPU settles within a second; its power meter shows the average of one."""
LEFT_S, SIMULATED_LEFT_S = 120, 15
"""The program on the host ends by itself after so long without contact; this machine touches its file every 4 s."""
LOWEST_CLOCK_SHARE = 0.5
"""The share of the highest clock where a sweep begins. A lower clock saves little power (docs/guide/limits_find.md)."""
FEWEST_CLOCKS = 3
LONGEST = 300
"""Characters of an error in a message."""


# --- the plan


def plan(run: HostRun, variables: HostVariables, options: LimitsFindOptions) -> SweepPlan:
    """The plan of a sweep. It waits for a program that an ended command left, and puts back the limits of that sweep.

    Raises HostError if GPUs are in use or no limit can be set, UsageError for a range that the GPUs do not have.
    """
    run.store.forget()
    facts = (gpu.gpus, gpu.locked, gpu.processes, gpu.holders, at_work, limits_sweep.left, pci.gpus, system.simulated)
    run.read(facts)
    own_programs.await_left(run, NAME)
    run.read_unknown(facts)
    if run.value(limits_sweep.left) and _put_back(run):
        run.store.forget()
        run.read(facts)
    cards, locks = run.value(gpu.gpus), run.value(gpu.locked)
    if lost := next((card for card in cards if card.lost), None):
        problem = f"GPU {lost.bus_id} cannot be reached: {lost.lost}"
        raise HostError(run.host.name, problem, "GPUs that all answer", f"invoke verify --host {run.host.name}")
    if use := gpu_use(run):
        problem = f"{use}, and beside their work a sweep says nothing"
        raise HostError(
            run.host.name, problem, "idle GPUs", "wait for their end, or end them; then the same command again"
        )
    if options.clocks:
        run.read((gpu.supported_clocks,))
    groups, notes = _groups(run, cards, locks, options)
    supplies = limit_points.supplies_of(variables.rig, groups)
    points, ends = _points(groups, supplies, options)
    notes += _notes(groups, cards, locks, variables.desired.limits, options.clocks)
    simulated = bool(run.value(system.simulated))
    sweep = Sweep(
        datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "MHz" if options.clocks else "W",
        {group.key: f"{len(group.uuids)} x {group.name}" for group in groups},
        before={card.uuid: _in_force(card, locks, options.clocks) for card in cards},
        points=tuple(points),
        supplies=supplies.name or supplies.unknown,
        ends=ends,
    )
    settle_s, seconds = (SIMULATED_SETTLE_S, SIMULATED_MEASURED_S) if simulated else (SETTLE_S, MEASURED_S)
    all_gpus = sum(len(group.uuids) for group in groups) == len(cards)
    return SweepPlan(tuple(groups), supplies, sweep, settle_s, seconds, tuple(notes), all_gpus, simulated)


_PUT_BACK = """
case $(systemctl show -p SubState --value -- "$2") in running|start*|stop*) exit 75;; esac
python3 "$1/limits_sweep.py" restore
"""


def _put_back(run: HostRun) -> bool:
    """Puts back the limits that an ended sweep left changed; False while a sweep is at work. Raises HostError."""
    answer = run.transport.run([script(_PUT_BACK, FOLDER, onhost_program.UNIT, timeout_s=60)])[0]
    if answer.code not in (0, 75):
        *_, why = answer.error_text.splitlines() or ["no answer"]
        problem = f"an earlier sweep ended without its limits put back, and they cannot be now: {why[:LONGEST]}"
        host = f"--host {run.host.name}"
        fix = f"invoke verify {host}; invoke limits {host} sets those of the inventory"
        raise HostError(run.host.name, problem, "GPUs that take a limit", fix)
    if answer.code == 0:
        run.note("an earlier sweep ended without its limits put back; that is done now")
    return answer.code == 0


def _in_force(card: Gpu, locks: Locks, clocks: bool) -> int | None:
    """The power limit in force, W, or the clock limit, MHz; None if unknown."""
    if not clocks:
        return None if card.power_limit_w is None else round(card.power_limit_w)
    lock = locks.get((card.uuid, "graphics"))
    return lock[1] if lock else card.application_clocks.graphics_mhz if card.application_clocks else None


def _groups(
    run: HostRun, cards: Sequence[Gpu], locks: Locks, options: LimitsFindOptions
) -> tuple[list[Group], list[str]]:
    """The groups with their ranges; a note for each GPU whose limit cannot be set. Raises HostError without a group."""
    models = {device.bus_id: catalogue.model_of(device.device_id) for device in run.value(pci.gpus)}
    kinds: dict[str, list[Gpu]] = {}
    for card in cards:
        model = models.get(card.bus_id)
        kinds.setdefault(model.key if model else card.uuid, []).append(card)
    groups, fixed = [], []
    for key, equal in kinds.items():
        model = models.get(equal[0].bus_id)
        if options.clocks:
            group = _clock_group(run, key, equal, locks, model is None or "locked_graphics" in model.clock_verbs)
        else:
            group = _power_group(key, equal, locks)
        if group is None:
            fixed += [f"{card.name} at {card.bus_id}" for card in equal]
        else:
            groups.append(_within_options(group, options))
    what = "graphics clocks" if options.clocks else "power limit"
    if not groups:
        other = "without --clocks: its power limit" if options.clocks else "--clocks: its graphics clocks"
        problem = f"no GPU reports a range for its {what} ({', '.join(fixed[:3])})"
        raise HostError(run.host.name, problem, f"a GPU whose {what} can be set", other)
    return groups, [f"the {what} of {place} cannot be set; it computes along as it is" for place in fixed]


def _power_group(key: str, equal: Sequence[Gpu], locks: Locks) -> Group | None:
    """From the lowest limit that all GPUs support to the lowest default, so that no GPU exceeds its own default."""
    lows, highs = [card.power_min_w for card in equal], [card.power_default_w or card.power_max_w for card in equal]
    if None in lows or None in highs:
        return None
    low, high = max(watts or 0 for watts in lows), min(watts or 0 for watts in highs)
    if low >= high:
        return None
    uuids, clock = tuple(card.uuid for card in equal), _clock(equal, locks)
    return Group(key, equal[0].name, uuids, "power_limit_w", math.ceil(low), int(high), in_force=clock)


def _clock(equal: Sequence[Gpu], locks: Locks) -> int | None:
    """The highest graphics clock that the limits in force permit, MHz; None if one of the GPUs has no limit."""
    clocks = []
    for card in equal:
        lock, pair = locks.get((card.uuid, "graphics")), card.application_clocks
        if lock:
            clocks.append(lock[1])
        elif pair is not None and pair != card.default_application_clocks:
            clocks.append(pair.graphics_mhz)
        else:
            return None
    return max(clocks)


def _clock_group(run: HostRun, key: str, equal: Sequence[Gpu], locks: Locks, lockable: bool) -> Group | None:
    """From half of the highest clock to the highest clock that all GPUs list.

    It sets application clocks if the GPUs have them and no lock, which would overrule them, is in force; otherwise
    locked clocks.
    """
    try:
        supported = run.store(gpu.supported_clocks)
    except (Unavailable, Unreadable):
        return None
    locked = any((card.uuid, "graphics") in locks for card in equal)
    pairs = [card.application_clocks for card in equal]
    memory = pairs[0].memory_mhz if pairs[0] and pairs.count(pairs[0]) == len(pairs) and not locked else 0
    lists = [
        {pair.graphics_mhz for pair in supported.get(card.uuid, ()) if not memory or pair.memory_mhz == memory}
        for card in equal
    ]
    listed = tuple(sorted(set.intersection(*lists)))
    if not (memory or lockable) or len(listed) < FEWEST_CLOCKS:
        return None
    low = next(mhz for mhz in listed if mhz >= LOWEST_CLOCK_SHARE * listed[-1])
    watts = max((round(card.power_limit_w) for card in equal if card.power_limit_w), default=None)
    uuids = tuple(card.uuid for card in equal)
    kind: limit_points.Kind = "application_clocks" if memory else "locked_graphics_mhz"
    return Group(key, equal[0].name, uuids, kind, low, listed[-1], listed, memory, watts)


def _within_options(group: Group, options: LimitsFindOptions) -> Group:
    """The group with the range of the options. Raises UsageError if the GPUs do not support the range."""
    least = group.listed[0] if group.listed else group.low
    low, high = options.lowest or group.low, options.highest or group.high
    unit = "MHz" if options.clocks else "W"
    for flag, value in (("--lowest", low), ("--highest", high)):
        if not least <= value <= group.high:
            problem = f"{value} {unit} is outside of what {group.name} takes"
            raise UsageError(flag, problem, f"{least} to {group.high} {unit}")
    if low >= high:
        raise UsageError("--lowest", f"{low} is not below {high} {unit}", "a lowest limit below the highest")
    return replace(group, low=low, high=high)


def _points(
    groups: Sequence[Group], supplies: Supplies, options: LimitsFindOptions
) -> tuple[list[Point], Point | None]:
    """The points, and the lowest that the supplies do not carry. Raises HostError if they carry no limit."""
    top = supplies.highest(groups)
    ends = None
    if top is None or top < 1:
        shares = [step / limit_points.SHARES for step in range(limit_points.SHARES + 1)]
        trials = (supplies.point(groups, limit_points.at(groups, share)) for share in shares)
        ends = next(trial for trial in trials if trial.verdict == "does not fit")
    if not options.beyond_supplies and ends is not None:
        unit = "MHz" if options.clocks else "W"
        beyond = f"{limit_points.in_words(ends.limits, unit)}: {ends.why}"
        risk = "--beyond-supplies, at your risk"
        if top is None:
            problem = f"its supplies do not carry the lowest limit, {beyond}"
            raise HostError("power supplies", problem, "limits that they carry", f"--lowest; or {risk}")
        if options.highest is not None:
            carried = limit_points.in_words(limit_points.at(groups, top), unit)
            problem = f"the supplies do not carry {beyond}"
            raise UsageError("--highest", problem, f"up to {carried}", f"or {risk}")
    share = 1.0 if options.beyond_supplies or top is None else top
    return [supplies.point(groups, limits) for limits in limit_points.spread(groups, share, options.points)], ends


def _notes(
    groups: Sequence[Group], cards: Sequence[Gpu], locks: Locks, limits: Limits | None, clocks: bool
) -> list[str]:
    what, unit = ("power", "W") if clocks else ("clock", "MHz")
    notes = [
        f"{group.name}: the {what} limit in force, {group.in_force} {unit}, stays, and every point is measured with it"
        + ("" if clocks else "; --clocks measures the clocks")
        for group in groups
        if group.in_force is not None
    ]
    setting = setting_of(limits)
    if not clocks and setting and setting.graphics_mhz and any(_clock([card], locks) is None for card in cards):
        notes.append(
            "the inventory limits the clocks too, and that is not in force now: invoke limits first, to measure with it"
        )
    all_locked = all((card.uuid, "graphics") in locks for card in cards)
    if any(group.kind == "locked_graphics_mhz" for group in groups) and not all_locked:
        notes.append(
            "no driver reports locked clocks: a lock that was set by hand is gone afterwards; one that rigwright set"
            " comes back"
        )
    return notes


# --- the run


def measure(run: HostRun, planned: SweepPlan, wheels: str) -> Sweep:
    """Runs the sweep. Whatever happens, the limits are as before afterwards, and are read to prove it.

    `wheels`: a source of libraries, as in NcclTestOptions. Raises HostError if the sweep could not run, a GPU was lost
    or a limit is not as before, Interrupted, and Unreachable.
    """
    try:
        document = _run(run, planned, wheels)
    except (Interrupted, HostError) as error:
        _require_limits_as_before(run, planned.sweep, error)
        raise
    _require_limits_as_before(run, planned.sweep)
    if document.lost:
        raise lost(run.host.name, document)
    if document.outcome == "could not run":
        reason = document.errors[0].what[:LONGEST] if document.errors else "no reason was given"
        fix = f"invoke verify --host {run.host.name}"
        raise HostError(run.host.name, f"the sweep could not run: {reason}", "CUDA, cuBLAS and NVML", fix)
    points = list(planned.sweep.points)
    for swept in document.points:
        if 0 <= swept.number < len(points):
            points[swept.number] = points[swept.number].with_measurement(swept.tflops, swept.sensors or ())
    errors = {error.where[:60]: error.what[:LONGEST] for error in document.errors}
    if not document.points:
        problem = f"nothing was measured: {next(iter(errors.values()), 'no point was measured')}"
        raise HostError(NAME, problem, "a measurement", "invoke verify --tags p2p")
    return replace(
        planned.sweep,
        gpus=tuple(f"{device.bus_id} {device.uuid}" for device in document.gpus),
        points=tuple(points),
        named=limit_points.best_points(points),
        errors=errors,
        seconds=document.seconds,
    )


def lost(host: str, document: SweepDocument) -> HostError:
    """The error for GPUs that were lost during the sweep, after the limits of the others were read."""
    gpus = [document.gpus[each.gpu] for each in document.lost]
    names = ", ".join(f"{device.bus_id} ({device.uuid[:SHORT_UUID]})" for device in gpus)
    first = document.lost[0]
    reason = f"GPU {names} was lost at {first.where or 'a point'}: {first.what[:LONGEST]}"
    fix = (
        f"invoke explain gpu.off_bus; after a cold boot invoke verify --host {host}, then the same command with"
        " --highest below that limit: a supply that gives way is one cause"
    )
    problem = f"{reason}; the limits of the others are as before"
    return HostError(host, problem, "GPUs that stay on the bus at every point", fix)


def _run(run: HostRun, planned: SweepPlan, wheels: str) -> SweepDocument:
    """The document of the program. It uses the libraries of the host, or copies if the host lacks libraries."""
    try:
        document = _run_once(run, planned, ())
        lacks_libraries = any(mistake.where == "libraries" for mistake in document.errors)
        if document.outcome != "could not run" or not lacks_libraries:
            return document
        folders = nccl_test.libraries(run, NcclTestOptions(wheels=wheels))
        if folders:
            return _run_once(run, planned, folders)
    except wheel_copy.NoWheels as error:
        problem = f"the libraries for the load are missing: {error}"
        raise HostError(run.host.name, problem, "cuBLAS", error.fix) from None
    source = f"--wheels {nccl_test.LAB_WHEELS}" if planned.simulated else "--wheels fetch, or --wheels DIR"
    raise HostError(run.host.name, f"the host lacks libraries: {document.errors[0].what[:LONGEST]}", "cuBLAS", source)


def _run_once(run: HostRun, planned: SweepPlan, folders: Sequence[str]) -> SweepDocument:
    limit_s = round(180 + len(planned.sweep.points) * (planned.settle_s + planned.seconds) * 1.5)
    words = ["sweep", "--points", json.dumps(planned.rules), "--timeout-s", str(limit_s)]
    words += ["--settle-s", f"{planned.settle_s:g}", "--seconds", f"{planned.seconds:g}"]
    values = dict.fromkeys(value for value in planned.sweep.before.values() if value is not None)
    before = f"{'/'.join(map(str, values))} {planned.sweep.unit}" if values else "the limits of before"
    program = OnhostProgram(
        "limits_sweep.py",
        words,
        limit_s,
        NAME,
        folders,
        "limits_sweep.py restore",
        at_end=f"puts {before} back",
        watched_s=SIMULATED_LEFT_S if planned.simulated else LEFT_S,
    )
    return onhost_program.result(run, program, limits_sweep.swept)


def _require_limits_as_before(run: HostRun, sweep: Sweep, error: RigwrightError | None = None) -> None:
    """Reads the limits again. Raises HostError if one differs; its text begins with the text of `error`.

    Adds to `error` that the limits are as before, or that the host has booted, after which they are not compared.
    """
    boot_before = run.store.known.get(system.boot_id)
    run.store.forget()
    unit = systemd.unit(systemd.LIMITS_UNIT)
    cause = f"{error.found}; " if error else ""
    fix = f"invoke limits --host {run.host.name}"
    try:
        run.read((gpu.gpus, gpu.locked, system.boot_id, unit))
        cards, locks = run.store(gpu.gpus), run.store(gpu.locked)
        boot, has_unit = run.store(system.boot_id), run.store(unit).enabled == "enabled"
    except (RigwrightError, Unavailable, Unreadable) as problem:
        if error is None or isinstance(problem, Unreachable):
            found = f"{f'{error.found}; and ' if error else ''}its limits could not be read afterwards: {problem}"
            raise HostError(run.host.name, found, "the limits as before", fix) from None
        return
    if boot != boot_before:
        after = "sets the limits of the inventory" if has_unit else "is not there, so the GPUs have their defaults"
        if error is not None:
            error.found = f"{cause}a boot takes back what the sweep set; {systemd.LIMITS_UNIT} {after}"
        return
    wrong = []
    for card in cards:
        was, now = sweep.before.get(card.uuid), _in_force(card, locks, sweep.unit == "MHz")
        if not card.lost and was != now:
            wrong.append(f"{card.bus_id} has {now} {sweep.unit}, and had {was}")
    if wrong:
        found = f"{cause}{count(len(wrong), 'GPU')} not as before: {wrong[0]}"
        raise HostError(run.host.name, found, "the limits as before", fix)
    if error is not None:
        error.found = f"{cause}the limits are as before"
        run.note("the limits of the GPUs are as before")
