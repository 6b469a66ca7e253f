"""Modes of the GPUs that need a reset or a boot: ECC of their memory, and MIG with its instances, which a boot unit
makes again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set

from rigwright import catalogue
from rigwright.catalogue import Model
from rigwright.core.change import Change, Note
from rigwright.core.command import command, script
from rigwright.core.control_characters import one_line
from rigwright.core.desired import Ecc
from rigwright.core.errors import HostError
from rigwright.core.files import shipped_files
from rigwright.core.gpu_labels import called, place
from rigwright.core.mig import Mig, MigInstance, rule, words
from rigwright.core.schema import BusId
from rigwright.core.templates.host_files import SHIPPED, Templates
from rigwright.core.templates.variables import Template
from rigwright.driver.start_failure import quoted
from rigwright.facts import Facts, Unavailable, display, files, footprint, pci
from rigwright.facts import systemd as units
from rigwright.facts.boot import reboot_record
from rigwright.facts.gpu import gpus as gpu
from rigwright.facts.gpu import mig as instances
from rigwright.facts.gpu.gpus import EccMode
from rigwright.facts.gpu.mig import PROGRAM, UNIT, MigMode
from rigwright.operations import file, operation
from rigwright.operations import systemd as services
from rigwright.operations._reboot import ends, ordered, require_safe
from rigwright.operations.limits import PYNVML, pynvml

CONFIG, UNIT_FILE = "/etc/rigwright/mig.json", f"/etc/systemd/system/{UNIT}"
_FILES = (PROGRAM, gpu.LIMITS_PROGRAM, PYNVML, CONFIG, UNIT_FILE)
_ON = {True: "on", False: "off", None: "unknown"}


@operation(reboots=True)
def ecc(
    facts: Facts, *, ecc: Ecc | None = None, slots: dict[BusId, str] | None = None, timeout_s: int = 900
) -> Iterator[Change | Note]:
    """ECC of the memory of each GPU is on or off as the inventory says, and in force. Without `ecc` it is left alone.

    The mode is set for the next boot, and the host reboots. The host must answer again within `timeout_s` seconds.
    Nothing is done while processes use the GPUs. A GPU without ECC that can be switched counts as off: where ECC is
    wanted of it, HostError is raised, with those that have it. If a reboot did not help, the host is not rebooted for
    that again: raises Unavailable. `rollback` and `remove` leave the mode as it is.
    """
    if ecc is None:
        return
    with quoted(facts, slots):
        modes, bus = facts.all(gpu.ecc_modes, pci.gpus)
    models = {device.bus_id: catalogue.model_of(device.device_id) for device in bus}
    wanted = {mode.bus_id: ecc_of(ecc, mode, models, slots) for mode in modes}
    for mode in modes:
        _require_able(mode, wanted[mode.bus_id], modes, models, slots)
    changes, reasons = [], []
    for mode in modes:
        want, name = wanted[mode.bus_id], called(mode.bus_id, mode.uuid, slots)
        if want is None or mode.current is None:
            continue
        if mode.pending != want:
            set_it = command("nvidia-smi", "-i", mode.uuid, "-e", str(int(want)), timeout_s=60)
            before = _ON[mode.current] if mode.pending == mode.current else f"{_ON[mode.pending]} from the next boot on"
            after = _ON[want] if mode.current == want else f"{_ON[want]} from the next boot on"
            changes.append(Change("change", f"{name} ECC", before, after, (set_it,), disruptive=True))
        if mode.current != want:
            reasons.append(f"ECC of {name} is {_ON[mode.current]}")
    yield from changes
    if reasons:
        why = "; ".join(reasons)
        before_it, sessions = facts.all(reboot_record.in_vain, display.graphical)
        require_safe(facts, with_driver=True)
        if before_it and before_it.same and before_it.reasons == one_line(why)[: reboot_record.MOST_CHARACTERS]:
            found = f"the reboot of {before_it.at} did not help ({before_it.reasons})"
            raise Unavailable(found, "nvidia-smi -q -d ECC, on the host; sudo dmesg | grep NVRM; then sudo reboot")
        yield from ends(sessions.sessions)
        yield ordered(why, "a boot with the wanted mode", timeout_s, same_boot=True)


def ecc_of(
    ecc: Ecc, mode: EccMode, models: Mapping[BusId, Model | None], slots: Mapping[BusId, str] | None
) -> bool | None:
    """Whether a GPU is to have ECC, by its model, position and UUID; None: it is left alone."""
    at = BusId(mode.bus_id)
    model = models.get(at)
    return ecc.of(model.key if model else "", (slots or {}).get(at, ""), mode.uuid)


def _require_able(
    mode: EccMode,
    want: bool | None,
    modes: tuple[EccMode, ...],
    models: Mapping[BusId, Model | None],
    slots: dict[BusId, str] | None,
) -> None:
    """Raises HostError for a GPU that is to have a mode which it cannot have, or that is lost."""
    name = called(mode.bus_id, mode.uuid, slots)
    if want is not None and mode.lost:
        todo = "sudo dmesg | grep -e NVRM -e Xid; a cold boot, then reseat it"
        raise HostError("ecc", f"{name} cannot be reached: {mode.lost}", "a GPU that answers", todo)
    if not want or mode.current is not None:
        return
    able = {model.key for one in modes if one.current is not None and (model := models.get(BusId(one.bus_id)))}
    choice = ", ".join(f"{key}: true" for key in sorted(able))
    fix = f"ecc: {{gpus: {{{choice}}}}}, which leaves the others alone" if choice else "leave `ecc` out for this host"
    found = f"{name} ({mode.name}) has no ECC that can be switched on"
    raise HostError("ecc", found, "a GPU with ECC, as most Tesla, Quadro and data centre boards have it", fix)


_RUN = """
unit=$1; stopped=
for client in gpu-guard.service nvidia-dcgm.service dcgm.service nvidia-persistenced.service; do
  systemctl -q is-active "$client" && systemctl stop "$client" && stopped="$client $stopped"
done
since=$(date '+%Y-%m-%d %H:%M:%S'); systemctl reset-failed "$unit" 2>/dev/null
systemctl restart "$unit"; code=$?
for client in $stopped; do systemctl start "$client"; done
[ $code = 0 ] || { journalctl -q -o cat -u "$unit" --since "$since" | grep -v -e '^Start' -e '^Failed' -e "^$unit" | tail -n 5 >&2; exit 1; }
"""
"""Runs the unit while nothing that rigwright or NVIDIA starts has a GPU open: it could not be reset then."""


@operation(reboots=True)
def mig(
    facts: Facts,
    *,
    mig: Mig | None = None,
    slots: dict[BusId, str] | None = None,
    templates: Templates = SHIPPED,
    timeout_s: int = 900,
) -> Iterator[Change | Note]:
    """Each GPU has the MIG mode and the instances of `mig`, and gpu-mig.service makes them at every boot.

    The catalogue says which models have MIG, and their profiles: another profile, and more slices than there are, raise
    HostError also on a host without a driver. The GPUs' own driver says which placements there are: a layout that does
    not fit raises HostError, before anything is changed where MIG is on already or the program is on the host. So do a
    GPU without MIG, a lost one, and GPUs in use. A mode that waits for a boot, as in a virtual machine, reboots the
    host. Without `mig` the unit is not on the host, and the GPUs stay as they are.
    """
    if mig is None:
        yield from _mig_removed(facts)
        return
    bus = facts(pci.gpus)
    _require_profiles(mig, bus, slots)
    with quoted(facts, slots):
        modes, program, unit, run, *_ = facts.all(
            instances.modes,
            files.file(PROGRAM),
            units.unit(UNIT),
            units.running(UNIT, _FILES),
            *map(files.file, _FILES),
        )
    models = {BusId(device.bus_id): catalogue.model_of(device.device_id) for device in bus}
    wanted = {mode: layout for mode in modes if (layout := _layout(mig, mode, models, slots)) is not None}
    for mode, layout in wanted.items():
        _require_mig(mode, layout, models, modes, slots)
    config = _mig_config(wanted, slots)
    there = facts(instances.layouts) if program and any(mode.current for mode in wanted) else {}
    differing = [
        mode
        for mode, layout in wanted.items()
        if mode.current is not None
        and (not mode.current == mode.pending == bool(layout) or words(there.get(mode.bus_id, ())) != words(layout))
    ]
    waiting = [mode for mode in differing if mode.current != mode.pending == bool(wanted[mode])]
    if differing and not waiting:
        _require_possible(facts, differing, config if program else "", slots)
    yield from _mig_files(facts, config, templates)
    if waiting:
        names = ", ".join(called(mode.bus_id, mode.uuid, slots) for mode in waiting)
        yield from _enabled(unit)
        require_safe(facts, with_driver=True)
        yield from ends(facts(display.graphical).sessions)
        yield ordered(f"MIG of {names} waits for a boot", "a boot with the wanted mode", timeout_s, same_boot=True)
        return
    make = script(_RUN, UNIT, timeout_s=600)
    for number, mode in enumerate(differing):
        known = mode.bus_id in there or not mode.current
        before = (
            (words(there.get(mode.bus_id, ())) if mode.current else "off")
            if known
            else "on, its instances not read yet"
        )
        name = f"{called(mode.bus_id, mode.uuid, slots)} MIG"
        before = "on, without instances" if known and mode.current and before == "off" else before
        yield Change("change", name, before, words(wanted[mode]), () if number else (make,), units=(UNIT,))
    yield from _enabled(unit)
    if not differing and (unit.active != "active" or not run.current or list(_mig_files(facts, config, templates))):
        before = unit.active if unit.active != "active" else "ran with older files"
        yield Change("run", UNIT, before, "has made the instances of this boot", (make,), units=(UNIT,))


def _layout(
    mig: Mig, mode: MigMode, models: Mapping[BusId, Model | None], slots: Mapping[BusId, str] | None
) -> tuple[MigInstance, ...] | None:
    model = models.get(mode.bus_id)
    return mig.of(model.key if model else "", (slots or {}).get(mode.bus_id, ""), mode.uuid)


def _require_profiles(mig: Mig, bus: Sequence[pci.PciGpu], slots: Mapping[BusId, str] | None) -> None:
    """Raises HostError for a layout that a GPU of the catalogue cannot have. This needs no driver, so it is told before
    one is installed."""
    known = [(device, model) for device in bus if (model := catalogue.model_of(device.device_id))]
    for device, model in known:
        layout = mig.of(model.key, (slots or {}).get(BusId(device.bus_id), ""))
        if not layout or not model.described:
            continue
        name = f"{place(device.bus_id, slots)} ({model.name})"
        if not model.mig:
            raise _without_mig(name, {one.key for _, one in known if one.mig})
        lacking = [one.profile for one in layout if re.split("[+-]", one.profile)[0] not in model.mig]
        if lacking:
            alike = [profile for profile in model.mig if profile[0] == lacking[0][0]]
            fix = f"{' or '.join(alike)} in place of {lacking[0]}" if alike else "another layout"
            found = f"{name} has no profile {lacking[0]}"
            raise HostError("mig", found, f"one of {', '.join(model.mig)}", f"{fix}; invoke explain {model.key}")
        most, slices = max(int(profile[0]) for profile in model.mig), sum(int(one.profile[0]) for one in layout)
        if slices > most:
            found = f"{name}: {words(layout)} are {slices} slices"
            raise HostError("mig", found, f"{most} at most", "fewer or smaller instances")


def _without_mig(name: str, able: Set[str]) -> HostError:
    """The error for a GPU that is to be split and has no MIG. `able`: the models of the host that have it."""
    choice = ", ".join(f"{key}: [...]" for key in sorted(able))
    fix = f"mig: {{{choice}}}, which leaves the others alone" if choice else "leave `mig` out for this host"
    return HostError("mig", f"{name} has no MIG", "an A30, A100, H100, H200, or a newer data centre board", fix)


def _require_mig(
    mode: MigMode,
    layout: tuple[MigInstance, ...],
    models: Mapping[BusId, Model | None],
    modes: tuple[MigMode, ...],
    slots: dict[BusId, str] | None,
) -> None:
    """Raises HostError for a GPU that is to be split and has no MIG, and for one that is lost."""
    name = called(mode.bus_id, mode.uuid, slots)
    if mode.lost:
        todo = "sudo dmesg | grep -e NVRM -e Xid; a cold boot, then reseat it"
        raise HostError("mig", f"{name} cannot be reached: {mode.lost}", "a GPU that answers", todo)
    if layout and mode.current is None:
        able = {model.key for one in modes if one.current is not None and (model := models.get(one.bus_id))}
        raise _without_mig(f"{name} ({mode.name})", able)


def _require_possible(facts: Facts, differing: list[MigMode], config: str, slots: dict[BusId, str] | None) -> None:
    """Raises HostError for a layout that the driver would refuse, if the program that asks it is on the host, and while
    GPUs are used."""
    refused = facts(instances.refused(config)) if config else {}
    for mode in differing:
        if why := refused.get(mode.bus_id):
            found = f"{called(mode.bus_id, mode.uuid, slots)}: {why}"
            raise HostError(
                "mig", found, "a layout that the driver's profiles and placements allow", "sudo nvidia-smi mig -lgipp"
            )
    computing, holding = facts.all(gpu.processes, gpu.holders)
    users = {one.pid: one.name for one in (*computing, *holding) if one.works}
    if users:
        names = ", ".join(f"{name} ({pid})" for pid, name in users.items())
        raise HostError(
            "mig", f"the GPUs are in use by {names}", "idle GPUs", "end them; then run the same command again"
        )


def _mig_config(wanted: Mapping[MigMode, tuple[MigInstance, ...]], slots: Mapping[BusId, str] | None) -> str:
    """The text of mig.json, which the program reads."""
    config: dict[str, object] = {
        "gpus": [rule(mode.bus_id, layout) for mode, layout in wanted.items() if mode.current is not None]
    }
    if slots:
        config["positions"] = dict(slots)
    return json.dumps(config, indent=2, sort_keys=True) + "\n"


def _mig_files(facts: Facts, config: str, templates: Templates) -> Iterator[Change]:
    """The program with what it imports, its configuration and its unit are on the host as they are here."""
    folder = shipped_files.folder("onhost")
    for path in (PROGRAM, gpu.LIMITS_PROGRAM):
        yield from file.differing(facts, path, (folder / path.rpartition("/")[2]).read_bytes(), "0755")
    yield from file.differing(facts, PYNVML, pynvml())
    yield from file.differing(facts, CONFIG, config.encode())
    text = templates.render("systemd/gpu-mig.service.j2", {"program": PROGRAM, "config": CONFIG})
    yield from services.unit(facts, name=UNIT, template=Template(text))


def _enabled(unit: units.Unit) -> Iterator[Change]:
    if unit.enabled != "enabled":
        enable = (command("systemctl", "enable", UNIT),)
        yield Change("change", UNIT, unit.at_boot, "enabled at boot", enable, units=(UNIT,))


def _mig_removed(facts: Facts) -> Iterator[Change]:
    """The unit, its configuration and its program are not on the host; what the program imports stays for the
    limits."""
    written = facts(files.file(UNIT_FILE))
    if written is None or PROGRAM not in written.text:
        return
    now, *there = facts.all(units.unit(UNIT), files.file(CONFIG), files.file(PROGRAM))
    stop = command("systemctl", "disable", "--now", "--", UNIT, timeout_s=120)
    after = (command("systemctl", "daemon-reload"), footprint.forget([UNIT_FILE]))
    yield Change(
        "remove", UNIT, f"{now.active}, {now.at_boot}", "", (stop, file.take_away(UNIT_FILE), *after), units=(UNIT,)
    )
    for path, found in zip((CONFIG, PROGRAM), there, strict=True):
        if found is not None:
            yield Change("remove", path, "written by rigwright", "", (file.take_away(path), footprint.forget([path])))
