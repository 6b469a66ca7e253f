"""Plans a sweep over the limits of a host's GPUs, runs it, and proves that the limits are as before."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from rigwright import catalogue
from rigwright.core.command import script
from rigwright.core.desired import Limits as DesiredLimits
from rigwright.core.errors import HostError, Interrupted, RigwrightError, Unreachable, UsageError
from rigwright.core.gpu_labels import SHORT_UUID
from rigwright.core.numbers import count
from rigwright.engine import onhost_program, own_programs
from rigwright.engine.gpu_use import gpu_use
from rigwright.engine.host_run import HostRun
from rigwright.engine.host_variables import HostVariables
from rigwright.engine.onhost_program import OnhostProgram
from rigwright.engine.p2p import nccl_test
from rigwright.engine.p2p import wheels as wheel_copy
from rigwright.engine.p2p.nccl_test import NcclTestOptions
from rigwright.facts import Unavailable, Unreadable, pci, system, systemd
from rigwright.facts.gpu import gpus as gpu
from rigwright.facts.gpu.gpus import Gpu, Locks
from rigwright.facts.nccl.document import FOLDER
from rigwright.facts.own_programs import at_work
from rigwright.features.limits_find import facts as limits_sweep
from rigwright.features.limits_find import points as limit_points
from rigwright.features.limits_find.facts import SweepDocument
from rigwright.features.limits_find.points import Group, Point, Supplies, Sweep, SweepPlan
from rigwright.features.power.draw import setting_of

NAME = "sweep"
SETTLE_S, MEASURED_S = 30.0, 70.0
"""Of each point: the driver limits an average, and the chip warms up for a minute (assumed)."""
SIMULATED_SETTLE_S, SIMULATED_MEASURED_S = 1.5, 1.5
"""A simulated GPU settles within a second; its power meter shows the average of one."""
LEFT_S, SIMULATED_LEFT_S = 120, 15
"""After so long without this machine the program on the host ends by itself. This machine touches its file every four
seconds."""
LOWEST_CLOCK_SHARE = 0.5
"""Of the highest graphics clock: where a sweep of clocks begins. Below, a GPU saves little power
(docs/guide/limits_find.md)."""
FEWEST_POINTS, MOST_POINTS = 3, 16
LONGEST = 300
"""Characters of an error that are kept."""


class SweepOptions(Struct, frozen=True):
    """`clocks`: sweep the graphics clock, not the power limit. `points`: how many. `lowest` and `highest`: the range, W
    or MHz; None: that of the GPUs. `beyond_supplies`: also what the supplies do not carry. `wheels`: a source of
    libraries, as in NcclTestOptions."""

    clocks: bool = False
    points: int = 7
    lowest: int | None = None
    highest: int | None = None
    beyond_supplies: bool = False
    wheels: str = ""

    @property
    def unit(self) -> str:
        """W or MHz."""
        return "MHz" if self.clocks else "W"


# --- the plan


def plan(run: HostRun, variables: HostVariables, options: SweepOptions) -> SweepPlan:
    """The plan of a sweep, after the end of one whose command has ended.

    Raises HostError where GPUs are in use or nothing can be set, UsageError for a range that they do not have.
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
        found = f"GPU {lost.bus_id} cannot be reached: {lost.lost}"
        raise HostError(run.host.name, found, "GPUs that all answer", f"invoke verify --host {run.host.name}")
    if use := gpu_use(run):
        raise HostError(
            run.host.name,
            f"{use}, and beside their work a sweep says nothing",
            "idle GPUs",
            "wait for their end, or end them; then the same command again",
        )
    if options.clocks:
        run.read((gpu.supported_clocks,))
    groups, notes = _groups(run, cards, locks, options)
    supplies = limit_points.supplies_of(variables.rig, groups)
    points, ends = _points(groups, supplies, options)
    notes += _notes(groups, cards, locks, variables.desired.limits, options)
    simulated = bool(run.value(system.simulated))
    sweep = Sweep(
        datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        options.unit,
        {group.key: f"{len(group.uuids)} x {group.name}" for group in groups},
        before={card.uuid: _in_force(card, locks, options) for card in cards},
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
    """Puts back what a sweep has left that ended without doing so; False while a sweep is at work. Raises HostError."""
    answer = run.transport.run([script(_PUT_BACK, FOLDER, onhost_program.UNIT, timeout_s=60)])[0]
    if answer.code not in (0, 75):
        *_, why = answer.error_text.splitlines() or ["no answer"]
        found = f"an earlier sweep ended without its limits put back, and they cannot be now: {why[:LONGEST]}"
        fix = f"invoke verify --host {run.host.name}; {_again(run)} sets those of the inventory"
        raise HostError(run.host.name, found, "GPUs that take a limit", fix)
    if answer.code == 0:
        run.note("an earlier sweep ended without its limits put back; that is done now")
    return answer.code == 0


def _in_force(card: Gpu, locks: Locks, options: SweepOptions) -> int | None:
    """The limit in force, W or MHz; None where none is known."""
    if not options.clocks:
        return None if card.power_limit_w is None else round(card.power_limit_w)
    lock = locks.get((card.uuid, "graphics"))
    return lock[1] if lock else card.application_clocks.graphics_mhz if card.application_clocks else None


def _groups(run: HostRun, cards: Sequence[Gpu], locks: Locks, options: SweepOptions) -> tuple[list[Group], list[str]]:
    """The groups with the range of each; a note for GPUs of which nothing can be set. Raises HostError when that is all
    of them."""
    models = {device.bus_id: catalogue.model_of(device.device_id) for device in run.value(pci.gpus)}
    kinds: dict[str, list[Gpu]] = {}
    for card in cards:
        model = models.get(card.bus_id)
        kinds.setdefault(model.key if model else card.uuid, []).append(card)
    groups, cannot = [], []
    for key, equal in kinds.items():
        model = models.get(equal[0].bus_id)
        made = (
            _clock_group(run, key, equal, locks, model is None or "locked_graphics" in model.clock_verbs)
            if options.clocks
            else _power_group(key, equal, locks)
        )
        if made is None:
            cannot += [f"{card.name} at {card.bus_id}" for card in equal]
        else:
            groups.append(_narrowed(made, options))
    what = "graphics clocks" if options.clocks else "power limit"
    if not groups:
        other = "without --clocks: its power limit" if options.clocks else "--clocks: its graphics clocks"
        found = f"no GPU reports a range for its {what} ({', '.join(cannot[:3])})"
        raise HostError(run.host.name, found, f"a GPU whose {what} can be set", other)
    return groups, [f"the {what} of {one} cannot be set; it computes along as it is" for one in cannot]


def _power_group(key: str, equal: Sequence[Gpu], locks: Locks) -> Group | None:
    """From the lowest limit that all of them take to the lowest default of them, so that no GPU goes above its own."""
    lows, highs = [card.power_min_w for card in equal], [card.power_default_w or card.power_max_w for card in equal]
    if None in lows or None in highs:
        return None
    low, high = max(one or 0 for one in lows), min(one or 0 for one in highs)
    if low >= high:
        return None
    return Group(
        key, equal[0].name, tuple(card.uuid for card in equal), "power_limit_w", _up(low), int(high), in_force=_clock(equal, locks)
    )  # fmt: skip


def _up(watts: float) -> int:
    return int(watts) + (watts > int(watts))


def _clock(equal: Sequence[Gpu], locks: Locks) -> int | None:
    """The highest graphics clock that limits in force permit one of these GPUs, MHz; None without such a limit."""
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
    """From half of the highest clock to the highest that all of them list: application clocks where they have them,
    unless a lock is in force, which would overrule them; else locked clocks."""
    try:
        supported = run.store(gpu.supported_clocks)
    except (Unavailable, Unreadable):
        return None
    locked = any((card.uuid, "graphics") in locks for card in equal)
    pairs = [card.application_clocks for card in equal]
    memory = pairs[0].memory_mhz if pairs[0] and pairs.count(pairs[0]) == len(pairs) and not locked else 0
    lists = []
    for card in equal:
        clocks = {pair.graphics_mhz for pair in supported.get(card.uuid, ()) if not memory or pair.memory_mhz == memory}
        lists.append(clocks)
    if not memory and not lockable:
        return None
    listed = tuple(sorted(set.intersection(*lists)))
    if len(listed) < FEWEST_POINTS:
        return None
    low = next(mhz for mhz in listed if mhz >= LOWEST_CLOCK_SHARE * listed[-1])
    watts = [round(card.power_limit_w) for card in equal if card.power_limit_w]
    return Group(
        key,
        equal[0].name,
        tuple(card.uuid for card in equal),
        "application_clocks" if memory else "locked_graphics_mhz",
        low,
        listed[-1],
        listed,
        memory,
        max(watts) if watts else None,
    )


def _narrowed(group: Group, options: SweepOptions) -> Group:
    """The group with the range of the options. Raises UsageError where the GPUs do not have it."""
    least = group.listed[0] if group.listed else group.low
    low, high = options.lowest or group.low, options.highest or group.high
    for flag, value in (("--lowest", low), ("--highest", high)):
        if not least <= value <= group.high:
            found = f"{value} {options.unit} is outside of what {group.name} takes"
            raise UsageError(flag, found, f"{least} to {group.high} {options.unit}")
    if low >= high:
        raise UsageError("--lowest", f"{low} is not below {high} {options.unit}", "a lowest limit below the highest")
    return replace(group, low=low, high=high)


def _points(groups: Sequence[Group], supplies: Supplies, options: SweepOptions) -> tuple[list[Point], Point | None]:
    """The points, and the lowest limits that the supplies do not carry. Raises HostError where they carry none of the
    range."""
    top = supplies.highest(groups)
    ends = None
    if top is None or top < 1:
        beyond = next(
            limits
            for share in range(limit_points.SHARES + 1)
            if supplies.carry(groups, limits := limit_points.at(groups, share / limit_points.SHARES)).verdict
            == "does not fit"
        )
        carried = supplies.carry(groups, beyond)
        ends = Point(beyond, carried.verdict, carried.why)
    if not options.beyond_supplies and ends is not None:
        words = f"{limit_points.in_words(ends.limits, options.unit)}: {ends.why}"
        if top is None:
            found = f"its supplies do not carry the lowest limit, {words}"
            raise HostError(
                "power supplies", found, "limits that they carry", "--lowest; or --beyond-supplies, at your risk"
            )
        if options.highest is not None:
            carries = limit_points.in_words(limit_points.at(groups, top), options.unit)
            raise UsageError(
                "--highest",
                f"the supplies do not carry {words}",
                f"up to {carries}",
                "or --beyond-supplies, at your risk",
            )
    share = 1.0 if options.beyond_supplies or top is None else top
    points = []
    for limits in limit_points.spread(groups, share, options.points):
        carried = supplies.carry(groups, limits)
        points.append(Point(limits, carried.verdict, carried.why))
    return points, ends


def _notes(
    groups: Sequence[Group],
    cards: Sequence[Gpu],
    locks: Locks,
    limits: DesiredLimits | None,
    options: SweepOptions,
) -> list[str]:
    notes = []
    for group in groups:
        if group.in_force is not None and not options.clocks:
            notes.append(
                f"{group.name}: the clock limit in force, {group.in_force} MHz, stays, and every point is measured with it"
            )
        if group.in_force is not None and options.clocks:
            notes.append(
                f"{group.name}: the power limit in force, {group.in_force} W, stays, and every point is measured with it"
            )
    setting = setting_of(limits)
    if not options.clocks and setting and setting.graphics_mhz and any(_clock([card], locks) is None for card in cards):
        notes.append(
            "the inventory limits the clocks too, and that is not in force now: invoke limits first, to measure with it"
        )
    if any(group.kind == "locked_graphics_mhz" for group in groups) and not all(
        (card.uuid, "graphics") in locks for card in cards
    ):
        notes.append(
            "no driver reports locked clocks: a lock that was set by hand is gone afterwards; one that rigwright set comes back"
        )
    return notes


# --- the run


def measure(run: HostRun, planned: SweepPlan, options: SweepOptions) -> Sweep:
    """Runs the sweep. The limits are as before afterwards, whatever happens, and are read to prove it.

    Raises HostError where it could not run, a GPU was lost or a limit is not as before, Interrupted, and Unreachable.
    """
    try:
        document = _run(run, planned, options)
    except (Interrupted, HostError) as error:
        _prove(run, planned, options, error)
        raise
    _prove(run, planned, options)
    if document.lost:
        raise lost(run.host.name, document)
    if document.outcome == "could not run":
        text = document.errors[0].what[:LONGEST] if document.errors else "no reason was given"
        raise HostError(
            run.host.name,
            f"the sweep could not run: {text}",
            "CUDA, cuBLAS and NVML",
            f"invoke verify --host {run.host.name}",
        )
    return swept(planned, document)


def lost(host: str, document: SweepDocument) -> HostError:
    """The error for GPUs that were lost during the sweep, after the limits of the others were read."""
    names = ", ".join(
        f"{document.gpus[one.gpu].bus_id} ({document.gpus[one.gpu].uuid[:SHORT_UUID]})" for one in document.lost
    )
    first = document.lost[0]
    found = f"GPU {names} was lost at {first.where or 'a point'}: {first.what[:LONGEST]}; the limits of the others are as before"
    fix = (
        f"invoke explain gpu.off_bus; after a cold boot invoke verify --host {host}, then the same command with"
        " --highest below that limit: a supply that gives way is one cause"
    )
    return HostError(host, found, "GPUs that stay on the bus at every point", fix)


def swept(planned: SweepPlan, document: SweepDocument) -> Sweep:
    """The sweep with the measurements of a document. Raises HostError when it has none."""
    points = list(planned.sweep.points)
    for one in document.points:
        if 0 <= one.number < len(points):
            blank = points[one.number]
            carried = limit_points.Carried(blank.verdict, blank.why)
            points[one.number] = limit_points.measured(blank.limits, carried, one.tflops, one.sensors or ())
    errors = {error.where[:60]: error.what[:LONGEST] for error in document.errors}
    if not document.points:
        found = next(iter(errors.values()), "no point was measured")
        raise HostError(NAME, f"nothing was measured: {found}", "a measurement", "invoke verify --tags p2p")
    return replace(
        planned.sweep,
        gpus=tuple(f"{device.bus_id} {device.uuid}" for device in document.gpus),
        points=tuple(points),
        named=limit_points.named(points),
        errors=errors,
        seconds=document.seconds,
    )


def _run(run: HostRun, planned: SweepPlan, options: SweepOptions) -> SweepDocument:
    """The document of the program, with the host's own libraries or copied ones. Raises HostError, Interrupted,
    Unreachable."""
    try:
        document = _run_once(run, planned, ())
        lacks = document.outcome == "could not run" and any(one.where == "libraries" for one in document.errors)
        if not lacks:
            return document
        wanted = NcclTestOptions(wheels=options.wheels)
        folders = nccl_test.libraries(run, wanted)
        if folders:
            return _run_once(run, planned, folders)
    except wheel_copy.NoWheels as error:
        raise HostError(
            run.host.name, f"the libraries for the load are missing: {error}", "cuBLAS", error.fix
        ) from None
    except (Unavailable, Unreadable) as error:
        fix = f"journalctl -u {onhost_program.UNIT}, on the host"
        raise HostError(NAME, str(error), "its document", fix) from None
    source = f"--wheels {nccl_test.LAB_WHEELS}" if planned.simulated else "--wheels fetch, or --wheels DIR"
    raise HostError(run.host.name, f"the host lacks libraries: {document.errors[0].what[:LONGEST]}", "cuBLAS", source)


def _run_once(run: HostRun, planned: SweepPlan, folders: Sequence[str]) -> SweepDocument:
    left_s = SIMULATED_LEFT_S if planned.simulated else LEFT_S
    words = ["sweep", "--points", json.dumps(planned.rules), "--timeout-s", str(planned.limit_s)]
    words += ["--settle-s", f"{planned.settle_s:g}", "--seconds", f"{planned.seconds:g}"]
    program = OnhostProgram(
        "limits_sweep.py",
        words,
        planned.limit_s,
        NAME,
        folders,
        "limits_sweep.py restore",
        at_end=f"puts {_before(planned.sweep)} back",
        watched_s=left_s,
    )
    onhost_program.run_and_read(run, program, limits_sweep.swept)
    return run.store(limits_sweep.swept)


def _before(sweep: Sweep) -> str:
    """The limits before a sweep: `285 W`, `150/285 W`."""
    values = dict.fromkeys(value for value in sweep.before.values() if value is not None)
    return f"{'/'.join(map(str, values))} {sweep.unit}" if values else "the limits of before"


def _prove(run: HostRun, planned: SweepPlan, options: SweepOptions, error: RigwrightError | None = None) -> None:
    """Reads the limits again. Raises HostError where one is not as before; after `error` it says so of a boot and adds
    it to the error."""
    boot_before = run.store.known.get(system.boot_id)
    run.store.forget()
    unit = systemd.unit(systemd.LIMITS_UNIT)
    try:
        run.read((gpu.gpus, gpu.locked, system.boot_id, unit))
        cards, locks = run.store(gpu.gpus), run.store(gpu.locked)
        boot, has_unit = run.store(system.boot_id), run.store(unit).enabled == "enabled"
    except (RigwrightError, Unavailable, Unreadable) as problem:
        if error is None or isinstance(problem, Unreachable):
            text = f"{f'{error.found}; and ' if error else ''}its limits could not be read afterwards: {problem}"
            raise HostError(run.host.name, text, "the limits as before", _again(run)) from None
        return
    if boot != boot_before:
        what = (
            f"a boot takes back what the sweep set; {systemd.LIMITS_UNIT} sets the limits of the inventory"
            if has_unit
            else f"a boot takes back what the sweep set; {systemd.LIMITS_UNIT} is not there, so the GPUs have their defaults"
        )
        if error is not None:
            error.found = f"{error.found}; {what}"
        return
    wrong = _not_as_before(planned.sweep.before, cards, locks, options)
    if wrong:
        cause = f"{error.found}; " if error else ""
        raise HostError(
            run.host.name,
            f"{cause}{count(len(wrong), 'GPU')} not as before: {wrong[0]}",
            "the limits as before",
            _again(run),
        )
    if error is not None:
        error.found = f"{error.found}; the limits are as before"
        run.note("the limits of the GPUs are as before")


def _again(run: HostRun) -> str:
    return f"invoke limits --host {run.host.name}"


def _not_as_before(
    before: Mapping[str, int | None], cards: Sequence[Gpu], locks: Locks, options: SweepOptions
) -> list[str]:
    """A text for each GPU that has another limit than before."""
    wrong = []
    for card in cards:
        was, now = before.get(card.uuid), _in_force(card, locks, options)
        if not card.lost and was != now:
            wrong.append(f"{card.bus_id} has {now} {options.unit}, and had {was}")
    return wrong
