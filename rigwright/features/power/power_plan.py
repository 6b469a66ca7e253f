"""`invoke power.plan`: whether the power supplies carry a machine, and which limits would fit."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.catalogue.rigs import Supply
from rigwright.cli.answer import Answer, answer
from rigwright.cli.given_inventory import given_inventory, read_inventory
from rigwright.core.desired import Limits
from rigwright.core.errors import InputError, UsageError
from rigwright.core.process import prompt
from rigwright.engine.host_variables import of_host
from rigwright.features.power import table
from rigwright.features.power.budget import BASE_W, models_of
from rigwright.features.power.draw import Setting, require_supported, setting_of
from rigwright.features.power.mains import MainsLoad, mains_load
from rigwright.features.power.options import PowerPlanOptions
from rigwright.features.power.plan import Plan, missing, plan, positions_without_power


def power_plan(options: PowerPlanOptions) -> int:
    """Prints the power plan of a rig or a host; returns the exit code, 2 if the supplies do not carry it."""

    def find(_console: Console) -> Answer:
        plan, file = _plan(options)
        code = 2 if plan.verdict == "does not fit" else 0
        return Answer(lambda console: table.show(console, plan, file), {"power": table.document(plan)}, code)

    return answer(options, find, {"power": None})


def _plan(options: PowerPlanOptions) -> tuple[Plan, str]:
    """The plan, and the file for its limits, "" if unknown. Raises UsageError, InputError."""
    if bool(options.rig) == bool(options.host):
        found = "both --rig and --host" if options.rig else "no machine is named"
        raise UsageError("power.plan", found, "--rig NAME, --rig FILE.yml or --host HOST", "--rig servbadge")
    limit = _whole(options.limits_w, "--limits-w", "watts of one GPU", 200)
    clock = _whole(options.clocks_mhz, "--clocks-mhz", "MHz", 1005)
    price = _price(options.price_per_kwh)
    rig, limits, where, file, mains_of = (_of_host if options.host else _of_rig)(options)
    if options.supplies:
        rig = with_supplies(rig, options.supplies)
    if options.gpu_power_w:
        rig = with_gpu_power(rig, options.gpu_power_w)
    base_w = _whole(options.base_load_w, "--base-load-w", "watts of the machine without its GPUs", 150)
    if base_w:
        rig = _with_base_load(rig, base_w)
    setting = Setting(limit, clock) if limit or clock else setting_of(limits)
    rig = _complete_rig(rig, setting, options)
    if setting:
        limit_at, clock_at = ("--limits-w", "--clocks-mhz") if limit or clock else (where, where)
        require_supported(models_of(rig), setting, limit_at, clock_at)
    made = plan(rig, where, setting, price)
    return replace(made, mains=mains_of and mains_of(made.chosen.steady_w)), file


def _complete_rig(rig: Rig, setting: Setting | None, options: PowerPlanOptions) -> Rig:
    """The rig with the numbers that it lacks: a terminal asks for them. Elsewhere UsageError names them."""
    lacks = missing(rig, setting)
    if not lacks:
        return rig
    if prompt.on_terminal() and options.json != "-":
        return _rig_with_answers(rig)
    flags = [number.flag for number in lacks]
    found = f"{rig.key} does not say {'; nor '.join(number.text for number in lacks)}"
    expected = f"{', '.join(flags)}, or in the rig's file {', '.join(number.line for number in lacks)}"
    machine = f"--host {options.host}" if options.host else f"--rig {options.rig}"
    base = "" if rig.base_load_w else f"; --base-load-w WATTS, where {BASE_W} W is not what the rest of it draws"
    raise UsageError("power.plan", found, expected, f"invoke power.plan {machine} {' '.join(flags)}{base}")


def _rig_with_answers(rig: Rig) -> Rig:
    """The rig with an answer for each number that it lacks. Raises UsageError if an answer is empty."""
    for position in positions_without_power(rig):
        card = catalogue.model(rig.gpus[position]).label
        field = "nvidia-smi -q -d POWER: Default Power Limit"
        question = f"How many watts may the {card} at {position} draw ({field})? "
        rig = _until_valid(question, "--gpu-power-w", partial(with_gpu_power, rig), f"{position}=")
    if not rig.supplies:
        (number,) = missing(rig, setting_of(rig.limits))
        question = f"{rig.key} does not say {number.text}. How many, such as 1x1600 or 2x1100? "
        rig = _until_valid(question, "--supplies", partial(with_supplies, rig))
    if rig.base_load_w is None:
        text = prompt.answer(f"How many watts does the rest of the machine draw? (Enter: {BASE_W} assumed) ")
        rig = _with_base_load(rig, _whole(text, "--base-load-w", "watts", 150) or BASE_W) if text else rig
    return rig


def _until_valid(question: str, flag: str, changed_rig: Callable[[str], Rig], prefix: str = "") -> Rig:
    while text := prompt.answer(question):
        try:
            return changed_rig(prefix + text)
        except UsageError as error:
            print(f"{error.found}; expected: {error.expected}")
    raise UsageError("power.plan", "no answer", "the number, or Ctrl-C", f"{flag}, to give it without being asked")


def with_gpu_power(rig: Rig, text: str) -> Rig:
    """The rig with default power limits of its GPUs, W: `PCIE-1=180,PCIE-2=100`, or `180` for all of unknown power.

    Raises UsageError.
    """
    power_w = dict(rig.gpu_power_w)
    for part in text.split(","):
        match = re.fullmatch(r"(?:([^=]+)=)?(\d{1,5}) *[wW]?", part.strip(), re.ASCII)
        if not match or not 10 <= int(match[2]) <= 2500:
            expected = "POSITION=WATTS (10 to 2500), several joined by commas, or WATTS for every GPU of unknown power"
            raise UsageError("--gpu-power-w", f"'{part.strip()}' is no power of a GPU", expected)
        positions = [match[1].strip()] if match[1] else positions_without_power(rig)
        for position in positions:
            if position not in rig.gpus:
                raise UsageError("--gpu-power-w", f"'{position}' is no position of {rig.key}", ", ".join(rig.gpus))
            power_w[position] = int(match[2])
    return replace(rig, gpu_power_w=power_w, sources={**rig.sources, "gpu_power_w": "--gpu-power-w"})


def _with_base_load(rig: Rig, watts: int) -> Rig:
    return replace(rig, base_load_w=watts, sources={**rig.sources, "base_load_w": "--base-load-w"})


Subject = tuple[catalogue.Rig, Limits | None, str, str, Callable[[float], MainsLoad] | None]
"""A rig, its limits, their place, the file for them ("": none), and what makes the load of its mains circuit from its
steady power (None: the circuit is not known)."""


def _of_rig(options: PowerPlanOptions) -> Subject:
    """The rig of --rig, a name or a file."""
    path = Path(options.rig)
    if path.suffix in (".yml", ".yaml") or "/" in options.rig:
        if path.suffix != ".yml" or not path.is_file():
            problem = "is no file that ends with .yml" if path.exists() else "is not there"
            expected = "a rig's file, NAME.yml, or the name of a rig"
            raise UsageError("--rig", f"{options.rig} {problem}", expected, "docs/guide/power.md shows one")
        rig = catalogue.rig(path.stem, "--rig", path.parent)
        return rig, rig.limits, str(path), "", None
    inventory = given_inventory(options.inventory)
    rig = catalogue.rig(options.rig, "--rig", inventory.rigs if inventory else None)
    return rig, rig.limits, f"--rig {options.rig}", "", None


def _of_host(options: PowerPlanOptions) -> Subject:
    """The rig of --host, with the limits of the inventory."""
    inventory = read_inventory(options.inventory, options.vault_password_file)
    names = inventory.names(options.host)
    if len(names) != 1:
        raise UsageError(f"--host {options.host}", f"{len(names)} hosts", "one host", f"--host {names[0]}")
    host = inventory.hosts[names[0]]
    variables = of_host(host, inventory.rigs)
    if variables.rig is None:
        expected = "rig: NAME, a machine of the catalogue or of rigs/ beside the inventory"
        fix = f"write it into host_vars/{host.name}.yml; invoke init proposes one"
        raise InputError(host.where, f"{host.name} has no rig", expected, fix)
    limits = variables.desired.limits
    at = host.origin("limits" if limits else "rig")
    folder = inventory.path if inventory.path.is_dir() else inventory.path.parent
    circuit = variables.desired.of_features.get("circuit")
    mains_of = partial(mains_load, inventory, host, circuit) if circuit else None
    return variables.rig, limits, at, str(folder / "host_vars" / f"{host.name}.yml"), mains_of


def _whole(text: str, flag: str, unit: str, example: int) -> int | None:
    """A whole number above 0, or None for "". Raises UsageError, also for a number with its unit."""
    if not text:
        return None
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    number = re.fullmatch(r"(\d+) *[A-Za-z]+", text)
    fix = f"{flag} {number[1]}" if number else ""
    raise UsageError(flag, f"'{text}' is no whole number", f"{unit}, without the unit, such as {example}", fix)


def _price(text: str) -> float | None:
    if not text:
        return None
    if not re.fullmatch(r"\d+(\.\d+)?|\.\d+", text, re.ASCII) or not 0 < float(text) < 1000:
        point = text.replace(",", ".")
        fix = f"--price-per-kwh {point}" if re.fullmatch(r"\d+\.\d+", point, re.ASCII) else ""
        raise UsageError("--price-per-kwh", f"'{text}' is no price", "a number, such as 0.30", fix)
    return float(text)


def with_supplies(rig: Rig, text: str) -> Rig:
    """The rig with other supplies: '2x1100', '1600', '2x1100+1x750'. Raises UsageError.

    If each entry replaces one of the rig's, it keeps the connectors and loads of that one; otherwise all share a rail.
    """
    expected = "COUNTxWATTS without the unit, such as 2x1100, several joined by +"
    sizes = []
    for part in text.split("+"):
        match = re.fullmatch(r"(?:(\d{1,3}) *[xX*] *)?(\d{1,6})", part.strip(), re.ASCII)
        if not match:
            bare = re.sub(r"(?<=\d) *[wW]\b", "", text)
            fix = f"--supplies {bare}" if bare != text else ""
            raise UsageError("--supplies", f"'{text}' names no supplies", expected, fix)
        count, watts = int(match[1] or 1), int(match[2])
        if not 1 <= count <= 64 or not 50 <= watts <= 20000:
            raise UsageError("--supplies", f"'{part.strip()}': {count} of {watts} W", expected)
        sizes.append((count, watts))
    old = rig.supplies
    if len(old) == 1 and len(sizes) == 1 and not old[0].feeds:
        count, watts = sizes[0]
        connectors = max(1, old[0].connectors * count // old[0].count)
        supplies = [replace(old[0], watts=watts, count=count, shared=count > 1, connectors=connectors)]
    elif len(old) == len(sizes) and any(supply.feeds for supply in old):
        pairs = zip(old, sizes, strict=True)
        supplies = [replace(supply, count=count, watts=watts) for supply, (count, watts) in pairs]
    else:
        alone = len(sizes) == 1 and sizes[0][0] == 1
        supplies = [Supply(watts, count, shared=not alone) for count, watts in sizes]
    return replace(rig, supplies=tuple(supplies), sources={**rig.sources, "supplies": "--supplies"})
