"""`invoke train.smoke --nodes`: the network between several hosts, and a training over all of them."""

from __future__ import annotations

from functools import partial
from typing import Any

from rigwright.cli import fleet_check, runner
from rigwright.core import host_ranges
from rigwright.core.errors import HostError, UsageError
from rigwright.core.numbers import count
from rigwright.engine.host_run import HostRun
from rigwright.features.nodes import interfaces, run as nodes
from rigwright.features.nodes.facts import LEAST, MOST, NodesMeasured
from rigwright.features.training_smoke.options import TrainSmokeOptions
from rigwright.features.training_smoke.run import SmokeOptions
from rigwright.fleet import pool
from rigwright.report.labels import as_is

PLAYBOOK = "train-nodes"


def act(runs: list[HostRun], text: Any, options: TrainSmokeOptions, asked: SmokeOptions) -> None:
    """Measures the network between the nodes after a yes; shows a table and every finding. Raises HostError if nodes
    differ."""
    if not LEAST <= len(runs) <= MOST:
        fix = "--host with a group or a pattern"
        raise UsageError("--nodes", count(len(runs), "host"), f"{LEAST} to {MOST} hosts", fix)
    if not _all_there(runs, text):
        return
    pool.run_hosts(runs, partial(nodes.look, options=asked, links_only=options.links), activity="looking at the nodes")
    if not _all_there(runs, text):
        return
    found = {run.host.name: nodes.traits(run, asked, options.links) for run in runs}
    if unlike := interfaces.differences(found):
        _unlike(unlike, options.unlike, text)
    chosen = nodes.choose_nodes(runs)
    for node in chosen:
        text.line(
            f"[bold]{as_is(node.name)}[/]: {as_is(f'{node.interface} {node.address}: {node.why}. {node.hca_why}.')}", 4
        )
    text.line(as_is(_will(len(runs), None if options.links else asked.seconds)))
    runner.consent(options.yes, "Measure the links between these nodes?" if options.links else "Train on these nodes?")
    measured = NodesMeasured("", chosen, nodes.links(runs, chosen))
    if not options.links:
        measured = nodes.train(runs, measured, asked)
    able = [run for run in runs if run.report.error is None]
    before = fleet_check.remembered(able, text, nodes.earlier_links, "measurements")
    pool.run_hosts(able, partial(nodes.judge, measured=measured, before=before), activity="checking")
    from rigwright.features.nodes import table

    for run in able:
        if run.report.error is None:
            runner.show_result(run.report, text, findings=True)
    if measured.untrained:
        text.line(f"[bold red]{as_is(measured.untrained)}[/]")
    table.show(text.console, measured)


def _all_there(runs: list[HostRun], text: Any) -> bool:
    """Whether no host has an error; otherwise writes that nothing was started, and which hosts could train alone."""
    away = [run.host.name for run in runs if run.report.error is not None]
    if not away:
        return True
    pool.leave_out(runs)
    others = [run.host.name for run in runs if run.report.error is None]
    without = f"; the others alone: --host {','.join(others)}" if len(others) >= LEAST and len(others) <= 8 else ""
    names = as_is(host_ranges.folded(away))
    text.line(f"[bold red]nothing was started[/]: {names} cannot take part{as_is(without)}", 4)
    return False


def _unlike(unlike: tuple[str, ...], accepted: bool, text: Any) -> None:
    if not accepted:
        expected = "nodes with the same driver, GPUs, torch and NCCL"
        fix = "invoke provision with one driver and one `training` for the group; or --unlike to start anyway"
        raise HostError("nodes", f"the nodes differ, so nothing was started: {'; '.join(unlike)}", expected, fix)
    for difference in unlike:
        text.warn(f"the nodes differ: {difference}")


def _will(number: int, seconds: float | None) -> str:
    pairs = number * (number - 1) // 2
    rounds = number - 1 + number % 2
    several = f"the {pairs} links in {rounds} rounds, no node in two pairs at a time"
    each = "the link between them" if pairs == 1 else several
    measures = f"It measures {each}, about {10 * rounds} s; each loads the network of both nodes for 4 s."
    if seconds is None:
        return measures
    trains = f"Then NCCL sums over all GPUs, and a small model trains for {seconds:g} s"
    return f"{measures} {trains}, on each node alone and on all together."
