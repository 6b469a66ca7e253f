"""Modes of the GPUs that their own memory keeps, or that a boot unit sets: ECC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rigwright import catalogue
from rigwright.catalogue import Model
from rigwright.core.change import Change, Note
from rigwright.core.command import command
from rigwright.core.control_characters import one_line
from rigwright.core.desired import Ecc
from rigwright.core.errors import HostError
from rigwright.core.gpu_labels import called
from rigwright.core.schema import BusId
from rigwright.driver.start_failure import quoted
from rigwright.facts import Facts, Unavailable, display, gpu, pci, reboot_record
from rigwright.facts.gpu import EccMode
from rigwright.operations import operation
from rigwright.operations._reboot import ends, ordered, require_safe

_ON = {True: "on", False: "off", None: "unknown"}


@operation(reboots=True)
def ecc(
    facts: Facts, *, ecc: Ecc | None = None, slots: dict[BusId, str] | None = None, timeout_s: int = 900
) -> Iterator[Change | Note]:
    """ECC of the memory of each GPU is on or off as the inventory says, and in force. Without `ecc` it is left alone.

    The mode is set for the next boot, and the host reboots. The host must answer again within `timeout_s` seconds. Nothing is done
    while processes use the GPUs. A GPU without ECC that can be switched counts as off: where ECC is wanted of it, HostError is raised,
    with those that have it. If a reboot did not help, the host is not rebooted for that again: raises Unavailable. `rollback` and
    `remove` leave the mode as it is.
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
