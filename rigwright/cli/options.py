"""The options of every command. The docstring of a class is the help text of its command; the help of an option stands
beside it.

Invoke's flags, their defaults and their help are made from these classes, and the function of a command receives an
instance. A class becomes a dataclass when its fields are needed, and has no __eq__ and no __repr__: generating methods
for all classes at each start would take a sixth of the processor time of `invoke --list`.
"""

from __future__ import annotations

import datetime
import keyword
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from rigwright.cli import option_values as values
from rigwright.cli.option_values import OptionType
from rigwright.core.process import program_name

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_options: Any) -> Any:
        return lambda cls: cls


REQUIRED: Any = object()


def option(text: str, default: Any = "", without_value: str = "", type: OptionType | None = None) -> Any:
    """A dataclass field with its help text. `without_value` is the value when the flag is typed alone; such a flag
    needs no value. `type` converts the text that was typed; without one the value is that text."""
    named = default is not REQUIRED and default and (type or isinstance(default, str))
    metadata = {"help": f"{text} (default: {default})" if named else text, "without_value": without_value, "type": type}
    return field(metadata=metadata) if default is REQUIRED else field(default=default, metadata=metadata)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option,))
class CommandOptions:
    """Base class of the options of a command; a subclass becomes a dataclass when `fields` or an instance of it is
    needed.

    `command` is its name on the command line. `function` is where it is implemented, MODULE:FUNCTION; without one both
    are named as the command: `fleet.check` is `rigwright.cli.fleet_check:fleet_check`. The function of a feature's
    command stands in the feature's command.py: `try`, a keyword of Python, is `rigwright.features.try_.command:try_`.
    `positional` are options that may be typed without their flag. `changes_hosts` is false for a command that only
    reads.
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
        package = cls.__module__.rpartition(".")[0]
        module = f"rigwright.cli.{name}" if package == "rigwright.cli" else f"{package}.command"
        cls.function = function or f"{module}:{name}"
        cls.positional = positional
        cls.changes_hosts = changes_hosts
        if command:
            program_name.COMMANDS.add(command)

    def __new__(cls, **_given: Any) -> Self:
        """An instance, before __init__."""
        cls.fields()
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Converts the texts of options that have a type; an empty text is the default. Raises UsageError."""
        for each in self.fields():
            if type := each.metadata["type"]:
                value = getattr(self, each.name)
                value = each.default if value in ("", None) else value
                flag = each.name.upper() if each.name in self.positional else f"--{each.name.replace('_', '-')}"
                setattr(self, each.name, type.value(flag, value) if value and isinstance(value, str) else value)

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
        "connect to the hosts from the workers of a Dask scheduler, tls://SCHEDULER:8786 (default: from this machine)",
        type=values.SCHEDULER,
    )
    insecure: bool = option("accept tcp:// for --executor: neither encrypted nor authenticated", False)
    slice: int | None = option(
        "for --executor: how many hosts a worker gets at a time (default: 50 to 200)",
        None,
        type=values.count("hosts", example=100),
    )


class PlaybookOptions(HostsOptions):
    """For commands that read a playbook."""

    playbook: str = option(
        "the playbook: a file, or `train`, with containers and torch (default: the command's own in playbooks/)"
    )


class StepsOptions(PlaybookOptions):
    """For commands that can be limited to some steps of the playbook."""

    tags: tuple[str, ...] = option("only the steps and checks with one of these tags (a,b)", (), type=values.NAMES)


class WheelsOptions(CommandOptions):
    """For commands that may copy libraries to measure with."""

    wheels: str = option(
        "where the libraries of the test come from when a host has none:"
        " fetch (pip), a directory with the wheels, or none",
        type=values.WHEELS,
    )


class ReportOptions(WheelsOptions, PlaybookOptions):
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
    since: datetime.datetime | None = option(
        "compare with the state at this time: 7d, 12h, a date (default: the last verified state)",
        None,
        type=values.TIME,
    )


class ProvisionOptions(StepsOptions, ReportOptions, command="provision", changes_hosts=True):
    """Make a host a proven GPU server: shows the plan, asks, applies it, reboots, proves it.

    With --serial the hosts are provisioned in batches; the rollout stops when more
    than --max-fail hosts have failed, and --resume continues it (docs/guide/rollouts.md).

        invoke provision --host servbadge
        invoke provision --host servbadge --yes --html report.html
        invoke provision --host gpu --serial 1,10%,100% --max-fail 2
        invoke provision --resume

    Exit 1 when a step or a check failed, 2 when it was not confirmed, 3 when a host does
    not answer.
    """

    yes: bool = option("make the changes without asking", False)
    disrupt: bool = option("also make changes that the plan did not announce or that interrupt GPU work", False)
    serial: tuple[str, ...] = option(
        "size of the batches, in hosts or percent; the last size repeats: 1,10%,100%", (), type=values.BATCH_SIZES
    )
    max_fail: int | None = option(
        "stop when more hosts than this have failed (default with --serial: 0)", None, type=values.count("hosts", 0)
    )
    resume: bool = option("continue the last rollout that stopped, with its hosts, playbook and inventory", False)
    reboots: int | None = option(
        "how many hosts may reboot at the same time (default: 1)", None, type=values.count("hosts")
    )


class PlanOptions(StepsOptions, command="plan"):
    """Show what provision would change. Changes nothing.

        invoke plan --host servbadge
        invoke plan --host all --json plan.json

    Exit 0 when there is nothing to change, 2 when there is something.
    """


class VerifyOptions(StepsOptions, PeerTestOptions, command="verify"):
    """Prove that a host is still as provisioned, and say what is wrong. Changes nothing.

    Also works on a host that was never provisioned. --tags hardware needs no driver.

    Peer-to-peer is tested with small messages; with --tags p2p it is tested in full,
    missing libraries are copied to the host, and a host that needs the test records
    that it passed (docs/guide/p2p.md). What could not be tested, because the GPUs are
    in use or a program is missing, is "Not proved". --quick leaves this test out.

    A warning that you know does not count until a date if the inventory has
    `accepted: {driver.patched: {until: 2027-03-01, because: "535 for P2P"}}`
    (docs/guide/owner.md).

        invoke verify --host servbadge
        invoke verify --host servbadge --tags p2p --wheels fetch
        invoke verify --host servbadge --tags hardware --watch

    Exit 0 when everything is as expected, 2 when something is not, or is not proved.
    """

    watch: bool = option("check again every few seconds, also across power cycles, until Ctrl-C", False)
    nccl_tests: str = option(
        "with --tags p2p: also run the host's all_reduce_perf and sendrecv_perf (=FOLDER: those of that folder)",
        without_value="usual",
    )


class FactsOptions(HostsOptions, command="facts"):
    """Show what a host reports: system, kernel, GRUB, driver, GPUs. Changes nothing.

    invoke facts --host servbadge
    invoke facts --host servbadge --json -
    """


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


class RemoveOptions(StepsOptions, command="remove", changes_hosts=True):
    """Take away what rigwright put on a host: units, holds, pins, sources, drop-ins, programs.

    A file that stood in the place of one before is put back. `invoke facts` lists
    what is there. The driver and CUDA stay as they are, free to move with the next
    upgrade. With --driver the packages that rigwright installed are removed too, with
    what came with them; the plan names those that stay and why (docs/guide/remove.md).

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
    supply_w: int | None = option(
        "watts of the power supply, when no rig of the catalogue matches and one is drafted", None, type=values.WATTS
    )
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


class InventoryListOptions(InventoryOptions, JsonOptions, command="inventory.list"):
    """List the hosts of the inventory: address, groups, rig, driver, and the file that declares each. Connects to no
    host.

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
    are still compared.
    """


class HistoryListOptions(JsonOptions, command="history.list", function="rigwright.cli.history:list_runs"):
    """List the runs that were recorded on this machine, newest first. Connects to no host.

    invoke history.list
    invoke history.list --host servbadge --limit 5
    """

    host: str = option("only runs on this host")
    limit: int = option("how many; 0 for all", 20, type=values.count("runs", 0))


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
    since: datetime.datetime = option("7d, 12h, 30m, 4w, or a date such as 2026-11-14", "7d", type=values.TIME)


class HistorySetAsideOptions(CommandOptions, command="history.set-aside", function="rigwright.cli.history:set_aside"):
    """Rename the history file, for example when it is damaged; the next run creates a new one. Deletes nothing."""


class CatalogueCheckOptions(CommandOptions, command="catalogue.check"):
    """Read the whole catalogue and compare it with NVIDIA's device list."""
