"""The limits of the GPUs go back to what was in force before a run."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.core.change import Change, Note
from rigwright.core.command import Command, command, script
from rigwright.core.gpu_labels import gpu_label
from rigwright.core.host_folders import UNTIL_BOOT
from rigwright.core.schema import BusId
from rigwright.driver.start_failure import quoted
from rigwright.facts import Facts, run_record
from rigwright.facts.gpu import gpus as gpu
from rigwright.facts.gpu.gpus import LOCKED_FILE, Gpu
from rigwright.features.rollback.target import target, toward
from rigwright.operations import operation

_LOCK = f"""
mkdir -p -m 755 {UNTIL_BOOT} && {{ umask 077; exec 9>>{UNTIL_BOOT}/limits.lock; umask 022; }} || exit 1
flock -w 20 9 || {{ echo "another program has set limits for 20 s" >&2; exit 1; }}
uuid=$1 kind=$2 low=$3 high=$4
case $kind in graphics) set=-lgc free=-rgc;; *) set=-lmc free=-rmc;; esac
if [ -n "$low" ]; then nvidia-smi -i "$uuid" "$set" "$low,$high"; else nvidia-smi -i "$uuid" "$free"; fi || exit 1
{{ grep -v "^$uuid $kind " {LOCKED_FILE} 2>/dev/null
  [ -z "$low" ] || echo "$uuid $kind $low $high $(cat /proc/sys/kernel/random/boot_id)" \\
    "$(stat -c %i /sys/module/nvidia 2>/dev/null || echo -) 0"
}} >{LOCKED_FILE}.new && mv {LOCKED_FILE}.new {LOCKED_FILE}
"""
"""Locks a clock or frees it, and writes it where the program of the limits writes it: no driver tells which clocks are
locked."""


@operation()
def limits_restored(facts: Facts, *, to: str = "", slots: dict[BusId, str] | None = None) -> Iterator[Change | Note]:
    """Every GPU has the persistence, power limit, application clocks and locked clocks that were in force before the
    run.

    Nothing is changed where no driver was loaded then. A warning names a GPU of then that does not answer now.
    """
    run, _ = target(facts, to)
    before = facts(run_record.limits(run.run))
    if not before.gpus:
        return
    with quoted(facts, slots):
        gpus, locks = facts.all(gpu.gpus, gpu.locked)
    now = {device.uuid: device for device in gpus if device.uuid and not device.lost}
    changes: list[Change] = []
    for was in before.gpus:
        if was.lost or not was.uuid:
            continue
        device = now.get(was.uuid)
        name = gpu_label(was.bus_id, was.uuid, slots)
        if device is None:
            yield Note(f"{name}: it does not answer now, its limits stay", warn=True)
            continue
        changes += _differences(name, was, device)
        for kind in ("graphics", "memory"):
            old, new = before.locks.get((was.uuid, kind)), locks.get((was.uuid, kind))
            if old != new:
                low, high = (str(old[0]), str(old[1])) if old else ("", "")
                before_words, after_words = (f"{span[0]}-{span[1]} MHz" if span else "free" for span in (new, old))
                lock = (script(_LOCK, was.uuid, kind, low, high, timeout_s=120),)
                changes.append(Change("change", f"{name} locked {kind} clock", before_words, after_words, lock))
    yield from toward(run, changes)


def _differences(name: str, was: Gpu, now: Gpu) -> Iterator[Change]:
    def smi(*words: str) -> tuple[Command, ...]:
        return (command("nvidia-smi", "-i", was.uuid, *words, timeout_s=60),)

    if was.persistence is not None and now.persistence is not None and was.persistence != now.persistence:
        words = {True: "Enabled", False: "Disabled"}
        turn = smi("-pm", str(int(was.persistence)))
        yield Change("change", f"{name} persistence", words[now.persistence], words[was.persistence], turn)
    watts = was.power_limit_w
    if watts is not None and now.power_limit_w is not None and watts != now.power_limit_w:
        before, after = f"{now.power_limit_w:g} W", f"{watts:g} W"
        yield Change("change", f"{name} power limit", before, after, smi("-pl", f"{watts:g}"))
    clocks = was.application_clocks
    if clocks and now.application_clocks and clocks != now.application_clocks:
        lock = smi("-ac", f"{clocks.memory_mhz},{clocks.graphics_mhz}")
        commands = smi("-rac") if clocks == was.default_application_clocks else lock
        yield Change("change", f"{name} application clocks", str(now.application_clocks), str(clocks), commands)
