"""Persistence, power limit and clocks: in force now, and again at every boot."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rigwright.change import Change
from rigwright.errors import HostError
from rigwright.facts import Facts, files, gpu
from rigwright.facts import systemd as units
from rigwright.facts.gpu import ClockPair, Gpu
from rigwright.operations import file
from rigwright.operations import systemd as services
from rigwright.positions import called
from rigwright.shell import Command, command
from rigwright.templates import Template, render
from rigwright.typed import BusId
from rigwright.wanted import Clocks, Limits

CONFIG = "/etc/rigwright/limits.json"
UNIT = "gpu-limits.service"


def _smi(gpu_uuid: str, *argv: str) -> Command:
    return command("nvidia-smi", "-i", gpu_uuid, *argv, timeout_s=60)


def _name(one: Gpu, slots: dict[BusId, str] | None) -> str:
    return called(one.bus_id, one.uuid, slots)


def persistence(facts: Facts, *, enabled: bool = True, slots: dict[BusId, str] | None = None) -> Iterator[Change]:
    """Every GPU keeps its state when no program uses it (or does not)."""
    for one in facts(gpu.gpus):
        if one.persistence is not None and one.persistence != enabled:
            words = {True: "Enabled", False: "Disabled"}
            act = _smi(one.uuid, "-pm", str(int(enabled)))
            yield Change("change", f"{_name(one, slots)} persistence", words[one.persistence], words[enabled], (act,))


def applied(facts: Facts, *, limits: Limits, slots: dict[BusId, str] | None = None) -> Iterator[Change]:
    """Every GPU has the persistence, power limit and application clocks of `limits`; only GPUs that differ are touched.

    Raises HostError before anything is set when a GPU cannot do it, naming the nearest that it supports.
    """
    gpus = facts(gpu.gpus)
    if limits.application_clocks and any(not _clocks_right(one, limits.application_clocks) for one in gpus):
        _check_clocks(gpus, facts(gpu.supported_clocks), limits.application_clocks, slots)
    for one in gpus:
        _check_power(one, limits.power_limit_w, slots)
    if limits.persistence is not None:
        yield from persistence(facts, enabled=limits.persistence, slots=slots)
    for one in gpus:
        watts = limits.power_limit_w
        if watts is not None and one.power_limit_w != watts:
            before = "unknown" if one.power_limit_w is None else f"{one.power_limit_w:g} W"
            yield Change(
                "change", f"{_name(one, slots)} power limit", before, f"{watts} W", (_smi(one.uuid, "-pl", str(watts)),)
            )
        clocks = limits.application_clocks
        if clocks and not _clocks_right(one, clocks):
            after = f"{clocks.memory_mhz},{clocks.graphics_mhz} MHz"
            act = _smi(one.uuid, "-ac", f"{clocks.memory_mhz},{clocks.graphics_mhz}")
            yield Change(
                "change",
                f"{_name(one, slots)} application clocks",
                str(one.application_clocks or "unknown"),
                after,
                (act,),
            )


def defaults(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Change]:
    """Every GPU has its own default power limit and application clocks again; persistence is left as it is."""
    for one in facts(gpu.gpus):
        if one.power_default_w is not None and one.power_limit_w != one.power_default_w:
            act = _smi(one.uuid, "-pl", f"{one.power_default_w:g}")
            yield Change(
                "change",
                f"{_name(one, slots)} power limit",
                f"{one.power_limit_w or 0:g} W",
                f"{one.power_default_w:g} W",
                (act,),
            )
        if one.application_clocks and one.application_clocks != one.default_application_clocks:
            before, after = str(one.application_clocks), str(one.default_application_clocks)
            yield Change("change", f"{_name(one, slots)} application clocks", before, after, (_smi(one.uuid, "-rac"),))


def _clocks_right(one: Gpu, wanted: Clocks) -> bool:
    return one.application_clocks == ClockPair(wanted.memory_mhz, wanted.graphics_mhz)


def _check_power(one: Gpu, watts: int | None, slots: dict[BusId, str] | None) -> None:
    if watts is None:
        return
    if one.power_min_w is None or one.power_max_w is None:
        found = f"the power of {_name(one, slots)} ({one.name}) cannot be limited"
        raise HostError("limits.power_limit_w", found, "a GPU that tells its range", "leave power_limit_w out for it")
    if one.power_min_w <= watts <= one.power_max_w:
        return
    nearest = one.power_min_w if watts < one.power_min_w else one.power_max_w
    raise HostError(
        "limits.power_limit_w",
        f"{watts} W is not what {_name(one, slots)} ({one.name}) can be limited to",
        f"{one.power_min_w:g} to {one.power_max_w:g} W",
        f"power_limit_w: {nearest:g} is the nearest",
    )


def _check_clocks(
    gpus: tuple[Gpu, ...], supported: dict[str, tuple[ClockPair, ...]], wanted: Clocks, slots: dict[BusId, str] | None
) -> None:
    pair = ClockPair(wanted.memory_mhz, wanted.graphics_mhz)
    for one in gpus:
        pairs = supported.get(one.uuid, ())
        if one.application_clocks is None or not pairs:
            raise HostError(
                "limits.application_clocks",
                f"{_name(one, slots)} ({one.name}) has no application clocks",
                "a GPU with application clocks (Tesla, Quadro)",
                "leave application_clocks out; a power limit works on every card",
            )
        if pair not in pairs:
            apart = sorted(
                pairs,
                key=lambda known: (
                    abs(known.memory_mhz - pair.memory_mhz),
                    abs(known.graphics_mhz - pair.graphics_mhz),
                ),
            )
            near = sorted({*apart[:2]}, key=lambda known: known.graphics_mhz)
            raise HostError(
                "limits.application_clocks",
                f"{_name(one, slots)} ({one.name}) does not support {pair}",
                f"a pair that it supports; the nearest are {' and '.join(map(str, near))}",
                f"application_clocks: {{memory_mhz: {apart[0].memory_mhz}, graphics_mhz: {apart[0].graphics_mhz}}}; "
                "all of them: nvidia-smi -q -d SUPPORTED_CLOCKS",
            )


def boot(facts: Facts, *, limits: Limits, expected_gpus: int | None = None) -> Iterator[Change]:
    """gpu-limits.service sets the same limits at every boot: its program, its file, and the unit, enabled and current."""
    folder = "/usr/local/lib/rigwright"
    config: dict[str, object] = {
        "gpus": [{"match": {}, **{key: value for key, value in asdict(limits).items() if value is not None}}]
    }
    if expected_gpus is not None:
        config["expected_gpus"] = expected_gpus
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    program = (Path(__file__).parent.parent / "onhost" / "gpu_limits.py").read_bytes()
    paths = (f"{folder}/gpu_limits.py", f"{folder}/pynvml.py", CONFIG)
    unit_path = f"/etc/systemd/system/{UNIT}"
    asked = (units.unit(UNIT), units.running(UNIT, (*paths, unit_path)))
    now, run, *_ = facts.all(*asked, *(files.file(path) for path in (*paths, unit_path)))
    changes = [*file.differing(facts, paths[0], program, "0755")]
    changes += file.differing(facts, paths[1], _pynvml())
    changes += file.differing(facts, paths[2], text.encode())
    unit = Template(render(f"{UNIT}.j2", {"program": paths[0], "config": CONFIG}))
    changes += services.unit(facts, name=UNIT, template=unit)
    yield from changes
    if now.enabled != "enabled":
        yield Change(
            "change", UNIT, now.enabled or "not there", "enabled at boot", (command("systemctl", "enable", UNIT),)
        )
    if now.active != "active":
        again = (command("systemctl", "reset-failed", UNIT),) if now.active == "failed" else ()
        start = command("systemctl", "start", UNIT, timeout_s=300)
        yield Change("run", UNIT, now.active, "has set the limits of this boot", (*again, start))
    elif changes or not run.current:
        restart = command("systemctl", "restart", UNIT, timeout_s=300)
        yield Change("run", UNIT, "from older files", "run again", (restart,))


def _pynvml() -> bytes:
    found = importlib.util.find_spec("pynvml")
    if found is None or found.origin is None:
        raise RuntimeError("nvidia-ml-py is not installed beside rigwright")
    return Path(found.origin).read_bytes()
