"""What the guard of a host does, and what it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rigwright.checks import Finding, check
from rigwright.facts import Facts, systemd as units
from rigwright.facts.systemd import GUARD_UNIT
from rigwright.features.guard import facts as guards
from rigwright.features.guard.facts import GuardReading, GuardState
from rigwright.features.guard.variables import STEPS, Guard

FRESH_S = 20.0
"""The guard writes its state each five seconds; an older one means that it does not go on (assumed: three were
missed)."""
_LOG = f"journalctl -u {GUARD_UNIT} -b"
_SHOWN = 3
_NOTED = {
    "oom-kill": "OOM kills",
    "machine-check": "machine checks",
    "memory-error": "uncorrected memory errors",
    "xid": "Xids",
    "gpu-hung": "GPUs that did not answer",
    "gpu-lost": "GPUs that were lost",
    "bmc": "times that the management controller did not answer",
    "clock": "times that the clock was set",
}


@check(follows=("module.", "run."))
def runs(facts: Facts, *, guard: Guard | None = None) -> Iterator[Finding]:
    """gpu-guard.service runs and reads, and did nothing since the boot: no step, and no notification that failed.

    A step stays a warning until the next boot; that it powered the machine off, during the boot after it. The energy of
    this month and the last is in the finding that passes."""
    now, state, hours = facts.all(units.unit(GUARD_UNIT), guards.state, guards.hours)
    if (now.active, now.sub) == ("activating", "start"):
        yield Finding(GUARD_UNIT, "warn", "is starting", "enabled, active", "", f"wait 15 s; {_LOG}")
    elif now.enabled != "enabled" or now.active != "active":
        fix = f"{_LOG}; then invoke provision" if now.load == "loaded" else "invoke provision"
        yield Finding(GUARD_UNIT, "fail", f"{now.at_boot}, {now.active}", "enabled, active", "", fix)
    elif state is None or state.age_s is None:
        yield Finding(GUARD_UNIT, "fail", "runs, and has read nothing in this boot", "a reading each second", "", _LOG)
    elif state.age_s > FRESH_S:
        cause = "its loop does not go on; systemd starts it again after a minute"
        fix = f"{_LOG}; sudo systemctl restart {GUARD_UNIT}"
        seen, wanted = f"last reading {state.age_s:.0f} s ago", f"within {FRESH_S:.0f} s"
        yield Finding(GUARD_UNIT, "fail", seen, wanted, cause, fix)
    else:
        yield from _reading(state, guard, hours)
    if state is not None:
        yield from _deeds(state)


def _reading(state: GuardState, wanted: Guard | None, hours: Sequence[GuardReading]) -> Iterator[Finding]:
    """What a guard that goes on reads, and what it cannot read or write."""
    wrong = []
    if state.without_gpus:
        wrong.append((f"reads no GPU: {state.without_gpus}", "invoke verify --tags driver"))
    elif state.hung:
        wrong.append((f"{state.hung} of {state.gpus} GPUs do not answer it", "invoke verify --tags driver"))
    if state.ring:
        wrong.append((f"its ring is not written: {state.ring}", "df -h /var; sudo du -xh /var | sort -h | tail"))
    if state.textfile:
        fix = "make the folder of guard.textfile, or leave guard.textfile out"
        wrong.append((f"its metrics are not written: {state.textfile}", fix))
    if wanted and wanted.fan_rpm_min and not state.fans:
        fix = "sudo apt-get install ipmitool; else take fan_rpm_min out of guard"
        wrong.append(("fan_rpm_min is set, and no fan is read", fix))
    for seen, fix in wrong:
        yield Finding(GUARD_UNIT, "warn", seen, "", "", fix, "host")
    if not wrong:
        seen = f"reads {state.gpus} GPUs" + (f", {state.fans} fans" if state.fans else "")
        if degrees := [reading.hottest_c for reading in hours if reading.hottest_c is not None]:
            seen += f"; {max(degrees):g} C at most in two weeks"
        yield Finding(GUARD_UNIT, "pass", f"{seen}{_energy(state)}", "a reading each second")


def _energy(state: GuardState) -> str:
    """`; 2026-11: 412.5 kWh by the GPUs, 530.1 kWh by the machine in 321 h`, and the month before; empty without a
    month."""
    text = ""
    for month in [month for month in reversed(state.months) if month.month <= state.month][:2]:
        machine = "" if month.machine_kwh is None else f", {month.machine_kwh:g} kWh by the machine"
        text += f"; {month.month}: {month.gpus_kwh:g} kWh by the GPUs{machine} in {month.hours:g} h"
    return text


def _deeds(state: GuardState) -> Iterator[Finding]:
    """What the guard did in this boot, that it ended the boot before, and whom it could not tell."""
    here = [event for event in state.events if event.boot_id == state.boot_id]
    before = [event for event in state.events if event.boot_id != state.boot_id]
    last = before[-1].boot_id if before else ""
    steps = [event for event in before if event.boot_id == last and event.event == "power-off"]
    steps += [event for event in here if event.event in (*STEPS, "over", "held-back")]
    if steps:
        seen = "; ".join(f"{state.clock(event)} {event.event}: {event.text}" for event in steps[-_SHOWN:])
        more = f" (and {len(steps) - _SHOWN} before)" if len(steps) > _SHOWN else ""
        cause = "a threshold of guard held: heat, a fan, or a sensor that is wrong"
        fix = "look at fans, dust and the room; invoke stress; then invoke limits puts back a limit that was lowered"
        yield Finding("steps of the guard", "warn", f"{seen}{more}", "none", cause, fix, "host")
    failed = [event for event in here if event.event in ("failed", "not-told", "energy")]
    if failed:
        seen = "; ".join(f"{state.clock(event)} {event.text}" for event in failed[-_SHOWN:])
        yield Finding("failures of the guard", "warn", seen, "none", "", _LOG, "host")
    counts = Counter(event.event for event in here)
    if noted := [f"{counts[event]} {words}" for event, words in _NOTED.items() if counts[event]]:
        yield Finding("events of the guard", "info", f"since the boot: {', '.join(noted)}", "", "", _LOG, "host")
