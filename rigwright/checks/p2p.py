"""Checks of the peer-to-peer test: its measurements compared with the rig, the models and the topology.

All of them read the document of a test in the same run (`verify`, or a provision that changed the driver).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.checks import AGAIN, Finding, Verdict, check, environment, of_symptom, of_text
from rigwright.checks._common_gpu import faults
from rigwright.checks._expected_links import Expected, Machine, machine, on_the_box, per_link, place_of
from rigwright.core.schema import BusId
from rigwright.facts import Facts, pci
from rigwright.facts.nccl import p2p_test as nccl
from rigwright.facts.nccl.p2p_test import Document, Pair, SendRecvResult

FAR = 0.65
"""Below this share of its figure a pair, or an all-reduce, is broken: one of two NVLinks down leaves a half; good
machines are within a fifth."""
FAR_THROUGH_HOST = 0.5
"""The same for a copy through host memory, whose two halves do not overlap with every driver."""
FAR_QUICK = 0.4
"""The same for the quick test of a fast pair: with 4 MiB, latency is much of the time (2 of 11 us on an H100)."""
FAST_GB_S = 100.0
MORE_SHM = "sudo mount -o remount,size=50% /dev/shm (a container: --shm-size=1g)"


class Judged(Struct, frozen=True):
    """The finding on a pair, still without its subject, and its speeds in GB/s.

    `gb_s`: what was measured while no other pair transferred. `other_gb_s`: the same the other way (through the host,
    or with P2P off). `round_gb_s`: what was measured only in a round, for a pair that was not measured alone.
    """

    finding: Finding
    gb_s: float | None = None
    other_gb_s: float | None = None
    round_gb_s: float | None = None


def _symptom(key: str, seen: str, expected: str) -> Judged:
    return Judged(of_symptom(key, "", seen, expected, "rig", verdict="fail"))


def copied(pair: Pair, expected: Expected, document: Document) -> Judged:
    """The verdict on a pair's peer access and copies."""
    copy, staged = pair.bytes, pair.staged
    for name, result in (("with peer access", copy), ("through the host", staged)):
        if result and result.outcome == "wrong data":
            return _symptom("nccl.wrong_data", f"wrong data {name}", "the bytes that were sent")
        if result and result.outcome == "hang":
            key = blamed(document.versions.driver, "nccl.timeout")
            return _symptom(key, f"a copy {name} hangs", expected.words)
        if result and result.outcome == "error":
            seen = f"a copy {name} fails: {result.error}"
            return Judged(Finding("", "fail", seen, expected.words, "", "invoke explain 'ITS TEXT'", "rig"))
    if copy is None or copy.outcome == "not run" or (staged and staged.outcome == "not run"):
        reason = next((result.error for result in (copy, staged) if result and result.outcome == "not run"), "")
        return Judged(Finding("", "unknown", f"not run: {reason}", "a copy", "", AGAIN))
    host = staged.gb_s if staged else None
    if copy.outcome == "refused":
        return _refused(pair, expected, host)
    in_round = copy.round_gb_s if copy.gb_s is None else None
    if expected.granted is False:
        seen = "granted, although the stock driver does not: a patched module, or other cards"
        return Judged(Finding("", "info", seen, "", expected.words, source="rig"), copy.gb_s, host, in_round)
    if copy.gb_s is None and not _fast_enough(pair, expected, document):
        return Judged(_not_alone(expected), None, host, in_round)
    if copy.gb_s is not None and _is_slow(copy.gb_s, expected, document):
        return _slow(expected, copy.gb_s, host)
    finding = Finding("", "pass", "peer access on", _wanted(expected), source=expected.source)
    return Judged(finding, copy.gb_s, host, in_round)


def _is_slow(gb_s: float, expected: Expected, document: Document) -> bool:
    return expected.gb_s is not None and gb_s < _limit(expected.gb_s, document) * expected.gb_s


def _fast_enough(pair: Pair, expected: Expected, document: Document) -> bool:
    """Whether the copy of a pair that was not measured alone cannot be broken.

    Other transfers only make a copy slower, so a speed in a round that is no failure proves as much as one measured
    alone. A lower one may be the round's: then a pair of the same kind that is fast enough alone stands for it, because
    the test measures each pair alone whose round was slower than that of others of its kind.
    """
    if pair.bytes and pair.bytes.round_gb_s is not None and not _is_slow(pair.bytes.round_gb_s, expected, document):
        return True
    alone = [other.bytes.gb_s for other in document.pairs if other.bytes and other.bytes.gb_s and _alike(other, pair)]
    return bool(alone) and not _is_slow(max(alone), expected, document)


def _alike(a: Pair, b: Pair) -> bool:
    return (a.grant.link or a.grant.distance, a.grant.cuda) == (b.grant.link or b.grant.distance, b.grant.cuda)


def _not_alone(expected: Expected) -> Finding:
    seen = "data right; speed not measured alone"
    cause = "a pair of the same kind is too slow alone"
    return Finding("", "unknown", seen, _wanted(expected), cause, AGAIN)


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
        cause = "a riser or a slot that trains below its one lane"
        fix = "sudo lspci -vvv -s BUS | grep LnkSta; another riser"
    else:
        cause = "a PCIe link with too few lanes or a low speed; or the IOMMU or ACS"
        fix = "sudo lspci -vvv | grep -e LnkSta: -e ACSCtl; reseat the card or change its riser; iommu=pt, ACS off"
    return Judged(Finding("", "fail", "far too slow", _wanted(expected), cause, fix, expected.source), gb_s, host)


_OFF_NVLINK = "nccl.p2p_off_nvlink"


def _refused_nvlink(seen: str, wanted: str, expected: Expected) -> Judged:
    judged = _symptom(_OFF_NVLINK, seen, wanted)
    return judged if expected.kind == "nvswitch" else replace(judged, finding=_without_nvswitch(judged.finding))


def _without_nvswitch(finding: Finding) -> Finding:
    """The finding of peers that are refused over NVLink, for GPUs that are linked directly: there is no fabric
    manager."""
    cause = "The link is up. One of its GPUs needs a reset, or is broken."
    fix = (
        "nvidia-smi topo -p2p n shows the refused pairs; cold boot (sudo poweroff, mains off for 30 seconds); if it stays: swap the "
        "GPU with another one: a fault that moves with it is the GPU's, else the socket's or the bridge's"
    )
    return replace(finding, cause=cause, fix=fix)


def _refused(pair: Pair, expected: Expected, host: float | None) -> Judged:
    nvml = pair.grant.nvml
    why = f"no peer access (NVML: {nvml.read})" if nvml and nvml.read != "ok" else "no peer access"
    if expected.granted:
        if expected.links or expected.kind == "nvswitch":
            return replace(_refused_nvlink(why, _wanted(expected), expected), other_gb_s=host)
        return replace(_symptom("p2p.not_offered", why, _wanted(expected)), other_gb_s=host)
    far = expected.gb_s is not None and host is not None and host < FAR_THROUGH_HOST * expected.gb_s
    if far and expected.kind in ("host", "x1"):
        return _slow(expected, host or 0.0, None)
    slow = "every copy passes a slot with one lane" if expected.kind == "x1" else ""
    cause = slow or expected.why or catalogue.all_symptoms()["p2p.not_offered"].cause
    return Judged(Finding("", "info", why, "", cause, "", "rig", "p2p.not_offered"), None, host)


def blamed(driver: str | None, key: str) -> str:
    """The symptom of GPUs that hang or get wrong data: that of the driver's branch where it is known for both, else
    `key`."""
    return "branch.peer_to_peer_545" if (driver or "").startswith("545.") else key


def sent(pair: Pair, expected: Expected, document: Document) -> Judged:
    """The verdict on NCCL's message between a pair, and its transport."""
    result = pair.collective
    assert result is not None
    off = result.without_p2p
    if result.outcome in ("hang", "wrong data"):
        cost = f" at {off.gb_s:.3g} GB/s" if off and off.gb_s else ""
        helps = f"correct with NCCL_P2P_DISABLE=1{cost}" if off and off.ok else "the same with NCCL_P2P_DISABLE=1"
        key = "nccl.timeout" if result.outcome == "hang" else "nccl.wrong_data"
        key = blamed(document.versions.driver, key)
        return _symptom(key, f"{result.outcome}{_by(result)}; {helps}", "correct data, in time")
    if result.outcome == "error":
        symptom = next(iter(catalogue.symptoms_in(result.error or "")), None)
        if symptom and symptom.key == _OFF_NVLINK:
            return _refused_nvlink("NCCL reports an error", "a message", expected)
        if symptom and symptom.kind == "p2p":
            return _symptom(symptom.key, "NCCL reports an error", "a message")
        fix = MORE_SHM if "/dev/shm" in (result.error or "") else "invoke explain 'ITS TEXT'"
        return Judged(Finding("", "fail", f"NCCL fails: {result.error}", "a message", "", fix))
    if not result.ok:
        return Judged(Finding("", "unknown", f"not run: {result.error}", "a message", "", AGAIN))
    if result.kind == "P2P":
        finding = Finding("", "pass", result.transport or "P2P", source=expected.source)
        figure = expected.gb_s
        if figure is not None and result.gb_s is not None and result.gb_s < _slow_message(figure, document):
            wanted = f"{expected.words}, half of {figure:.3g} GB/s at the least"
            cause = "the copy is slow too; else low clocks, or other programs on the GPUs"
            fix = "fix the copy between them first"
            finding = Finding("", "warn", f"{result.transport}, slow", wanted, cause, fix, expected.source)
        in_round = result.round_gb_s if result.gb_s is None else None
        return Judged(finding, result.gb_s, off.gb_s if off and off.ok else None, in_round)
    if expected.links or expected.kind == "nvswitch":
        return _refused_nvlink(f"{result.transport}, not over the NVLinks", expected.words, expected)
    in_round = result.round_gb_s if result.gb_s is None else None
    return Judged(_past_p2p(pair, expected, result), result.gb_s, None, in_round)


def _slow_message(figure: float, document: Document) -> float:
    """GB/s below which a message is slow: NCCL pays latency and a protocol on top of the copy."""
    return (0.3 if document.quick and figure > FAST_GB_S else 0.5) * figure


def _by(result: SendRecvResult) -> str:
    return f" by {result.transport}" if result.transport else ""


def _past_p2p(pair: Pair, expected: Expected, result: SendRecvResult) -> Finding:
    """The finding if NCCL uses another transport than P2P between GPUs without NVLink."""
    more = result.with_level_sys
    way = result.transport or result.kind or "an unknown way"
    seen = f"{way} by NCCL's choice"
    if not pair.grant.cuda:
        cause = "NCCL_P2P_DISABLE=1 has no effect here"
        return Finding("", "info", f"{way}, as P2P is not granted", "", cause, source=expected.source)
    if more and more.ok and more.gb_s and result.gb_s and more.gb_s > 1.15 * result.gb_s:
        fix = f"NCCL_P2P_LEVEL=SYS for the program: {more.gb_s:.3g} GB/s in place of {result.gb_s:.3g}, data right"
        return Finding("", "info", f"{way}, though P2P works", "", "NCCL uses P2P only below one host bridge", fix)
    if more and more.ok and result.gb_s is None:  # only pairs that were measured alone tell whether P2P is faster
        cause = "across host bridges NCCL prefers it; with NCCL_P2P_LEVEL=SYS the data is right, the speed was not measured alone"
        return Finding("", "info", seen, "", cause)
    if more and more.outcome in ("hang", "wrong data", "error"):
        across = f"across host bridges ({pair.grant.distance}) P2P ends in {more.outcome} here"
        return Finding("", "info", seen, "", f"{across}, so NCCL is right to avoid it", "do not set NCCL_P2P_LEVEL")
    verdict: Verdict = "warn" if pair.grant.distance in ("PIX", "PXB") else "info"
    fix = "NCCL_DEBUG=INFO says why; bios: Above 4G Decoding, Resizable BAR" if verdict == "warn" else ""
    return Finding("", verdict, seen, "", "across host bridges NCCL prefers it", fix)


def grouped(judged: Sequence[tuple[Pair, Judged]], known: Machine, other: str, document: Document) -> Iterator[Finding]:
    """One finding for each different verdict and fault, with its pairs and the range of their bandwidths; `other` names
    the second.

    Pairs of one GPU that has the fault with all others are one fault, and so are pairs that are connected with each
    other, and all pairs if none is well.
    """
    groups: dict[tuple[object, ...], list[tuple[Pair, Judged]]] = {}
    bad = {_ends(pair) for pair, verdict in judged if verdict.finding.verdict in ("fail", "warn")}
    run = {_ends(pair) for pair, verdict in judged if verdict.finding.verdict != "unknown"}
    fault = dict.fromkeys(bad, 0) if bad == run else faults(sorted(bad, key=sorted), sorted(run, key=sorted))
    for pair, verdict in judged:
        finding = verdict.finding
        number = fault[_ends(pair)] if finding.verdict in ("fail", "warn") else None
        key = (finding.verdict, finding.seen, finding.expected, finding.cause, finding.fix, number)
        groups.setdefault(key, []).append((pair, verdict))
    for same in groups.values():
        finding = same[0][1].finding
        speed = _speeds([entry for _, entry in same])
        others = [entry.other_gb_s for _, entry in same if entry.other_gb_s is not None]
        other_speed = _range(others)
        of_few = f" ({len(others)} alone)" if document.rounds and len(others) < len(same) else ""
        seen = [finding.seen, *([speed] if speed else []), *([f"{other_speed} {other}{of_few}"] if other_speed else [])]
        subject = _pairs([pair for pair, _ in same], len(judged), known)
        yield replace(finding, subject=subject, seen="; ".join(seen))


def _ends(pair: Pair) -> frozenset[int]:
    return frozenset((pair.start, pair.end))


def _speeds(judged: Sequence[Judged]) -> str:
    """The range of the speeds, those of pairs that were measured only in rounds apart: `48 GB/s (2 alone), 47 GB/s in
    rounds (10)`."""
    alone, rounds = [one.gb_s for one in judged if one.gb_s], [one.round_gb_s for one in judged if one.round_gb_s]
    speed, in_rounds = _range(alone), _range(rounds)
    if not rounds:
        return speed
    return ", ".join([*([f"{speed} ({len(alone)} alone)"] if alone else []), f"{in_rounds} in rounds ({len(rounds)})"])


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
_WAYS = ("gpu.", "module.", "nvlink.", "fm.", "pcie.", "nccl.", "p2p.")
"""Groups of symptoms that explain slow or missing transfers between GPUs."""
OVERLAP = "the test computes, then reduces; training frameworks do both at once"


def _seen(facts: Facts, rig: Rig | None, slots: dict[BusId, str] | None) -> tuple[Document, Machine]:
    document, bus = facts.all(nccl.tested, pci.gpus)
    return document, machine(document, rig, slots, {gpu.bus_id: gpu.device_id for gpu in bus})


def not_run(verdict: Verdict, why: str, fix: str) -> Finding:
    """The finding of a peer-to-peer test that was asked for and not run."""
    return Finding(TEST, verdict, f"not run: {why}", "", "", fix, check="p2p.ran")


def left_behind(pids: Sequence[int]) -> Iterator[Finding]:
    """A finding for each process of a test that the kernel does not end."""
    for pid in pids:
        seen = f"process {pid} does not end after SIGKILL"
        yield of_symptom("gpu.wedged", "host", seen, "no process left", verdict="fail")


@check(active=True, follows=("gpu.", "ecc.", "module.", "fm."))
def ran(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """The test finished, found every GPU and correct data in each GPU's memory, and left no process; no round failed by
    itself."""
    document = facts(nccl.tested)
    yield from left_behind(document.left_behind)
    if document.outcome == "could not run":
        for error in document.errors:
            yield Finding(
                "peer-to-peer test", "unknown", f"{error.where}: {error.what}", "a run", *_why_not(error.what)
            )
        return
    ill = list(_ill(document, slots))
    yield from ill
    shm = document.shared_memory
    if shm and not shm.enough:
        seen, cause = f"{shm.free_mib} of {shm.size_mib} MiB free", "NCCL fails where it goes through it"
        yield Finding("/dev/shm", "warn", seen, "room for NCCL", cause, MORE_SHM, "host")
    if not (ill or document.left_behind):
        versions = document.versions
        size = "quick" if document.quick else "whole"
        seen = f"{len(document.gpus)} GPUs, {size} test in {document.seconds or 0:.0f} s; CUDA {versions.cuda_runtime}, NCCL {versions.nccl}"
        verdict: Verdict = "pass" if document.gpus else "unknown"
        yield Finding(TEST, verdict, seen)


def _ill(document: Document, slots: dict[BusId, str] | None) -> Iterator[Finding]:
    """Findings for GPUs with wrong data in their memory or unknown to CUDA; if there are none, later errors of GPUs."""
    look = "sudo dmesg | grep -e NVRM -e Xid, then invoke explain 'ITS TEXT'; then a reboot"
    wrong = False
    for gpu in document.gpus:
        at = place_of(gpu, slots)
        if gpu.own and gpu.own.ok is False:
            wrong, text = True, f"its own memory: {gpu.own.outcome}, {gpu.own.error}"
            fix = "sudo dmesg | grep -e NVRM -e Xid; reboot; if it happens again, power off and reseat the card"
            yield Finding(at, "fail", text, "right data", "the GPU, or its contact in the slot", fix)
        elif gpu.cuda_device is None:
            wrong = True
            seen, cause = "CUDA does not see it", "lost, or in a bad state"
            yield Finding(at, "fail", seen, "a device", cause, look)
    for error in document.errors:
        if error.where.startswith("GPU ") and not wrong:
            yield Finding(error.where, "fail", error.what, "a test without errors", "", look)
        if error.where.startswith("round "):
            cause = "several pairs at the same time: a PCIe switch, the IOMMU, the power supply, or a link that fails under load"
            yield Finding(error.where, "fail", error.what, "pairs that transfer together", cause, look)


def _why_not(error: str) -> tuple[str, str]:
    """Cause and fix of a test that could not run."""
    if "libnccl" in error or "libcudart" in error:
        return "the host has no such library", "the same command with --wheels DIR, or --wheels fetch"
    if "libcuda.so" in error or "driver" in error:
        return "no driver, or an incomplete one", "invoke provision"
    return "", "invoke explain 'ITS TEXT'"


@check(active=True, follows=(ran, *_WAYS))
def copies(facts: Facts, *, rig: Rig | None = None, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """For every pair of GPUs, CUDA grants peer access if expected, and copies have correct data and the rig's
    bandwidth."""
    document, known = _seen(facts, rig, slots)
    if document.outcome == "could not run":
        return
    judged = [(pair, copied(pair, known.expected(pair, document), document)) for pair in document.pairs]
    yield from grouped(judged, known, "through the host", document)
    yield from _box(document, known)


def _box(document: Document, known: Machine) -> Iterator[Finding]:
    """Explains the NVLink bandwidth of a data sheet by the links of a pair."""
    done: set[tuple[str, int]] = set()
    for pair in document.pairs:
        model, links = known.models[pair.start], known.expected(pair, document).links
        if model is None or model.nvlink is None or not links or (model.key, links) in done:
            continue
        done.add((model.key, links))
        link_gb_s = per_link(model.nvlink)
        seen = f"{links} link{'s' if links > 1 else ''} a pair: {links * link_gb_s:g} GB/s each way in theory"
        box = f"{on_the_box(model.nvlink):g} GB/s in the data sheet = {model.nvlink.links} links x {link_gb_s:g} x 2 directions"
        yield Finding(f"NVLink of {model.label}", "info", seen, "", box, "", "catalogue")


@check(active=True, follows=(ran, copies, *_WAYS))
def collective(facts: Facts, *, rig: Rig | None = None, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """NCCL uses the expected transport between every pair, its data is correct, nothing hangs, and all-reduce is fast
    enough."""
    document, known = _seen(facts, rig, slots)
    if document.outcome == "could not run":
        return
    judged = [
        (pair, sent(pair, known.expected(pair, document), document)) for pair in document.pairs if pair.collective
    ]
    yield from grouped(judged, known, "P2P off", document)
    yield from _sum(document, rig)


def _sum(document: Document, rig: Rig | None) -> Iterator[Finding]:
    total = document.all_reduce
    if total is None or len(total.gpus) < 2:
        return
    subject = f"all-reduce over {len(total.gpus)} GPUs"
    without = total.without_p2p
    if total.outcome in ("hang", "wrong data"):
        alone = without is not None and without.ok is False
        also = "the same" if alone else "correct" if without and without.ok else "unknown"
        key = "nccl.timeout" if total.outcome == "hang" else "nccl.wrong_data"
        key = "nccl.stalled_queue" if alone and total.outcome == "hang" else key
        key, seen = blamed(document.versions.driver, key), f"{total.outcome}; {also} with P2P off"
        yield of_symptom(key, subject, seen, "correct data, in time", verdict="fail")
    elif total.ok is None:
        yield Finding(subject, "unknown", f"not run: {total.error}", "a sum", "", AGAIN)
    elif total.ok is False:
        known = catalogue.symptoms_in(total.error or "")
        finding = of_text(total.error or "", subject, "NCCL reports an error" if known else f"{total.error}", "a sum")
        direct = finding.symptom == _OFF_NVLINK and rig is not None and not rig.nvswitches
        yield _without_nvswitch(finding) if direct else finding
    elif total.busbw_gb_s is not None:
        wanted = rig.all_reduce_gb_s if rig and len(total.gpus) == len(rig.gpus) else None
        off = f", {without.busbw_gb_s:.3g} with P2P off" if without and without.busbw_gb_s else ""
        far = wanted is not None and not document.quick and total.busbw_gb_s < FAR * wanted
        fix = "look at the pairs above; else run with NCCL_DEBUG=INFO, and check the limits"
        yield Finding(
            subject, "warn" if far else "pass", f"{total.busbw_gb_s:.3g} GB/s bus bandwidth{off}",
            f"about {wanted:g} GB/s" if wanted else "", "", fix, "rig" if wanted else ""
        )  # fmt: skip


@check(active=True, follows=(ran, copies, collective, *_WAYS))
def scaling(facts: Facts, *, rig: Rig | None = None) -> Iterator[Finding]:
    """The speed-up of a synthetic training step over several GPUs, compared with the rig's measured figure."""
    document = facts(nccl.tested)
    rows = [row for row in document.scaling if row.speed_up]
    for row in document.scaling:
        if row.error:
            yield Finding(f"scaling over {row.gpus} GPUs", "unknown", row.error, "a step", "", AGAIN)
    if len(rows) < 2:
        return
    last = rows[-1]
    assert last.speed_up is not None
    known = rig.scaling if rig else None
    row = next((other for other in rows if known and other.gpus == known.gpus), last)
    speed = row.speed_up or 0.0
    share = speed / known.speed_up if known and row.gpus == known.gpus else None
    seen = f"{speed:.2f} times one GPU (synthetic), efficiency {speed / row.gpus:.0%}"
    verdict: Verdict = "info" if share is None or 0.6 <= share < 0.9 else "pass" if share >= 0.9 else "warn"
    wanted = f"{known.speed_up:g} times, in training" if known and share is not None else ""
    fix = "look at the pairs above" if verdict == "warn" else ""
    yield Finding(f"scaling to {row.gpus} GPUs", verdict, seen, wanted, OVERLAP, fix, "rig" if wanted else "")


@check(active=True, replaces=environment.clean)
def settings(facts: Facts) -> Iterator[Finding]:
    """No NCCL setting is left in a file that logins, services or NCCL read; a setting is reported with its measured
    cost."""
    document, in_files = facts.all(nccl.tested, nccl.settings)
    own = [
        each
        for each in document.leftovers
        if replace(each, in_force=False) not in in_files and each.where != "environment"
    ]
    for setting in [*in_files, *own]:
        text = f"{setting.name}={setting.value} in {setting.where}"
        if setting.switches_off:
            cost = _cost(document) if setting.name == "NCCL_P2P_DISABLE" else ""
            seen = f"{text}{': ' + cost if cost else ''}"
            yield of_symptom("nccl.p2p_disabled_by_hand", "NCCL's settings", seen, "unset", verdict="warn")
        else:
            fix = f"take the line out of {setting.where} unless a program needs it"
            yield Finding("NCCL's settings", "info", text, "", "somebody set it", fix, "host")
    if not in_files and not own:
        yield Finding("NCCL's settings", "pass", "none set in files", "", "", "", "host")


def _cost(document: Document) -> str:
    """The measured cost of NCCL_P2P_DISABLE=1; "" if the test did not measure both."""
    total = document.all_reduce
    if total and total.busbw_gb_s and total.without_p2p and total.without_p2p.busbw_gb_s:
        return f"all-reduce at {total.without_p2p.busbw_gb_s:.3g} in place of {total.busbw_gb_s:.3g} GB/s"
    return ""
