"""Persistence, power limit and clocks: in force now, and again at every boot."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from rigwright import catalogue
from rigwright.catalogue import Model
from rigwright.change import Change, Note
from rigwright.errors import HostError
from rigwright.facts import Facts, files, gpu, pci
from rigwright.facts import systemd as units
from rigwright.facts.gpu import ClockPair, Gpu, Locks
from rigwright.limitable import cannot
from rigwright.operations import file
from rigwright.operations import systemd as services
from rigwright.positions import called
from rigwright.shell import Command, command, script
from rigwright.templates import Template, render
from rigwright.typed import BusId
from rigwright.wanted import Clocks, GpuLimits, Limits

CONFIG = "/etc/rigwright/limits.json"
UNIT = "gpu-limits.service"


_TRY = 'nvidia-smi -i "$@"; code=$?; [ $code = 0 ] || echo "nvidia-smi ended with $code"; :'
"""A GPU that refuses must not keep the others from theirs; what is in force afterwards is read from it."""
_LOCK = """
uuid=$1 kind=$2 range=$3 file=$4 bus_id=$5
case $kind in graphics) flag=-lgc;; memory) flag=-lmc;; esac
said=$(nvidia-smi -i "$bus_id" $flag "$range" 2>&1); echo "$said"
case $said in *"set to"*) ;; *) exit 0;; esac
mkdir -p "${file%/*}"
{ grep -v "^$uuid $kind " "$file" 2>/dev/null
  echo "$uuid $kind ${range%,*} ${range#*,} $(cat /proc/sys/kernel/random/boot_id) $(stat -c %i /sys/module/nvidia 2>/dev/null || echo -) 0"
} >"$file.new" && mv "$file.new" "$file"
"""
_PAUSE = '[ ! -e "$1" ] || python3 "$1" reset; :'
"""The program's own reset: it forgets its locks, and the timer rests until `limits` or the next boot."""
_UNLOCK = """
uuid=$1 file=$2 bus_id=$3
nvidia-smi -i "$bus_id" -rgc; grep -q "^$uuid memory " "$file" && nvidia-smi -i "$bus_id" -rmc
grep -v "^$uuid " "$file" >"$file.new"; mv "$file.new" "$file"
"""


def _smi(one: Gpu, *argv: str) -> Command:
    """nvidia-smi for one GPU, by its bus id: to find a UUID it would ask every GPU, and end at a lost one."""
    return script(_TRY, one.bus_id, *argv, timeout_s=60)


def _name(one: Gpu, slots: dict[BusId, str] | None) -> str:
    return called(one.bus_id, one.uuid, slots)


def persistence(facts: Facts, *, enabled: bool = True, slots: dict[BusId, str] | None = None) -> Iterator[Change]:
    """Every GPU keeps its state when no program uses it (or does not). Raises HostError when one is lost and no other is left."""
    gpus = facts(gpu.gpus)
    changes = [change for one in gpus for change in _persistence(one, _name(one, slots), enabled)]
    refused = [no for one in gpus if (no := cannot(one, _name(one, slots), GpuLimits(), {}, None, {}))]
    if refused and not changes:
        raise refused[0]
    yield from changes


def _persistence(one: Gpu, name: str, wanted: bool | None) -> Iterator[Change]:
    if wanted is not None and one.persistence is not None and one.persistence != wanted:
        words = {True: "Enabled", False: "Disabled"}
        act = _smi(one, "-pm", str(int(wanted)))
        yield Change("change", f"{name} persistence", words[one.persistence], words[wanted], (act,))


def wanted_of(
    limits: Limits, one: Gpu, models: Mapping[str, Model | None], slots: Mapping[BusId, str] | None
) -> GpuLimits:
    """What a GPU is held to, by its model, position and UUID."""
    model = models.get(one.bus_id)
    return limits.of(model.key if model else "", (slots or {}).get(BusId(one.bus_id), ""), one.uuid)


def applied(facts: Facts, *, limits: Limits, slots: dict[BusId, str] | None = None) -> Iterator[Change | Note]:
    """Every GPU has the persistence, power limit and clocks of `limits`; only GPUs that differ are touched.

    A GPU that cannot do it does not keep the others from theirs: what it supports is told, and when nothing else is left to
    do HostError is raised. A locked clock cannot be read back: what is recorded of this boot and this driver load counts.
    """
    gpus, bus = facts.all(gpu.gpus, pci.gpus)
    models = {one.bus_id: catalogue.model_of(one.device_id) for one in bus}
    wanted = {one.bus_id: wanted_of(limits, one, models, slots) for one in gpus}
    locks: Locks = {}
    if any(want.locked_graphics_mhz or want.locked_memory_mhz for want in wanted.values()):
        locks = facts(gpu.locked)
    supported: dict[str, tuple[ClockPair, ...]] = {}
    if any(_asks_for_clocks(one, wanted[one.bus_id], locks) for one in gpus if not one.lost):
        supported = facts(gpu.supported_clocks)
    changes: list[Change] = []
    refused: list[HostError] = []
    for one in gpus:
        name = _name(one, slots)
        no = cannot(one, name, wanted[one.bus_id], supported, models.get(one.bus_id), locks)
        if no:
            refused.append(no)
        else:
            changes += _changes(one, name, wanted[one.bus_id], locks)
    if refused and not changes:
        raise refused[0]
    yield from (Note(f"{no.found}; {no.wanted}", warn=True) for no in refused)
    yield from changes


def _asks_for_clocks(one: Gpu, want: GpuLimits, locks: Locks) -> bool:
    return bool(
        (want.application_clocks and not _clocks_right(one, want.application_clocks))
        or list(_unlocked(one, want, locks))
    )


def _unlocked(one: Gpu, want: GpuLimits, locks: Locks) -> Iterator[tuple[str, tuple[int, int]]]:
    """The locked clocks that are wanted and not recorded: kind, and [min, max] MHz."""
    for kind, span in (("graphics", want.locked_graphics_mhz), ("memory", want.locked_memory_mhz)):
        if span is not None and locks.get((one.uuid, kind)) != span:
            yield kind, span


def _changes(one: Gpu, name: str, want: GpuLimits, locks: Locks) -> Iterator[Change]:
    yield from _persistence(one, name, want.persistence)
    watts = want.power_limit_w
    if watts is not None and one.power_limit_w != watts:
        before = "unknown" if one.power_limit_w is None else f"{one.power_limit_w:g} W"
        yield Change("change", f"{name} power limit", before, f"{watts} W", (_smi(one, "-pl", str(watts)),))
    clocks = want.application_clocks
    if clocks and not _clocks_right(one, clocks):
        pair = f"{clocks.memory_mhz},{clocks.graphics_mhz}"
        act = _smi(one, "-ac", pair)
        yield Change(
            "change", f"{name} application clocks", str(one.application_clocks or "unknown"), f"{pair} MHz", (act,)
        )
    for kind, span in _unlocked(one, want, locks):
        act = script(_LOCK, one.uuid, kind, f"{span[0]},{span[1]}", gpu.LOCKED_FILE, one.bus_id, timeout_s=60)
        recorded = locks.get((one.uuid, kind))
        said = f"{recorded[0]}-{recorded[1]} MHz" if recorded else "not recorded"
        yield Change(
            "change", f"{name} locked {kind} clock", said, f"{span[0]}-{span[1]} MHz (set, not readable)", (act,)
        )


def defaults(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Change]:
    """Every GPU has its own default power limit and clocks again; persistence is left as it is."""
    gpus, locks = facts.all(gpu.gpus, gpu.locked)
    pause = script(_PAUSE, PROGRAM, timeout_s=300)
    for one in gpus:
        name = _name(one, slots)
        if one.power_default_w is not None and one.power_limit_w != one.power_default_w:
            act = _smi(one, "-pl", f"{one.power_default_w:g}")
            before, after = f"{one.power_limit_w or 0:g} W", f"{one.power_default_w:g} W"
            yield Change("change", f"{name} power limit", before, after, (pause, act))
        if one.application_clocks and one.application_clocks != one.default_application_clocks:
            before, after = str(one.application_clocks), str(one.default_application_clocks)
            yield Change("change", f"{name} application clocks", before, after, (pause, _smi(one, "-rac")))
        if any(uuid == one.uuid for uuid, _ in locks):
            act = script(_UNLOCK, one.uuid, gpu.LOCKED_FILE, one.bus_id, timeout_s=60)
            yield Change("change", f"{name} locked clocks", "set by rigwright", "free", (pause, act))


def _clocks_right(one: Gpu, wanted: Clocks) -> bool:
    return one.application_clocks == ClockPair(wanted.memory_mhz, wanted.graphics_mhz)


WATCH, TIMER = "gpu-limits-watch.service", "gpu-limits.timer"
RESTS = "/run/rigwright/limits-rest"
"""The program writes it at `reset`; while it is there the timer's look does nothing."""
_FOLDER = "/usr/local/lib/rigwright"
PROGRAM = f"{_FOLDER}/gpu_limits.py"


def boot(
    facts: Facts, *, limits: Limits, expected_gpus: int | None = None, slots: dict[BusId, str] | None = None
) -> Iterator[Change | Note]:
    """gpu-limits.service sets the same limits at every boot, and gpu-limits.timer looks each minute for a GPU that forgot
    them: the program, its files, and the units, enabled and current.

    systemd reads new units in a way that can take the GPUs from running containers: those are named first. The service fails
    while a GPU is missing, so it is not started then; those that are there have their limits all the same.
    """
    config: dict[str, object] = {"gpus": _rules(facts, limits, slots)}
    if expected_gpus is not None:
        config["expected_gpus"] = expected_gpus
    if slots:
        config["positions"] = dict(slots)
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    program = (Path(__file__).parent.parent / "onhost" / "gpu_limits.py").read_bytes()
    paths = (PROGRAM, f"{_FOLDER}/pynvml.py", CONFIG)
    names = (UNIT, WATCH, TIMER)
    unit_paths = [f"/etc/systemd/system/{name}" for name in names]
    bus = (pci.gpus,) if expected_gpus is not None else ()
    run, _, containers, *_ = facts.all(
        units.running(UNIT, (*paths, unit_paths[0])),
        units.running(TIMER, (unit_paths[2],)),
        gpu.containers,
        *(units.unit(name) for name in names),
        *(files.file(path) for path in (*paths, *unit_paths)),
        *bus,
    )
    missing = (expected_gpus or 0) - len(facts(pci.gpus)) if bus else 0
    changes = [*file.differing(facts, PROGRAM, program, "0755")]
    changes += file.differing(facts, paths[1], _pynvml())
    changes += file.differing(facts, CONFIG, text.encode())
    words = {"program": PROGRAM, "config": CONFIG}
    fresh = [
        change
        for name in names
        for change in services.unit(facts, name=name, template=Template(render(f"{name}.j2", words)))
    ]
    if fresh and containers:
        found = f"new units make systemd look again at every container: {', '.join(containers)} may lose the GPUs until started again"
        yield Note(found, warn=True)
        fresh = [replace(change, disruptive=True) for change in fresh]
    yield from changes
    yield from fresh
    if missing > 0:
        yield Note(
            f"{UNIT} fails at every boot until all {expected_gpus} GPUs are there, {missing} more than now", warn=True
        )
    yield from _started(facts, bool(changes or fresh) or not run.current, missing <= 0)


def watched(facts: Facts) -> Iterator[Change]:
    """The timer's look does not rest, as it does after `limits --reset`."""
    if facts(files.file(RESTS)) is not None:
        yield Change("change", TIMER, "rests since limits --reset", "looks each minute", (command("rm", "-f", RESTS),))


def _started(facts: Facts, stale: bool, can_succeed: bool) -> Iterator[Change]:
    """The unit has set the limits of this boot from the files as they are, and the timer runs; both at every boot."""
    now, timer = facts.all(units.unit(UNIT), units.unit(TIMER))
    for name, state in ((UNIT, now), (TIMER, timer)):
        if state.enabled != "enabled":
            enable = (command("systemctl", "enable", name),)
            yield Change("change", name, state.enabled or "not there", "enabled at boot", enable)
    if can_succeed and now.active != "active":
        again = (command("systemctl", "reset-failed", UNIT),) if now.active == "failed" else ()
        start = command("systemctl", "start", UNIT, timeout_s=450)
        yield Change("run", UNIT, now.active, "has set the limits of this boot", (*again, start))
    elif can_succeed and stale:
        restart = command("systemctl", "restart", UNIT, timeout_s=450)
        yield Change("run", UNIT, "from older files", "run again", (restart,))
    current = facts(units.running(TIMER, (f"/etc/systemd/system/{TIMER}",))).current
    if timer.active != "active" or not current:
        seen = "older than its file" if timer.active == "active" else timer.active
        yield Change("run", TIMER, seen, "looks each minute", (command("systemctl", "restart", TIMER),))


def _rules(facts: Facts, limits: Limits, slots: dict[BusId, str] | None) -> list[dict[str, object]]:
    """The rules of limits.json: a GPU with limits of its own by UUID or bus id, then the host's for all others."""
    found: list[dict[str, object]] = []
    if limits.gpus:
        gpus, bus = facts.all(gpu.gpus, pci.gpus)
        models = {one.bus_id: catalogue.model_of(one.device_id) for one in bus}
        host = limits.of()
        for one in gpus:
            own = wanted_of(limits, one, models, slots)
            if own != host:
                match = {"uuid": one.uuid} if one.uuid in limits.gpus else {"pci_bus_id": one.bus_id}
                found.append({"match": match, **_told(own)})
    return [*found, {"match": {}, **_told(limits.of())}]


def _told(limits: GpuLimits) -> dict[str, object]:
    return {key: value for key, value in asdict(limits).items() if value is not None}


def _pynvml() -> bytes:
    found = importlib.util.find_spec("pynvml")
    if found is None or found.origin is None:
        raise RuntimeError("nvidia-ml-py is not installed beside rigwright")
    return Path(found.origin).read_bytes()
