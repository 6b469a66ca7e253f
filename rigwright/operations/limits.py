"""Persistence, power limit and clocks of the GPUs: set now, at every boot, and again when a GPU lost them.

The changes put a program, its pynvml.py and its configuration on the host and run the program; the boot unit and the
timer run the same program with the same configuration.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import to_builtins
from msgspec.structs import replace

from rigwright import catalogue
from rigwright.catalogue import Model
from rigwright.catalogue.gpus import setting_names
from rigwright.core.change import Change, Note
from rigwright.core.command import Command, command, script
from rigwright.core.desired import Clocks, GpuLimits, Limits
from rigwright.core.errors import HostError
from rigwright.core.files import shipped_files
from rigwright.core.gpu_labels import gpu_label, place
from rigwright.core.host_folders import UNTIL_BOOT
from rigwright.core.once import once
from rigwright.core.schema import BusId
from rigwright.core.templates.host_files import SHIPPED, Templates
from rigwright.core.templates.variables import Template
from rigwright.driver.start_failure import quoted, silent_gpus
from rigwright.facts import Facts, Unavailable, Unreadable, files, pci, systemd as units
from rigwright.facts.driver import loaded_version
from rigwright.facts.gpu import gpus as gpu
from rigwright.facts.gpu.gpus import ClockPair, Gpu, Locks
from rigwright.operations import file, operation, systemd as services
from rigwright.operations._limit_ranges import require_in_catalogue, require_supported, without_application_clocks

CONFIG = "/etc/rigwright/limits.json"
PROGRAM, PYNVML = gpu.LIMITS_PROGRAM, "/usr/local/lib/rigwright/pynvml.py"
UNIT, WATCH, TIMER = units.LIMITS_UNIT, "gpu-limits-watch.service", units.LIMITS_TIMER
PAUSED = f"{UNTIL_BOOT}/limits-rest"
"""The program writes this file at `reset`. While it exists, the timer's check does nothing."""

_RUN = """
command -v python3 >/dev/null || { echo 'E: the host has no python3: sudo apt-get install python3' >&2; exit 1; }
errors=$(python3 "$@" 2>&1 >/dev/null)
case $? in 0|3) ;; *) echo "E: $(echo "$errors" | paste -sd '|' | sed 's/|/; /g')" >&2; exit 1;; esac
"""
"""Runs the program. Status 3: GPUs are lost or missing, and the others have their limits; the next plan has the lost
ones."""
_APPLY = script(_RUN, PROGRAM, "apply", "--wait-s", "0", "--config", CONFIG, timeout_s=300)
_RESET = script(_RUN, PROGRAM, "reset", timeout_s=300)


def _name(device: Gpu, slots: dict[BusId, str] | None) -> str:
    return gpu_label(device.bus_id, device.uuid, slots)


def wanted_of(
    limits: Limits, device: Gpu, models: Mapping[str, Model | None], slots: Mapping[BusId, str] | None
) -> GpuLimits:
    """The limits of one GPU, by its model, position and UUID."""
    return limits.of(*setting_names(models.get(device.bus_id), device.bus_id, device.uuid, slots))


@operation()
def in_range(facts: Facts, *, limits: Limits, slots: dict[BusId, str] | None = None) -> Iterator[Note]:
    """While no driver is loaded, the power limit of every GPU is in the range of its model in the catalogue, if it has
    one. `limits.applied` uses the range that the driver reports. Raises HostError for the first limit outside."""
    bus, loaded = facts.all(pci.gpus, loaded_version)
    for device in () if loaded else bus:
        model = catalogue.model_of(device.device_id)
        watts = limits.of(*setting_names(model, device.bus_id, "", slots)).power_limit_w
        if model and watts:
            require_in_catalogue(f"{place(device.bus_id, slots)} ({model.name})", model, watts)
    yield from ()


@operation(sets_limits=True)
def applied(
    facts: Facts, *, limits: Limits, expected_gpus: int | None = None, slots: dict[BusId, str] | None = None
) -> Iterator[Change | Note]:
    """Every GPU has the persistence, power limit and clocks of `limits`, and /etc/rigwright/limits.json has them too.

    A GPU without application clocks gets a note with the limit to use instead. A GPU on the bus that the driver does
    not list gets a note with the driver's message. If a GPU does not support its limits, the others still get theirs;
    HostError is raised only if there is no other change. No driver reports locked clocks, so the record of this boot
    and driver load counts.
    """
    with quoted(facts, slots):
        gpus, bus, *_ = facts.all(gpu.gpus, pci.gpus, *map(files.file, (PROGRAM, PYNVML, CONFIG)))
    models = {device.bus_id: catalogue.model_of(device.device_id) for device in bus}
    wanted = {device.bus_id: wanted_of(limits, device, models, slots) for device in gpus}
    notes = [
        Note(f"{silent}, so it gets no limits; {silent.fix}", warn=True)
        for silent in silent_gpus(facts, gpus, bus, slots)
    ]
    for device in gpus:
        clocks = wanted[device.bus_id].application_clocks
        if clocks and device.without_application_clocks:
            title = f"{_name(device, slots)} ({device.name})"
            notes.append(Note(without_application_clocks(title, clocks, models.get(device.bus_id)), warn=True))
            wanted[device.bus_id] = replace(wanted[device.bus_id], application_clocks=None)
    locks: Locks = {}
    if any(want.locked_graphics_mhz or want.locked_memory_mhz for want in wanted.values()):
        locks = facts(gpu.locked)
    supported: dict[str, tuple[ClockPair, ...]] = {}
    if any(_asks_for_clocks(device, wanted[device.bus_id], locks) for device in gpus if not device.lost):
        supported = facts(gpu.supported_clocks)
    changes: list[Change] = []
    refused: list[HostError] = []
    for device in gpus:
        name, want = _name(device, slots), wanted[device.bus_id]
        try:
            require_supported(device, name, want, supported, models.get(device.bus_id), locks)
            changes += _differences(device, name, want, locks)
        except HostError as error:
            refused.append(error)
    if refused and not changes:
        raise refused[0]
    yield from notes
    yield from (Note(f"{error.found}; {error.expected}", warn=True) for error in refused)
    yield from _program_files(facts)
    yield from file.differing(facts, CONFIG, _config(facts, limits, expected_gpus, slots))
    yield from _by(_APPLY, changes)


def _by(run: Command, changes: list[Change]) -> Iterator[Change]:
    """The changes; one run of the program, the command of the first change, makes them all."""
    for number, change in enumerate(changes):
        yield replace(change, commands=() if number else (run,))


def _asks_for_clocks(device: Gpu, want: GpuLimits, locks: Locks) -> bool:
    return bool(
        (want.application_clocks and not _clocks_right(device, want.application_clocks))
        or list(_unlocked(device, want, locks))
    )


def _unlocked(device: Gpu, want: GpuLimits, locks: Locks) -> Iterator[tuple[str, tuple[int, int]]]:
    """The locked clocks that are wanted and not recorded: kind and [min, max] MHz."""
    for kind, span in (("graphics", want.locked_graphics_mhz), ("memory", want.locked_memory_mhz)):
        if span is not None and locks.get((device.uuid, kind)) != span:
            yield kind, span


def _differences(device: Gpu, name: str, want: GpuLimits, locks: Locks) -> Iterator[Change]:
    """The limits that a GPU does not have yet, as changes without commands."""
    if want.persistence is not None and device.persistence is not None and device.persistence != want.persistence:
        words = {True: "Enabled", False: "Disabled"}
        yield Change("change", f"{name} persistence", words[device.persistence], words[want.persistence])
    watts = want.power_limit_w
    if watts is not None and device.power_limit_w != watts:
        before = "unknown" if device.power_limit_w is None else f"{device.power_limit_w:g} W"
        yield Change("change", f"{name} power limit", before, f"{watts} W")
    clocks = want.application_clocks
    if clocks and not _clocks_right(device, clocks):
        pair = f"{clocks.memory_mhz},{clocks.graphics_mhz} MHz"
        yield Change("change", f"{name} application clocks", str(device.application_clocks or "unknown"), pair)
    for kind, span in _unlocked(device, want, locks):
        recorded = locks.get((device.uuid, kind))
        before = f"{recorded[0]}-{recorded[1]} MHz" if recorded else "not recorded"
        yield Change("change", f"{name} locked {kind} clock", before, f"{span[0]}-{span[1]} MHz (set, not readable)")


@operation()
def defaults(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Change]:
    """Every GPU has its own default power limit and clocks; persistence is not changed. The timer does not change the
    GPUs until `limits.applied`, `limits.watched` or the next boot."""
    with quoted(facts, slots):
        gpus, locks, *_ = facts.all(gpu.gpus, gpu.locked, *map(files.file, (PROGRAM, PYNVML)))
    changes: list[Change] = []
    for device in gpus:
        name = _name(device, slots)
        if device.power_default_w is not None and device.power_limit_w != device.power_default_w:
            before, after = f"{device.power_limit_w or 0:g} W", f"{device.power_default_w:g} W"
            changes.append(Change("change", f"{name} power limit", before, after))
        if device.application_clocks and device.application_clocks != device.default_application_clocks:
            before, after = str(device.application_clocks), str(device.default_application_clocks)
            changes.append(Change("change", f"{name} application clocks", before, after))
        if any(uuid == device.uuid for uuid, _ in locks):
            changes.append(Change("change", f"{name} locked clocks", "set by rigwright", "free"))
    if changes:
        yield from _program_files(facts)
        yield from _by(_RESET, changes)


def _clocks_right(device: Gpu, wanted: Clocks) -> bool:
    return device.application_clocks == ClockPair(wanted.memory_mhz, wanted.graphics_mhz)


@operation()
def boot(
    facts: Facts,
    *,
    limits: Limits,
    expected_gpus: int | None = None,
    slots: dict[BusId, str] | None = None,
    templates: Templates = SHIPPED,
) -> Iterator[Change | Note]:
    """gpu-limits.service sets the limits at every boot; gpu-limits.timer checks each minute for a GPU that lost them.

    The units are enabled, and ran with the present program and configuration. If systemd must read new units, running
    containers can lose their GPUs: a warning has those containers. The service fails while a GPU is missing, so it is
    not started then; the other GPUs keep their limits.
    """
    names = (UNIT, WATCH, TIMER)
    unit_paths = [f"/etc/systemd/system/{name}" for name in names]
    paths = (PROGRAM, PYNVML, CONFIG)
    run, _, containers, *_ = facts.all(
        units.running(UNIT, (*paths, unit_paths[0])),
        units.running(TIMER, (unit_paths[2],)),
        gpu.containers,
        *map(units.unit, names),
        *map(files.file, (*paths, *unit_paths)),
        *((pci.gpus,) if expected_gpus is not None else ()),
        *((gpu.gpus, pci.gpus) if limits.gpus else ()),
    )
    present = facts(pci.gpus) if expected_gpus is not None else ()
    missing = (expected_gpus or 0) - len(present)
    silent = silent_gpus(facts, _listed(facts), present, slots) if present and missing <= 0 else ()
    changes = [*_program_files(facts)]
    changes += file.differing(facts, CONFIG, _config(facts, limits, expected_gpus, slots))
    fresh: list[Change] = []
    for name in names:
        text = templates.render(f"systemd/{name}.j2", {"program": PROGRAM, "config": CONFIG})
        fresh += services.unit(facts, name=name, template=Template(text))
    if fresh and containers:
        lose = f"{', '.join(containers)} may lose the GPUs until restarted"
        yield Note(f"systemd reads new units and applies its device rules again: {lose}", warn=True)
        fresh = [replace(change, disruptive=True) for change in fresh]
    yield from changes
    yield from fresh
    if missing > 0:
        text = f"{UNIT} fails at every boot until all {expected_gpus} GPUs are present; {missing} missing now"
        yield Note(text, warn=True)
    elif missing + len(silent) > 0:
        yield Note(f"{UNIT} fails at every boot until all {expected_gpus} GPUs answer; {silent[0]}", warn=True)
    yield from _started(facts, bool(changes or fresh) or not run.current, missing + len(silent) <= 0)


def _listed(facts: Facts) -> tuple[Gpu, ...] | None:
    """The GPUs that nvidia-smi lists; None if it does not answer, as before the driver is installed."""
    try:
        return facts(gpu.gpus)
    except (Unavailable, Unreadable):
        return None


@operation()
def watched(facts: Facts) -> Iterator[Change]:
    """The timer's check is not paused, as it is after `limits --reset`."""
    if facts(files.file(PAUSED)) is not None:
        resume = command("rm", "-f", PAUSED)
        yield Change("change", TIMER, "paused since limits --reset", "checks each minute", (resume,))


def _started(facts: Facts, stale: bool, can_succeed: bool) -> Iterator[Change]:
    """The unit ran in this boot with the present files, and the timer is active; both are enabled."""
    now, timer = facts.all(units.unit(UNIT), units.unit(TIMER))
    for name, state in ((UNIT, now), (TIMER, timer)):
        if state.enabled != "enabled":
            enable = (command("systemctl", "enable", name),)
            yield Change("change", name, state.at_boot, "enabled at boot", enable, units=(name,))
    if can_succeed and now.active != "active":
        again = (command("systemctl", "reset-failed", UNIT),) if now.active == "failed" else ()
        start = command("systemctl", "start", UNIT, timeout_s=450)
        yield Change("run", UNIT, now.active, "has set the limits of this boot", (*again, start), units=(UNIT,))
    elif can_succeed and stale:
        restart = command("systemctl", "restart", UNIT, timeout_s=450)
        yield Change("run", UNIT, "ran with older files", "run again", (restart,))
    current = facts(units.running(TIMER, (f"/etc/systemd/system/{TIMER}",))).current
    if timer.active != "active" or not current:
        seen = "older than its file" if timer.active == "active" else timer.active
        again = (command("systemctl", "restart", TIMER),)
        yield Change("run", TIMER, seen, "checks each minute", again, units=(TIMER,))


def _program_files(facts: Facts) -> Iterator[Change]:
    """The program and NVIDIA's pynvml.py are on the host as they are here."""
    yield from file.differing(facts, PROGRAM, _program(), "0755")
    yield from file.differing(facts, PYNVML, pynvml())


@once
def _program() -> bytes:
    return (shipped_files.folder("onhost") / "gpu_limits.py").read_bytes()


@once
def pynvml() -> bytes:
    """NVIDIA's pynvml.py, as installed with rigwright."""
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise RuntimeError("nvidia-ml-py, which rigwright requires, is not installed")
    return Path(spec.origin).read_bytes()


def _config(facts: Facts, limits: Limits, expected_gpus: int | None, slots: dict[BusId, str] | None) -> bytes:
    """The text of limits.json, which the program reads."""
    config: dict[str, object] = {"gpus": _rules(facts, limits, slots)}
    if expected_gpus is not None:
        config["expected_gpus"] = expected_gpus
    if slots:
        config["positions"] = dict(slots)
    return (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()


def _rules(facts: Facts, limits: Limits, slots: dict[BusId, str] | None) -> list[dict[str, object]]:
    """The rules of limits.json: first for each GPU with its own limits, by UUID or bus id; last for all others."""
    rules: list[dict[str, object]] = []
    if limits.gpus:
        with quoted(facts, slots):
            gpus, bus = facts.all(gpu.gpus, pci.gpus)
        models = {device.bus_id: catalogue.model_of(device.device_id) for device in bus}
        host = limits.of()
        for device in gpus:
            own = wanted_of(limits, device, models, slots)
            if own != host:
                match = {"uuid": device.uuid} if device.uuid in limits.gpus else {"pci_bus_id": device.bus_id}
                rules.append({"match": match, **_set_values(own)})
    return [*rules, {"match": {}, **_set_values(limits.of())}]


def _set_values(limits: GpuLimits) -> dict[str, object]:
    return {key: value for key, value in to_builtins(limits).items() if value is not None}
