"""Checks of what the training of a small model on 1, 2, 3, 4, 8, ... GPUs showed. Only `invoke train.smoke` runs it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.checks import AGAIN, Finding, check, of_symptom, of_text
from rigwright.checks.nccl_programs import linked_ranks, past_nvlink
from rigwright.checks.p2p import POOR_SCALING, causes_of_poor_scaling, hang, left_behind
from rigwright.core.numbers import count
from rigwright.core.schema import BusId
from rigwright.facts import Facts, driver, pci
from rigwright.features.training_smoke import facts as facts_of
from rigwright.features.training_smoke.facts import DatedFigures, SmokeFigures, SmokeRun
from rigwright.features.training_smoke.torch_findings import torch_findings

FALLS_TO = 0.8
"""Of the first loss; the model comes there within a few dozen steps."""
EQUAL = 1e-3
"""The relative difference that losses of GPUs of different models may have."""
SLOWER = 0.1
"""Of an earlier speed. Two trainings of a minute differ by less on idle GPUs (assumed)."""
LEAST_EFFICIENCY = 0.5
"""Where the rig has no figure: below it, training on all GPUs is hardly faster than on half of them."""


def _title(run: SmokeRun) -> str:
    return f"training on {count(run.gpus, 'GPU')}"


@check(needs=facts_of.trained, follows=("driver.", "xid."))
def torch(facts: Facts) -> Iterator[Finding]:
    """The torch that trains can be imported, has CUDA, NCCL and kernels for every GPU, runs on the driver, and sees all
    GPUs."""
    document, loaded, bus = facts.all(facts_of.trained, driver.loaded_version, pci.gpus)
    models = [model for entry in bus if (model := catalogue.model_of(entry.device_id))]
    yield from torch_findings(document, loaded, models)


@check(needs=facts_of.trained, follows=("driver.", "xid.", torch))
def learned(facts: Facts) -> Iterator[Finding]:
    """Each training ends in time; its loss falls and is equal on all ranks, and so are the weights of GPUs of one
    model."""
    document, loaded = facts.all(facts_of.trained, driver.loaded_version)
    yield from left_behind(document.left_behind)
    for run in document.runs:
        yield unfinished(run, loaded) or losses_of(run)
    if not document.runs:
        yield Finding("training", "unknown", "not run: its torch cannot train", "a training", "", AGAIN)
    elif max(run.gpus for run in document.runs) != document.gpus:
        seen = "not run, because one on fewer GPUs did not end"
        yield Finding(f"training on {count(document.gpus, 'GPU')}", "unknown", seen, "a training", "", AGAIN)


def unfinished(run: SmokeRun, loaded: str | None) -> Finding | None:
    """The finding for a training that did not come to its end, with driver `loaded`; None for a training that did."""
    ended = run.run
    failed = next((rank for rank in run.ranks if rank.error is not None), None)
    if failed is not None:
        seen = f"rank {failed.rank} at {failed.stage}: {failed.error}"
        return of_text(f"{seen}\n{ended.said}", _title(run), seen, "an end without an error")
    if ended.outcome == "hang":
        still = next((rank for rank in run.ranks if rank.stage != "done"), None)
        at = f"; rank {still.rank} at {still.stage}" if still else ""
        names = [rank.device for rank in run.ranks]
        return hang(loaded, names, _title(run), f"{ended.error}{at}; killed", "an end")
    if ended.outcome == "not run":
        return Finding(_title(run), "unknown", f"not run: {ended.error}", "a training", "", AGAIN)
    if run.samples_s is None:
        last = next((line.strip() for line in reversed(ended.said.splitlines()) if line.strip()), "no output")
        seen = f"{len(run.ranks)} of {run.gpus} ranks reported; exit status {ended.code}: {last[:200]}"
        return of_text(ended.said, _title(run), seen, "a result of every rank")
    return None


def losses_of(run: SmokeRun) -> Finding:
    """The finding for a training that came to its end: its losses and weights."""
    first = run.ranks[0].loss_first or 0.0
    losses = [rank.loss_last for rank in run.ranks if rank.loss_last is not None]
    shown = f"loss {first:.4g} -> {max(losses):.4g}" if losses else "no loss"
    fix = "invoke stress; then the same command again"
    if len(losses) < run.gpus or not all(map(math.isfinite, losses)):
        cause = "wrong results of a GPU, or of a copy"
        return Finding(_title(run), "fail", f"{shown}: not a number", "a loss", cause, fix)
    if max(losses) - min(losses) > EQUAL * max(losses):
        worst = max(run.ranks, key=lambda rank: abs((rank.loss_last or 0) - losses[0]))
        span = f"{min(losses):.6g} to {max(losses):.6g}"
        seen = f"the loss is not equal on all ranks: {span}, rank {worst.rank} differs from rank 0"
        return of_symptom("nccl.wrong_data", _title(run), seen, "the same loss on each rank", verdict="fail")
    if max(losses) > FALLS_TO * first:
        seen, cause = f"{shown} after {run.ranks[0].steps} steps", "wrong results of a GPU, or too short"
        return Finding(_title(run), "fail", seen, f"{FALLS_TO * first:.4g} or less", cause, fix)
    same = len({rank.device for rank in run.ranks}) == 1
    if same and len({rank.weights for rank in run.ranks}) > 1:
        seen = "the weights of the ranks are not equal, bit for bit, on GPUs of one model"
        return of_symptom("nccl.wrong_data", _title(run), seen, "equal weights", verdict="fail")
    precision = run.ranks[0].precision
    weights = " and weights" if same and run.gpus > 1 else ""
    equal = f", loss{weights} equal on all ranks" if run.gpus > 1 else ""
    return Finding(_title(run), "pass", f"{precision}, {run.ranks[0].steps} steps: {shown}{equal}")


@check(needs=facts_of.trained, follows=(learned,))
def transport(facts: Facts, *, rig: Rig | None = None, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """Reports which transport NCCL took between the GPUs in training; pairs with NVLinks use them."""
    document, bus = facts.all(facts_of.trained, pci.gpus)
    if not document.runs:
        return
    run, subject = max(document.runs, key=lambda run: run.gpus), "NCCL in training"
    if run.gpus == 1:
        yield Finding(subject, "info", "one GPU: nothing to transport")
    elif run.run.transports:
        linked = linked_ranks(rig, slots, [gpu.bus_id for gpu in bus]) if run.gpus == len(bus) else frozenset()
        ways = sorted({way.transport for way in run.run.transports.values()})
        yield past_nvlink(run.run, subject, linked) or Finding(subject, "pass", " and ".join(ways))
    elif run.samples_s is not None:
        yield Finding(subject, "info", f"{run.ranks[0].backend or 'no backend'}: its log names no transport")


@check(needs=facts_of.trained, follows=("health.", learned, transport))
def speed(
    facts: Facts, *, rig: Rig | None = None, smoke_before: tuple[DatedFigures, ...] | None = None
) -> Iterator[Finding]:
    """Samples a second, and the efficiency against one GPU, compared with the rig's figure and with earlier trainings
    of this machine."""
    document = facts(facts_of.trained)
    speeds = facts_of.figures(document)
    alone = next((each for each in speeds if each.gpus == 1), None)
    has_peers = all(way.kind == "P2P" for run in document.runs for way in run.run.transports.values())
    for each in speeds:
        yield _speed(each, alone, rig, smoke_before or (), has_peers)


def _speed(
    one: SmokeFigures, alone: SmokeFigures | None, rig: Rig | None, before: Sequence[DatedFigures], has_peers: bool
) -> Finding:
    title = f"speed of training on {count(one.gpus, 'GPU')}"
    seen = f"{one.samples_s:.0f} samples/s in {one.precision}"
    speed_up = one.samples_s / alone.samples_s if alone and one.gpus > 1 else None
    if speed_up is not None:
        seen += f", {speed_up:.2f} times one GPU, efficiency {speed_up / one.gpus:.0%}"
    comparable = replace(one, samples_s=0, torch="")
    same = [each for each in before if replace(each.figures, samples_s=0, torch="") == comparable]
    best = max(same, key=lambda each: each.figures.samples_s, default=None)
    if best and one.samples_s < (1 - SLOWER) * best.figures.samples_s:
        other = f", with torch {best.figures.torch} in place of {one.torch}" if best.figures.torch != one.torch else ""
        wanted = f"{best.figures.samples_s:.0f} samples/s, as on {best.at[:10]}{other}"
        cause, fix = "lower clocks, or a slower link", "invoke stress; invoke verify --tags p2p"
        return Finding(title, "info" if other else "warn", seen, wanted, cause, fix, "past")
    seen += f"; {best.figures.samples_s:.0f} on {best.at[:10]}" if best else ""
    known = rig.scaling if rig else None
    if speed_up is not None and known and known.gpus == one.gpus:
        wanted = f"{known.speed_up:g} times one GPU, in the training of a real model"
        if speed_up <= POOR_SCALING * known.speed_up:
            return Finding(title, "warn", seen, wanted, *causes_of_poor_scaling(has_peers), "rig")
        return Finding(title, "pass", seen, wanted, source="rig")
    if speed_up is not None and speed_up / one.gpus < LEAST_EFFICIENCY:
        wanted, cause = f"{LEAST_EFFICIENCY:.0%} or more", "slow links: the model is small, so its gradients weigh much"
        return Finding(title, "info", seen, wanted, cause, "invoke verify --tags p2p")
    return Finding(title, "pass", seen)
