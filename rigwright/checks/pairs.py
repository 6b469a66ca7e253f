"""One pair of GPUs, judged: a copy and NCCL's message against what is expected; and equal judgements told once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rigwright import catalogue
from rigwright.checks import AGAIN, Finding, Source, Verdict
from rigwright.facts.p2p import Document, Pair, Sent
from rigwright.peering import Expected, Machine

FAR = 0.65
"""Below this share of its figure a pair, or an all-reduce, is broken: one of two NVLinks down leaves a half; good machines are
within a fifth."""
FAR_THROUGH_HOST = 0.5
"""A copy through the host passes its memory, and not every driver lets the two halves overlap."""
FAR_QUICK = 0.4
"""With 4 MiB a fast pair spends much of its time on latency: 2 us of the 11 that an H100 needs."""
FAST_GB_S = 100.0
MORE_SHM = "sudo mount -o remount,size=50% /dev/shm (a container: --shm-size=1g)"


@dataclass(frozen=True)
class Judged:
    """A verdict on a pair. `gb_s`: what was measured, `other_gb_s`: the other way of it (through the host, P2P off)."""

    verdict: Verdict
    seen: str
    wanted: str = ""
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
    """What a pair's grant and its copies are worth."""
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
        what = "granted, which the stock driver does not do: a patched module, or other cards"
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
        cause = "an NVLink is down or runs with errors; a module or bridge that is not seated"
        fix = "nvidia-smi nvlink -s and nvidia-smi nvlink -e; power off, reseat both GPUs to their torque; swap two to see which it follows"
    elif expected.kind == "x1":
        cause, fix = (
            "a riser or a slot that trains below its one lane",
            "sudo lspci -vvv -s BUS | grep LnkSta; another riser",
        )
    else:
        cause = "a PCIe link that trained narrow or slow; the IOMMU or ACS in the way"
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
    slow = "a slot with one lane: every copy passes it" if expected.kind == "x1" else ""
    cause = slow or expected.why or catalogue.symptoms()["p2p.not_offered"].cause
    return Judged("info", why, "", cause, "", "rig", "p2p.not_offered", None, host, "through the host")


def blamed(driver: str | None, key: str) -> str:
    """The symptom of GPUs that hang or get wrong data: that of the driver's branch where it is known for both, else `key`."""
    return "branch.peer_to_peer_545" if (driver or "").startswith("545.") else key


def sent(pair: Pair, expected: Expected, document: Document) -> Judged:
    """What NCCL's message between a pair is worth, and the way it took."""
    found = pair.collective
    assert found is not None
    off = found.without_p2p
    if found.outcome in ("hang", "wrong data"):
        cost = f" at {off.gb_s:.3g} GB/s" if off and off.gb_s else ""
        helps = f"right with NCCL_P2P_DISABLE=1{cost}" if off and off.ok else "no better with NCCL_P2P_DISABLE=1"
        key = "nccl.timeout" if found.outcome == "hang" else "nccl.wrong_data"
        key = blamed(document.versions.driver, key)
        return _symptom(key, "fail", f"{found.outcome}{_by(found)}; {helps}", "right data, in time")
    if found.outcome == "error":
        shm = "/dev/shm" in (found.error or "")
        known = next(iter(catalogue.symptoms_in(found.error or "")), None)
        if known and known.kind == "p2p":
            return _symptom(known.key, "fail", "NCCL refuses", "a message")
        fix = MORE_SHM if shm else "invoke explain 'ITS TEXT'"
        return Judged("fail", f"NCCL fails: {found.error}", "a message", "", fix)
    if not found.ok:
        return Judged("unknown", f"not run: {found.error}", "", "", AGAIN)
    slower = off.gb_s if off and off.ok else None
    slow = expected.gb_s is not None and found.gb_s is not None and found.gb_s < _slow_message(expected.gb_s, document)
    if found.kind == "P2P" and slow:
        cause = "as slow as its copy; else the GPUs' clocks, or what else runs on them"
        wanted = f"{expected.words}, half of {expected.gb_s:.3g} GB/s at the least"
        return Judged(
            "warn",
            f"{found.transport}, slow",
            wanted,
            cause,
            "mend the copy between them first",
            expected.source,
            "",
            found.gb_s,
            slower,
            "P2P off",
        )
    if found.kind == "P2P":
        return Judged("pass", found.transport or "P2P", "", "", "", expected.source, "", found.gb_s, slower, "P2P off")
    if expected.links or expected.kind == "nvswitch":
        return _symptom("nccl.p2p_off_nvlink", "fail", f"{found.transport}, past the NVLinks", expected.words)
    return _past_p2p(pair, expected, found)


def _slow_message(figure: float, document: Document) -> float:
    """GB/s below which a message is slow: NCCL pays latency and a protocol on top of the copy."""
    return (0.3 if document.quick and figure > FAST_GB_S else 0.5) * figure


def _by(found: Sent) -> str:
    return f" by {found.transport}" if found.transport else ""


def _past_p2p(pair: Pair, expected: Expected, found: Sent) -> Judged:
    """NCCL takes another way than P2P, and no NVLink is there: a choice, a refusal, or a loss."""
    more = found.with_level_sys
    way = found.transport or found.kind or "an unknown way"
    if not pair.grant.cuda:
        cost = "NCCL_P2P_DISABLE=1 changes nothing here"
        return Judged("info", f"{way}, as P2P is not granted", "", cost, "", expected.source, "", found.gb_s)
    if more and more.ok and more.gb_s and found.gb_s and more.gb_s > 1.15 * found.gb_s:
        fix = f"NCCL_P2P_LEVEL=SYS for the program: {more.gb_s:.3g} GB/s in place of {found.gb_s:.3g}, data right"
        return Judged(
            "info", f"{way}, though P2P works", "", "NCCL keeps P2P within a host bridge", fix, "", "", found.gb_s
        )
    if more and more.outcome in ("hang", "wrong data", "error"):
        cause = f"across host bridges ({pair.grant.distance}) P2P ends in {more.outcome} here, and NCCL does well to avoid it"
        return Judged("info", f"{way} by NCCL's choice", "", cause, "leave NCCL_P2P_LEVEL alone", "", "", found.gb_s)
    verdict: Verdict = "warn" if pair.grant.distance in ("PIX", "PXB") else "info"
    fix = "NCCL_DEBUG=INFO says why; bios: Above 4G Decoding, Resizable BAR" if verdict == "warn" else ""
    return Judged(
        verdict, f"{way} by NCCL's choice", "", "across host bridges NCCL prefers it", fix, "", "", found.gb_s
    )


def grouped(check: str, judged: Sequence[tuple[Pair, Judged]], known: Machine) -> Iterator[Finding]:
    """A finding for each different judgement, with the pairs that it is of and the range of what they reach."""
    groups: dict[tuple[str, ...], list[tuple[Pair, Judged]]] = {}
    for pair, one in judged:
        key = (one.verdict, one.seen, one.wanted, one.cause, one.fix)
        groups.setdefault(key, []).append((pair, one))
    for same in groups.values():
        one = same[0][1]
        speed = _range([entry.gb_s for _, entry in same])
        other = _range([entry.other_gb_s for _, entry in same])
        said = [one.seen, *([speed] if speed else []), *([f"{other} {one.other}"] if other else [])]
        subject = _pairs([pair for pair, _ in same], len(judged), known)
        yield Finding(
            check, subject, one.verdict, "; ".join(said), one.wanted, one.cause, one.fix, one.source, one.symptom
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
