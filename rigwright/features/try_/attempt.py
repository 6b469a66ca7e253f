"""What `invoke try` learns about a host: two measurements, their comparison, and what became of the change.

A quantity is measured in several rounds. Two measurements of it differ when no round of one lies among the rounds of
the other and their medians are further apart than LEAST_PERCENT; anything else is noise (docs/guide/try.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from rigwright.core.host_result import HostResult

LEAST_PERCENT = 2.0
"""Differences of the medians up to this count as noise, even where the rounds are apart: what a boot changes by itself
is not in the spread of the rounds. Assumed; no source gives a figure for every GPU."""

LEAST_ROUNDS = 4
"""With fewer rounds on a side nothing is said about a quantity: four and four are apart by chance once in 35 times."""

Judgement = Literal["better", "worse", "higher", "lower", "noise", "unknown"]
Verdict = Literal["faster", "slower", "mixed", "same", "refused"]
KEEP_IF = ("faster", "no-slower", "ask", "never")
Decision = Literal["", "kept", "back", "left"]


class Quantity(Struct, frozen=True):
    """What is measured in rounds. `decides`: more of it is faster; False: it is shown, and decides nothing."""

    title: str
    unit: str
    decides: bool = True


QUANTITIES: Mapping[str, Quantity] = {
    "products": Quantity("products, all GPUs", "TFLOPS"),
    "slowest_gpu": Quantity("products, slowest GPU", "TFLOPS"),
    "copies": Quantity("copies, all pairs", "GB/s"),
    "slowest_copy": Quantity("copies, slowest pair", "GB/s"),
    "all_reduce": Quantity("NCCL all-reduce", "GB/s"),
    "clock": Quantity("clock, slowest GPU", "MHz", False),
    "power": Quantity("power, all GPUs", "W", False),
    "temperature": Quantity("hottest GPU", "°C", False),
    "per_watt": Quantity("products per watt", "GFLOPS/W", False),
}
"""By key, in the order in which they are shown."""


class Measurement(Struct, frozen=True):
    """One measurement of a host.

    `conditions`: what was in force, by name. `passed`: how many results of the peer-to-peer test are ok; `failures`:
    the others with their outcome; `transport`: how NCCL connected the GPUs. `rounds`: the values of each quantity of
    QUANTITIES, in order. `missing`: what was not measured, and why. `wrong`: the failed findings of the checks, by
    check and subject.
    """

    at: str
    conditions: dict[str, str] = field(default_factory=dict)
    passed: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    transport: str = ""
    rounds: dict[str, tuple[float, ...]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)


class Row(Struct, frozen=True):
    """A quantity before and after: medians, half of the range of the rounds, and the change of the median in percent;
    None where it was not measured."""

    quantity: str
    before: float | None
    after: float | None
    before_spread: float | None
    after_spread: float | None
    percent: float | None
    judgement: Judgement


class Difference(Struct, frozen=True):
    """A condition that differs between two measurements."""

    name: str
    before: str
    after: str


class Comparison(Struct, frozen=True):
    """Two measurements side by side. `broken`: what failed only after, `repaired`: what failed only before, one
    sentence each."""

    rows: tuple[Row, ...]
    differs: tuple[Difference, ...]
    broken: tuple[str, ...]
    repaired: tuple[str, ...]
    verdict: Verdict


class Attempt(HostResult, frozen=True):
    """What a run of `try` did on one host.

    `change`: what was changed for this run, as `driver: 580`; "" when nothing was. `before_run`: the run that measured
    `before`. `failure`: why the change could not be made, or measured. `decision`: kept, back (the host is as before),
    left (it is neither), "" for a run that changed nothing; `why` is its reason. `write`: the line for the inventory of
    a change that was kept, `write_to`: the place for it.
    """

    KEY = "try"

    change: str = ""
    note: str = ""
    before: Measurement | None = None
    after: Measurement | None = None
    before_run: str = ""
    comparison: Comparison | None = None
    failure: str = ""
    decision: Decision = ""
    why: str = ""
    write: str = ""
    write_to: str = ""

    @property
    def stands(self) -> Measurement | None:
        """The measurement of the state that the run left the host in; None when it was not measured."""
        if self.decision == "left":
            return None
        return self.before if self.decision == "back" else self.after or self.before


def row(quantity: str, before: Sequence[float], after: Sequence[float]) -> Row:
    """The comparison of the rounds of a quantity."""
    from statistics import median

    was, now = (median(values) if values else None for values in (before, after))
    spreads = [(max(values) - min(values)) / 2 if values else None for values in (before, after)]
    percent = None if was is None or now is None or not was else (now / was - 1) * 100
    return Row(quantity, was, now, spreads[0], spreads[1], percent, _judgement(quantity, before, after, percent))


def _judgement(quantity: str, before: Sequence[float], after: Sequence[float], percent: float | None) -> Judgement:
    if percent is None or min(len(before), len(after)) < LEAST_ROUNDS:
        return "unknown"
    apart = max(before) < min(after) or min(before) > max(after)
    if not apart or abs(percent) <= LEAST_PERCENT:
        return "noise"
    if QUANTITIES[quantity].decides:
        return "better" if percent > 0 else "worse"
    return "higher" if percent > 0 else "lower"


def compare(before: Measurement, after: Measurement) -> Comparison:
    """The comparison of two measurements of one machine."""
    values = [(name, before.rounds.get(name, ()), after.rounds.get(name, ())) for name in QUANTITIES]
    rows = tuple(row(*each) for each in values if each[1] or each[2])
    broken, repaired = tuple(_only(after, before)), tuple(_only(before, after))
    names = dict.fromkeys((*before.conditions, *after.conditions))
    conditions = [(name, before.conditions.get(name, ""), after.conditions.get(name, "")) for name in names]
    differs = tuple(Difference(*each) for each in conditions if each[1] != each[2])
    return Comparison(rows, differs, broken, repaired, _verdict(rows, broken, repaired))


FOLLOWS = "not run: the peer-to-peer test fails"
"""Why a part of the load was not measured; the peer-to-peer test names the failure."""


def _only(one: Measurement, other: Measurement) -> list[str]:
    """What failed or could not be measured only in `one`: the peer-to-peer test by outcome, the load, the checks.

    What follows from a failed peer-to-peer test is left out: steps that were not run after it, and the checks that
    judge it.
    """
    outcomes: dict[str, list[str]] = {}
    for name, outcome in one.failures.items():
        if name not in other.failures:
            outcomes.setdefault(outcome, []).append(name)
    if len(outcomes) > 1:
        outcomes.pop("not run", None)
    texts = []
    for outcome, names in outcomes.items():
        more = f"; and {len(names) - 3} more" if len(names) > 3 else ""
        texts.append(f"peer-to-peer test: {outcome}: {'; '.join(names[:3])}{more}")
    texts += [f"{part}: {why}" for part, why in one.missing.items() if part not in other.missing and why != FOLLOWS]
    wrong = {name: seen for name, seen in one.wrong.items() if name not in other.wrong}
    return texts + [f"{name}: {seen}" for name, seen in wrong.items() if not (outcomes and name.startswith("p2p."))]


def _verdict(rows: Sequence[Row], broken: Sequence[str], repaired: Sequence[str]) -> Verdict:
    if broken:
        return "refused"
    judgements = {row.judgement for row in rows}
    better, worse = "better" in judgements or bool(repaired), "worse" in judgements
    if better and worse:
        return "mixed"
    return "faster" if better else "slower" if worse else "same"


def decide(comparison: Comparison, keep_if: str) -> tuple[bool | None, str]:
    """Whether --keep-if keeps the change, and why; None: the user decides. A change with new failures is never
    kept."""
    why = WORDS[comparison.verdict]
    if comparison.verdict == "refused":
        return False, f"{why}: {comparison.broken[0]}"
    if keep_if == "ask":
        return None, why
    if keep_if == "never":
        return False, f"{why}; --keep-if never"
    kept = comparison.verdict == "faster" or (keep_if == "no-slower" and comparison.verdict == "same")
    return kept, f"{why}; --keep-if {keep_if}"


WORDS: Mapping[Verdict, str] = {
    "faster": "it is faster",
    "slower": "it is slower",
    "mixed": "some of it is faster, some slower",
    "same": "no difference beyond noise",
    "refused": "it does not work as before",
}
