"""`invoke explain` and `invoke catalogue.check`: what the catalogue knows, and whether it is whole. No host is asked."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from rigwright import catalogue
from rigwright.commands import read_inventory
from rigwright.errors import InputError, RigwrightError, UsageError


def explain(text: str, inventory: str = "") -> int:
    """Prints what is known of a name or a text (`-`: read from stdin); returns the exit code."""
    return _guarded(lambda console: _explain(console, text, inventory))


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
    return _guarded(_check)


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


def _guarded(act: Callable[[Console], None]) -> int:
    try:
        act(Console(emoji=False, soft_wrap=not sys.stdout.isatty()))
        sys.stdout.flush()
    except RigwrightError as error:
        print(f"error {error}", file=sys.stderr)
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
