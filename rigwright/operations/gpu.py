"""Modes of the GPUs that need a reset or a boot: ECC, and MIG with its instances, which a boot unit makes again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set

from rigwright import catalogue
from rigwright.catalogue.gpus import setting_names
from rigwright.core.change import Change, Note
from rigwright.core.command import command, script
from rigwright.core.control_characters import one_line
from rigwright.core.desired import Ecc
from rigwright.core.errors import HostError
from rigwright.core.files import shipped_files
from rigwright.core.gpu_labels import gpu_label, place
from rigwright.core.mig import Mig, MigInstance, rule, words
from rigwright.core.schema import BusId
from rigwright.core.templates.host_files import SHIPPED, Templates
from rigwright.core.templates.variables import Template
from rigwright.driver.start_failure import quoted
from rigwright.facts import Facts, Unavailable, display, files, footprint, pci, systemd as units
from rigwright.facts.boot import reboot_record
from rigwright.facts.gpu import gpus as gpu, mig as instances
from rigwright.facts.gpu.gpus import GpuMode
from rigwright.facts.gpu.mig import PROGRAM, UNIT
from rigwright.operations import file, operation, systemd as services
from rigwright.operations.limits import PYNVML, pynvml
from rigwright.operations.reboot import reboot_change, require_safe, sessions_lost

CONFIG, UNIT_FILE = "/etc/rigwright/mig.json", f"/etc/systemd/system/{UNIT}"
_FILES = (PROGRAM, gpu.LIMITS_PROGRAM, PYNVML, CONFIG, UNIT_FILE)
_ON = {True: "on", False: "off", None: "unknown"}


@operation(reboots=True)
def ecc(
    facts: Facts, *, ecc: Ecc | None = None, slots: dict[BusId, str] | None = None, timeout_s: int = 900
) -> Iterator[Change | Note]:
    """ECC of the memory of each GPU is on or off as in the inventory, and in force. Without `ecc` nothing is changed.

    The mode is set for the next boot, and the host reboots; it must answer again within `timeout_s` seconds. Nothing is
    done while processes use the GPUs. Raises HostError for a GPU that has no ECC to switch on, and Unavailable if a
    reboot did not help. `rollback` and `remove` do not change the mode.
    """
    if ecc is None:
        return
    with quoted(facts, slots):
        modes, bus = facts.all(gpu.ecc_modes, pci.gpus)
    models = {device.bus_id: catalogue.model_of(device.device_id) for device in bus}
    changes, reasons = [], []
    for mode in modes:
        want = ecc.of(*setting_names(models.get(mode.bus_id), mode.bus_id, mode.uuid, slots))
        name = gpu_label(mode.bus_id, mode.uuid, slots)
        if want is not None and mode.lost:
            raise _lost("ecc", name, mode)
        if want and mode.current is None:
            able = {model.key for one in modes if one.current is not None and (model := models.get(one.bus_id))}
            raise _without_ecc(f"{name} ({mode.name})", able)
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
            problem = f"the reboot of {before_it.at} did not help ({before_it.reasons})"
            raise Unavailable(problem, "nvidia-smi -q -d ECC, on the host; sudo dmesg | grep NVRM; then sudo reboot")
        yield from sessions_lost(sessions.sessions)
        yield reboot_change(why, "a boot with the wanted mode", timeout_s, same_boot=True)


def _lost(where: str, name: str, mode: GpuMode) -> HostError:
    """The error for a GPU that is lost and is to have a mode."""
    fix = "sudo dmesg | grep -e NVRM -e Xid; a cold boot, then reseat it"
    return HostError(where, f"{name} cannot be reached: {mode.lost}", "a GPU that answers", fix)


def _without_ecc(name: str, able: Set[str]) -> HostError:
    """The error for a GPU that is to have ECC and has none to switch on. `able`: the host's models with ECC."""
    choice = ", ".join(f"{key}: true" for key in sorted(able))
    fix = f"ecc: {{gpus: {{{choice}}}}}, which leaves the others alone" if choice else "leave `ecc` out for this host"
    expected = "a GPU with ECC, as most Tesla, Quadro and data centre boards have it"
    return HostError("ecc", f"{name} has no ECC that can be switched on", expected, fix)


_RUN = """
unit=$1; stopped=
for client in gpu-guard.service nvidia-dcgm.service dcgm.service nvidia-persistenced.service; do
  systemctl -q is-active "$client" && systemctl stop "$client" && stopped="$client $stopped"
done
since=$(date '+%Y-%m-%d %H:%M:%S'); systemctl reset-failed "$unit" 2>/dev/null
systemctl restart "$unit"; code=$?
for client in $stopped; do systemctl start "$client"; done
[ $code = 0 ] || {
  journalctl -q -o cat -u "$unit" --since "$since" | grep -v -e '^Start' -e '^Failed' -e "^$unit" | tail -n 5 >&2
  exit 1
}
"""
"""Runs the unit while no service of rigwright or NVIDIA has a GPU open: such a GPU could not be reset."""


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

    Raises HostError for profiles that the model in the catalogue does not have and for too many slices, also without a
    driver; for a layout that the driver refuses, before the first change if MIG is on or the program is on the host;
    for a GPU without MIG, a lost GPU, and GPUs in use. A mode that needs a boot, as in a virtual machine, reboots the
    host. Without `mig` the unit is removed, and the GPUs are not changed.
    """
    if mig is None:
        yield from _mig_removed(facts)
        return
    bus = facts(pci.gpus)
    _require_profiles(mig, bus, slots)
    with quoted(facts, slots):
        of_unit = (files.file(PROGRAM), units.unit(UNIT), units.running(UNIT, _FILES))
        modes, program, unit, run, *_ = facts.all(instances.modes, *of_unit, *map(files.file, _FILES))
    models = {device.bus_id: catalogue.model_of(device.device_id) for device in bus}
    wanted: dict[GpuMode, tuple[MigInstance, ...]] = {}
    for mode in modes:
        layout = mig.of(*setting_names(models.get(mode.bus_id), mode.bus_id, mode.uuid, slots))
        if layout is None:
            continue
        wanted[mode], name = layout, gpu_label(mode.bus_id, mode.uuid, slots)
        if mode.lost:
            raise _lost("mig", name, mode)
        if layout and mode.current is None:
            able = {model.key for one in modes if one.current is not None and (model := models.get(one.bus_id))}
            raise _without_mig(f"{name} ({mode.name})", able)
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
        names = ", ".join(gpu_label(mode.bus_id, mode.uuid, slots) for mode in waiting)
        yield from _enabled(unit)
        require_safe(facts, with_driver=True)
        yield from sessions_lost(facts(display.graphical).sessions)
        yield reboot_change(
            f"MIG of {names} waits for a boot", "a boot with the wanted mode", timeout_s, same_boot=True
        )
        return
    make = script(_RUN, UNIT, timeout_s=600)
    for number, mode in enumerate(differing):
        name, before = f"{gpu_label(mode.bus_id, mode.uuid, slots)} MIG", "off"
        if mode.current and mode.bus_id not in there:
            before = "on, its instances not read yet"
        elif mode.current:
            before = words(there[mode.bus_id]) if there[mode.bus_id] else "on, without instances"
        yield Change("change", name, before, words(wanted[mode]), () if number else (make,), units=(UNIT,))
    yield from _enabled(unit)
    if not differing and (unit.active != "active" or not run.current or list(_mig_files(facts, config, templates))):
        before = unit.active if unit.active != "active" else "ran with older files"
        yield Change("run", UNIT, before, "has made the instances of this boot", (make,), units=(UNIT,))


def _require_profiles(mig: Mig, bus: Sequence[pci.PciGpu], slots: Mapping[BusId, str] | None) -> None:
    """Raises HostError for a layout that a model of the catalogue cannot have. Needs no driver."""
    known = [(device, model) for device in bus if (model := catalogue.model_of(device.device_id))]
    for device, model in known:
        layout = mig.of(*setting_names(model, device.bus_id, "", slots))
        if not layout or not model.described:
            continue
        name = f"{place(device.bus_id, slots)} ({model.name})"
        if not model.mig:
            raise _without_mig(name, {one.key for _, one in known if one.mig})
        lacking = [one.profile for one in layout if re.split("[+-]", one.profile)[0] not in model.mig]
        if lacking:
            alike = [profile for profile in model.mig if profile[0] == lacking[0][0]]
            fix = f"{' or '.join(alike)} in place of {lacking[0]}" if alike else "another layout"
            problem = f"{name} has no profile {lacking[0]}"
            raise HostError("mig", problem, f"one of {', '.join(model.mig)}", f"{fix}; invoke explain {model.key}")
        most, slices = max(int(profile[0]) for profile in model.mig), sum(int(one.profile[0]) for one in layout)
        if slices > most:
            problem = f"{name}: {words(layout)} are {slices} slices"
            raise HostError("mig", problem, f"{most} at most", "fewer or smaller instances")


def _without_mig(name: str, able: Set[str]) -> HostError:
    """The error for a GPU that is to have instances and has no MIG. `able`: the host's models with MIG."""
    choice = ", ".join(f"{key}: [...]" for key in sorted(able))
    fix = f"mig: {{{choice}}}, which leaves the others alone" if choice else "leave `mig` out for this host"
    return HostError("mig", f"{name} has no MIG", "an A30, A100, H100, H200, or a newer data centre board", fix)


def _require_possible(facts: Facts, differing: list[GpuMode], config: str, slots: dict[BusId, str] | None) -> None:
    """Raises HostError for a layout that the driver would refuse (`config` "": not known), and while GPUs are used."""
    refused = facts(instances.refused(config)) if config else {}
    for mode in differing:
        if why := refused.get(mode.bus_id):
            problem, fix = f"{gpu_label(mode.bus_id, mode.uuid, slots)}: {why}", "sudo nvidia-smi mig -lgipp"
            raise HostError("mig", problem, "a layout that the driver's profiles and placements allow", fix)
    computing, holding = facts.all(gpu.processes, gpu.holders)
    users = {one.pid: one.name for one in (*computing, *holding) if one.works}
    if users:
        problem = f"the GPUs are in use by {', '.join(f'{name} ({pid})' for pid, name in users.items())}"
        raise HostError("mig", problem, "idle GPUs", "end them; then run the same command again")


def _mig_config(wanted: Mapping[GpuMode, tuple[MigInstance, ...]], slots: Mapping[BusId, str] | None) -> str:
    """The text of mig.json, which the program reads."""
    config: dict[str, object] = {
        "gpus": [rule(mode.bus_id, layout) for mode, layout in wanted.items() if mode.current is not None]
    }
    if slots:
        config["positions"] = dict(slots)
    return json.dumps(config, indent=2, sort_keys=True) + "\n"


def _mig_files(facts: Facts, config: str, templates: Templates) -> Iterator[Change]:
    """The program with its imports, its configuration and its unit are on the host as they are here."""
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
    """The unit, its configuration and its program are not on the host. The program's imports stay for the limits."""
    written = facts(files.file(UNIT_FILE))
    if written is None or PROGRAM not in written.text:
        return
    now, *there = facts.all(units.unit(UNIT), files.file(CONFIG), files.file(PROGRAM))
    stop = command("systemctl", "disable", "--now", "--", UNIT, timeout_s=120)
    after = (file.take_away(UNIT_FILE), command("systemctl", "daemon-reload"), footprint.forget([UNIT_FILE]))
    yield Change("remove", UNIT, f"{now.active}, {now.at_boot}", "", (stop, *after), units=(UNIT,))
    for path, content in zip((CONFIG, PROGRAM), there, strict=True):
        if content is not None:
            yield Change("remove", path, "written by rigwright", "", (file.take_away(path), footprint.forget([path])))
