"""`invoke init`: the first minute with a machine of one's own. It is looked at, and described in the inventory; nothing on it changes."""

from __future__ import annotations

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

from rigwright import asking, catalogue, draft, editing, fleet, hostkeys, inventory, ssh
from rigwright.catalogue import Model, Rig
from rigwright.choices import counted, counted_of, unknown_model
from rigwright.errors import HostError, RigwrightError, UsageError
from rigwright.facts import os as system
from rigwright.facts import pci
from rigwright.facts.os import Board
from rigwright.hostrun import Options
from rigwright.hosts import Host, Inventory
from rigwright.playbook import Bound

_IPV6 = r"[0-9A-Fa-f]*:[0-9A-Fa-f:.]+(?:%[\w.-]+)?"
_ADDRESS = re.compile(
    rf"(?:(?P<user>[A-Za-z0-9_][\w.+\\-]*)@)?"
    rf"(?:(?P<host>[A-Za-z0-9][\w.-]*|\[{_IPV6}\])(?::(?P<port>[0-9]{{1,5}}))?|(?P<bare>{_IPV6}))"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


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
    known = _inventory(folder)
    _free(asked.host, known)
    draft.with_host(editing.text_of(hosts_file), str(hosts_file), asked.host, variables)
    host = Host(asked.host, ("all", "gpu"), {**_shared(known), **variables}, "--address")
    _known(host, asked, console)
    seen = _look(host, console)
    files = _described(asked, folder, seen, console, today)
    with editing.alone(folder):
        _free(asked.host, _inventory(folder))
        fresh = draft.with_host(editing.text_of(hosts_file), str(hosts_file), asked.host, variables)
        editing.change({**files, hosts_file: fresh}, lambda: inventory.read(folder))
    for path, written in files.items():
        console.print(f"\n[bold]{escape(str(path))}[/]\n[dim]{escape(written.rstrip())}[/]", soft_wrap=True)
    said = f"{asked.host} at {asked.address}. Nothing on the machine was changed."
    console.print(f"\n[bold]{escape(str(hosts_file))}[/] has {escape(said)}")
    flag = f" --inventory {folder}" if asked.inventory else ""
    console.print(f"Next: invoke plan --host {escape(asked.host + flag)}")


def _inventory(folder: Path) -> Inventory | None:
    """The inventory as it is, None where there is none yet. Raises InputError."""
    return inventory.read(folder) if (folder / "hosts.yml").exists() else None


def _free(name: str, known: Inventory | None) -> None:
    """Nothing, when a new host may have the name. Raises UsageError for a group's, and for a host's that has an address."""
    if name in ("all", "ungrouped", "gpu", *(known.groups if known else ())):
        raise UsageError("--host", f"'{name}' is a group", "a name that is free, such as servbadge")
    there = known.hosts.get(name) if known else None
    if there is not None and not draft.PLACEHOLDER.fullmatch(there.address):
        found = f"'{name}' is in the inventory already ({there.where})"
        raise UsageError("--host", found, "a name that is free", f"another --host, or edit {there.where}")


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
        console.print(f"No rig that is known is like it; drafted [bold]{escape(str(path))}[/]")
    slots = draft.slots(rig, seen.gpus)
    there = inventory.host_variables(folder, asked.host)
    if not there:
        return {**files, folder / "host_vars" / f"{asked.host}.yml": draft.host_text(rig, slots, today)}
    if there.get("rig") != rig.key:
        found = f"{folder}/host_vars has {asked.host} already, and it is not about {rig.key}"
        raise UsageError("init", found, "a name that is free", "move that away, or choose another --host")
    text = f"{folder}/host_vars has {asked.host} already, with rig: {rig.key}; it stays as it is"
    console.print(escape(text))
    if "slots" not in there:
        console.print(f"It names no positions; these would be slots: {escape(str(slots))}", soft_wrap=True)
    return files


def _variables(asked: Asked) -> dict[str, Any]:
    """The connection variables of the address. Raises UsageError for a name or an address that cannot be one."""
    if not _NAME.fullmatch(asked.host):
        wanted = "up to 63 letters, digits, . _ and -, such as servbadge"
        raise UsageError("--host", f"'{asked.host[:80]}' is no name for a host", wanted)
    found = _ADDRESS.fullmatch(asked.address)
    if not found or (found["port"] and not 0 < int(found["port"]) < 65536):
        wanted = "USER@HOST or USER@HOST:PORT, such as ubuntu@192.168.1.20; IPv6 in brackets where a port follows"
        raise UsageError("--address", f"'{asked.address[:80]}' is no address", wanted)
    variables: dict[str, Any] = {"ansible_host": (found["bare"] or found["host"]).strip("[]")}
    if found["user"]:
        variables["ansible_user"] = found["user"]
    if found["port"]:
        variables["ansible_port"] = int(found["port"])
    return variables


def _shared(known: Inventory | None) -> Mapping[str, Any]:
    """The known_hosts file that the first host of the inventory names, which group variables give to all; {} where none does."""
    hosts = known.hosts.values() if known else ()
    named = [host.variables["ssh_known_hosts"] for host in hosts if "ssh_known_hosts" in host.variables]
    return {"ssh_known_hosts": named[0]} if named else {}


def _known(host: Host, asked: Asked, console: Console) -> None:
    """The host's key is known afterwards: it was, or it was shown and somebody said yes. Raises ConsentError, Unreachable."""
    name, key = ssh.offered_key(host, 20)
    if ssh.is_known(host, key):
        return
    console.print(f"{escape(asked.address)} offers the host key {escape(hostkeys.fingerprint(key))}")
    console.print("Compare it at the machine's console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
    if not asked.yes:
        todo = "the same command with --yes, once the key is compared"
        asking.insist("init", "Is it the same?", todo, "the host key is not known; nothing was written")
    console.print(f"recorded in {escape(str(hostkeys.trust(name, key)))}")


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
    own = folder / "rigs"
    names = dict.fromkeys((*sorted(path.stem for path in own.glob("*.yml")), *catalogue.rigs()))
    every = [catalogue.rig(name, "init", own) for name in names]
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
        if not answer or answer.casefold() in [key.casefold() for key in keys]:
            return next((rig for rig in found if rig.key.casefold() == answer.casefold()), None)
        console.print(f"{escape(answer)} is none of {', '.join(keys)}")


def _supply_w(asked: Asked) -> int:
    """The watts of the power supply, 0 when nobody says. Raises UsageError for a flag that says no watts."""
    wanted = "watts from 50 to 20000, such as 1600"
    if asked.supply_w:
        if (watts := _watts(asked.supply_w)) is None:
            raise UsageError("--supply-w", f"'{asked.supply_w}' are no watts of a power supply", wanted)
        return watts
    while asking.on_terminal():
        given = asking.answer("How many watts has its power supply? (Enter: not known) ")
        if (watts := _watts(given or "0")) is not None:
            return watts
        print(f"wanted: {wanted}")
    return 0


def _watts(text: str) -> int | None:
    """The number in `1600`, `1600 W` or `1600 watts`; None when it is none that a supply has."""
    found = re.fullmatch(r"([0-9]{1,6}) *(w|watts?)?", text.strip().lower())
    watts = int(found[1]) if found else -1
    return watts if watts == 0 or 50 <= watts <= 20000 else None


def _parsed(path: Path, text: str) -> Rig:
    """The rig of a text that is not written yet."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / path.name).write_text(text, encoding="utf-8")
        return catalogue.rig(path.stem, "init", Path(folder))


def offer(address: str, inventory_path: str) -> str:
    """The name under which an address was described just now, "" when nobody wanted it; only on a terminal."""
    name = asking.answer(f"{address} is not in the inventory. A name to describe it under (Enter: leave it) ")
    return name if name and init(Asked(name, address, inventory_path)) == 0 else ""
