"""The peer-to-peer test as text: the bandwidth of each pair of GPUs, and the scaling with the number of GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rigwright.facts.nccl.p2p_test import CopyResult, Document, Pair, SendRecvResult
from rigwright.report.labels import as_is

_WRONG = {"wrong data": "BAD", "hang": "HANG", "error": "ERR", "not run": "?"}
_MEANING = {"BAD": "wrong data", "HANG": "no end", "ERR": "ended with an error", "?": "not run"}
_NARROW = 12
"""With more GPUs than this a cell has four columns, so that 16 GPUs fit into 80 columns."""


_NAMED = 4
"""So many pairs that were measured alone are named."""

_SCALING_COLUMNS = 68
"""Columns of the whole table of scaling."""


def lines(document: Document, columns: int = 80) -> Iterator[str]:
    """The lines as rich markup for a terminal of that many columns, at most 80 columns wide for 16 GPUs."""
    if document.pairs:
        yield ""
        yield "[bold]Copies[/], GB/s one way, from row to column [dim](h: through the host, no peer access)[/]"
        yield from _matrix(document, _copy_cell)
        yield from _alone(document)
    if any(pair.collective for pair in document.pairs):
        yield from _nccl(document)
    if document.scaling:
        yield from _scaling(document, columns >= _SCALING_COLUMNS)


def _matrix(document: Document, cell: Callable[[Pair], str]) -> Iterator[str]:
    numbers = sorted({index for pair in document.pairs for index in (pair.start, pair.end)})
    wide = 4 if len(numbers) > _NARROW else 6
    cells = {(pair.start, pair.end): cell(pair) for pair in document.pairs}
    yield "  [dim]" + " " * 3 + "".join(str(number).rjust(wide) for number in numbers) + "[/]"
    for a in numbers:
        row = "".join(_coloured(cells.get((a, b), "-" if a == b else ""), wide) for b in numbers)
        yield f"  [dim]{a:>3}[/]{row}"
    if odd := [f"{mark}: {meaning}" for mark, meaning in _MEANING.items() if mark in cells.values()]:
        yield f"  [dim]    {'; '.join(odd)}[/]"


def _coloured(text: str, wide: int) -> str:
    shown = as_is(text.rjust(wide))
    if text in _WRONG.values():
        return f"[bold red]{shown}[/]"
    if text.endswith(("h", "s", "n", "-", "m")):
        return f"[dim]{shown}[/]"
    return f"[green]{shown}[/]"


def _number(gb_s: float | None) -> str:
    if gb_s is None:
        return "?"
    return f"{gb_s:.0f}" if gb_s >= 9.95 else f"{gb_s:.1f}"


def _copy_cell(pair: Pair) -> str:
    copy, staged = pair.bytes, pair.staged
    if copy is None:
        return "?"
    if copy.outcome == "refused":
        return _failed(staged) or f"{_number(_speed(staged))}h"
    return _failed(copy) or _number(_speed(copy))


def _speed(result: CopyResult | None) -> float | None:
    """The speed that was measured alone, else in a round."""
    if result is None:
        return None
    return result.round_gb_s if result.gb_s is None else result.gb_s


def _alone(document: Document) -> Iterator[str]:
    """The pairs of the matrix that were measured alone, if the others were measured in rounds."""
    shown = {
        (pair.start, pair.end): pair.staged if pair.bytes and pair.bytes.outcome == "refused" else pair.bytes
        for pair in document.pairs
    }
    alone = [f"{a}-{b}" for (a, b), result in shown.items() if result and result.gb_s is not None]
    together = sum(result is not None and _speed(result) is not None for result in shown.values()) - len(alone)
    if together:
        few = alone if len(alone) <= _NAMED else [*alone[:_NAMED], f"{len(alone) - _NAMED} more"]
        yield f"  [dim]alone: {', '.join(few) or 'none'}; {together} others beside other pairs[/]"


def _failed(result: CopyResult | SendRecvResult | None) -> str:
    return "?" if result is None else _WRONG.get(result.outcome, "")


_LETTER = {"SHM": "s", "NET": "n", "mixed": "m", "P2P": ""}


def _sent_cell(pair: Pair) -> str:
    sent = pair.collective
    if sent is None:
        return "?"
    return _failed(sent) or f"{_number(_speed(sent))}{_LETTER.get(sent.kind or '', '?')}"


def _nccl(document: Document) -> Iterator[str]:
    """One line where all pairs use the same transport, else a matrix."""
    sent = [pair.collective for pair in document.pairs if pair.collective]
    transports = {(result.ok, result.transport) for result in sent}
    version = f"NCCL {document.versions.nccl}" if document.versions.nccl else "NCCL"
    if len(transports) == 1 and sent[0].ok:
        speeds = [result.gb_s for result in sent if result.gb_s is not None]
        rounds = [result.round_gb_s for result in sent if result.gb_s is None and result.round_gb_s is not None]
        without = [result.without_p2p for result in sent if result.without_p2p]
        off = [result.gb_s for result in without if result.gb_s is not None]
        rest = f"; {min(off):.3g} with P2P off" if off and sent[0].kind == "P2P" else ""
        speed = f", {min(speeds):.3g} GB/s or more" if speeds else ""
        speed += f" for {len(speeds)} alone, {min(rounds):.3g} or more in rounds" if rounds else ""
        yield f"[bold]{version}[/]: {as_is(sent[0].transport or '?')} for all {len(sent)} pairs{speed}{rest}"
        return
    yield f"[bold]{version}[/], GB/s one way [dim](s: shared memory, n: network, m: mixed; else P2P)[/]"
    yield from _matrix(document, _sent_cell)


def _scaling(document: Document, whole: bool) -> Iterator[str]:
    """The table of scaling; the parts of a step only where the table is `whole`."""
    synthetic = "a matrix product, then the all-reduce of 100 million numbers, no overlap"
    yield f"[bold]Scaling[/] [dim](synthetic: {synthetic})[/]"
    parts = "   product   all-reduce" if whole else ""
    yield f"  [dim]GPUs   step ms{parts}   speed-up   efficiency[/]"
    for row in document.scaling:
        if row.step_ms is None or row.speed_up is None or row.efficiency is None:
            yield f"  {row.gpus:>4}   [bold red]{as_is(row.error or 'not run')}[/]"
            continue
        parts = f"{row.product_ms or 0.0:>10.1f}{row.all_reduce_ms or 0.0:>13.1f}" if whole else ""
        yield f"  {row.gpus:>4}{row.step_ms:>10.1f}{parts}{row.speed_up:>11.2f}{row.efficiency * 100:>11.0f} %"
