"""Peer-to-peer, judged: what the test measured against what this rig, its models and its topology should do.

All of them read the document of a test that has just run; in `verify` and after a provision that changed the driver.
"""

from __future__ import annotations

from collections.abc import Iterator

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.checks import AGAIN, Finding, Verdict, of_symptom
from rigwright.checks.pairs import FAR, MORE_SHM, blamed, copied, grouped, sent
from rigwright.facts import Facts, p2p, pci
from rigwright.facts.p2p import Document
from rigwright.peering import Machine, machine, on_the_box, per_link, place_of
from rigwright.typed import BusId

OVERLAP = "the test sums after each product, and training frameworks let the two overlap"


def _seen(facts: Facts, rig: Rig | None, slots: dict[BusId, str] | None) -> tuple[Document, Machine]:
    document, bus = facts.all(p2p.tested, pci.gpus)
    return document, machine(document, rig, slots, {one.bus_id: one.device_id for one in bus})


def ran(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """The test ran to its end, saw every GPU, found each GPU's own memory right, and left no process behind."""
    document = facts(p2p.tested)
    for pid in document.left_behind:
        seen = f"process {pid} does not end, even killed"
        yield of_symptom("gpu.wedged", "p2p.ran", "host", seen, "no process left", verdict="fail")
    if document.outcome == "could not run":
        for error in document.errors:
            yield Finding(
                "p2p.ran",
                "peer-to-peer test",
                "unknown",
                f"{error.where}: {error.what}",
                "a run",
                *_why_not(error.what),
            )
        return
    ill = list(_ill(document, slots))
    yield from ill
    shm = document.shared_memory
    if shm and not shm.enough:
        seen, cause = f"{shm.free_mib} of {shm.size_mib} MiB free", "NCCL fails where it goes through it"
        yield Finding("p2p.ran", "/dev/shm", "warn", seen, "room for NCCL", cause, MORE_SHM, "host")
    if not (ill or document.left_behind):
        versions = document.versions
        size = "quick" if document.quick else "whole"
        seen = f"{len(document.gpus)} GPUs, {size} test in {document.seconds or 0:.0f} s; CUDA {versions.cuda_runtime}, NCCL {versions.nccl}"
        verdict: Verdict = "pass" if document.gpus else "unknown"
        yield Finding("p2p.ran", "peer-to-peer test", verdict, seen)


def _ill(document: Document, slots: dict[BusId, str] | None) -> Iterator[Finding]:
    """GPUs whose own memory is wrong or that CUDA does not see; where there is none, what went wrong with a GPU later."""
    look = "sudo dmesg | grep -e NVRM -e Xid, then invoke explain 'ITS TEXT'; then a reboot"
    wrong = False
    for gpu in document.gpus:
        at = place_of(gpu, slots)
        if gpu.own and gpu.own.ok is False:
            wrong, what = True, f"its own memory: {gpu.own.outcome}, {gpu.own.error}"
            fix = "sudo dmesg | grep -e NVRM -e Xid; reboot; when it comes back, power off and reseat it"
            yield Finding("p2p.ran", at, "fail", what, "right data", "the GPU or its seat", fix)
        elif gpu.cuda_device is None:
            wrong = True
            seen, cause = "CUDA does not see it", "lost, or in a bad state"
            yield Finding("p2p.ran", at, "fail", seen, "a device", cause, look)
    for error in document.errors:
        if error.where.startswith("GPU ") and not wrong:
            yield Finding("p2p.ran", error.where, "fail", error.what, "a GPU that works to the end", "", look)


def _why_not(what: str) -> tuple[str, str]:
    """Cause and fix of a test that could not run."""
    if "libnccl" in what or "libcudart" in what:
        return "the host has no such library", "the same command with --wheels DIR, or --wheels fetch"
    if "libcuda.so" in what or "driver" in what:
        return "no driver, or half of one", "invoke provision"
    return "", "invoke explain 'ITS TEXT'"


def copies(facts: Facts, *, rig: Rig | None = None, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """Between every pair CUDA grants peer access where it should, right bytes arrive, and as fast as the rig's figure says."""
    document, known = _seen(facts, rig, slots)
    if document.outcome == "could not run":
        return
    judged = [(pair, copied(pair, known.expected(pair, document), document)) for pair in document.pairs]
    yield from grouped("p2p.copies", judged, known)
    yield from _box(document, known)


def _box(document: Document, known: Machine) -> Iterator[Finding]:
    """The number on the box against what a pair has."""
    done: set[tuple[str, int]] = set()
    for pair in document.pairs:
        model, links = known.models[pair.start], known.expected(pair, document).links
        if model is None or model.nvlink is None or not links or (model.key, links) in done:
            continue
        done.add((model.key, links))
        one = per_link(model.nvlink)
        seen = f"{links} link{'s' if links > 1 else ''} a pair: {links * one:g} GB/s each way on paper"
        box = f"{on_the_box(model.nvlink):g} GB/s on the box = {model.nvlink.links} links x {one:g} x 2 directions"
        yield Finding("p2p.copies", f"NVLink of {model.label}", "info", seen, "", box, "", "catalogue")


def collective(facts: Facts, *, rig: Rig | None = None, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """NCCL takes the way between every pair that it should, its data is right, nothing hangs, and the sum of all is fast enough."""
    document, known = _seen(facts, rig, slots)
    if document.outcome == "could not run":
        return
    judged = [
        (pair, sent(pair, known.expected(pair, document), document)) for pair in document.pairs if pair.collective
    ]
    yield from grouped("p2p.collective", judged, known)
    yield from _sum(document, rig)


def _sum(document: Document, rig: Rig | None) -> Iterator[Finding]:
    total = document.all_reduce
    if total is None or len(total.gpus) < 2:
        return
    name, subject = "p2p.collective", f"all-reduce over {len(total.gpus)} GPUs"
    without = total.without_p2p
    if total.outcome in ("hang", "wrong data"):
        alone = without is not None and without.ok is False
        also = (
            "also with P2P off"
            if alone
            else "right with P2P off"
            if without and without.ok
            else "not known with P2P off"
        )
        key = "nccl.timeout" if total.outcome == "hang" else "nccl.wrong_data"
        key = "nccl.stalled_queue" if alone and total.outcome == "hang" else key
        yield of_symptom(
            blamed(document.versions.driver, key),
            name,
            subject,
            f"{total.outcome}; {also}",
            "right data, in time",
            verdict="fail",
        )
    elif total.ok is None:
        yield Finding(name, subject, "unknown", f"not run: {total.error}", "a sum", "", AGAIN)
    elif total.ok is False and (known := next(iter(catalogue.symptoms_in(total.error or "")), None)):
        yield of_symptom(known.key, name, subject, "NCCL refuses", "a sum", verdict="fail")
    elif total.ok is False:
        yield Finding(name, subject, "fail", f"{total.error}", "a sum", "", "invoke explain 'ITS TEXT'")
    elif total.busbw_gb_s is not None:
        wanted = rig.all_reduce_gb_s if rig and len(total.gpus) == len(rig.gpus) else None
        off = f", {without.busbw_gb_s:.3g} with P2P off" if without and without.busbw_gb_s else ""
        far = wanted is not None and not document.quick and total.busbw_gb_s < FAR * wanted
        fix = "the pairs above say where; else NCCL_DEBUG=INFO, and the limits in force" if far else ""
        yield Finding(
            name, subject, "warn" if far else "pass", f"{total.busbw_gb_s:.3g} GB/s on the bus{off}",
            f"about {wanted:g} GB/s" if wanted else "", "", fix, "rig" if wanted else "",
        )  # fmt: skip


def scaling(facts: Facts, *, rig: Rig | None = None) -> Iterator[Finding]:
    """So many GPUs do so much more than one: a synthetic step of training, against what the rig's owner measured."""
    document = facts(p2p.tested)
    rows = [row for row in document.scaling if row.speed_up]
    for row in document.scaling:
        if row.error:
            yield Finding("p2p.scaling", f"scaling over {row.gpus} GPUs", "unknown", row.error, "a step", "", AGAIN)
    if len(rows) < 2:
        return
    last = rows[-1]
    assert last.speed_up is not None
    known = rig.scaling if rig else None
    row = next((one for one in rows if known and one.gpus == known.gpus), last)
    speed = row.speed_up or 0.0
    share = speed / known.speed_up if known and row.gpus == known.gpus else None
    seen = f"{speed:.2f} times one GPU (synthetic), efficiency {speed / row.gpus:.0%}"
    verdict: Verdict = "info" if share is None or 0.6 <= share < 0.9 else "pass" if share >= 0.9 else "warn"
    wanted = f"{known.speed_up:g} times, in training" if known and share is not None else ""
    cause = "" if verdict == "pass" else OVERLAP
    fix = "the pairs above say what is slow" if verdict == "warn" else ""
    yield Finding(
        "p2p.scaling", f"scaling to {row.gpus} GPUs", verdict, seen, wanted, cause, fix, "rig" if wanted else ""
    )


def settings(facts: Facts) -> Iterator[Finding]:
    """Nothing of NCCL's was left set in a file that logins, services or NCCL read; what was is named with its measured cost."""
    document, found = facts.all(p2p.tested, p2p.settings)
    own = [one for one in document.leftovers if one not in found and one.where != "environment"]
    for one in [*found, *own]:
        what = f"{one.name}={one.value} in {one.where}"
        if one.switches_off:
            cost = _cost(document) if one.name == "NCCL_P2P_DISABLE" else ""
            seen = f"{what}{': ' + cost if cost else ''}"
            yield of_symptom(
                "nccl.p2p_disabled_by_hand", "p2p.settings", "NCCL's settings", seen, "unset", verdict="warn"
            )
        else:
            fix = f"take the line out of {one.where} unless somebody needs it"
            yield Finding("p2p.settings", "NCCL's settings", "info", what, "", "somebody set it", fix, "host")
    if not found and not own:
        yield Finding("p2p.settings", "NCCL's settings", "pass", "none left in files", "", "", "", "host")


def _cost(document: Document) -> str:
    """What NCCL_P2P_DISABLE=1 costs, as measured; "" when the test did not measure both."""
    total = document.all_reduce
    if total and total.busbw_gb_s and total.without_p2p and total.without_p2p.busbw_gb_s:
        return f"all-reduce at {total.without_p2p.busbw_gb_s:.3g} in place of {total.busbw_gb_s:.3g} GB/s"
    return ""
