"""`invoke init`: reads the hardware of a machine and adds it to the inventory. Changes nothing on the machine."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from rich.console import Console

from rigwright import catalogue, inventory
from rigwright.catalogue import Model, Rig
from rigwright.catalogue.compatibility import check_branch, cuda_ceiling, fit
from rigwright.catalogue.summary import counted, counted_of, not_described
from rigwright.cli import init_draft, init_update, trust
from rigwright.cli.answer import answered
from rigwright.cli.given_inventory import inventory_path
from rigwright.cli.option_values import WATTS
from rigwright.cli.options import InitOptions
from rigwright.core import lazy_re
from rigwright.core.control_characters import visible
from rigwright.core.errors import HostError, InputError, UsageError
from rigwright.core.files import atomic
from rigwright.core.machine_identity import MachineIdentity
from rigwright.core.process import prompt
from rigwright.core.process.program_name import program_name
from rigwright.core.yaml_source import misspelt
from rigwright.engine.host_run import HostRun, Options, no_events
from rigwright.engine.host_variables import HostVariables, of_host
from rigwright.engine.playbook import BoundPlaybook
from rigwright.facts import Unavailable, Unreadable, display, driver as driver_state, pci, system
from rigwright.facts.gpu import gpus as gpu
from rigwright.facts.system import Board
from rigwright.fleet import host_runs, pool
from rigwright.inventory import endpoint
from rigwright.inventory.model import LOCAL_MACHINE, Host, Inventory
from rigwright.report.labels import as_is
from rigwright.report.tables import with_columns
from rigwright.ssh.local import identifiers

_NAME = lazy_re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Hardware(Struct, frozen=True):
    """The hardware of the machine: GPU models by bus id, the number of NVSwitches, the board and the processors.

    `unlisted`: by bus id the PCI ids of GPUs that are not in the catalogue. `loaded`: the version of a loaded driver
    that drives all of those, or "". `screen_gpu`: the bus id of the GPU with the screen, or "".
    """

    gpus: Mapping[str, Model]
    unlisted: Mapping[str, str]
    loaded: str
    nvswitches: int
    board: Board
    cpu: str
    graphical: display.Graphical = display.NOT_GRAPHICAL
    screen_gpu: str = ""
    identity: MachineIdentity = field(default_factory=MachineIdentity)


@answered
def init(options: InitOptions, console: Console) -> None:
    """Adds the machine to the inventory, or shows what changed. Nothing is written when it fails or is interrupted."""
    folder = inventory_path(options.inventory)
    if folder.is_file():
        expected, fix = "a directory with hosts.yml, to write host_vars/ beside it", f"--inventory {folder.parent}"
        raise UsageError("--inventory", f"{folder} is a file", expected, fix)
    if options.driver and options.driver not in catalogue.branches():
        branches = list(catalogue.branches())
        raise misspelt("--driver", f"unknown driver branch '{options.driver}'", options.driver, branches)
    hosts_file = folder / "hosts.yml"
    known = _inventory(folder)
    options = _with_answers(options, known)
    if not options.address and not (options.local and _is_new(options.host, known)):
        _update(options, folder, known, console)
        return
    if options.update:
        fix = f"--host {options.host} --update"
        raise UsageError("--update", "a new address with --update", "--update without --address", fix)
    _checked_name(options.host)
    variables: dict[str, Any] = {"ansible_connection": "local"} if options.local else _connection_of(options.address)
    _free(options.host, known)
    init_draft.with_host(atomic.text_of(hosts_file), str(hosts_file), options.host, variables)
    # The file of known hosts of the first host that names a file.
    hosts = known.hosts.values() if known else ()
    shared = [host.variables["ssh_known_hosts"] for host in hosts if "ssh_known_hosts" in host.variables]
    known_file = {"ssh_known_hosts": shared[0]} if shared else {}
    host = Host(options.host, ("all", "gpu"), {**known_file, **variables}, "--local" if options.local else "--address")
    if not options.local:
        removals = trust.confirm("init", host, options.yes, "the host key is not known; nothing was written")
        if removals:
            problem, fix = "another host key is on record for it", f"{removals[0]}, then init again"
            raise UsageError("init", problem, "one host key", fix)
    hardware = _look(host, console)
    if options.local and not (recorded := identifiers(hardware.identity)):
        fix = "sudo systemd-machine-id-setup; then the same command"
        expected = "an identifier that tells this machine from others"
        raise HostError("init", "this machine has no identifier: no /etc/machine-id", expected, fix)
    if options.local:
        variables[LOCAL_MACHINE] = recorded
    files = _new_files(options, folder, hardware, console, datetime.date.today())
    with atomic.alone(folder):
        _free(options.host, _inventory(folder))
        fresh = init_draft.with_host(atomic.text_of(hosts_file), str(hosts_file), options.host, variables)
        atomic.change({**files, hosts_file: fresh}, lambda: inventory.read(folder))
    for path, written in files.items():
        console.print(f"\n[bold]{as_is(str(path))}[/]\n[dim]{as_is(written.rstrip())}[/]", soft_wrap=True)
    place = "which is this machine" if options.local else f"at {options.address}"
    result = f"{options.host}{',' if options.local else ''} {place}. Nothing on the machine was changed."
    console.print(f"\n[bold]{as_is(str(hosts_file))}[/] has {as_is(result)}")
    flag = f" --inventory {folder}" if options.inventory else ""
    console.print(f"Next: {program_name()} plan --host {as_is(options.host + flag)}")


def _with_answers(options: InitOptions, known: Inventory | None) -> InitOptions:
    """The options with a name, and with an address for a host without one, from answers at a terminal.

    Raises UsageError without a name if there is no terminal, and for an empty answer.
    """
    name, address = options.host, options.address
    if options.local:
        if address:
            raise UsageError("--local", "--address is given, too", "--local alone", "leave --address out")
        return dataclasses.replace(options, host=name or "localhost")
    if not prompt.on_terminal():
        if not name:
            raise _name_missing("--host is missing" if address else "--host and --address are missing", address)
        return options
    if not name:
        name = _until_valid("Name of the machine in the inventory, such as gpu1: ", _checked_name)
        if not name:
            raise _name_missing("no name was given", address)
    if not address and not options.update and not _has_address(name, known):
        address = _until_valid(f"Address of {name}, USER@HOST or USER@HOST:PORT: ", _connection_of)
    return dataclasses.replace(options, host=name, address=address)


def _name_missing(problem: str, address: str) -> UsageError:
    todo = f"invoke init --host gpu1 --address {address or 'ubuntu@192.168.1.20'}, with your own"
    return UsageError("init", problem, "a name for the machine, and how ssh reaches it", todo)


def _until_valid(question: str, check: Callable[[str], object]) -> str:
    """The first answer that `check` raises no UsageError for; "" for an empty answer."""
    while text := prompt.answer(question):
        try:
            check(text)
        except UsageError as error:
            print(f"{visible(error.found)}; expected: {error.expected}")
        else:
            break
    return text


def _has_address(name: str, known: Inventory | None) -> bool:
    """Whether the inventory has the host, with an address that is no example's."""
    host = known.hosts.get(name) if known else None
    return host is not None and not init_draft.PLACEHOLDER.fullmatch(host.address)


def _is_new(name: str, known: Inventory | None) -> bool:
    """Whether `init --local` adds the host. Raises UsageError when the inventory has it as another machine."""
    host = known.hosts.get(name) if known else None
    if host is None:
        return True
    if not host.is_this_machine:
        problem = f"'{name}' is in the inventory, reached by ssh ({host.where})"
        raise UsageError("--local", problem, "another name", f"{program_name()} init --local --host NAME")
    return False


def _inventory(folder: Path) -> Inventory | None:
    """The inventory; None when there is none yet. Raises InputError."""
    return inventory.read(folder) if (folder / "hosts.yml").exists() else None


def _free(name: str, known: Inventory | None) -> None:
    """Raises UsageError when a new host cannot have the name: a group has it, or a host with a real address."""
    if name in ("all", "ungrouped", "gpu", *(known.groups if known else ())):
        raise UsageError("--host", f"'{name}' is a group", "a name that is free", "--host servbadge, or another name")
    if known and _has_address(name, known):
        host = known.hosts[name]
        problem = f"'{name}' is in the inventory already ({host.where})"
        update = f"{program_name()} init --host {name}, without --address, shows what changed"
        todo = f"{update}; or another --host, or edit {host.where}"
        raise UsageError("--host", problem, "a name that is free", todo)


def _update(options: InitOptions, folder: Path, known: Inventory | None, console: Console) -> None:
    """Shows the changed GPUs of a host; writes them with --update or after a yes. Raises UsageError, InputError."""
    host = known.hosts.get(options.host) if known else None
    if known is None or host is None or init_draft.PLACEHOLDER.fullmatch(host.address):
        problem = f"is missing, and {folder} has no host '{options.host}'"
        if host is not None:
            problem = f"is missing, and {host.where} has an example's address"
        todo = f"{program_name()} init --host {options.host} --address USER@HOST"
        raise UsageError("--address", problem, "where the new machine is: USER@HOST or USER@HOST:PORT", todo)
    (host,) = known.select(host.name)
    described = of_host(host, known.rigs)
    hardware = _look(host, console)
    if hardware.unlisted:
        raise _unlisted_error(hardware, options)
    slots = {str(bus_id): position for bus_id, position in (described.desired.slots or {}).items()}
    comparison = init_update.compare(described.rig, slots, hardware.gpus)
    if not comparison.lines:
        console.print(f"The GPUs of [bold]{as_is(host.name)}[/] are those of the inventory.")
        return
    console.print(f"[bold]{as_is(host.name)}[/] and the inventory differ:")
    for line in comparison.lines:
        console.print(f"  {as_is(line)}")
    if described.desired.driver is not None:
        try:
            check_branch(dict(hardware.gpus), described.desired.driver.branch)
        except HostError as error:
            console.print(f"[yellow]{as_is(error.found)}: {as_is(error.fix)}[/]")
    given = host.variables.get("expected_gpus")
    if given is not None and given != len(hardware.gpus):
        console.print(
            f"[yellow]{as_is(host.origin('expected_gpus'))} expects {given} GPUs; here are {len(hardware.gpus)}[/]"
        )
    if len({card.key for card in hardware.gpus.values()}) > 1:
        console.print(f"[yellow]{as_is(init_draft.MIXED)}[/]", soft_wrap=True)
    flag = f" --inventory {folder}" if options.inventory else ""
    question = "Write it into the inventory? [y/N] "
    if not options.update and not (prompt.on_terminal() and prompt.answer(question).lower() in ("y", "yes")):
        todo = f"{program_name()} init --host {host.name} --update{flag}"
        console.print(f"Nothing was written. To write it: {as_is(todo)}", soft_wrap=True)
        return
    with atomic.alone(folder):
        files = _changed_files(folder, host, described, comparison, hardware, options.supply_w or 0)
        atomic.change(files, lambda: of_host(inventory.read(folder).hosts[host.name], known.rigs))
    for path in files:
        console.print(f"wrote [bold]{as_is(str(path))}[/]")
    console.print(f"Next: {program_name()} plan --host {as_is(host.name + flag)}")


def _changed_files(
    folder: Path,
    host: Host,
    described: HostVariables,
    compared: init_update.Comparison,
    hardware: Hardware,
    supply_w: int,
) -> dict[Path, str]:
    """The texts of the host's files with the GPUs that are there: its slots, and its rig where that is another now."""
    files: dict[Path, str] = {}
    rig, driver = described.rig, described.desired.driver
    own = folder / "rigs" / f"{rig.key}.yml" if rig else None
    fresh_rig = ""
    if not compared.rig_fits and own is not None and own.exists():
        files[own] = init_update.with_value(atomic.text_of(own), str(own), "gpus", compared.gpus)
    elif not compared.rig_fits and (others := _rigs_with(folder, compared.gpus, hardware)):
        fresh_rig = others[0].key
    elif not compared.rig_fits:
        path = folder / "rigs" / f"{host.name}.yml"
        if path.exists():
            there = f"{path} is there, and {host.name} does not name it"
            raise UsageError(
                "init", there, f"rig: {host.name}", f"write rig: {host.name} for {host.name}, or move {path} away"
            )
        today = datetime.date.today()
        branch = driver.branch if driver and driver.branch in fit(hardware.gpus).branches else ""
        machine = (hardware.board, hardware.cpu, hardware.gpus, hardware.nvswitches)
        files[path] = init_draft.rig_text(*machine, supply_w, today, branch=branch, named=compared.slots)
        fresh_rig = host.name
    for key, value in (("rig", fresh_rig), ("slots", compared.slots)):
        if value:
            path = _file_of(host, key, folder)
            files[path] = init_update.with_value(files.get(path, atomic.text_of(path)), str(path), key, value)
    return files


def _rigs_with(folder: Path, gpus: Mapping[str, str], hardware: Hardware) -> list[Rig]:
    """The known rigs for the machine's board that have these GPUs at these positions."""
    rigs = init_draft.matching(_every_rig(folder), list(hardware.gpus.values()), hardware.board)
    return [rig for rig in rigs if rig.gpus == gpus]


def _every_rig(folder: Path) -> list[Rig]:
    """The rigs of the owner and of the catalogue; of two with the same name that of the owner."""
    own = folder / "rigs"
    names = dict.fromkeys((*sorted(path.stem for path in own.glob("*.yml")), *catalogue.all_rigs()))
    return [catalogue.rig(name, "init", own) for name in names]


def _file_of(host: Host, key: str, folder: Path) -> Path:
    """The file of host_vars/ for a variable of the host. Raises UsageError if another file sets it."""
    path = folder / "host_vars" / f"{host.name}.yml"
    if key not in host.variables:
        others = inventory.host_variables(folder, host.name)
        if others and not path.exists():
            problem = f"{folder}/host_vars has {host.name} in several files"
            raise UsageError("init", problem, str(path), f"write {key} yourself")
        return path
    set_by = Path(host.origin(key).rpartition(":")[0])
    if host.name not in (set_by.stem, set_by.parent.name) or "host_vars" not in set_by.parts:
        todo = f"set {key} of {host.name} in {path}, then the same command again"
        raise UsageError("init", f"{host.origin(key)} sets {key}, also for others", f"{path}, of this host alone", todo)
    return set_by


def _unlisted_error(hardware: Hardware, options: InitOptions) -> HostError:
    """The error for GPUs that are neither in the catalogue nor driven by the loaded driver."""
    cards = ", ".join(f"10de:{device_id} at {bus_id}" for bus_id, device_id in hardware.unlisted.items())
    version = catalogue.devices_version()
    return HostError(
        "init",
        f"NVIDIA's list of driver {version} does not have {cards}",
        "a GPU of the list, or the branch of a driver that drives it",
        f"scripts/devices --version VERSION supported-gpus.json, with the list of a newer driver; for a new host also "
        f"init --host {options.host} --address {options.address or 'USER@HOST'} --driver BRANCH",
    )


def _without_rig(
    options: InitOptions, folder: Path, hardware: Hardware, console: Console, today: datetime.date
) -> dict[Path, str]:
    """The variables of a host with GPUs that are not in the catalogue. Raises HostError, UsageError."""
    branch = options.driver or hardware.loaded.partition(".")[0]
    if branch not in catalogue.branches():
        raise _unlisted_error(hardware, options)
    known = dict(hardware.gpus)
    if known:
        check_branch(known, branch)
    path = folder / "host_vars" / f"{options.host}.yml"
    if _own_variables(folder, options.host):
        raise UsageError(
            "init", f"{folder}/host_vars has {options.host} already", "a name that is free", "move that away"
        )
    opened = int(branch) >= catalogue.driver_table().open_module_from
    flavour = "open" if opened and all("open" in model.module_flavours for model in known.values()) else "auto"
    newest = str(catalogue.branches()[branch].cuda or "")
    toolkit = newest if newest in catalogue.toolkits() else ""
    if known and toolkit:
        toolkit = cuda_ceiling(fit(known), branch)[0] or ""
    ids = [f"10de:{device_id}" for device_id in dict.fromkeys(hardware.unlisted.values())]
    why = "--driver gives" if options.driver else f"the loaded driver {hardware.loaded} that drives it proves"
    version = catalogue.devices_version()
    unknown = f"NVIDIA's list of driver {version} does not have {', '.join(ids)}"
    console.print(f"[yellow]{unknown}; it gets branch {branch}, which {why}.[/]")
    console.print("[yellow]Nothing is known of it: no rig is drafted, and nothing is checked for it.[/]")
    shows = _display(hardware, console)
    text = init_draft.unlisted_text([*hardware.gpus, *hardware.unlisted], branch, toolkit, flavour, ids, today, shows)
    return {path: text}


def _new_files(
    options: InitOptions, folder: Path, hardware: Hardware, console: Console, today: datetime.date
) -> dict[Path, str]:
    """The files to write: the variables of the host, and a new rig if no known one matches. Raises UsageError."""
    files: dict[Path, str] = {}
    if hardware.unlisted:
        return _without_rig(options, folder, hardware, console, today)
    rig = _rig(options, folder, hardware, console)
    if options.driver:
        check_branch(dict(hardware.gpus), options.driver)
    if rig is None:
        path = folder / "rigs" / f"{options.host}.yml"
        if path.exists():
            todo = f"another --host, or --rig {options.host}"
            raise UsageError("init", f"{path} is there, and is another machine", "a name that is free", todo)
        machine = (hardware.board, hardware.cpu, hardware.gpus, hardware.nvswitches)
        files[path] = init_draft.rig_text(*machine, _supply_w(options), today, branch=options.driver)
        with tempfile.TemporaryDirectory() as drafts:
            (Path(drafts) / path.name).write_text(files[path], encoding="utf-8")
            rig = catalogue.rig(path.stem, "init", Path(drafts))
        console.print(f"A rig of its own is drafted: [bold]{as_is(str(path))}[/]")
        for note in rig.notes:
            console.print(f"[yellow]{as_is(note)}[/]", soft_wrap=True)
    slots = init_draft.slots(rig, hardware.gpus)
    variables, path = _own_variables(folder, options.host), folder / "host_vars" / f"{options.host}.yml"
    if not variables:
        return {**files, path: init_draft.host_text(rig, slots, today, options.driver, _display(hardware, console))}
    if variables.get("rig") != rig.key:
        problem = f"{folder}/host_vars has {options.host} already, and it is not about {rig.key}"
        raise UsageError("init", problem, "a name that is free", "move that away, or choose another --host")
    console.print(as_is(f"{folder}/host_vars has {options.host} already, with rig: {rig.key}; it stays as it is"))
    if "slots" not in variables:
        with contextlib.suppress(InputError):
            return {**files, path: init_update.with_value(atomic.text_of(path), str(path), "slots", slots)}
        console.print(f"It names no positions; these would be slots: {as_is(str(slots))}", soft_wrap=True)
    return files


def _own_variables(folder: Path, name: str) -> Mapping[str, Any]:
    """The variables in host_vars/ for a host; {} if they are those of an example."""
    example = atomic.text_of(folder / "host_vars" / f"{name}.yml").startswith(init_draft.EXAMPLE)
    return {} if example else inventory.host_variables(folder, name)


def _display(hardware: Hardware, console: Console) -> bool | None:
    """The value of `display` of the driver: true for a machine with graphical sessions, the answer at a terminal if
    only the screen is on a GPU, otherwise None; `plan` then names the choice.
    """
    if hardware.graphical.manager or hardware.graphical.sessions:
        what = hardware.graphical.manager or ", ".join(hardware.graphical.sessions)
        text = f"It has a graphical session ({what}): display: true, the driver with the libraries for X and Wayland."
        console.print(f"[yellow]{as_is(text)}[/]", soft_wrap=True)
        return True
    if not hardware.screen_gpu or not prompt.on_terminal():
        return None
    print(f"Its screen is on the GPU {hardware.screen_gpu}. ", end="")
    return prompt.answer("Install the driver's libraries for X and Wayland too? [y/N] ").lower() in ("y", "yes")


def _checked_name(name: str) -> None:
    """Raises UsageError for a text that is no name of a host."""
    if not _NAME.fullmatch(name):
        expected = "up to 63 letters, digits, . _ and -"
        raise UsageError("--host", f"'{name[:80]}' is no name for a host", expected, "--host servbadge")


def _connection_of(address: str) -> dict[str, Any]:
    """The connection variables of an address. Raises UsageError."""
    place = endpoint.parse(address)
    if place is None:
        problem = f"'{address[:80]}' is no address"
        raise UsageError("--address", problem, endpoint.PLACE, "--address ubuntu@192.168.1.20")
    variables = {"ansible_host": place.address, "ansible_user": place.user, "ansible_port": place.port}
    return {name: value for name, value in variables.items() if value}


def _look(host: Host, console: Console) -> Hardware:
    """Reads the hardware of the machine. Raises Unreachable; HostError when it has no GPU."""
    password = prompt.password if prompt.on_terminal() else None
    (run,) = host_runs.prepare([BoundPlaybook(host, (), ())], Options(secrets.token_hex(4)), no_events, password)
    facts = (pci.gpus, pci.nvswitches, system.board, system.cpu, system.os_release)
    try:
        run.transport.connect()
        run.read((*facts, display.graphical, display.adapters))
        gpus, switches, board, cpu, release = (run.value(fact) for fact in facts)
        strange = [device.bus_id for device in gpus if catalogue.model_of(device.device_id) is None]
        loaded = _driving(run, strange) if strange else ""
        identity = run.store.known[system.identity]
        desk, adapters = (run.store.known[fact] for fact in (display.graphical, display.adapters))
    finally:
        pool.close([run])
    if not gpus:
        raise pci.no_gpu("init")
    models = {device.bus_id: catalogue.model_of(device.device_id) for device in gpus}
    unlisted = {device.bus_id: device.device_id for device in gpus if models[device.bus_id] is None}
    names = [text for text in (str(board), cpu, release.pretty_name) if text]
    console.print(f"[bold]{as_is(host.name)}[/]: {as_is(', '.join(names))}")
    for bus_id, model in models.items():
        console.print(f"  {as_is(bus_id)}  {as_is(model.label) if model else f'unknown, 10de:{unlisted[bus_id]}'}")
    known = {bus_id: model for bus_id, model in models.items() if model}
    for drafted in {model.key: model for model in known.values() if not model.described}.values():
        console.print(f"[yellow]{as_is(not_described(drafted))}.[/]", soft_wrap=True)
    screen = display.screen_gpu(adapters) if isinstance(adapters, tuple) else ""
    shows = desk if isinstance(desk, display.Graphical) else display.NOT_GRAPHICAL
    this = identity if isinstance(identity, MachineIdentity) else MachineIdentity()
    return Hardware(known, unlisted, loaded, len(switches), board, cpu, shows, screen, this)


def _driving(run: HostRun, bus_ids: Iterable[str]) -> str:
    """The version of the loaded driver when it drives all of these GPUs, else ""."""
    asked = (driver_state.loaded_version, gpu.gpus)
    run.read_unknown(asked)
    try:
        version, cards = run.store(driver_state.loaded_version), run.store(gpu.gpus)
    except (Unavailable, Unreadable):
        return ""
    answering = {card.bus_id for card in cards if not card.lost}
    return str(version or "") if set(bus_ids) <= answering else ""


def _rig(options: InitOptions, folder: Path, hardware: Hardware, console: Console) -> Rig | None:
    """The known rig that matches the machine; None if a new rig is needed. Raises UsageError."""
    here = list(hardware.gpus.values())
    if options.rig:
        chosen = catalogue.rig(options.rig, "--rig", folder / "rigs")
        if Counter(model.key for model in here) != Counter(chosen.models):
            init_draft.slots(chosen, hardware.gpus)
            console.print(
                f"[yellow]{as_is(chosen.key)} has {as_is(counted_of(chosen))}; here are {as_is(counted(here))}[/]"
            )
        return chosen
    every = _every_rig(folder)
    rigs = init_draft.matching(every, here, hardware.board)
    if len(rigs) == 1:
        console.print(f"It is the rig [bold]{as_is(rigs[0].key)}[/]: {as_is(rigs[0].title)}")
        return rigs[0]
    if not rigs and (rigs := init_draft.lacking(every, here, hardware.board)):
        text = f"its board is of {rigs[0].key}, which has {counted_of(rigs[0])}; here are {counted(here)}"
        console.print(f"[yellow]{as_is(text)}[/]")
    if not rigs:
        console.print("No rig that is known is like it.")
        return None
    return _ask_for_rig(rigs, console)


def _ask_for_rig(rigs: Sequence[Rig], console: Console) -> Rig | None:
    """Asks which of several rigs it is; None for none of them. Raises UsageError without a terminal."""
    keys = [rig.key for rig in rigs]
    if not prompt.on_terminal():
        raise UsageError("init", f"it may be {' or '.join(keys)}", "which one it is", f"--rig {keys[0]}")
    table = with_columns("", "rig", "machine", wrap=("machine",))
    for number, rig in enumerate(rigs, 1):
        table.add_row(str(number), as_is(rig.key), as_is(rig.title))
    console.print(table)
    while True:
        answer = prompt.answer(f"Which rig is it? 1 to {len(rigs)}, or its name (Enter: none of them) ").casefold()
        if not answer:
            return None
        for number, rig in enumerate(rigs, 1):
            if answer in (str(number), rig.key.casefold()):
                return rig
        console.print(f"{as_is(visible(answer[:80]))} is not a number from 1 to {len(rigs)}; {as_is(', '.join(keys))}")


def _supply_w(options: InitOptions) -> int:
    """The watts of the power supply, from --supply-w or from an answer at a terminal; 0 if not known."""
    if options.supply_w is not None:
        return options.supply_w
    while prompt.on_terminal() and (text := prompt.answer("How many watts has its power supply? (Enter: not known) ")):
        try:
            return int(WATTS.value("--supply-w", text))
        except UsageError as error:
            print(f"expected: {error.expected}")
    return 0


def offer(address: str, inventory: str) -> str:
    """Asks for a name at a terminal and adds the address under it; returns the name, or "" if it was not added."""
    name = prompt.answer(f"{address} is not in the inventory. A name to describe it under (Enter: leave it) ")
    given: dict[str, Any] = {"host": name, "address": address, "inventory": inventory}
    return name if name and init(InitOptions(**given)) == 0 else ""
