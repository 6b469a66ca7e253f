"""The GPU that faults of pairs have in common: one bad GPU is one fault, and two bad links are two."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def common_gpus(bad: Collection[frozenset[T]], every: Collection[frozenset[T]]) -> tuple[T, ...]:
    """The GPUs that have a fault with all of their peers, two or more, on a machine where other pairs have none.

    `bad`: the pairs with a fault. `every`: all pairs. () when every pair has a fault: the GPUs do not tell the cause
    then.
    """
    if set(bad) == set(every):
        return ()
    gpus = dict.fromkeys(gpu for pair in every for gpu in pair)
    of_gpu = {gpu: {pair for pair in every if gpu in pair} for gpu in gpus}
    return tuple(gpu for gpu, pairs in of_gpu.items() if len(pairs) > 1 and pairs <= set(bad))


def faults(bad: Collection[frozenset[T]], every: Collection[frozenset[T]]) -> dict[frozenset[T], int]:
    """The number of the fault of each bad pair: that of a common GPU, else that of all pairs that are connected with
    each other."""
    common = common_gpus(bad, every)
    found = {pair: at for pair in bad for at, gpu in reversed([*enumerate(common)]) if gpu in pair}
    waiting = [pair for pair in bad if pair not in found]
    number = len(common)
    while waiting:
        connected, reached = [waiting.pop(0)], 0
        while reached < len(connected):
            more = [pair for pair in waiting if pair & connected[reached]]
            connected += more
            waiting = [pair for pair in waiting if pair not in more]
            reached += 1
        found |= dict.fromkeys(connected, number)
        number += 1
    return found
