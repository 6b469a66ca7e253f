"""The rounds of the peer-to-peer test, and the choice of the pairs that are measured alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.paths import ROOT

RIGHT = {"ok": True, "outcome": "ok", "error": None}


@pytest.fixture
def rounds(module: Callable[[str], Any]) -> Any:
    return module("nccl_rounds")


@pytest.fixture
def watch(module: Callable[[str], Any]) -> Iterator[Any]:
    """Yields a Watch of the program."""
    made = module("nccl_watch").Watch(SimpleNamespace(quick=False, alone=False, timeout_s=9), "")
    yield made
    made.close()


@pytest.fixture
def a_round(module: Callable[[str], Any]) -> Any:
    """Returns the step of a round of two pairs."""
    step = module("nccl_watch").step
    singles = [step("copy", "", f"bytes {a}-{b}", [], [a, b], None, 30) for a, b in ((0, 3), (1, 2))]
    return step("round", "", "bytes round 1", [], [0, 1, 2, 3], None, 30, singles)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9, 16])
def test_every_two_gpus_meet_once(rounds: Any, count: int) -> None:
    made = rounds.tournament(range(count))
    assert len(made) == count - 1 + count % 2
    met = [pair for one in made for pair in one]
    assert sorted(met) == [(a, b) for a in range(count) for b in range(a + 1, count)]
    for one in made:
        gpus = [gpu for pair in one for gpu in pair]
        assert len(gpus) == len(set(gpus)) == count - count % 2  # with an odd number one GPU has no partner


def test_some_pairs_in_both_directions(rounds: Any) -> None:
    asked = [(7, 2), (2, 7), (3, 5), (5, 3), (2, 5)]
    made = rounds.rounds_of(asked)
    assert sorted(pair for one in made for pair in one) == sorted(asked)
    assert [rounds.is_alone(one) for one in made if (2, 7) in one] == [False]
    assert [rounds.is_alone(one) for one in made if (2, 5) in one] == [True]
    assert rounds.rounds_of([]) == []


@pytest.mark.parametrize(
    ("gpus", "below", "shared", "between"),
    [
        (4, 2, {("PIX", 1): 4, ("SYS", 2): 8}, 2),
        (8, 2, {("PIX", 1): 8, ("PHB", 2): 16, ("SYS", 2): 32}, 4),
        (8, 4, {("PIX", 1): 24, ("SYS", 2): 16, ("SYS", 4): 16}, 4),
        (16, 4, {("PIX", 1): 48, ("PHB", 2): 12, ("PHB", 4): 52, ("SYS", 2): 4, ("SYS", 4): 124}, 8),
    ],
)
def test_how_many_transfers_share_a_link(
    rounds: Any, gpus: int, below: int, shared: dict[tuple[str, int], int], between: int
) -> None:
    """The table of docs/reference/nccl_p2p.md: PCIe switches with `below` GPUs and one uplink each, on two sockets."""
    found: Counter[tuple[str, int]] = Counter()
    most = 0
    for made in rounds.rounds_of([(a, b) for a in range(gpus) for b in range(gpus) if a != b]):
        for phase in rounds.phases_of([("", *pair) for pair in made]):
            over = [(a // below, b // below) for _, a, b in phase if a // below != b // below]
            up, down = Counter(start for start, _ in over), Counter(end for _, end in over)
            sockets = Counter((2 * a // gpus, 2 * b // gpus) for _, a, b in phase if 2 * a // gpus != 2 * b // gpus)
            most = max([most, *sockets.values()])
            for _, a, b in phase:
                inside = a // below == b // below
                kind = "PIX" if inside else "PHB" if 2 * a // gpus == 2 * b // gpus else "SYS"
                found[kind, 1 if inside else max(up[a // below], down[b // below])] += 1
    assert (found, most) == (shared, between)
    table = (ROOT / "docs/reference/nccl_p2p.md").read_text()
    for (_, transfers), pairs in shared.items():
        assert f"{transfers} ({pairs}" in table


def test_phases_use_a_gpu_once_and_links_have_kinds(rounds: Any) -> None:
    parts = [("a", 0, 3), ("b", 3, 0), ("c", 1, 2), ("d", 2, 1)]
    assert rounds.phases_of(parts) == [[parts[0], parts[2]], [parts[1], parts[3]]]
    links = {
        (2, (0, 0), "PHB"): "NV2",
        (0, (6, 6), "SYS"): "NV6",
        (0, (6, 5), "SYS"): "NV5",
    }  # the last two: NVSwitches
    links |= {(0, (0, 0), "PXB"): "PXB", (0, (0, 0), None): None}
    assert {words: rounds.link_of(*words) for words in links} == links


def test_one_pair_of_each_kind_and_every_outlier(rounds: Any) -> None:
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    kinds = {pair: "NV2" if set(pair) in ({0, 1}, {2, 3}) else "SYS" for pair in pairs}
    even = dict.fromkeys(pairs, 40.0)
    assert rounds.to_measure(kinds, even) == dict.fromkeys([(0, 1), (0, 2), (1, 0), (2, 0)], "kind")
    slow = {**even, (0, 1): 31.0, (3, 1): None}
    assert rounds.to_measure(kinds, slow) == {
        (0, 1): "outlier", (0, 2): "kind", (2, 0): "kind", (2, 3): "kind", (3, 1): "no speed", (3, 2): "kind",
    }  # fmt: skip
    most_are_slow = {pair: 40.0 if pair in ((1, 2), (2, 1)) else 12.0 for pair in pairs if kinds[pair] == "SYS"}
    assert set(rounds.to_measure(kinds, most_are_slow)) == set(most_are_slow)
    one_way = {(0, 2): 40.0, (2, 0): 10.0}
    assert rounds.to_measure(kinds, one_way) == {(0, 2): "kind", (2, 0): "outlier"}
    assert rounds.to_measure(kinds, {}) == {}


def test_hangs_and_lost_gpus_leave_the_other_pairs(watch: Any, a_round: Any) -> None:
    watch.look_for_lost = lambda _gpus: None
    answers: dict[str, Any] = {"bytes 0-3": RIGHT}
    (again,) = watch.after({"ok": False, "outcome": "hang", "error": "no end", "init": False}, [a_round], answers)
    assert (again["id"], again["timeout_s"]) == ("bytes 1-2", 10)
    assert answers["bytes round 1"]["parts"] == ["bytes 1-2"]
    watch.lost[3] = "GPU 3 no longer works"
    answers: dict[str, Any] = {}
    (left,) = watch.possible([a_round], answers)
    assert ([part["id"] for part in left["parts"]], left["gpus"]) == (["bytes 1-2"], [1, 2])
    assert answers == {"bytes 0-3": {"ok": None, "outcome": "not run", "error": "GPU 3 no longer works"}}


HANG = {"ok": False, "outcome": "hang", "error": ""}


@pytest.mark.parametrize(("alone", "errors"), [(RIGHT, ["round 2 of the pairs (bytes)"]), (HANG, [])])
def test_a_round_that_fails_though_its_pairs_are_right_alone_is_an_error(
    watch: Any, module: Callable[[str], Any], alone: dict[str, Any], errors: list[str]
) -> None:
    made = module("nccl_tiers").Examination(watch.options, watch)
    answers = {"bytes 0-3": RIGHT, "bytes 1-2": alone, "bytes round 2": HANG | {"parts": ["bytes 1-2"]}}
    made.merge(answers)
    assert [error["where"] for error in made.document["errors"]] == errors
    assert set(answers) == {"bytes 0-3", "bytes 1-2"}


def test_what_was_measured_alone_is_added_to_the_round(watch: Any, module: Callable[[str], Any]) -> None:
    in_round: dict[str, Any] = RIGHT | {"round_gb_s": 40.0}
    answers = {"bytes 0-1": in_round, "bytes 0-1 alone": RIGHT | {"gb_s": 48.0, "latency_us": 2.0}}
    answers |= {"bytes 1-0": in_round, "bytes 1-0 alone": module("nccl_watch").not_run("the time limit is over")}
    module("nccl_tiers").Examination(watch.options, watch).merge(answers)
    assert answers["bytes 0-1"] == {**in_round, "gb_s": 48.0, "latency_us": 2.0}
    assert answers["bytes 1-0"] == in_round  # what the round found stays
