"""rigwright's commands. `invoke TASK --help` explains each; `invoke --list` names them all."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from invoke import Collection, Context, Exit, task

# Invoke keeps Python from keeping what it compiled, and a third of a command's time went into compiling it again.
sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)
gc.set_threshold(100_000)  # what is loaded stays: looking through it for garbage again and again is 4 % of a command

_HELP = {
    "host": "a host, a group or a pattern of the inventory (gpu:!old, v100*); `all` is every host",
    "playbook": "the playbook (default: the command's own in playbooks/)",
    "inventory": "the inventory (default: $RIGWRIGHT_INVENTORY, then ./inventory)",
    "yes": "make the changes without asking",
    "json": "write one JSON document to FILE, or to stdout with -",
    "tags": "only the steps with one of these tags (a,b)",
}
_EXECUTOR = {
    "executor": "who connects to the hosts: a Dask scheduler's workers, tcp://SCHEDULER:8786 (default: this machine)"
}
_HTML = {"html": "write the report page to FILE: one HTML file that needs nothing else"}


_WHEELS = (
    "libraries of the peer-to-peer test for a host that has none: fetch (pip), a directory with the wheels, or none"
)
_TEST = {
    "quick": "only what can be read: no peer-to-peer test",
    "busy": "test also while processes use the GPUs",
    "wheels": _WHEELS,
}
_PROGRAMS = {
    "nccl-tests": "with --tags p2p: NVIDIA's all_reduce_perf and sendrecv_perf too, of the host (=FOLDER: of that folder)",
    "python": "with --tags p2p: a collective through the torch of that interpreter on the host too, one process per GPU",
}


def _lab(act: Callable[[Any], None]) -> None:
    """A task of the lab, its errors as one message."""
    from lab import commands
    from rigwright.errors import RigwrightError

    _guard.done = True
    try:
        act(commands)
    except RigwrightError as error:
        raise Exit(f"error {error}", error.exit_code) from None


def _run(command: str, **words: object) -> None:
    from rigwright import commands

    def describe(address: str, inventory: str) -> str:
        from rigwright import init as first

        return first.offer(address, inventory)

    _guard.done = True
    raise Exit(code=commands.run(commands.Said(command, **words), describe))  # type: ignore[arg-type]


@task(
    positional=[],
    help={
        **_HELP,
        **_HTML,
        "disrupt": "also what was not announced, or interrupts GPU work",
        "wheels": _WHEELS,
        **_EXECUTOR,
        "serial": "in batches of so many hosts, or percents of them; the last size counts for the rest: 1,10%,100%",
        "max_fail": "stop when more hosts than this have failed, and leave the rest alone (in batches: 0)",
        "resume": "go on with the rollout that stopped last: its hosts, playbook and inventory",
        "reboots": "so many hosts may be rebooting at a time (default: 1)",
    },
)
def provision(
    c: Context,
    host: str | None = None,
    playbook: str = "",
    inventory: str = "",
    yes: bool = False,
    json: str = "",
    html: str = "",
    tags: str = "",
    disrupt: bool = False,
    wheels: str = "",
    serial: str = "",
    max_fail: str = "",
    resume: bool = False,
    reboots: str = "",
    executor: str = "",
) -> None:
    """Make a host a proven GPU server: shows the plan, asks, applies it, reboots, proves it.

    Many hosts in batches: --serial 1,10%,100% begins with one and stops when it fails; docs/rollouts.md.
    """
    words = {"playbook": playbook, "inventory": inventory, "json": json, "html": html, "tags": tags, "wheels": wheels}
    rollout = {"serial": serial, "max_fail": max_fail, "resume": resume, "reboots": reboots, "executor": executor}
    _run("provision", host=host, yes=yes, disrupt=disrupt, **words, **rollout)


@task(positional=[], help={**_HELP, **_EXECUTOR})
def plan(
    c: Context,
    host: str | None = None,
    playbook: str = "",
    inventory: str = "",
    yes: bool = False,
    json: str = "",
    tags: str = "",
    executor: str = "",
) -> None:
    """Show what provision would change. Changes nothing; exit 2 when there is something."""
    _run("plan", host=host, playbook=playbook, inventory=inventory, yes=yes, json=json, tags=tags, executor=executor)


@task(
    positional=[],
    optional=["nccl_tests"],
    help={
        **_HELP,
        **_HTML,
        **_TEST,
        **_EXECUTOR,
        **_PROGRAMS,
        "watch": "look again every few seconds, across power cycles, until Ctrl-C",
    },
)
def verify(
    c: Context,
    host: str | None = None,
    playbook: str = "",
    inventory: str = "",
    yes: bool = False,
    json: str = "",
    html: str = "",
    tags: str = "",
    quick: bool = False,
    busy: bool = False,
    wheels: str = "",
    watch: bool = False,
    executor: str = "",
    nccl_tests: str = "",
    python: str = "",
) -> None:
    """Prove that a host still is what it was made, and say what is wrong with it; also of one that was never provisioned.

    Changes nothing; exit 2 when something is not as wanted. `--tags hardware` needs no driver; with `--watch` it is for somebody
    who reseats GPUs.

    Peer-to-peer is tested too, with small messages, where the GPUs are idle and the host has the libraries; with --tags p2p
    it is tested in full, and the libraries are brought. docs/p2p.md.
    """
    others = {"nccl_tests": "usual" if nccl_tests is True else nccl_tests, "python": python}
    words = {"playbook": playbook, "inventory": inventory, "json": json, "html": html, "tags": tags, "wheels": wheels}
    _run("verify", host=host, yes=yes, quick=quick, busy=busy, watch=watch, executor=executor, **words, **others)


@task(
    positional=[], help={key: text for key, text in {**_HELP, **_HTML, **_TEST}.items() if key not in ("yes", "tags")}
)
def accept(
    c: Context,
    host: str | None = None,
    playbook: str = "",
    inventory: str = "",
    json: str = "",
    html: str = "",
    quick: bool = False,
    busy: bool = False,
    wheels: str = "",
) -> None:
    """Show what second-hand hardware is worth: serials, memory errors ever, links, speeds. Changes nothing; exit 2 on a flaw.

    Peer-to-peer is tested in full, where the GPUs are idle and the host has the libraries, or --wheels says where they come
    from. With --html a sheet to print and sign.
    """
    words = {"playbook": playbook, "inventory": inventory, "json": json, "html": html, "wheels": wheels}
    _run("accept", host=host, quick=quick, busy=busy, **words)


@task(positional=[], help=_HELP)
def facts(
    c: Context,
    host: str | None = None,
    playbook: str = "",
    inventory: str = "",
    yes: bool = False,
    json: str = "",
    tags: str = "",
) -> None:
    """Show what a host says of itself: system, kernel, GRUB, driver, GPUs."""
    _run("facts", host=host, playbook=playbook, inventory=inventory, yes=yes, json=json, tags=tags)


@task(
    positional=[],
    help={
        **_HELP,
        "show": "only show; exit 2 on drift",
        "reset": "back to the GPUs' own defaults, until the next limits or boot",
    },
)
def limits(
    c: Context,
    host: str | None = None,
    playbook: str = "",
    inventory: str = "",
    yes: bool = False,
    json: str = "",
    tags: str = "",
    show: bool = False,
    reset: bool = False,
) -> None:
    """Put persistence, power limits and clocks in force on the GPUs that differ, and show them all."""
    _run(
        "limits",
        host=host,
        playbook=playbook,
        inventory=inventory,
        yes=yes,
        json=json,
        tags=tags,
        show=show,
        reset=reset,
    )


@task(positional=[], help={"host": _HELP["host"], "inventory": _HELP["inventory"], "yes": "record it without asking"})
def trust(c: Context, host: str | None = None, inventory: str = "", yes: bool = False) -> None:
    """Show the ssh key that a host offers, and record it when you say that it is the right one."""
    from rigwright.trust import trust as record

    _guard.done = True
    raise Exit(code=record(host, inventory, yes))


@task(
    positional=[],
    help={
        "host": "the name that it gets in the inventory",
        "address": "USER@HOST or USER@HOST:PORT",
        "inventory": "the inventory's directory (default: $RIGWRIGHT_INVENTORY, then ./inventory)",
        "rig": "which rig it is, where several have its GPUs",
        "supply_w": "watts of its power supply, where a rig is drafted",
        "yes": "record the host key without asking, once you have compared it",
    },
)
def init(
    c: Context, host: str, address: str, inventory: str = "", rig: str = "", supply_w: str = "", yes: bool = False
) -> None:
    """Describe a machine of your own: shows its ssh key, looks at its GPUs, writes the inventory. Changes nothing on it."""
    from rigwright import init as first

    _guard.done = True
    raise Exit(code=first.init(first.Asked(host, address, inventory, rig, supply_w, yes)))


@task(
    positional=["name"],
    help={
        "name": "a GPU, rig, driver, CUDA toolkit or PCI id, an error's text in quotes, 'Xid 79', or - to read a log",
        "inventory": _HELP["inventory"],
    },
)
def explain(c: Context, name: str, inventory: str = "") -> None:
    """What is known of a GPU, a machine, a driver, an error text or an Xid: cause, fix, source. Asks no host."""
    from rigwright import knowledge

    _guard.done = True
    raise Exit(code=knowledge.explain(name, inventory))


@task(
    positional=[],
    help={
        "host": _HELP["host"],
        "inventory": _HELP["inventory"],
        "graph": "as a tree of groups",
        "json": "write what `ansible-inventory --list` would to FILE, or to stdout with -",
    },
)
def inventory_list(c: Context, host: str = "", inventory: str = "", graph: bool = False, json: str = "") -> None:
    """The hosts of the inventory: address, groups, rig, driver, and where each is declared. Asks no host."""
    from rigwright import knowledge

    _guard.done = True
    raise Exit(code=knowledge.inventory_list(host, inventory, graph, json))


@task(positional=[])
def catalogue_check(c: Context) -> None:
    """Read all of the catalogue and compare it with NVIDIA's own device list."""
    from rigwright import knowledge

    _guard.done = True
    raise Exit(code=knowledge.check())


@task(
    positional=[],
    help={
        "rig": "a machine of the catalogue, or FILE.yml for one of your own, also one not bought yet",
        "host": "a host of the inventory: its rig and its limits; nothing is asked of it",
        "inventory": _HELP["inventory"],
        "limits_w": "power limit of each GPU in watts, such as 200 (in place of the machine's own limits)",
        "clocks_mhz": "highest graphics clock of each GPU in MHz, such as 1005 (likewise)",
        "supplies": "other supplies: COUNTxWATTS such as 2x1100, several joined by +",
        "price_per_kwh": "for the cost of a day, such as 0.30",
        "json": _HELP["json"],
    },
)
def power_plan(
    c: Context,
    rig: str = "",
    host: str = "",
    inventory: str = "",
    limits_w: str = "",
    clocks_mhz: str = "",
    supplies: str = "",
    price_per_kwh: str = "",
    json: str = "",
) -> None:
    """Show whether the power supplies carry a machine, also when all GPUs ramp together, and which limits would fit.

    Asks no host. Exit 2 when it does not fit. How it reckons: docs/power.md.
    """
    from rigwright import knowledge

    _guard.done = True
    asked = knowledge.PowerAsked(rig, host, inventory, limits_w, clocks_mhz, supplies, price_per_kwh, json)
    raise Exit(code=knowledge.power_plan(asked))


@task(
    positional=[],
    help={
        "name": "the host's name (default: the rig's)",
        "rig": "a file of lab/rigs/ (default: no GPUs)",
        "count": "so many hosts, NAME1 to NAMEcount",
        "distro": "ubuntu2204 (default), ubuntu2404 or debian12",
    },
)
def lab_up(c: Context, name: str = "", rig: str = "", count: str = "", distro: str = "") -> None:
    """Boot simulated hosts on this machine (root): real systemd, sshd, apt, GRUB; with --rig simulated GPUs."""
    number = int(count) if count.isdigit() else -1 if count else None
    _lab(lambda lab: lab.up(name=name or None, rig=rig or None, count=number, distro=distro or None, say=print))


@task(positional=[], help={"name": "one host (default: all of them)"})
def lab_down(c: Context, name: str = "") -> None:
    """Stop simulated hosts and remove all that they left on this machine (root)."""
    _lab(lambda lab: lab.down(name=name or None, say=print))


@task(positional=[])
def lab_status(c: Context) -> None:
    """The simulated hosts: rig, address, state, boots, driver loaded and installed (for root), faults."""
    from lab import commands

    _guard.done = True
    for one in commands.status():
        print(one)


_FAULT_HELP = {"host": "a host of the lab (lab.status)", "fault": "a fault of docs/lab-faults.md"}


@task(positional=[], help={**_FAULT_HELP, "gpu": "the GPU, as the rig counts them (default: 0)"})
def lab_fault(c: Context, host: str = "", fault: str = "", gpu: str = "") -> None:
    """Break a simulated host on purpose, while it runs (root)."""
    from lab.fault import fault as put

    _lab(lambda _: put(host, fault, gpu, print))


@task(positional=[], help={**_FAULT_HELP, "fault": "one fault (default: all that it has)"})
def lab_heal(c: Context, host: str = "", fault: str = "") -> None:
    """Take faults out of a simulated host again (root)."""
    from lab.fault import heal

    _lab(lambda _: heal(host, fault, print))


@task(positional=[])
def lab_ssh_config(c: Context) -> None:
    """An ssh_config for `ssh -F FILE NAME` to every simulated host."""
    from lab import commands

    _guard.done = True
    print(commands.ssh_config(), end="")


class _guard:
    """What Invoke says of a mistake on the command line is followed by what to type, and by one document with `--json -`."""

    done = False

    @staticmethod
    def at_exit() -> None:
        if _guard.done:
            return
        words = sys.argv[1:]
        task_name = next((word for word in words if word in ns.task_names or not word.startswith("-")), "")
        known = task_name in ns.task_names
        todo = f"invoke {task_name} --help" if known else "invoke --list, then invoke TASK --help"
        stray = next((word for word in words[1:2] if not word.startswith("-")), "")
        hint = f"; a host is named with --host {stray}" if known and stray else ""
        if task_name == "explain":
            hint = f"; a text of several words stands in quotes: invoke explain '{' '.join(words[1:])}'"
        print(f"  do:     {todo}{hint}", file=sys.stderr)
        if _guard.json:
            import json

            found = "the command line cannot be read: " + " ".join(words)
            error = {"where": "command line", "found": found, "wanted": "a task and its flags", "todo": todo + hint}
            print(
                json.dumps(
                    {"schema": 1, "command": task_name, "run": "", "exit_code": 1, "error": error, "hosts": {}},
                    indent=2,
                )
            )

    json = any(
        a == "--json=-" or (a == "--json" and b == "-") for a, b in zip(sys.argv, [*sys.argv[1:], ""], strict=True)
    )


_ASKS = {"--help", "-h", "--list", "-l", "--version", "-V", "--complete", "--print-completion-script"}
if Path(sys.argv[0]).name in ("invoke", "inv", "__main__.py") and sys.argv[1:] and not _ASKS & set(sys.argv):
    import atexit

    atexit.register(_guard.at_exit)


@task(
    positional=[],
    help={
        "host": "a host, a group or a pattern of the inventory (default: all)",
        "playbook": "what they should be (default: playbooks/provision.yml)",
        "inventory": _HELP["inventory"],
        "since": "compare with the past until then: 7d, 12h, a date (default: the last run)",
        "tags": _HELP["tags"],
        "json": _HELP["json"],
    },
)
def fleet_check(
    c: Context, host: str = "", playbook: str = "", inventory: str = "", since: str = "", tags: str = "", json: str = ""
) -> None:
    """Compare hosts with their playbook, their own past and their peers, and follow every GPU. Changes nothing.

    GPUs that are too hot, slowed down, or whose memory or log has errors are named too. Exit 2 when something differs, 3 when a host does not answer; the others are compared all the same.
    """
    from rigwright import survey

    _guard.done = True
    raise Exit(code=survey.check(host, playbook, inventory, since, tags, json))


@task(
    positional=[],
    help={
        "cmd": "the command, in quotes, for the host's shell; its stdin is empty",
        "host": "a host, a group or a pattern of the inventory (default: all)",
        "inventory": _HELP["inventory"],
        "sudo": "as root (default: as the user that logs in)",
        "timeout_s": "seconds until it is ended (default: 60)",
        "json": _HELP["json"],
    },
)
def fleet_run(
    c: Context,
    cmd: str = "",
    host: str = "",
    inventory: str = "",
    sudo: bool = False,
    timeout_s: str = "60",
    json: str = "",
) -> None:
    """Run one command on many hosts at once, and show what they answer; equal answers are shown once.

    Asks nothing and proves nothing: it is for looking around. Exit 1 where the command failed, 3 when a host does not answer.
    """
    from rigwright import oneoff

    _guard.done = True
    raise Exit(code=oneoff.run(cmd, host, inventory, sudo, timeout_s, json))


@task(
    positional=[],
    help={
        "host": "a host, a group or a pattern of the inventory (default: all)",
        "playbook": "what they should be (default: playbooks/provision.yml)",
        "inventory": _HELP["inventory"],
        "since": "drift from the past until then: 7d, 12h, a date (default: the last run)",
        "html": "write the page to FILE (default: fleet.html, unless --json or --prometheus is said)",
        "json": _HELP["json"],
        "prometheus": "write metrics to FILE.prom, for node_exporter's textfile collector",
        "reload": "a browser that shows the page reads it again every so many seconds, such as 300",
    },
)
def fleet_report(
    c: Context,
    host: str = "",
    playbook: str = "",
    inventory: str = "",
    since: str = "",
    html: str = "",
    json: str = "",
    prometheus: str = "",
    reload: str = "",
) -> None:
    """Write a fleet's page, to leave open on a screen; JSON, metrics. Changes nothing.

    What is wrong comes first: drift as fleet.check finds it, checks that fail as
    verify does (without the peer-to-peer test), what became different since the
    last report, what ends soon. Then every machine with its GPUs: how warm they
    are and what they draw, now and in the last days.

        invoke fleet.report
        invoke fleet.report --host gpu --html /srv/www/gpu.html --reload 300
        invoke fleet.report --prometheus rigwright.prom --json fleet.json

    Exit 2 when something is not as wanted, 3 when a host does not answer; the
    others are complete all the same. How to make one every ten minutes, and all
    metrics: docs/fleet.md.
    """
    from rigwright import overview

    _guard.done = True
    asked = overview.Asked(host, playbook, inventory, since, html, json, prometheus, reload)
    raise Exit(code=overview.report(asked))


@task(
    positional=[],
    help={"host": "only runs on this host", "limit": "how many, newest first; 0 for all", "json": _HELP["json"]},
)
def history_list(c: Context, host: str = "", limit: str = "20", json: str = "") -> None:
    """The runs that were recorded on this machine, newest first. Asks no host."""
    from rigwright import past

    _guard.done = True
    raise Exit(code=past.list_runs(host, limit, json))


@task(
    positional=["run"],
    help={"run": "its id as history.list shows it, the beginning of one, or `last`", "json": _HELP["json"]},
)
def history_show(c: Context, run: str, json: str = "") -> None:
    """One recorded run: what became of each host, the changes that were made, what was found. Asks no host."""
    from rigwright import past

    _guard.done = True
    raise Exit(code=past.show_run(run, json))


@task(
    positional=["host"],
    help={
        "host": "a host as the runs named it",
        "since": "7d, 12h, 30m, 4w, or a date such as 2026-11-14",
        "json": _HELP["json"],
    },
)
def history_diff(c: Context, host: str, since: str = "7d", json: str = "") -> None:
    """What became different on a host: kernel, driver, GPUs, firmware as the runs saw them, and what rigwright changed."""
    from rigwright import past

    _guard.done = True
    raise Exit(code=past.diff(host, since, json))


@task(positional=[])
def history_set_aside(c: Context) -> None:
    """Rename the file of the history, damaged or not; the next run begins a new one. Deletes nothing."""
    from rigwright import past

    _guard.done = True
    raise Exit(code=past.set_aside())


_lab_tasks = Collection("lab")
for _name, _task in (
    ("up", lab_up),
    ("down", lab_down),
    ("status", lab_status),
    ("fault", lab_fault),
    ("heal", lab_heal),
    ("ssh-config", lab_ssh_config),
):
    _lab_tasks.add_task(_task, name=_name)
_catalogue_tasks = Collection("catalogue")
_catalogue_tasks.add_task(catalogue_check, name="check")
_fleet_tasks = Collection("fleet")
_fleet_tasks.add_task(fleet_check, name="check")
_fleet_tasks.add_task(fleet_run, name="run")
_fleet_tasks.add_task(fleet_report, name="report")
_inventory_tasks = Collection("inventory")
_inventory_tasks.add_task(inventory_list, name="list")
_power_tasks = Collection("power")
_power_tasks.add_task(power_plan, name="plan")
_history_tasks = Collection("history")
for _name, _task in (
    ("list", history_list),
    ("show", history_show),
    ("diff", history_diff),
    ("set-aside", history_set_aside),
):
    _history_tasks.add_task(_task, name=_name)
ns = Collection(
    provision,
    plan,
    verify,
    accept,
    facts,
    limits,
    init,
    trust,
    explain,
    _inventory_tasks,
    _fleet_tasks,
    _history_tasks,
    _catalogue_tasks,
    _power_tasks,
    _lab_tasks,
)
