"""`invoke explain`, `catalogue.check` and `power.plan`: what the catalogue knows, and what follows. No host is asked."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from rigwright import catalogue
from rigwright.commands import read_inventory
from rigwright.errors import InputError, RigwrightError, UsageError
from rigwright.report.words import as_is
from rigwright.wanted import Limits


def explain(text: str, inventory: str = "") -> int:
    """Prints what is known of a name or a text (`-`: read from stdin); returns the exit code."""
    return guarded(lambda console: _explain(console, text, inventory))


def _explain(console: Console, text: str, inventory: str) -> None:
    from rigwright.explain import explain as found_in
    from rigwright.report.explain import show

    if text == "-":
        text = _stdin()
        if not text.strip():
            raise UsageError("explain", "stdin is empty", "the text of a log", "sudo dmesg | invoke explain -")
    there = inventory or os.environ.get("RIGWRIGHT_INVENTORY") or Path("inventory").exists()
    rigs = read_inventory(inventory).rigs if there else None  # the catalogue explains without an inventory too
    show(console, found_in(text, datetime.date.today(), rigs))


_MOST = 4 << 20


def _stdin() -> str:
    """What is piped in, the last 4 MiB of it; bytes that are not UTF-8 become U+FFFD."""
    if sys.stdin is None:
        return ""
    kept = b""
    while read := sys.stdin.buffer.read(_MOST):
        kept = (kept + read)[-_MOST:]
    return kept.decode("utf-8", "replace")


def check() -> int:
    """Reads all of the catalogue, and compares it with NVIDIA's own device list; returns the exit code, 1 where they disagree."""
    return guarded(_check)


def _check(console: Console) -> None:
    rigs = [catalogue.rig(name, "catalogue") for name in catalogue.rigs()]
    counted = {
        "GPU models": len(catalogue.models()),
        "rigs": len(rigs),
        "driver branches": len(catalogue.branches()),
        "CUDA toolkits": len(catalogue.toolkits()),
        "symptoms": len(catalogue.symptoms()),
        "Xids": len(catalogue.xids()),
    }
    console.print(", ".join(f"{number} {what}" for what, number in counted.items()), highlight=False)
    ids = [device_id for model in catalogue.models().values() for device_id in model.pci_ids]
    both = [device_id for device_id in ids if device_id in catalogue.devices()]
    console.print(
        f"NVIDIA's list of driver {catalogue.devices_version()}: {len(catalogue.devices())} devices; "
        f"{len(both)} of our {len(ids)} PCI ids are in it",
        highlight=False,
    )
    for text in catalogue.unlisted():
        console.print(f"  not in the list: {text}", highlight=False)
    wrong = catalogue.disagreements()
    if wrong:
        raise InputError(
            "catalogue", "; ".join(wrong), "one word of both", "look up which is right; scripts/devices makes the list"
        )
    console.print("[green]They agree on every one.[/]")


def inventory_list(pattern: str, inventory: str, graph: bool, json: str) -> int:
    """Prints the hosts of a pattern, all of them without one; returns the exit code."""

    def act(console: Console) -> None:
        from rigwright.report import document, ending
        from rigwright.report import inventory as report

        found = read_inventory(inventory)
        names = found.names(pattern or "all") if found.hosts else []
        if json:
            ending.deliver(document.plain(report.listing(found, frozenset(names))), json)
        if json != "-" and graph:
            for line in report.graph(found, frozenset(names)):
                console.print(as_is(line), highlight=False)
        elif json != "-":
            report.table(console, found, [found.hosts[name] for name in names])

    def failed(error: RigwrightError) -> None:
        from rigwright.report import document, ending

        if json == "-":
            ending.deliver(document.document("inventory.list", "", error.exit_code, error, []), json)

    return guarded(act, failed)


@dataclass(frozen=True)
class PowerAsked:
    """What `invoke power.plan` was asked, in the command line's words."""

    rig: str = ""
    host: str = ""
    inventory: str = ""
    limits_w: str = ""
    clocks_mhz: str = ""
    supplies: str = ""
    price_per_kwh: str = ""
    json: str = ""


def power_plan(asked: PowerAsked) -> int:
    """Prints the power plan of a rig or a host; returns the exit code, 2 when the supplies do not carry it."""
    code = 0

    def act(console: Console) -> None:
        nonlocal code
        from rigwright.report import power as report

        made, file = _planned(asked)
        code = 2 if made.chosen.verdict == "does not fit" else 0
        if asked.json:
            _as_json(asked.json, code, None, report.document(made))
        if asked.json != "-":
            report.show(console, made, file)

    failed = guarded(act, lambda error: _as_json(asked.json, error.exit_code, error, None) if asked.json else None)
    return failed or code


def _planned(asked: PowerAsked) -> tuple[Any, str]:
    """The plan, and the file that its limits belong into ("" where that is not known). Raises UsageError, InputError."""
    from rigwright import power

    if bool(asked.rig) == bool(asked.host):
        found = "both --rig and --host" if asked.rig else "no machine is named"
        raise UsageError("power.plan", found, "--rig NAME, --rig FILE.yml or --host HOST", "--rig servbadge")
    limit = power.whole(asked.limits_w, "--limits-w", "watts of one GPU", 200)
    clock = power.whole(asked.clocks_mhz, "--clocks-mhz", "MHz", 1005)
    price = power.price(asked.price_per_kwh)
    rig, limits, where, file = _of_host(asked) if asked.host else _of_rig(asked)
    if asked.supplies:
        rig = power.supplied(rig, asked.supplies)
    given = power.Setting(limit, clock)
    wanted = power.setting_of(limits)
    models = {position: catalogue.model(key) for position, key in rig.gpus.items()}
    if given != power.Setting():
        wanted = power.checked(models, power.Wanted(given, "--limits-w", "--clocks-mhz"))
    elif wanted:
        power.checked(models, power.Wanted(wanted, where, where))
    return power.plan(rig, where, wanted, price), file


def _of_rig(asked: PowerAsked) -> tuple[catalogue.Rig, Limits | None, str, str]:
    """The rig of a name or a file, its own limits, and where it was named."""
    path = Path(asked.rig)
    if path.suffix in (".yml", ".yaml") or "/" in asked.rig:
        if path.suffix != ".yml" or not path.is_file():
            found = f"{asked.rig} is not there" if not path.exists() else f"{asked.rig} is no file that ends with .yml"
            raise UsageError("--rig", found, "a rig's file, NAME.yml, or the name of a rig", "docs/power.md shows one")
        rig = catalogue.rig(path.stem, "--rig", path.parent)
        return rig, rig.limits, str(path), ""
    there = asked.inventory or os.environ.get("RIGWRIGHT_INVENTORY") or Path("inventory").exists()
    rig = catalogue.rig(asked.rig, "--rig", read_inventory(asked.inventory).rigs if there else None)
    return rig, rig.limits, f"--rig {asked.rig}", ""


def _of_host(asked: PowerAsked) -> tuple[catalogue.Rig, Limits | None, str, str]:
    """The rig of a host, the limits that the inventory holds it to, and the file of its variables."""
    from rigwright.templates import settled
    from rigwright.typed import convert
    from rigwright.variables import of_host

    inventory = read_inventory(asked.inventory)
    names = inventory.names(asked.host)
    if len(names) != 1:
        raise UsageError(f"--host {asked.host}", f"{len(names)} hosts", "one host", f"--host {names[0]}")
    host = inventory.hosts[names[0]]
    host = replace(host, variables=settled(dict(host.variables), host.where, host.origins))
    variables = of_host(host, inventory.rigs)
    if "rig" not in variables:
        raise InputError(
            host.where, f"{host.name} has no rig", "rig: NAME, a machine of the catalogue or of rigs/ beside the inventory",
            f"write it into host_vars/{host.name}.yml; invoke init drafts one",
        )  # fmt: skip
    rig = catalogue.rig(variables["rig"], host.origin("rig"), inventory.rigs)
    at = host.origin("limits" if "limits" in variables else "rig")
    limits = convert(variables["limits"], Limits, at, "limits") if "limits" in variables else None
    folder = inventory.path if inventory.path.is_dir() else inventory.path.parent
    return rig, limits, at, str(folder / "host_vars" / f"{host.name}.yml")


def _as_json(target: str, code: int, error: RigwrightError | None, power: dict[str, Any] | None) -> None:
    """One document, on stdout for `-`. Raises UsageError when the file cannot be written."""
    from rigwright.report import document, ending

    ending.deliver({**document.document("power.plan", "", code, error, []), "power": power}, target)


def guarded(act: Callable[[Console], None], failed: Callable[[RigwrightError], None] = lambda _: None) -> int:
    """`act` has written to stdout; an error is one message on stderr, and `failed` has seen it; returns the exit code."""
    try:
        act(Console(emoji=False, soft_wrap=not sys.stdout.isatty()))
        sys.stdout.flush()
    except RigwrightError as error:
        print(f"error {error}", file=sys.stderr)
        with contextlib.suppress(UsageError):  # a file that cannot be written: said already
            failed(error)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader has had enough: head
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(f"error stdout: cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0
