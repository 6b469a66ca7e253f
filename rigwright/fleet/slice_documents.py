"""The order of a slice and its answer as texts: a line about the slice, and a line for each host. What workers say of progress.

The lines of hosts are those of `worker_documents.py`. A line that is damaged is an error of its host only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any

from rigwright.core.control_characters import one_line
from rigwright.core.lazy_dataclasses import dataclass
from rigwright.core.typed_json import MAX_CHARACTERS, Codec, dumps, loads
from rigwright.fleet import worker_documents
from rigwright.history.machines import RecordedMachines

MOST_CHARACTERS = 2 * MAX_CHARACTERS
"""The limit of an answer. A worker leaves out the longest reports until the others fit."""
_LONGEST_LOST = 253


@dataclass(frozen=True)
class SliceOrder:
    """What a worker is to do. `call`: a random name for all slices that are given out together; `run`: the run's id.

    `reboots`: how many hosts may reboot at a time; `may_fail`: with more failed hosts no further one begins, None for no limit;
    `lost`: a host that did not come back from a reboot, "" for none. `orders`: the texts for the hosts. `recorded`: the machines of the
    history, which all hosts of the run share.
    """

    call: str
    run: str
    reboots: int
    may_fail: int | None
    lost: str
    orders: tuple[str, ...] = ()
    recorded: RecordedMachines = field(default_factory=RecordedMachines)


@dataclass(frozen=True)
class SliceAnswer:
    """What a worker has done. `lost`: a host that did not come back from a reboot. `answers`: the texts about the hosts, in their order."""

    lost: str
    answers: tuple[str, ...] = ()


_CODEC = Codec(left_out=frozenset({(SliceOrder, "orders"), (SliceAnswer, "answers")}))


def order_text(order: SliceOrder) -> str:
    """The order as text."""
    return "\n".join((dumps(_CODEC.write(order, SliceOrder)), *order.orders))


def read_order(text: object) -> SliceOrder:
    """The order that `order_text` wrote; its lines are not checked. Raises ValueError for another text."""
    first, *orders = _lines(text)
    head: dict[str, Any] = _CODEC.read(loads(first), dict[str, Any])
    read: SliceOrder = _CODEC.read(head, SliceOrder)
    if read.reboots < 1:
        raise ValueError("no host may reboot")
    return SliceOrder(read.call, read.run, read.reboots, read.may_fail, read.lost, tuple(orders), read.recorded)


def answer_text(answer: SliceAnswer, hosts: Iterable[str]) -> str:
    """The answer as text of at most MOST_CHARACTERS. `hosts`: their names; one whose report does not fit gets an error in its place."""
    lines = list(answer.answers)
    names = list(hosts)
    room = MOST_CHARACTERS - 4096
    for at in sorted(range(len(lines)), key=lambda number: -len(lines[number])):
        if sum(len(line) + 1 for line in lines) <= room:
            break
        error = ValueError(f"its report has {len(lines[at]) >> 20} MiB, too much for the answer of its slice")
        lines[at] = worker_documents.failure_text(names[at], error)
    return "\n".join((dumps({"lost": answer.lost[:_LONGEST_LOST]}), *lines))


def failed_text(error: BaseException) -> str:
    """The answer about a slice of which no host was begun."""
    return worker_documents.failure_text("", error)


def read_answer(text: object, hosts: int) -> SliceAnswer:
    """The answer about so many hosts; their lines are not checked. Raises ValueError for another text."""
    if isinstance(text, str) and len(text) > MOST_CHARACTERS:
        raise ValueError(f"{len(text) >> 20} MiB of text, more than {MOST_CHARACTERS >> 20} MiB")
    first, *answers = _lines(text)
    head = loads(first)
    if isinstance(head, dict) and isinstance(head.get("failed"), str):
        raise ValueError(f"the worker could not do the work ({one_line(head['failed'])[:500]})")
    if not isinstance(head, dict) or head.keys() != {"lost"} or not isinstance(head["lost"], str):
        raise ValueError("no object with lost")
    if len(answers) != hosts:
        raise ValueError(f"it is about {len(answers)} hosts, not {hosts}")
    return SliceAnswer(head["lost"][:_LONGEST_LOST], tuple(answers))


def _lines(text: object) -> list[str]:
    if not isinstance(text, str):
        raise ValueError(f"{type(text).__name__}, which is no text")
    return text.split("\n")


def progress_text(hosts: Iterable[tuple[str, str, str]]) -> str:
    """What a worker's hosts do: the name, the activity, and done, failed or not attempted of one that has ended, else ""."""
    return dumps([[name, activity[:_LONGEST_ACTIVITY], result] for name, activity, result in hosts])


_LONGEST_ACTIVITY = 200
_RESULTS = ("", "done", "failed", "not attempted")


def read_progress(texts: Iterable[object]) -> Iterator[tuple[str, str, str]]:
    """What the workers say of their hosts; what is no progress is left out."""
    for text in texts:
        try:
            said = _CODEC.read(loads(text), list[tuple[str, str, str]])
        except (ValueError, TypeError):
            continue
        for name, activity, result in said:
            if result in _RESULTS:
                yield name, one_line(activity)[:_LONGEST_ACTIVITY], result
