"""Groups faults of GPU pairs: the faults of all pairs of one GPU are one fault."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def common_gpus(bad: Collection[frozenset[T]], every: Collection[frozenset[T]]) -> tuple[T, ...]:
    """The GPUs with two or more peers whose pairs all have a fault. `bad`: the pairs with a fault. `every`: all pairs.
    () if every pair has a fault."""
    if set(bad) == set(every):
        return ()
    gpus = dict.fromkeys(gpu for pair in every for gpu in pair)
    of_gpu = {gpu: {pair for pair in every if gpu in pair} for gpu in gpus}
    return tuple(gpu for gpu, pairs in of_gpu.items() if len(pairs) > 1 and pairs <= set(bad))


def faults(bad: Collection[frozenset[T]], every: Collection[frozenset[T]]) -> dict[frozenset[T], int]:
    """The number of the fault of each bad pair. Pairs of a common GPU have one number; other pairs that share GPUs
    too."""
    common = common_gpus(bad, every)
    numbers = {pair: at for pair in bad for at, gpu in reversed([*enumerate(common)]) if gpu in pair}
    waiting = [pair for pair in bad if pair not in numbers]
    for number in range(len(common), len(common) + len(waiting)):
        connected = waiting[:1]
        for pair in connected:  # grows while it is read
            connected += [other for other in waiting if other & pair and other not in connected]
        waiting = [pair for pair in waiting if pair not in connected]
        numbers |= dict.fromkeys(connected, number)
    return numbers
