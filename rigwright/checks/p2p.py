"""Compares the measurements of this run's peer-to-peer test with the rig, the models and the topology."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.checks import AGAIN, Finding, Verdict, check, environment, of_symptom, of_text
from rigwright.checks._common_gpu import faults
from rigwright.checks._expected_links import Expected, Machine, bus_id_of, machine
from rigwright.core.gpu_labels import place
from rigwright.core.schema import BusId
from rigwright.core.shortening import first_of
from rigwright.facts import Facts, pci
from rigwright.facts.nccl import p2p_test as nccl
from rigwright.facts.nccl.p2p_test import Document, Pair, SendRecvResult

FAR = 0.65
"""Below this share of its figure a pair, or an all-reduce, is broken: with one of two NVLinks down it has half; good
machines are within a fifth."""
FAR_THROUGH_HOST = 0.5
"""The same for a copy through host memory, whose two halves do not overlap with every driver."""
FAR_QUICK = 0.4
"""The same for the quick test of a fast pair: with 4 MiB, latency is much of the time (2 of 11 us on an H100)."""
FAST_GB_S = 100.0
"""From this figure on a pair is fast in the sense of FAR_QUICK (assumed)."""
FAR_MESSAGE, FAR_MESSAGE_QUICK = 0.5, 0.3
"""Below these shares of the figure of a copy, NCCL's message is slow: NCCL adds latency and a protocol (assumed)."""
FASTER_LEVEL_SYS = 1.15
"""From this factor on, P2P across host bridges is worth the setting NCCL_P2P_LEVEL=SYS (assumed)."""
SAME_SPEED = 1.05
"""Up to this factor between the lowest and the highest, speeds are shown as one (assumed)."""
GOOD_SCALING, POOR_SCALING = 0.9, 0.75
"""Shares of the rig's speed-up: from the first on it passes, up to the second it is a warning (assumed)."""
MORE_SHM = "sudo mount -o remount,size=50% /dev/shm (a container: --shm-size=1g)"


class Judged(Struct, frozen=True):
    """The finding for a pair, without its subject, and the speeds of the pair, GB/s.

    `gb_s`: measured while no other pair transferred. `other_gb_s`: the same through the host, or with P2P off.
    `round_gb_s`: measured together with other pairs only.
    """

    finding: Finding
    gb_s: float | None = None
    other_gb_s: float | None = None
    round_gb_s: float | None = None


def _symptom(key: str, seen: str, expected: str) -> Judged:
    return Judged(of_symptom(key, "", seen, expected, "rig", verdict="fail"))


def _judge_copies(pair: Pair, expected: Expected, document: Document) -> Judged:
    """The verdict on the peer access and the copies of a pair."""
    copy, staged = pair.bytes, pair.staged
    for name, result in (("with peer access", copy), ("through the host", staged)):
        if result and result.outcome == "wrong data":
            return _symptom("nccl.wrong_data", f"wrong data {name}", "the bytes that were sent")
        if result and result.outcome == "hang":
            return Judged(_hang(document, "", f"a copy {name} hangs", expected.words))
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
        seen, cause = "data right; speed not measured alone", "a pair of the same kind is too slow alone"
        return Judged(Finding("", "unknown", seen, _wanted(expected), cause, AGAIN), None, host, in_round)
    if copy.gb_s is not None and _is_slow(copy.gb_s, expected, document):
        return _slow(expected, copy.gb_s, host)
    finding = Finding("", "pass", "peer access on", _wanted(expected), source=expected.source)
    return Judged(finding, copy.gb_s, host, in_round)


def _is_slow(gb_s: float, expected: Expected, document: Document) -> bool:
    far = FAR_QUICK if document.quick and (expected.gb_s or 0) > FAST_GB_S else FAR
    return expected.gb_s is not None and gb_s < far * expected.gb_s


def _fast_enough(pair: Pair, expected: Expected, document: Document) -> bool:
    """Whether a pair that was not measured alone is proved to be fast enough.

    Other transfers only make a copy slower, so a sufficient speed in a round is a proof. With a lower one, a pair of
    the same kind that is fast enough alone is the proof: the test measures each pair alone whose round was slower than
    the rounds of others of its kind.
    """
    if pair.bytes and pair.bytes.round_gb_s is not None and not _is_slow(pair.bytes.round_gb_s, expected, document):
        return True

    def kind(pair: Pair) -> tuple[str | None, bool | None]:
        return pair.grant.link or pair.grant.distance, pair.grant.cuda

    copies_alone = [other.bytes for other in document.pairs if other.bytes and kind(other) == kind(pair)]
    return any(copy.gb_s and not _is_slow(copy.gb_s, expected, document) for copy in copies_alone)


def _wanted(expected: Expected) -> str:
    about = f", about {expected.gb_s:.3g} GB/s" if expected.gb_s else ""
    return expected.words + about


def _slow(expected: Expected, gb_s: float, host: float | None) -> Judged:
    if expected.links or expected.kind == "nvswitch":
        cause = "an NVLink is down or runs with errors; a GPU module or bridge that is not fully seated"
        fix = (
            "nvidia-smi nvlink -s and nvidia-smi nvlink -e; power off, reseat both GPUs with the specified torque; "
            "swap two to see whether the fault moves"
        )
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
    """The finding for peer access refused over NVLink, with cause and fix for GPUs without NVSwitch."""
    cause = "The link is up. One of its GPUs needs a reset, or is broken."
    fix = (
        "nvidia-smi topo -p2p n shows the refused pairs; cold boot (sudo poweroff, mains off for 30 seconds); if it "
        "stays: swap the "
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


def symptom_of_branch(driver: str | None, key: str) -> str:
    """The symptom for GPUs that hang or get wrong data: that of a driver branch known for both, otherwise `key`."""
    return "branch.peer_to_peer_545" if (driver or "").startswith("545.") else key


LOOSE_MODULE = "a module that sits loosely in its socket: its NVLinks are up, and transfers over them do not end"
TIGHTEN_MODULES = (
    "power off; reseat the SXM2 modules, tighten the screws of each crosswise with a torque driver (invoke explain"
    " torque); then invoke verify again"
)


def hang(driver: str | None, gpu_names: Iterable[str | None], subject: str, seen: str, expected: str) -> Finding:
    """The finding for transfers between GPUs that do not end. SXM2 modules are tightened first."""
    key = symptom_of_branch(driver, "nccl.timeout")
    finding = of_symptom(key, subject, seen, expected, "rig", verdict="fail")
    if key == "nccl.timeout" and any("SXM2" in (name or "") for name in gpu_names):
        return replace(finding, cause=LOOSE_MODULE, fix=TIGHTEN_MODULES)
    return finding


def _hang(document: Document, subject: str, seen: str, expected: str) -> Finding:
    return hang(document.versions.driver, (gpu.name for gpu in document.gpus), subject, seen, expected)


def _judge_message(pair: Pair, result: SendRecvResult, expected: Expected, document: Document) -> Judged:
    """The verdict on NCCL's message between two GPUs and on its transport."""
    off, in_round = result.without_p2p, result.round_gb_s if result.gb_s is None else None
    if result.outcome in ("hang", "wrong data"):
        cost = f" at {off.gb_s:.3g} GB/s" if off and off.gb_s else ""
        helps = f"correct with NCCL_P2P_DISABLE=1{cost}" if off and off.ok else "the same with NCCL_P2P_DISABLE=1"
        seen = f"{result.outcome}{f' by {result.transport}' if result.transport else ''}; {helps}"
        if result.outcome == "hang":
            return Judged(_hang(document, "", seen, "correct data, in time"))
        return _symptom(symptom_of_branch(document.versions.driver, "nccl.wrong_data"), seen, "correct data, in time")
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
        figure = expected.gb_s or 0.0
        least = (FAR_MESSAGE_QUICK if document.quick and figure > FAST_GB_S else FAR_MESSAGE) * figure
        if result.gb_s is not None and result.gb_s < least:
            wanted = f"{expected.words}, half of {figure:.3g} GB/s at the least"
            cause = "the copy is slow too; else low clocks, or other programs on the GPUs"
            fix = "fix the copy between them first"
            finding = Finding("", "warn", f"{result.transport}, slow", wanted, cause, fix, expected.source)
        return Judged(finding, result.gb_s, off.gb_s if off and off.ok else None, in_round)
    if expected.links or expected.kind == "nvswitch":
        return _refused_nvlink(f"{result.transport}, not over the NVLinks", expected.words, expected)
    return Judged(_other_transport(pair, expected, result), result.gb_s, None, in_round)


def _other_transport(pair: Pair, expected: Expected, result: SendRecvResult) -> Finding:
    """The finding if NCCL uses another transport than P2P between GPUs without NVLink."""
    more = result.with_level_sys
    way = result.transport or result.kind or "an unknown way"
    seen = f"{way} by NCCL's choice"
    if not pair.grant.cuda:
        cause = "NCCL_P2P_DISABLE=1 has no effect here"
        return Finding("", "info", f"{way}, as P2P is not granted", "", cause, source=expected.source)
    if more and more.ok and more.gb_s and result.gb_s and more.gb_s > FASTER_LEVEL_SYS * result.gb_s:
        fix = f"NCCL_P2P_LEVEL=SYS for the program: {more.gb_s:.3g} GB/s in place of {result.gb_s:.3g}, data right"
        return Finding("", "info", f"{way}, though P2P works", "", "NCCL uses P2P only below one host bridge", fix)
    if more and more.ok and result.gb_s is None:  # only speeds that were measured alone can be compared
        cause = (
            "across host bridges NCCL prefers it; with NCCL_P2P_LEVEL=SYS the data is right, the speed was not "
            "measured alone"
        )
        return Finding("", "info", seen, "", cause)
    if more and more.outcome in ("hang", "wrong data", "error"):
        across = f"across host bridges ({pair.grant.distance}) P2P ends in {more.outcome} here"
        return Finding("", "info", seen, "", f"{across}, so NCCL is right to avoid it", "do not set NCCL_P2P_LEVEL")
    verdict: Verdict = "warn" if pair.grant.distance in ("PIX", "PXB") else "info"
    fix = "NCCL_DEBUG=INFO says why; bios: Above 4G Decoding, Resizable BAR" if verdict == "warn" else ""
    return Finding("", verdict, seen, "", "across host bridges NCCL prefers it", fix)


def _findings(
    judged: Sequence[tuple[Pair, Judged]], known: Machine, other: str, document: Document
) -> Iterator[Finding]:
    """One finding for each different verdict and fault, with its pairs and the range of their speeds; `other`: the name
    of `other_gb_s`.

    One fault are the pairs of a GPU if all of them are bad, other bad pairs that share GPUs, and all pairs if all are
    bad.
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
        verdicts = [verdict for _, verdict in same]
        alone = [verdict.gb_s for verdict in verdicts if verdict.gb_s]
        rounds = [verdict.round_gb_s for verdict in verdicts if verdict.round_gb_s]
        others = [verdict.other_gb_s for verdict in verdicts if verdict.other_gb_s is not None]
        speeds = [f"{_range(alone)}{f' ({len(alone)} alone)' if rounds else ''}"] if alone else []
        speeds += [f"{_range(rounds)} in rounds ({len(rounds)})"] if rounds else []
        of_few = f" ({len(others)} alone)" if document.rounds and len(others) < len(same) else ""
        seen = [verdicts[0].finding.seen, ", ".join(speeds), f"{_range(others)} {other}{of_few}" if others else ""]
        subject = _pairs([pair for pair, _ in same], len(judged), known)
        yield replace(verdicts[0].finding, subject=subject, seen="; ".join(filter(None, seen)))


def _ends(pair: Pair) -> frozenset[int]:
    return frozenset((pair.start, pair.end))


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.3g} GB/s" if high < SAME_SPEED * low else f"{low:.3g} to {high:.3g} GB/s"


def _pairs(pairs: Sequence[Pair], of: int, known: Machine) -> str:
    """`all 12 pairs`, `SXM2-1 SXM2-2 both ways`, or the first few and how many more."""
    if len(pairs) == of and of > 2:
        return f"all {of} pairs"
    both = list(dict.fromkeys(tuple(sorted((pair.start, pair.end))) for pair in pairs))
    if len(pairs) == 2 * len(both):
        names = [f"{known.names[a]} {known.names[b]}" for a, b in both]
    else:
        names = [f"{known.names[pair.start]} to {known.names[pair.end]}" for pair in pairs]
    return first_of(names, 3 if len(names) > 4 else 4)


TEST = "peer-to-peer test"
_WAYS = ("gpu.", "module.", "nvlink.", "fm.", "pcie.", "nccl.", "p2p.")
"""Groups of symptoms that explain slow or missing transfers between GPUs."""
OVERLAP = "the test computes, then reduces; training frameworks do both at once"


def _seen(facts: Facts, rig: Rig | None, slots: dict[BusId, str] | None) -> tuple[Document, Machine]:
    document, bus = facts.all(nccl.tested, pci.gpus)
    return document, machine(document, rig, slots, {gpu.bus_id: gpu.device_id for gpu in bus})


def left_behind(pids: Sequence[int]) -> Iterator[Finding]:
    """A finding for each process of a test that did not end."""
    for pid in pids:
        seen = f"process {pid} does not end after SIGKILL"
        yield of_symptom("gpu.wedged", "host", seen, "no process left", verdict="fail")


@check(active=True, follows=("gpu.", "ecc.", "module.", "fm.", environment.jobs_work))
def ran(facts: Facts, *, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """The test finished, found every GPU and correct data in the memory of each GPU, and left no process; no round
    failed."""
    document = facts(nccl.tested)
    yield from left_behind(document.left_behind)
    if document.outcome == "could not run":
        for error in document.errors:
            cause, fix = "", "invoke explain 'ITS TEXT'"
            if "libnccl" in error.what or "libcudart" in error.what:
                cause, fix = "the host has no such library", "the same command with --wheels DIR, or --wheels fetch"
            elif "libcuda.so" in error.what or "driver" in error.what:
                cause, fix = "no driver, or an incomplete one", "invoke provision"
            yield Finding(TEST, "unknown", f"{error.where}: {error.what}", "a run", cause, fix)
        return
    faulty = list(_faulty_gpus(document, slots))
    yield from faulty
    shm = document.shared_memory
    if shm and not shm.enough:
        seen, cause = f"{shm.free_mib} of {shm.size_mib} MiB free", "NCCL fails where it goes through it"
        yield Finding("/dev/shm", "warn", seen, "room for NCCL", cause, MORE_SHM, "host")
    cut = [error.what for error in document.errors if error.where == "program" and not document.left_behind]
    for what in cut:
        yield Finding(TEST, "unknown", what, "a test to its end", "", AGAIN)
    if not (faulty or cut or document.left_behind):
        versions = document.versions
        size = "quick" if document.quick else "whole"
        seen = (
            f"{len(document.gpus)} GPUs, {size} test in {document.seconds or 0:.0f} s; CUDA {versions.cuda_runtime}, "
            f"NCCL {versions.nccl}"
        )
        yield Finding(TEST, "pass" if document.gpus else "unknown", seen, fix=AGAIN)


def _faulty_gpus(document: Document, slots: dict[BusId, str] | None) -> Iterator[Finding]:
    """Findings for GPUs with wrong data in their memory and GPUs unknown to CUDA; without such GPUs, for later errors
    of GPUs; and for rounds that failed."""
    look = "sudo dmesg | grep -e NVRM -e Xid, then invoke explain 'ITS TEXT'; then a reboot"
    wrong = False
    for gpu in document.gpus:
        at = place(bus_id_of(gpu), slots) or f"GPU {gpu.index}"
        if gpu.own and gpu.own.ok is False:
            wrong, text = True, f"its own memory: {gpu.own.outcome}, {gpu.own.error}"
            fix = "sudo dmesg | grep -e NVRM -e Xid; reboot; if it happens again, power off and reseat the card"
            yield Finding(at, "fail", text, "right data", "the GPU, or its contact in the slot", fix)
        elif gpu.cuda_device is None:
            wrong = True
            yield Finding(at, "fail", "CUDA does not see it", "a device", "lost, or in a bad state", look)
    for error in document.errors:
        if error.where.startswith("GPU ") and not wrong:
            yield Finding(error.where, "fail", error.what, "a test without errors", "", look)
        if error.where.startswith("round "):
            cause = (
                "several pairs at the same time: a PCIe switch, the IOMMU, the power supply, or a link that fails "
                "under load"
            )
            yield Finding(error.where, "fail", error.what, "pairs that transfer together", cause, look)


@check(active=True, follows=(ran, *_WAYS))
def copies(facts: Facts, *, rig: Rig | None = None, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """For every pair of GPUs, CUDA grants peer access if expected, and copies have correct data and the rig's
    bandwidth."""
    document, known = _seen(facts, rig, slots)
    if document.outcome == "could not run":
        return
    if len(document.gpus) > 1 and not document.pairs:
        yield Finding("copies between GPUs", "unknown", "not run", "a copy for each pair", "", AGAIN)
    judged = [(pair, _judge_copies(pair, known.expected(pair, document), document)) for pair in document.pairs]
    yield from _findings(judged, known, "through the host", document)
    yield from _data_sheet(document, known)


def _data_sheet(document: Document, known: Machine) -> Iterator[Finding]:
    """Explains the NVLink bandwidth in the data sheet by the links of a pair.

    Data sheets count all links in both directions, NVLink 2 to 4 at 25 GB/s a link and direction and NVLink 5 at 50;
    nvidia-smi reports the line rate, which is slightly higher (25.8, 26.6, 53.1).
    """
    done: set[tuple[str, int]] = set()
    for pair in document.pairs:
        model, links = known.models[pair.start], known.expected(pair, document).links
        if model is None or model.nvlink is None or not links or (model.key, links) in done:
            continue
        done.add((model.key, links))
        of_line, in_gpu = model.nvlink.gb_s_per_link, model.nvlink.links
        link_gb_s = of_line // 25 * 25 if of_line > 25 else of_line
        seen = f"{links} link{'s' if links > 1 else ''} a pair: {links * link_gb_s:g} GB/s each way in theory"
        sheet = f"{in_gpu * link_gb_s * 2:g} GB/s in the data sheet = {in_gpu} links x {link_gb_s:g} x 2 directions"
        yield Finding(f"NVLink of {model.label}", "info", seen, "", sheet, "", "catalogue")


@check(active=True, follows=(ran, copies, *_WAYS))
def collective(facts: Facts, *, rig: Rig | None = None, slots: dict[BusId, str] | None = None) -> Iterator[Finding]:
    """NCCL uses the expected transport for every pair, with correct data and without hangs, and all-reduce is fast
    enough."""
    document, known = _seen(facts, rig, slots)
    if document.outcome == "could not run":
        return
    judged = [
        (pair, _judge_message(pair, pair.collective, known.expected(pair, document), document))
        for pair in document.pairs
        if pair.collective
    ]
    yield from _findings(judged, known, "P2P off", document)
    yield from _all_reduce(document, rig)


def _all_reduce(document: Document, rig: Rig | None) -> Iterator[Finding]:
    total = document.all_reduce
    if total is None and len(document.gpus) > 1:
        yield Finding(f"all-reduce over {len(document.gpus)} GPUs", "unknown", "not run", "a sum", "", AGAIN)
    if total is None or len(total.gpus) < 2:
        return
    subject = f"all-reduce over {len(total.gpus)} GPUs"
    without = total.without_p2p
    if total.outcome in ("hang", "wrong data"):
        alone = without is not None and without.ok is False
        also = "the same" if alone else "correct" if without and without.ok else "unknown"
        seen, expected = f"{total.outcome}; {also} with P2P off", "correct data, in time"
        if total.outcome == "hang" and not alone:
            yield _hang(document, subject, seen, expected)
        else:
            key = "nccl.stalled_queue" if total.outcome == "hang" else "nccl.wrong_data"
            key = symptom_of_branch(document.versions.driver, key)
            yield of_symptom(key, subject, seen, expected, verdict="fail")
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
        seen, expected = f"{total.busbw_gb_s:.3g} GB/s bus bandwidth{off}", f"about {wanted:g} GB/s" if wanted else ""
        yield Finding(subject, "warn" if far else "pass", seen, expected, "", fix, "rig" if wanted else "")


_NO_TABLE = "no scaling table"
_NO_TABLE_FIX = "install the named library of the CUDA toolkit on the host; then invoke verify --tags p2p"


@check(active=True, follows=(ran, copies, collective, *_WAYS))
def scaling(facts: Facts, *, rig: Rig | None = None) -> Iterator[Finding]:
    """The speed-up of a synthetic training step over several GPUs, compared with the rig's measured figure."""
    document = facts(nccl.tested)
    for row in document.scaling:
        if row.error:
            yield Finding(f"scaling over {row.gpus} GPUs", "unknown", row.error, "a step", "", AGAIN)
    total = document.all_reduce
    if not (document.quick or document.scaling) and total and total.ok and len(total.gpus) > 1:
        reason = next((note for note in document.notes if note.startswith(_NO_TABLE)), _NO_TABLE)
        yield Finding("scaling", "unknown", f"not run: {reason}", "a step on 1 to all GPUs", "", _NO_TABLE_FIX)
    speeds = {row.gpus: row.speed_up for row in document.scaling if row.speed_up}
    if len(speeds) < 2:
        return
    known = rig.scaling if rig and rig.scaling and rig.scaling.gpus in speeds else None
    gpus = known.gpus if known else [*speeds][-1]
    seen = f"{speeds[gpus]:.2f} times one GPU (synthetic), efficiency {speeds[gpus] / gpus:.0%}"
    verdict: Verdict = "info"
    if known:
        share = speeds[gpus] / known.speed_up
        verdict = "pass" if share >= GOOD_SCALING else "warn" if share <= POOR_SCALING else "info"
    wanted = f"{known.speed_up:g} times, in training" if known else ""
    cause, fix = OVERLAP, ""
    if verdict == "warn":
        cause, fix = causes_of_poor_scaling(all(pair.grant.cuda for pair in document.pairs))
    yield Finding(f"scaling to {gpus} GPUs", verdict, seen, wanted, cause, fix, "rig" if wanted else "")


_CAUSES_OF_POOR_SCALING = (
    ("no peer access, so gradients go through the host's memory",
     "iommu=pt and ACS off, or another driver branch (invoke explain p2p.not_offered)"),
    ("a PCIe link with fewer lanes or a lower generation",
     "another slot or riser where sudo lspci -vvv | grep LnkSta shows such a link"),
    ("lowered clocks", "invoke stress shows whether heat, power or a limit lowers them"),
    ("processor threads that wait for each other or for data",
     "OMP_NUM_THREADS=1 for each process, and fewer workers of the data loader"),
)  # fmt: skip


def causes_of_poor_scaling(has_peers: bool) -> tuple[str, str]:
    """The causes of a speed-up that is too low, the likeliest first, and the fix of each in the same order."""
    causes, fixes = zip(*_CAUSES_OF_POOR_SCALING[1 if has_peers else 0 :], strict=True)
    return "; ".join(f"{number}. {text}" for number, text in enumerate(causes, 1)), "; ".join(fixes)


@check(active=True, replaces=environment.clean)
def settings(facts: Facts) -> Iterator[Finding]:
    """No NCCL setting is left in a file that logins, services or NCCL read; NCCL_P2P_DISABLE is reported with its
    measured cost."""
    document, in_files = facts.all(nccl.tested, nccl.settings)
    left = [each for each in document.leftovers if each.where != "environment"]
    every = [*in_files, *(each for each in left if replace(each, in_force=False) not in in_files)]
    total, cost = document.all_reduce, ""
    if total and total.busbw_gb_s and total.without_p2p and total.without_p2p.busbw_gb_s:
        cost = f": all-reduce at {total.without_p2p.busbw_gb_s:.3g} in place of {total.busbw_gb_s:.3g} GB/s"
    for setting in every:
        seen = f"{setting.name}={setting.value} in {setting.where}"
        if setting.switches_off:
            seen += cost if setting.name == "NCCL_P2P_DISABLE" else ""
            yield of_symptom("nccl.p2p_disabled_by_hand", "NCCL's settings", seen, "unset", verdict="warn")
        else:
            fix = f"take the line out of {setting.where} unless a program needs it"
            yield Finding("NCCL's settings", "info", seen, "", "somebody set it", fix, "host")
    if not every:
        yield Finding("NCCL's settings", "pass", "none set in files", source="host")
