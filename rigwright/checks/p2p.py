"""Checks of the peer-to-peer test: its measurements compared with the rig, the models and the topology.

All of them read the document of a test in the same run (`verify`, or a provision that changed the driver).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.checks import AGAIN, Finding, Source, Verdict, check, environment, of_symptom
from rigwright.checks._expected_links import Expected, Machine, machine, on_the_box, per_link, place_of
from rigwright.core.schema import BusId
from rigwright.facts import Facts, nccl, pci
from rigwright.facts.nccl import Document, Pair, SendRecvResult

FAR = 0.65
"""Below this share of its figure a pair, or an all-reduce, is broken: one of two NVLinks down leaves a half; good machines are
within a fifth."""
FAR_THROUGH_HOST = 0.5
"""The same for a copy through host memory, whose two halves do not overlap with every driver."""
FAR_QUICK = 0.4
"""The same for the quick test of a fast pair: with 4 MiB, latency is much of the time (2 of 11 us on an H100)."""
FAST_GB_S = 100.0
MORE_SHM = "sudo mount -o remount,size=50% /dev/shm (a container: --shm-size=1g)"


@dataclass(frozen=True)
class Judged:
    """A verdict on a pair. `gb_s`: what was measured, `other_gb_s`: the other way of it (through the host, P2P off)."""

    verdict: Verdict
    seen: str
    expected: str = ""
    cause: str = ""
    fix: str = ""
    source: Source = ""
    symptom: str = ""
    gb_s: float | None = None
    other_gb_s: float | None = None
    other: str = ""


def _symptom(key: str, verdict: Verdict, seen: str, wanted: str, first: str = "", source: Source = "rig") -> Judged:
    one = catalogue.symptoms()[key]
    return Judged(verdict, seen, wanted, f"{first} {one.cause}".strip(), one.fix, source, key)


def copied(pair: Pair, expected: Expected, document: Document) -> Judged:
    """The verdict on a pair's peer access and copies."""
    copy, staged = pair.bytes, pair.staged
    for name, one in (("with peer access", copy), ("through the host", staged)):
        if one and one.outcome == "wrong data":
            return _symptom("nccl.wrong_data", "fail", f"wrong data {name}", "the bytes that were sent")
        if one and one.outcome == "hang":
            key = blamed(document.versions.driver, "nccl.timeout")
            return _symptom(key, "fail", f"a copy {name} hangs", expected.words)
        if one and one.outcome == "error":
            return Judged(
                "fail", f"a copy {name} fails: {one.error}", expected.words, "", "invoke explain 'ITS TEXT'", "rig"
            )
    if copy is None or copy.outcome == "not run" or (staged and staged.outcome == "not run"):
        said = next((one.error for one in (copy, staged) if one and one.outcome == "not run"), "")
        return Judged("unknown", f"not run: {said}", "", "", AGAIN)
    host = staged.gb_s if staged else None
    if copy.outcome == "refused":
        return _refused(pair, expected, host)
    assert copy.gb_s is not None
    seen, wanted = "peer access on", _wanted(expected)
    if expected.granted is False:
        what = "granted, although the stock driver does not: a patched module, or other cards"
        return Judged("info", what, "", expected.words, "", "rig", "", copy.gb_s, host, "through the host")
    far = expected.gb_s is not None and copy.gb_s < _limit(expected.gb_s, document) * expected.gb_s
    if far:
        return _slow(expected, copy.gb_s, host)
    return Judged("pass", seen, wanted, "", "", expected.source, "", copy.gb_s, host, "through the host")


def _limit(figure: float, document: Document) -> float:
    return FAR_QUICK if document.quick and figure > FAST_GB_S else FAR


def _wanted(expected: Expected) -> str:
    about = f", about {expected.gb_s:.3g} GB/s" if expected.gb_s else ""
    return expected.words + about


def _slow(expected: Expected, gb_s: float, host: float | None) -> Judged:
    if expected.links or expected.kind == "nvswitch":
        cause = "an NVLink is down or runs with errors; a GPU module or bridge that is not fully seated"
        fix = "nvidia-smi nvlink -s and nvidia-smi nvlink -e; power off, reseat both GPUs with the specified torque; swap two to see whether the fault moves"
    elif expected.kind == "x1":
        cause, fix = (
            "a riser or a slot that trains below its one lane",
            "sudo lspci -vvv -s BUS | grep LnkSta; another riser",
        )
    else:
        cause = "a PCIe link with too few lanes or a low speed; or the IOMMU or ACS"
        fix = "sudo lspci -vvv | grep -e LnkSta: -e ACSCtl; reseat the card or change its riser; iommu=pt, ACS off"
    return Judged(
        "fail", "far too slow", _wanted(expected), cause, fix, expected.source, "", gb_s, host, "through the host"
    )


def _refused(pair: Pair, expected: Expected, host: float | None) -> Judged:
    nvml = pair.grant.nvml
    why = f"no peer access (NVML: {nvml.read})" if nvml and nvml.read != "ok" else "no peer access"
    if expected.granted:
        key = "nccl.p2p_off_nvlink" if expected.links or expected.kind == "nvswitch" else "p2p.not_offered"
        found = _symptom(key, "fail", why, _wanted(expected))
        return Judged(**{**vars(found), "other_gb_s": host, "other": "through the host"})
    far = expected.gb_s is not None and host is not None and host < FAR_THROUGH_HOST * expected.gb_s
    if far and expected.kind in ("host", "x1"):
        return _slow(expected, host or 0.0, None)
    slow = "every copy passes a slot with one lane" if expected.kind == "x1" else ""
    cause = slow or expected.why or catalogue.symptoms()["p2p.not_offered"].cause
    return Judged("info", why, "", cause, "", "rig", "p2p.not_offered", None, host, "through the host")


def blamed(driver: str | None, key: str) -> str:
    """The symptom of GPUs that hang or get wrong data: that of the driver's branch where it is known for both, else `key`."""
    return "branch.peer_to_peer_545" if (driver or "").startswith("545.") else key


def sent(pair: Pair, expected: Expected, document: Document) -> Judged:
    """The verdict on NCCL's message between a pair, and its transport."""
    found = pair.collective
    assert found is not None
    off = found.without_p2p
    if found.outcome in ("hang", "wrong data"):
        cost = f" at {off.gb_s:.3g} GB/s" if off and off.gb_s else ""
        helps = f"correct with NCCL_P2P_DISABLE=1{cost}" if off and off.ok else "the same with NCCL_P2P_DISABLE=1"
        key = "nccl.timeout" if found.outcome == "hang" else "nccl.wrong_data"
        key = blamed(document.versions.driver, key)
        return _symptom(key, "fail", f"{found.outcome}{_by(found)}; {helps}", "correct data, in time")
    if found.outcome == "error":
        shm = "/dev/shm" in (found.error or "")
        known = next(iter(catalogue.symptoms_in(found.error or "")), None)
        if known and known.kind == "p2p":
            return _symptom(known.key, "fail", "NCCL reports an error", "a message")
        fix = MORE_SHM if shm else "invoke explain 'ITS TEXT'"
        return Judged("fail", f"NCCL fails: {found.error}", "a message", "", fix)
    if not found.ok:
        return Judged("unknown", f"not run: {found.error}", "", "", AGAIN)
    slower = off.gb_s if off and off.ok else None
    slow = expected.gb_s is not None and found.gb_s is not None and found.gb_s < _slow_message(expected.gb_s, document)
    if found.kind == "P2P" and slow:
        cause = "the copy is slow too; else low clocks, or other programs on the GPUs"
        wanted = f"{expected.words}, half of {expected.gb_s:.3g} GB/s at the least"
        return Judged(
            "warn",
            f"{found.transport}, slow",
            wanted,
            cause,
            "fix the copy between them first",
            expected.source,
            "",
            found.gb_s,
            slower,
            "P2P off",
        )
    if found.kind == "P2P":
        return Judged("pass", found.transport or "P2P", "", "", "", expected.source, "", found.gb_s, slower, "P2P off")
    if expected.links or expected.kind == "nvswitch":
        return _symptom("nccl.p2p_off_nvlink", "fail", f"{found.transport}, not over the NVLinks", expected.words)
    return _past_p2p(pair, expected, found)


def _slow_message(figure: float, document: Document) -> float:
    """GB/s below which a message is slow: NCCL pays latency and a protocol on top of the copy."""
    return (0.3 if document.quick and figure > FAST_GB_S else 0.5) * figure


def _by(found: SendRecvResult) -> str:
    return f" by {found.transport}" if found.transport else ""


def _past_p2p(pair: Pair, expected: Expected, found: SendRecvResult) -> Judged:
    """The verdict if NCCL uses another transport than P2P between GPUs without NVLink."""
    more = found.with_level_sys
    way = found.transport or found.kind or "an unknown way"
    if not pair.grant.cuda:
        cost = "NCCL_P2P_DISABLE=1 has no effect here"
        return Judged("info", f"{way}, as P2P is not granted", "", cost, "", expected.source, "", found.gb_s)
    if more and more.ok and more.gb_s and found.gb_s and more.gb_s > 1.15 * found.gb_s:
        fix = f"NCCL_P2P_LEVEL=SYS for the program: {more.gb_s:.3g} GB/s in place of {found.gb_s:.3g}, data right"
        return Judged(
            "info", f"{way}, though P2P works", "", "NCCL uses P2P only below one host bridge", fix, "", "", found.gb_s
        )
    if more and more.outcome in ("hang", "wrong data", "error"):
        cause = (
            f"across host bridges ({pair.grant.distance}) P2P ends in {more.outcome} here, so NCCL is right to avoid it"
        )
        return Judged("info", f"{way} by NCCL's choice", "", cause, "do not set NCCL_P2P_LEVEL", "", "", found.gb_s)
    verdict: Verdict = "warn" if pair.grant.distance in ("PIX", "PXB") else "info"
    fix = "NCCL_DEBUG=INFO says why; bios: Above 4G Decoding, Resizable BAR" if verdict == "warn" else ""
    return Judged(
        verdict, f"{way} by NCCL's choice", "", "across host bridges NCCL prefers it", fix, "", "", found.gb_s
    )


def grouped(check: str, judged: Sequence[tuple[Pair, Judged]], known: Machine) -> Iterator[Finding]:
    """One finding for each different verdict, with its pairs and the range of their bandwidths."""
    groups: dict[tuple[str, ...], list[tuple[Pair, Judged]]] = {}
    for pair, one in judged:
        key = (one.verdict, one.seen, one.expected, one.cause, one.fix)
        groups.setdefault(key, []).append((pair, one))
    for same in groups.values():
        one = same[0][1]
        speed = _range([entry.gb_s for _, entry in same])
        other = _range([entry.other_gb_s for _, entry in same])
        said = [one.seen, *([speed] if speed else []), *([f"{other} {one.other}"] if other else [])]
        subject = _pairs([pair for pair, _ in same], len(judged), known)
        yield Finding(
            check, subject, one.verdict, "; ".join(said), one.expected, one.cause, one.fix, one.source, one.symptom
        )


def _range(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    return f"{low:.3g} GB/s" if high < 1.05 * low else f"{low:.3g} to {high:.3g} GB/s"


def _pairs(pairs: Sequence[Pair], of: int, known: Machine) -> str:
    """`all 12 pairs`, `SXM2-1 SXM2-2 both ways`, or the first few and how many more."""
    if len(pairs) == of and of > 2:
        return f"all {of} pairs"
    both = list(dict.fromkeys(tuple(sorted((pair.start, pair.end))) for pair in pairs))
    whole = len(pairs) == 2 * len(both)
    names = [f"{known.called(a)} {known.called(b)}" for a, b in both]
    if not whole:
        names = [f"{known.called(pair.start)} to {known.called(pair.end)}" for pair in pairs]
    more = f" and {len(names) - 3} more" if len(names) > 4 else ""
    shown = names[:3] if more else names
    return ", ".join(shown) + more


TEST = "peer-to-peer test"
OVERLAP = "the test computes, then reduces; training frameworks do both at once"


def _seen(facts: Facts, rig: Rig | None, slots: dict[BusId, str] | None) -> tuple[Document, Machine]:
    document, bus = facts.all(nccl.tested, pci.gpus)
    return document, machine(document, rig, slots, {one.bus_id: one.device_id for one in bus})


def not_run(verdict: Verdict, why: str, fix: str) -> Finding:
    """The finding of a peer-to-peer test that was asked for and not run."""
    return Finding("p2p.ran", TEST, verdict, f"not run: {why}", "", "", fix)


@check(active=True)
def ran(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """The test finished, found every GPU and correct data in each GPU's memory, and left no process behind."""
    document = facts(nccl.tested)
    for pid in document.left_behind:
        seen = f"process {pid} does not end after SIGKILL"
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
        yield Finding("p2p.ran", TEST, verdict, seen)


def _ill(document: Document, slots: dict[BusId, str] | None) -> Iterator[Finding]:
    """Findings for GPUs with wrong data in their memory or unknown to CUDA; if there are none, later errors of GPUs."""
    look = "sudo dmesg | grep -e NVRM -e Xid, then invoke explain 'ITS TEXT'; then a reboot"
    wrong = False
    for gpu in document.gpus:
        at = place_of(gpu, slots)
        if gpu.own and gpu.own.ok is False:
            wrong, what = True, f"its own memory: {gpu.own.outcome}, {gpu.own.error}"
            fix = "sudo dmesg | grep -e NVRM -e Xid; reboot; if it happens again, power off and reseat the card"
            yield Finding("p2p.ran", at, "fail", what, "right data", "the GPU, or its contact in the slot", fix)
        elif gpu.cuda_device is None:
            wrong = True
            seen, cause = "CUDA does not see it", "lost, or in a bad state"
            yield Finding("p2p.ran", at, "fail", seen, "a device", cause, look)
    for error in document.errors:
        if error.where.startswith("GPU ") and not wrong:
            yield Finding("p2p.ran", error.where, "fail", error.what, "a test without errors", "", look)


def _why_not(what: str) -> tuple[str, str]:
    """Cause and fix of a test that could not run."""
    if "libnccl" in what or "libcudart" in what:
        return "the host has no such library", "the same command with --wheels DIR, or --wheels fetch"
    if "libcuda.so" in what or "driver" in what:
        return "no driver, or an incomplete one", "invoke provision"
    return "", "invoke explain 'ITS TEXT'"


@check(active=True)
def copies(facts: Facts, *, rig: Rig | None = None, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """For every pair of GPUs, CUDA grants peer access if expected, and copies have correct data and the rig's bandwidth."""
    document, known = _seen(facts, rig, slots)
    if document.outcome == "could not run":
        return
    judged = [(pair, copied(pair, known.expected(pair, document), document)) for pair in document.pairs]
    yield from grouped("p2p.copies", judged, known)
    yield from _box(document, known)


def _box(document: Document, known: Machine) -> Iterator[Finding]:
    """Explains the NVLink bandwidth of a data sheet by the links of a pair."""
    done: set[tuple[str, int]] = set()
    for pair in document.pairs:
        model, links = known.models[pair.start], known.expected(pair, document).links
        if model is None or model.nvlink is None or not links or (model.key, links) in done:
            continue
        done.add((model.key, links))
        one = per_link(model.nvlink)
        seen = f"{links} link{'s' if links > 1 else ''} a pair: {links * one:g} GB/s each way in theory"
        box = (
            f"{on_the_box(model.nvlink):g} GB/s in the data sheet = {model.nvlink.links} links x {one:g} x 2 directions"
        )
        yield Finding("p2p.copies", f"NVLink of {model.label}", "info", seen, "", box, "", "catalogue")


@check(active=True)
def collective(facts: Facts, *, rig: Rig | None = None, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """NCCL uses the expected transport between every pair, its data is correct, nothing hangs, and all-reduce is fast enough."""
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
            "the same with P2P off"
            if alone
            else "correct with P2P off"
            if without and without.ok
            else "unknown with P2P off"
        )
        key = "nccl.timeout" if total.outcome == "hang" else "nccl.wrong_data"
        key = "nccl.stalled_queue" if alone and total.outcome == "hang" else key
        yield of_symptom(
            blamed(document.versions.driver, key),
            name,
            subject,
            f"{total.outcome}; {also}",
            "correct data, in time",
            verdict="fail",
        )
    elif total.ok is None:
        yield Finding(name, subject, "unknown", f"not run: {total.error}", "a sum", "", AGAIN)
    elif total.ok is False and (known := next(iter(catalogue.symptoms_in(total.error or "")), None)):
        yield of_symptom(known.key, name, subject, "NCCL reports an error", "a sum", verdict="fail")
    elif total.ok is False:
        yield Finding(name, subject, "fail", f"{total.error}", "a sum", "", "invoke explain 'ITS TEXT'")
    elif total.busbw_gb_s is not None:
        wanted = rig.all_reduce_gb_s if rig and len(total.gpus) == len(rig.gpus) else None
        off = f", {without.busbw_gb_s:.3g} with P2P off" if without and without.busbw_gb_s else ""
        far = wanted is not None and not document.quick and total.busbw_gb_s < FAR * wanted
        fix = "look at the pairs above; else run with NCCL_DEBUG=INFO, and check the limits" if far else ""
        yield Finding(
            name, subject, "warn" if far else "pass", f"{total.busbw_gb_s:.3g} GB/s bus bandwidth{off}",
            f"about {wanted:g} GB/s" if wanted else "", "", fix, "rig" if wanted else "",
        )  # fmt: skip


@check(active=True)
def scaling(facts: Facts, *, rig: Rig | None = None) -> Iterator[Finding]:
    """The speed-up of a synthetic training step over several GPUs, compared with the rig's measured figure."""
    document = facts(nccl.tested)
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
    fix = "look at the pairs above" if verdict == "warn" else ""
    yield Finding(
        "p2p.scaling", f"scaling to {row.gpus} GPUs", verdict, seen, wanted, cause, fix, "rig" if wanted else ""
    )


@check(active=True, replaces=environment.clean)
def settings(facts: Facts) -> Iterator[Finding]:
    """No NCCL setting is left in a file that logins, services or NCCL read; a setting is reported with its measured cost."""
    document, found = facts.all(nccl.tested, nccl.settings)
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
            fix = f"take the line out of {one.where} unless a program needs it"
            yield Finding("p2p.settings", "NCCL's settings", "info", what, "", "somebody set it", fix, "host")
    if not found and not own:
        yield Finding("p2p.settings", "NCCL's settings", "pass", "none set in files", "", "", "", "host")


def _cost(document: Document) -> str:
    """The measured cost of NCCL_P2P_DISABLE=1; "" if the test did not measure both."""
    total = document.all_reduce
    if total and total.busbw_gb_s and total.without_p2p and total.without_p2p.busbw_gb_s:
        return f"all-reduce at {total.without_p2p.busbw_gb_s:.3g} in place of {total.busbw_gb_s:.3g} GB/s"
    return ""
