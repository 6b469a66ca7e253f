"""The options of every command. The docstring of a class is the help text of its command; the help of an option stands beside it.

Invoke's flags, their defaults and their help are made from these classes, and the function of a command receives an
instance. A class becomes a dataclass when its fields are needed, and has no __eq__ and no __repr__: generating methods for all
classes at each start would take a sixth of the processor time of `invoke --list`.
"""

from __future__ import annotations

import keyword
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rigwright.core.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_options: Any) -> Any:
        return lambda cls: cls


REQUIRED: Any = object()


def option(text: str, default: Any = "", without_value: str = "") -> Any:
    """A dataclass field with its help text. `without_value` is the value when the flag is typed alone; such a flag needs no value."""
    shown = f"{text} (default: {default})" if default and isinstance(default, str) else text
    metadata = {"help": shown, "without_value": without_value}
    return field(metadata=metadata) if default is REQUIRED else field(default=default, metadata=metadata)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option,))
class CommandOptions:
    """Base class of the options of a command; a subclass becomes a dataclass when `fields` or an instance of it is needed.

    `command` is its name on the command line. `function` is where it is implemented, MODULE:FUNCTION; without one both are
    named as the command: `fleet.check` is `rigwright.cli.fleet_check:fleet_check`, and `try`, a keyword of Python, is
    `rigwright.cli.try_:try_`. `positional` are options that may be typed without their flag. `changes_hosts` is false for a command that only reads.
    """

    command: ClassVar[str]
    function: ClassVar[str]
    positional: ClassVar[tuple[str, ...]]
    changes_hosts: ClassVar[bool]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init_subclass__(
        cls, command: str = "", function: str = "", positional: tuple[str, ...] = (), changes_hosts: bool = False
    ) -> None:
        name = command.replace(".", "_").replace("-", "_")
        name += "_" if keyword.iskeyword(name) else ""
        cls.command = command
        cls.function = function or f"rigwright.cli.{name}:{name}"
        cls.positional = positional
        cls.changes_hosts = changes_hosts

    def __new__(cls, **_given: Any) -> Self:
        """An instance, before __init__."""
        cls.fields()
        return super().__new__(cls)

    @classmethod
    def fields(cls) -> tuple[Field[Any], ...]:
        """The options as fields of a dataclass, those of the base classes first."""
        if "__dataclass_fields__" not in vars(cls):
            for base in cls.__bases__:
                if issubclass(base, CommandOptions):
                    base.fields()
            # mypy treats the fields as frozen; to enforce it, Python would need longer for each class
            dataclass(kw_only=True, eq=False, repr=False)(cls)
        return fields(cls)


class InventoryOptions(CommandOptions):
    """For commands that read the inventory."""

    inventory: str = option("the inventory (default: $RIGWRIGHT_INVENTORY, then ./inventory)")
    vault_password_file: str = option(
        "a file with the password of ansible-vault, or a program that prints it (default: $ANSIBLE_VAULT_PASSWORD_FILE)"
    )


class JsonOptions(CommandOptions):
    """For commands that can write a JSON document."""

    json: str = option("write one JSON document to FILE, or to stdout with -")


class HostsOptions(InventoryOptions, JsonOptions):
    """For commands that connect to hosts."""

    host: str | None = option(
        "a host, a group or a pattern of the inventory (gpu:!old, v100*); `all` is every host"
        " (default: the only host of the inventory)",
        None,
    )
    executor: str = option(
        "connect to the hosts from the workers of a Dask scheduler, tls://SCHEDULER:8786 (default: from this machine)"
    )
    insecure: bool = option("accept tcp:// for --executor: neither encrypted nor authenticated", False)
    slice: str = option("for --executor: how many hosts a worker gets at a time (default: 50 to 200)")


class PlaybookOptions(HostsOptions):
    """For commands that read a playbook."""

    playbook: str = option(
        "the playbook: a file, or `train`, with containers and torch (default: the command's own in playbooks/)"
    )


class StepsOptions(PlaybookOptions):
    """For commands that can be limited to some steps of the playbook."""

    tags: str = option("only the steps and checks with one of these tags (a,b)")

    @property
    def tag_names(self) -> frozenset[str]:
        """The tags that were given."""
        return frozenset(word.strip() for word in self.tags.split(",") if word.strip())


class WheelsOptions(PlaybookOptions):
    """For commands that may copy libraries for the peer-to-peer test."""

    wheels: str = option(
        "where the libraries of the peer-to-peer test come from when a host has none:"
        " fetch (pip), a directory with the wheels, or none"
    )

    def check_wheels(self) -> None:
        """Raises UsageError for a value of --wheels that is no source of wheels."""
        if self.wheels not in ("", "fetch", "none") and not Path(self.wheels).expanduser().is_dir():
            expected = "a directory with wheels, fetch, or none"
            raise UsageError("--wheels", f"{self.wheels} is not a directory", expected)


class ReportOptions(WheelsOptions):
    """For commands that write a report page and may copy libraries for the peer-to-peer test."""

    html: str = option("write the report page to FILE: one HTML file that needs no other files")
    findings: bool = option("show every finding: the evidence of each problem, and what passed", False)


class PeerTestOptions(ReportOptions):
    """For commands that run the peer-to-peer test."""

    quick: bool = option("skip the peer-to-peer test: only read", False)
    busy: bool = option("run the peer-to-peer test although processes use the GPUs", False)


class FleetOptions(PlaybookOptions):
    """For commands that compare hosts."""

    host: str | None = option("a host, a group or a pattern of the inventory (default: all)", None)
    playbook: str = option("the playbook that they are compared with (default: playbooks/provision.yml)")
    since: str = option("compare with the state at this time: 7d, 12h, a date (default: the last verified state)")


class ProvisionOptions(StepsOptions, ReportOptions, command="provision", changes_hosts=True):
    """Make a host a proven GPU server: shows the plan, asks, applies it, reboots, proves it.

    With --serial the hosts are provisioned in batches; the rollout stops when more
    than --max-fail hosts have failed, and --resume continues it (docs/rollouts.md).

        invoke provision --host servbadge
        invoke provision --host servbadge --yes --html report.html
        invoke provision --host gpu --serial 1,10%,100% --max-fail 2
        invoke provision --resume

    Exit 1 when a step or a check failed, 2 when it was not confirmed, 3 when a host does
    not answer.
    """

    yes: bool = option("make the changes without asking", False)
    disrupt: bool = option("also make changes that the plan did not announce or that interrupt GPU work", False)
    serial: str = option("size of the batches, in hosts or percent; the last size repeats: 1,10%,100%")
    max_fail: str = option("stop when more hosts than this have failed (default with --serial: 0)")
    resume: bool = option("continue the last rollout that stopped, with its hosts, playbook and inventory", False)
    reboots: str = option("how many hosts may reboot at the same time (default: 1)")


class PlanOptions(StepsOptions, command="plan"):
    """Show what provision would change. Changes nothing.

        invoke plan --host servbadge
        invoke plan --host all --json plan.json

    Exit 0 when there is nothing to change, 2 when there is something.
    """


class VerifyOptions(StepsOptions, PeerTestOptions, command="verify"):
    """Prove that a host is still as provisioned, and say what is wrong. Changes nothing.

    Also works on a host that was never provisioned. --tags hardware needs no driver.

    Peer-to-peer is tested with small messages when the GPUs are idle and the host
    has the libraries; with --tags p2p it is tested in full, missing libraries
    are copied to the host, and a host that owes the test records that it passed
    (docs/p2p.md).

        invoke verify --host servbadge
        invoke verify --host servbadge --tags p2p --wheels fetch
        invoke verify --host servbadge --tags hardware --watch

    Exit 0 when everything is as expected, 2 when something is not.
    """

    watch: bool = option("check again every few seconds, also across power cycles, until Ctrl-C", False)
    nccl_tests: str = option(
        "with --tags p2p: also run the host's all_reduce_perf and sendrecv_perf (=FOLDER: those of that folder)",
        without_value="usual",
    )


class AcceptOptions(PeerTestOptions, command="accept"):
    """Check second-hand hardware: serials, memory errors ever, links, speeds. Changes nothing.

    Peer-to-peer is tested in full when the GPUs are idle and the host has the
    libraries, or --wheels says where they come from. With --html it writes a sheet
    to print and sign. What the newest stress measured of each GPU is shown beside the
    figure of its model; accept itself loads nothing.

        invoke accept --host servbadge --wheels fetch --html servbadge.html

    Exit 0 when there is no flaw, 2 when there is one.
    """


class StressOptions(WheelsOptions, command="stress"):
    """Load all GPUs of a host with all that they can do, and say which one is slow, hot, wrong or lost.

        invoke stress --host servbadge
        invoke stress --host servbadge --minutes 60 --yes
        invoke stress --host servbadge --minutes 1 --json stress.json

    Four stages share the time: each GPU alone (its speed in each kind of product, its memory, its link);
    one GPU, two, and so on to all together; all in the pattern of training, whose power falls and rises
    for all at once; and all for the rest. The same products must give the same bits each time and on
    each GPU of a model. A GPU that falls off the bus or hangs is a result, with the stage and the second.
    Each GPU is compared with its peers, its model, and its own earlier stresses on this machine.

    Asks before it begins. A weak supply, a poor contact or bad cooling may cost GPUs or reset the machine
    now rather than in the third week of a training; that is its purpose. It installs nothing, and refuses
    while programs use the GPUs. Ctrl-C ends it within seconds (docs/stress.md).

    Exit 0 when all GPUs are well, 2 when one is not.
    """

    minutes: str = option("how long all stages take together; 0.1 to 1440", "10")
    wheels: str = option(
        "where libraries come from when the host has none: fetch (pip), or a directory with the wheels"
    )
    findings: bool = option("show every finding: the evidence of each problem, and what passed", False)
    yes: bool = option("begin without asking", False)


class TrainSmokeOptions(PlaybookOptions, command="train.smoke"):
    """Train a small model on 1, 2, 4, ... and all GPUs of a host, and say whether it learns and how fast.

        invoke train.smoke --host servbadge
        invoke train.smoke --host servbadge --seconds 120 --yes
        invoke train.smoke --host servbadge --python ~/venv/bin/python
        invoke train.smoke --nodes --host gpu
        invoke train.smoke --nodes --links --host gpu

    Uses the training environment of the inventory, or another interpreter with torch. The loss must fall and be equal on all
    GPUs; samples a second and the efficiency are compared with the rig and with earlier trainings of this machine; the
    transport that NCCL took is named. The recorder runs meanwhile. Asks before it begins, installs nothing, and refuses
    while programs use the GPUs (docs/training.md).

    With --nodes the hosts are the nodes of one training: it says which interface and which InfiniBand or RoCE ports it takes and
    why, measures the network between every two nodes, and names the slow one (docs/nodes.md).

    Exit 0 when all is well, 2 when something is not.
    """

    seconds: str = option("how long all trainings take together; 5 to 3600", "60")
    python: str = option("an interpreter with torch on the host, in place of the training environment")
    nodes: bool = option("train on 2 to 32 hosts together, and measure the network between them", False)
    links: bool = option("with --nodes: only measure the network; needs no GPU and no torch", False)
    unlike: bool = option("with --nodes: also where the nodes differ in driver, GPUs, torch or NCCL", False)
    yes: bool = option("begin without asking", False)


class FactsOptions(HostsOptions, command="facts"):
    """Show what a host reports: system, kernel, GRUB, driver, GPUs. Changes nothing.

    invoke facts --host servbadge
    invoke facts --host servbadge --json -
    """


class GpusChooseOptions(HostsOptions, command="gpus.choose", positional=("count",)):
    """Choose the GPUs of a host that are best joined, and print the environment variables for them. Changes nothing.

        invoke gpus.choose 2 --host servbadge
        eval "$(invoke gpus.choose 2 --host localhost --export)"

    Where earlier runs have measured all pairs (peer-to-peer test), their bandwidths count first, and the age of the measurement is
    shown. Otherwise the pairs with the most NVLinks come first (on a DGX-1 not every pair has one), then a common PCIe switch, root
    complex and NUMA node. GPUs in use, with MIG on, and lost ones are left out, and named.
    """

    count: str = option("how many GPUs", REQUIRED)
    export: bool = option("a line for `eval` in a shell", False)
    busy: bool = option("choose among GPUs in use too", False)


class LimitsOptions(StepsOptions, command="limits", changes_hosts=True):
    """Apply persistence mode, power limits and clocks to the GPUs that differ, and show all GPUs.

        invoke limits --host servbadge
        invoke limits --host servbadge --show
        invoke limits --host servbadge --reset

    Exit 2 when --show finds a difference.
    """

    yes: bool = option("make the changes of a playbook that does more than set limits, without asking", False)
    show: bool = option("only show; exit 2 when a GPU differs", False)
    reset: bool = option("set the GPUs back to their own defaults, until the next boot or `limits`", False)


class LimitsFindOptions(HostsOptions, command="limits.find"):
    """Find the power limit (or clock) worth having: measure speed and power at several, and put the limits back.

        invoke limits.find --host servbadge
        invoke limits.find --host servbadge --clocks --points 8
        invoke limits.find --host servbadge --yes --choose per-watt --write

    All GPUs of the host compute at once at each point, about twelve minutes in all; they must be idle. The power
    limit goes from the lowest that the GPUs take to their default, or as far as the supplies of the rig carry.
    Three points are named: the fastest, the most products per watt, and the fewest watts with at least 80 % of
    the fastest. The one that you choose is written into the inventory after a yes; invoke limits sets it.

    The limits are as before afterwards: also after Ctrl-C, a lost connection, kill -9 here or there, a power cut.
    The load is products of matrices, which is not your training: that draws less at the same limit where it waits
    for memory, data or other GPUs, and loses less by a limit. Measure your own at the two limits that matter
    (docs/limits_find.md).

    Exit 0 measured, 2 it was not confirmed, 1 an error.
    """

    clocks: bool = option("sweep the graphics clock in place of the power limit", False)
    points: str = option("how many points, 3 to 16", "7")
    lowest: str = option("the lowest limit, W (with --clocks MHz) (default: the lowest of the GPUs; half of the clock)")
    highest: str = option("the highest limit, W (with --clocks MHz) (default: the default limit; the highest clock)")
    beyond_supplies: bool = option(
        "also limits that the power plan says the supplies do not carry: GPUs can drop out, the machine can reset",
        False,
    )
    choose: str = option("fastest, per-watt, quiet or none (default: ask on a terminal, else none)")
    wheels: str = option(
        "where libraries come from when the host has none: fetch (pip), or a directory with the wheels"
    )
    write: bool = option("write the chosen limit into the inventory without asking", False)
    yes: bool = option("measure without asking", False)


class TryOptions(WheelsOptions, command="try", changes_hosts=True):
    """Change one thing on a host, measure before and after, and keep the change or go back.

        invoke try --host servbadge --driver 580
        invoke try --host servbadge --kernel-cmdline 'iommu=pt' --keep-if faster --yes
        invoke try --host servbadge --limits 'power_limit_w: 250'

    Measures the peer-to-peer test and a short load, in rounds; the inventory stays as it is, and the value counts for this run
    only. A change that fails, hangs or breaks a check is taken back. For a change made by hand, such as a BIOS:

        invoke try --host servbadge                               # before it
        invoke try --host servbadge --again --note 'BIOS 4.11'    # after it

    Exit 0 when the change is kept or nothing was to be changed, 2 when the host went back.
    """

    driver: str = option("a driver branch, or a version of it: 580, 580.95.05")
    kernel_cmdline: str = option(
        "all words for the kernel command line in place of the inventory's; one at least is new"
    )
    limits: str = option("limits of the GPUs over those of the inventory, as YAML: 'power_limit_w: 250'")
    again: str = option(
        "change nothing; measure, and compare with what RUN measured (without RUN: the last try of this host)",
        without_value="last",
    )
    note: str = option("a few words about what is measured, for the history: 'BIOS 4.11'")
    keep_if: str = option("faster, no-slower, ask or never (default: ask on a terminal, else never)")
    rounds: str = option("rounds of the load, in each of two processes; more tell smaller differences from noise", "3")
    wheels: str = option(
        "where libraries come from when the host has none: fetch (pip), or a directory with the wheels"
    )
    write: bool = option("write a change that is kept into the inventory", False)
    yes: bool = option("make the change without asking", False)
    disrupt: bool = option("also make changes that the plan did not announce", False)


class RemoveOptions(StepsOptions, command="remove", changes_hosts=True):
    """Take away what rigwright put on a host: units, holds, pins, sources, drop-ins, programs.

    A file that stood in the place of one before is put back. `invoke facts` lists
    what is there. The driver and CUDA stay as they are, free to move with the next
    upgrade. With --driver the packages that rigwright installed are removed too, with
    what came with them; the plan names those that stay and why (docs/remove.md).

        invoke remove --host servbadge
        invoke remove --host servbadge --driver

    Exit 2 when it was not confirmed.
    """

    host: str | None = option("a host, a group or a pattern of the inventory; it must be named", None)
    driver: bool = option(
        "remove the packages that rigwright installed too: driver, CUDA and what came with them", False
    )
    yes: bool = option("make the changes without asking", False)
    disrupt: bool = option("with --driver: also while processes use the GPUs", False)


class RollbackOptions(StepsOptions, command="rollback", changes_hosts=True):
    """Make a host what it was before a run: files, GRUB, packages and holds, limits and units.

    Without --to it goes back to before the last run that changed something. The same
    command goes on with a rollback that was interrupted, and changes nothing after one
    that ended; --to RUN_OF_THE_ROLLBACK brings back what that one took away.
    What cannot go back is named before anything is changed (docs/rollback.md).

        invoke rollback --host servbadge
        invoke rollback --host servbadge --list
        invoke rollback --host servbadge --to 20261122-141753-136a7c05
        invoke rollback --host servbadge --adopt      # records of before the disk was copied

    Exit 1 when it cannot go back, 2 when it was not confirmed or the host was changed since
    the rollback, 3 when a host does not answer.
    """

    host: str | None = option("a host, a group or a pattern of the inventory; it must be named", None)
    to: str = option("the run before which to go back: its id, or the beginning of one (default: the last run)")
    list: bool = option("only show the runs that the host remembers; changes nothing", False)
    adopt: bool = option("only say that records under another machine-id are of this disk: it was copied", False)
    yes: bool = option("make the changes without asking", False)
    disrupt: bool = option("also while processes use the GPUs", False)


class InitOptions(CommandOptions, command="init"):
    """Add a machine to the inventory: shows its host key, reads its GPUs, writes the files. Changes nothing on it.

    invoke init
    invoke init --host servbadge --address ubuntu@192.168.1.20
    invoke init --host servbadge --address ubuntu@192.168.1.20 --rig servbadge --yes

    On a terminal it asks for a name and an address that are not given.

    For a host of the inventory, without --address: shows which of its GPUs changed; writes that with --update, or after
    a yes.

    invoke init --host servbadge
    invoke init --host servbadge --update

    With --local it is this machine, without ssh; its name is localhost unless another is given.

    invoke init --local
    """

    host: str = option("the name of the host in the inventory (default: asked for)")
    address: str = option("USER@HOST or USER@HOST:PORT; none for a host of the inventory (default: asked for)")
    inventory: str = option("the directory of the inventory (default: $RIGWRIGHT_INVENTORY, then ./inventory)")
    rig: str = option("the rig of the catalogue, when several have the same GPUs")
    supply_w: str = option("watts of the power supply, when no rig of the catalogue matches and one is drafted")
    driver: str = option("the driver branch, such as 580 (default: one that all its GPUs run)")
    local: bool = option("the machine is this one", False)
    update: bool = option("write the changed GPUs of a host of the inventory into its files", False)
    yes: bool = option("record the host key without asking, after you have compared it", False)


class TrustOptions(InventoryOptions, command="trust"):
    """Show the host key that a host offers, and record it after you confirm it; first the keys of its gateways.

    Names another key that is on record for it. Exit 2 when that key still counts, with the command that removes it.

    invoke trust --host servbadge
    """

    host: str | None = option("a host, a group or a pattern of the inventory (default: the only host)", None)
    yes: bool = option("record the key without asking, after you have compared it", False)


class ExplainOptions(InventoryOptions, command="explain", positional=("name",)):
    """Explain a GPU, a machine, a driver, a word, an error text or an Xid: cause, fix, source. Connects to no host.

        invoke explain v100-sxm2-16gb      # a name; also servbadge, 535, 12.2, 10de:1db1
        invoke explain 'RTX 6000'          # part of a name: lists the entries
        invoke explain iommu               # a word; also P2P, bf16, 'training hangs'
        invoke explain 'Xid 79'            # an error; also its whole text, in quotes
        nvidia-smi -q | invoke explain -   # what a program printed
        sudo dmesg | invoke explain -

    With - it reads nvidia-smi, nvidia-smi -q, dmesg, an NCCL log or a Python traceback,
    and says what is wrong in it, causes before their consequences.
    """

    name: str = option(
        "a name, a word, an error text in quotes, 'Xid 79', or - to read what nvidia-smi, dmesg or a program printed",
        REQUIRED,
    )


class InventoryListOptions(InventoryOptions, JsonOptions, command="inventory.list"):
    """List the hosts of the inventory: address, groups, rig, driver, and the file that declares each. Connects to no host.

    invoke inventory.list
    invoke inventory.list --graph
    invoke inventory.list --json -
    """

    host: str = option("a host, a group or a pattern of the inventory (default: all)")
    json: str = option("write the document of `ansible-inventory --list` to FILE, or to stdout with -")
    graph: bool = option("show the tree of groups", False)


class FleetCheckOptions(FleetOptions, StepsOptions, command="fleet.check"):
    """Compare hosts with their playbook, their own past and their peers, and follow every GPU. Changes nothing.

    Also names GPUs that are too hot, throttled, or have memory errors or errors in
    the kernel log. Of more than 40 hosts it shows each cause once, with its hosts.

        invoke fleet.check
        invoke fleet.check --host gpu --since 7d

    Exit 2 when something differs, 3 when a host does not answer; the other hosts
    are compared all the same.
    """


class FleetRunOptions(HostsOptions, command="fleet.run", changes_hosts=True):
    """Run one command on many hosts at once, and show the output; equal outputs are shown once.

        invoke fleet.run --cmd 'uptime -p'
        invoke fleet.run --host gpu --cmd 'nvidia-smi -L' --sudo

    Asks nothing and verifies nothing. Exit 1 when the command failed somewhere, 3
    when a host does not answer.
    """

    cmd: str = option("the command, in quotes, for the shell of the host; its stdin is empty")
    host: str | None = option("a host, a group or a pattern of the inventory (default: all)", None)
    sudo: bool = option("run it as root (default: as the user that logs in)", False)
    timeout_s: str = option("seconds after which the command is ended", "60")


class FleetReportOptions(FleetOptions, command="fleet.report"):
    """Write the report page of a fleet, JSON, or metrics. Changes nothing.

    Problems come first: differences as fleet.check finds them, checks that fail as
    in verify (without the peer-to-peer test), changes since the last report, and
    what reaches its end of life soon. Machines and GPUs are ranked by the speed that
    their newest stress measured, the slowest first with what to do. Then every machine
    with its GPUs: their temperature and power, now and in the last days.

        invoke fleet.report
        invoke fleet.report --host gpu --html /srv/www/gpu.html --reload 300
        invoke fleet.report --prometheus rigwright.prom --json fleet.json

    Exit 2 when something is not as expected, 3 when a host does not answer; the
    other hosts are complete all the same. How to write one every ten minutes, and
    all metrics: docs/fleet.md.
    """

    html: str = option("write the page to FILE (default: fleet.html, unless --json or --prometheus is given)")
    prometheus: str = option("write metrics to FILE.prom, for node_exporter's textfile collector")
    reload: str = option("seconds after which a browser loads the page again, such as 300 (default: never)")


class HistoryListOptions(JsonOptions, command="history.list", function="rigwright.cli.history:list_runs"):
    """List the runs that were recorded on this machine, newest first. Connects to no host.

    invoke history.list
    invoke history.list --host servbadge --limit 5
    """

    host: str = option("only runs on this host")
    limit: str = option("how many; 0 for all", "20")


class HistoryShowOptions(
    JsonOptions, command="history.show", function="rigwright.cli.history:show", positional=("run",)
):
    """Show one recorded run: the status of each host, its changes, its findings. Connects to no host.

    invoke history.show last
    invoke history.show 20261114
    """

    run: str = option("its id as history.list shows it, the beginning of one, or `last`", REQUIRED)


class HistoryDiffOptions(
    JsonOptions, command="history.diff", function="rigwright.cli.history:diff", positional=("host",)
):
    """Show what changed on a host: kernel, driver, GPUs, firmware, and what rigwright changed. Connects to no host.

    invoke history.diff servbadge
    invoke history.diff servbadge --since 2026-11-14
    """

    host: str = option("the name of a host in the recorded runs", REQUIRED)
    since: str = option("7d, 12h, 30m, 4w, or a date such as 2026-11-14", "7d")


class HistorySetAsideOptions(CommandOptions, command="history.set-aside", function="rigwright.cli.history:set_aside"):
    """Rename the history file, for example when it is damaged; the next run creates a new one. Deletes nothing."""


class CatalogueCheckOptions(CommandOptions, command="catalogue.check"):
    """Read the whole catalogue and compare it with NVIDIA's device list."""


class PowerWatchOptions(HostsOptions, command="power.watch"):
    """Show watts, clocks, degrees and the 12 V rail of a host ten times a second, with the peaks, until Ctrl-C.

    A recorder runs on the host while this command does, and nothing of it is left there. If
    the machine goes down, its journal stays, and this command and the next `verify`
    tell what it said last (docs/recorder.md).

        invoke power.watch --host servbadge
        invoke power.watch --host servbadge --seconds 60 --html power.html

    Exit 2 when the machine went down.
    """

    host: str | None = option("a host of the inventory (default: the only one)", None)
    seconds: str = option("end after so many seconds, up to 86400 (default: at Ctrl-C, after a day at the latest)")
    html: str = option("write a page with a plot for each GPU to FILE: one HTML file that needs no other files")


class PowerPlanOptions(InventoryOptions, JsonOptions, command="power.plan"):
    """Show whether the power supplies carry a machine, also when all GPUs ramp together, and which limits would fit.

        invoke power.plan --rig servbadge
        invoke power.plan --host servbadge --limits-w 200
        invoke power.plan --rig servbadge --supplies 2x1100 --price-per-kwh 0.30

    Connects to no host. Exit 2 when it does not fit. How it is calculated: docs/power.md.
    """

    rig: str = option("a machine of the catalogue, or FILE.yml that describes one, also one not bought yet")
    host: str = option("a host of the inventory: its rig and its limits")
    limits_w: str = option("power limit of each GPU in watts, such as 200 (default: the limits of the machine)")
    clocks_mhz: str = option("highest graphics clock of each GPU in MHz, such as 1005 (default: as --limits-w)")
    supplies: str = option("other power supplies: COUNTxWATTS such as 2x1100, several joined by +")
    gpu_power_w: str = option(
        "default power limit of GPUs that the catalogue does not describe, in watts: PCIE-1=180,PCIE-2=100"
    )
    base_load_w: str = option(
        "power of the machine without its GPUs in watts (default: base_load_w of the rig, or 200)"
    )
    price_per_kwh: str = option("price of a kWh, such as 0.30, to show the cost of a day")
