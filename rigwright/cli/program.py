"""The commands as one collection of Invoke, and the program `rigwright` that runs them without a checkout."""

from __future__ import annotations

import atexit
import importlib
import signal
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

if "invoke" not in sys.modules and "unittest.mock" not in sys.modules:
    # `rigwright` imports Invoke without unittest.mock, which only Invoke's MockContext needs. It saves 6 % of a `plan`.
    sys.modules["unittest.mock"] = SimpleNamespace(Mock=object)  # type: ignore[assignment]
    import invoke.program  # noqa: F401

    del sys.modules["unittest.mock"]

from invoke.collection import Collection
from invoke.parser.context import ParserContext
from invoke.program import Program
from invoke.tasks import Task

import rigwright
from rigwright.cli import options, usage_hint
from rigwright.cli.command import Command
from rigwright.cli.options import CommandOptions
from rigwright.core import features
from rigwright.core.process import program_name, startup, streams

COMMANDS: tuple[type[CommandOptions], ...] = (
    options.ProvisionOptions,
    options.PlanOptions,
    options.VerifyOptions,
    options.FactsOptions,
    options.LimitsOptions,
    options.RemoveOptions,
    options.InitOptions,
    options.TrustOptions,
    options.InventoryListOptions,
    options.FleetCheckOptions,
    options.HistoryListOptions,
    options.HistoryShowOptions,
    options.HistoryDiffOptions,
    options.HistorySetAsideOptions,
    options.CatalogueCheckOptions,
)
"""The commands that are no feature of their own; those of features are in `core.features.commands`."""


class Group(Collection):
    """The commands `GROUP.NAME`. `own`: the command with the name of the group, as `limits` beside `limits.find`."""

    own: Task[Any] | None = None

    def task_with_config(self, name: str | None) -> tuple[Any, dict[str, Any]]:
        """The task of that name, and the configuration; without a name `own`. Raises KeyError, ValueError."""
        if not name and self.own is not None:
            return self.own, self.configuration()
        return super().task_with_config(name)


def commands(others: Sequence[type[CommandOptions]] = ()) -> tuple[type[CommandOptions], ...]:
    """The options of the commands that the command line names; of all commands if it names none.

    Only their modules are loaded, and only in a process that was started as `invoke` or `rigwright`: to make the flags
    of all commands takes 17 % of the processor time of `plan`. `others`: more commands than those of rigwright.
    """
    own = {each.command: each for each in (*COMMANDS, *others)}
    of_features = features.commands()
    names = (*own, *of_features)
    words = sys.argv[1:] if program_name.was_started() else []
    typed = [name for name in names if name in words] or names
    return tuple(own[name] if name in own else _options(of_features[name]) for name in typed)


def _options(place: str) -> type[CommandOptions]:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


def collection(commands: Sequence[type[CommandOptions]]) -> Collection:
    """The commands as Invoke runs them: `fleet.check` is the task `check` of the collection `fleet`."""
    top = Collection()
    for options_class in commands:
        group = options_class.command.rpartition(".")[0]
        if group and group not in top.collections:
            made = Group(group)
            made.own = top.tasks.get(group)
            top.collections[group] = made  # add_collection refuses a group with the name of a command
        (top.collections[group] if group else top).add_task(Command(options_class))
    return top


def start(namespace: Collection, core: ParserContext | None = None) -> None:
    """Prepares this process for the commands of the command line. Raises Exit with an error that explains a mistake
    there.

    `core`: the flags of the program itself (default: those of Invoke).
    """
    if usage_hint.is_informational(sys.argv[1:]):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `invoke --list | head` ends without a traceback
        atexit.register(streams.exit_if_full)
    startup.prepare()
    usage_hint.check(sys.argv[1:], namespace, core or Program().initial_context)


class _Program(Program):
    def parse_core(self, argv: list[str] | None) -> None:
        super().parse_core(argv)
        if self.namespace:
            start(self.namespace, self.initial_context)


def main() -> None:
    """The program `rigwright`. Raises SystemExit with its exit code."""
    name = "rigwright"
    _Program(
        name=name, binary=name, binary_names=[name], version=rigwright.__version__, namespace=collection(commands())
    ).run()
