"""`invoke init`: the first minute with a machine of one's own. It is looked at, and described in the inventory; nothing on it changes."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import secrets
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from rigwright import asking, catalogue, draft, fleet, inventory, ssh
from rigwright.apply import Options
from rigwright.catalogue import Model, Rig
from rigwright.choices import counted, counted_of, unknown_model
from rigwright.errors import HostError, InputError, RigwrightError, UsageError
from rigwright.facts import os as system
from rigwright.facts import pci
from rigwright.facts.os import Board
from rigwright.hosts import Host
from rigwright.playbook import Bound
from rigwright.yamlfile import load

_ADDRESS = re.compile(
    r"(?:(?P<user>[A-Za-z_][\w.-]*)@)?(?P<host>[A-Za-z0-9][\w.-]*|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Asked:
    """The command line: the host's name and address, the inventory, and what need not be asked."""

    host: str
    address: str
    inventory: str = ""
    rig: str = ""
    supply_w: str = ""
    yes: bool = False


@dataclass(frozen=True)
class Seen:
    """What the machine says of itself: models by bus id, NVSwitches, its board and processors."""

    gpus: Mapping[str, Model]
    nvswitches: int
    board: Board
    cpu: str


def init(asked: Asked) -> int:
    """The machine stands in the inventory afterwards; returns the exit code."""
    console = Console(emoji=False, highlight=False, soft_wrap=not sys.stdout.isatty())
    try:
        _init(asked, console, datetime.date.today())
    except RigwrightError as error:
        print(f"error {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\ninterrupted; the inventory is as it was", file=sys.stderr)
        return 130
    return 0


def _init(asked: Asked, console: Console, today: datetime.date) -> None:
    variables = _variables(asked)
    folder = Path(asked.inventory or os.environ.get("RIGWRIGHT_INVENTORY") or "inventory")
    if folder.is_file():
        wanted = "a directory with hosts.yml, to write host_vars/ beside it"
        raise UsageError("--inventory", f"{folder} is a file", wanted)
    hosts_file = folder / "hosts.yml"
    text = _text(hosts_file)
    fresh = draft.with_host(text, str(hosts_file), asked.host, variables)
    host = Host(asked.host, ("all", "gpu"), {**_shared(folder), **variables}, "--address")
    _known(host, asked, console)
    seen = _look(host, console)
    files = {**_described(asked, folder, seen, console, today), hosts_file: fresh}
    _write(files, folder)
    for path, written in files.items():
        if path != hosts_file:
            console.print(f"\n[bold]{escape(str(path))}[/]\n[dim]{escape(written.rstrip())}[/]")
    said = f"{asked.host} at {asked.address}. Nothing on the machine was changed."
    console.print(f"\n[bold]{escape(str(hosts_file))}[/] has {escape(said)}")
    flag = f" --inventory {folder}" if asked.inventory else ""
    console.print(f"Next: invoke plan --host {escape(asked.host + flag)}")


def _described(asked: Asked, folder: Path, seen: Seen, console: Console, today: datetime.date) -> dict[Path, str]:
    """The files that describe the machine, not written yet: its variables, and a rig where none is like it. Raises UsageError."""
    files: dict[Path, str] = {}
    rig = _rig(asked, folder, seen, console)
    if rig is None:
        path = folder / "rigs" / f"{asked.host}.yml"
        if path.exists():
            todo = f"another --host, or --rig {asked.host}"
            raise UsageError("init", f"{path} is there, and is another machine", "a name that is free", todo)
        files[path] = draft.rig_text(seen.board, seen.cpu, seen.gpus, seen.nvswitches, _supply_w(asked), today)
        rig = _parsed(path, files[path])
        console.print(f"No rig of the catalogue is like it; drafted [bold]{escape(str(path))}[/]")
    own = folder / "host_vars" / f"{asked.host}.yml"
    if not own.exists():
        return {**files, own: draft.host_text(rig, draft.slots(rig, seen.gpus), today)}
    if own.is_file() and isinstance(there := load(own), dict) and there.get("rig") == rig.key:
        console.print(f"{escape(str(own))} is there already and says rig: {escape(rig.key)}; it stays as it is")
        return files
    todo = f"move {own} away, or choose another --host"
    raise UsageError("init", f"{own} is there already, and is not about {rig.key}", "a name that is free", todo)


def _text(path: Path) -> str:
    """A file's text, "" when it is not there. Raises InputError."""
    try:
        return path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"cannot be read: {error}", "a readable UTF-8 file") from None


def _variables(asked: Asked) -> dict[str, Any]:
    """The connection variables of the address. Raises UsageError for a name or an address that cannot be one."""
    if not _NAME.fullmatch(asked.host):
        raise UsageError(
            "--host", f"'{asked.host}' is no name for a host", "letters, digits, . _ and -, such as servbadge"
        )
    found = _ADDRESS.fullmatch(asked.address)
    if not found or (found["port"] and not 0 < int(found["port"]) < 65536):
        raise UsageError(
            "--address", f"'{asked.address}' is no address", "USER@HOST or USER@HOST:PORT, such as ubuntu@192.168.1.20"
        )
    variables: dict[str, Any] = {"ansible_host": found["host"].strip("[]")}
    if found["user"]:
        variables["ansible_user"] = found["user"]
    if found["port"]:
        variables["ansible_port"] = int(found["port"])
    return variables


def _shared(folder: Path) -> Mapping[str, Any]:
    """The known_hosts file that the first host of the inventory names, which group variables give to all; {} where none does."""
    hosts = inventory.read(folder).hosts.values() if (folder / "hosts.yml").exists() else ()
    named = [host.variables["ssh_known_hosts"] for host in hosts if "ssh_known_hosts" in host.variables]
    return {"ssh_known_hosts": named[0]} if named else {}


def _known(host: Host, asked: Asked, console: Console) -> None:
    """The host's key is known afterwards: it was, or it was shown and somebody said yes. Raises ConsentError, Unreachable."""
    name, key = ssh.offered_key(host, 20)
    if ssh.is_known(host, key):
        return
    console.print(f"{escape(asked.address)} offers the host key {escape(ssh.fingerprint(key))}")
    console.print("Compare it at the machine's console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
    if not asked.yes:
        todo = "the same command with --yes, once the key is compared"
        asking.insist("init", "Is it the same?", todo, "the host key is not known; nothing was written")
    console.print(f"recorded in {escape(str(ssh.trust(name, key)))}")


def _look(host: Host, console: Console) -> Seen:
    """What the machine says. Raises Unreachable, and HostError when it has no GPU, or one that nobody has described."""
    ask = asking.password if asking.on_terminal() else None
    (work,) = fleet.prepare([Bound(host, (), ())], Options(secrets.token_hex(4), False), lambda _event: None, ask)
    asked = (pci.gpus, pci.nvswitches, system.board, system.cpu, system.os_release)
    try:
        work.run.transport.connect()
        work.run.read(asked)
        found, switches, board, cpu, release = (work.run.value(fact) for fact in asked)
    finally:
        fleet.close([work])
    if not found:
        raise pci.no_gpu("init")
    models = {gpu.bus_id: catalogue.model_of(gpu.device_id) for gpu in found}
    unknown = [unknown_model(gpu.device_id) for gpu in found if models[gpu.bus_id] is None]
    if unknown:
        raise HostError("init", unknown[0], "a model that is described", "CONTRIBUTING.md, Add a GPU, says how")
    names = [text for text in (str(board), cpu, release.pretty_name) if text]
    console.print(f"[bold]{escape(host.name)}[/]: {escape(', '.join(names))}")
    for bus_id, model in models.items():
        console.print(f"  {bus_id}  {escape(model.label if model else '')}")
    return Seen({bus_id: model for bus_id, model in models.items() if model}, len(switches), board, cpu)


def _rig(asked: Asked, folder: Path, seen: Seen, console: Console) -> Rig | None:
    """The rig that the machine is; None when one is to be drafted. Raises UsageError."""
    here = list(seen.gpus.values())
    if asked.rig:
        chosen = catalogue.rig(asked.rig, "--rig", folder / "rigs")
        if Counter(model.key for model in here) == Counter(chosen.models):
            return chosen
        draft.slots(chosen, seen.gpus)
        console.print(f"[yellow]{chosen.key} has {escape(counted_of(chosen))}; here are {escape(counted(here))}[/]")
        return chosen
    every = [catalogue.rig(name, "init") for name in catalogue.rigs()]
    found = draft.matching(every, here, seen.board)
    if len(found) == 1:
        console.print(f"It is the rig [bold]{found[0].key}[/]: {escape(found[0].title)}")
        return found[0]
    missing = () if found else draft.lacking(every, here, seen.board)
    if missing:
        text = f"its board is of {missing[0].key}, which has {counted_of(missing[0])}; here are {counted(here)}"
        console.print(f"[yellow]{escape(text)}[/]")
    return _chosen(found or missing, console) if found or missing else None


def _chosen(found: Sequence[Rig], console: Console) -> Rig | None:
    """The one of several rigs that somebody names; None for none of them. Raises UsageError without a terminal."""
    keys = [rig.key for rig in found]
    if not asking.on_terminal():
        raise UsageError("init", f"it may be {' or '.join(keys)}", "which one it is", f"--rig {keys[0]}")
    for rig in found:
        console.print(f"  [bold]{rig.key}[/]  {escape(rig.title)}")
    while True:
        answer = asking.answer("Which rig is it? (Enter: none of them) ")
        if not answer or answer in keys:
            return next((rig for rig in found if rig.key == answer), None)
        console.print(f"{escape(answer)} is none of {', '.join(keys)}")


def _supply_w(asked: Asked) -> int:
    """The watts of the power supply, 0 when nobody says. Raises UsageError."""
    given = asked.supply_w.lower().removesuffix("w").strip()
    if not given and asking.on_terminal():
        given = asking.answer("How many watts has its power supply? (Enter: not known) ").removesuffix("w").strip()
    if not given:
        return 0
    if not given.isdigit() or not (int(given) == 0 or 50 <= int(given) <= 20000):
        raise UsageError("--supply-w", f"'{given}' are no watts of a power supply", "a number such as 1600")
    return int(given)


def _parsed(path: Path, text: str) -> Rig:
    """The rig of a text that is not written yet."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / path.name).write_text(text, encoding="utf-8")
        return catalogue.rig(path.stem, "init", Path(folder))


def _write(files: Mapping[Path, str], folder: Path) -> None:
    """Every file stands, and the inventory can be read with them; or all is as it was. Raises InputError, UsageError."""
    before = {path: path.read_bytes() if path.exists() else None for path in files}
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f".{path.name}.new")
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)
        inventory.read(folder)
    except BaseException as error:
        for path, was in before.items():
            with contextlib.suppress(OSError):
                path.with_name(f".{path.name}.new").unlink(missing_ok=True)
                if was is None:
                    path.unlink(missing_ok=True)
                elif path.read_bytes() != was:
                    path.write_bytes(was)
        if isinstance(error, OSError):
            found = f"{error.filename} cannot be written ({error.strerror})"
            raise UsageError("init", found, "an inventory that you may write") from None
        raise


def offer(address: str, inventory_path: str) -> str:
    """The name under which an address was described just now, "" when nobody wanted it; only on a terminal."""
    name = asking.answer(f"{address} is not in the inventory. A name to describe it under (Enter: leave it) ")
    return name if name and init(Asked(name, address, inventory_path)) == 0 else ""
