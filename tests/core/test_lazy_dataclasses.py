"""A dataclass whose methods are made at its first use is in every way one of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
from dataclasses import FrozenInstanceError, InitVar, field, fields, is_dataclass, replace
from typing import ClassVar

import pytest

from rigwright.core.lazy_dataclasses import FEW, dataclass


@dataclass(frozen=True)
class Point:
    """Two numbers, and names that do not count."""

    x: int
    y: int = 2
    names: list[str] = field(default_factory=list, compare=False, repr=False)


@dataclass(frozen=True)
class Named(Point):
    name: str = "a"

    def __repr__(self) -> str:
        return f"<{self.name}>"


@dataclass
class Counted:
    number: int
    seen: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seen.append(self.number)


def test_a_first_use_of_each_kind() -> None:
    @dataclass(frozen=True)
    class Fresh:
        x: int = 1

    assert [one.name for one in fields(Fresh)] == ["x"]
    assert Fresh() == Fresh(1)

    @dataclass(frozen=True)
    class Other:
        x: int = 1

    assert (hash(Other(2)) == hash(Other(2)), repr(Other(2)).endswith("Other(x=2)")) == (True, True)


def test_it_compares_hashes_and_shows_as_the_standard_one() -> None:
    @dataclasses.dataclass(frozen=True)
    class Standard:
        x: int
        y: int = 2
        names: list[str] = field(default_factory=list, compare=False, repr=False)

    assert Point(1, names=["n"]) == Point(1, 2, [])
    assert Point(1) != Point(3)
    assert hash(Point(1)) == hash(Standard(1))
    assert repr(Point(1)) == "Point(x=1, y=2)"
    assert Point.__match_args__ == ("x", "y", "names")
    assert Point.__doc__ == "Two numbers, and names that do not count."
    assert (is_dataclass(Point), is_dataclass(Point(1))) == (True, True)
    assert replace(Point(1), y=5) == Point(1, 5)
    assert dataclasses.asdict(Point(1)) == {"x": 1, "y": 2, "names": []}
    assert not hasattr(Point, "names")
    assert Point.y == 2
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'x'"):
        Point()  # type: ignore[call-arg]


def test_a_frozen_one_is_not_changed() -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del point.x
    assert point.x == 1


def test_a_derived_one_has_the_fields_of_its_base_and_its_own_methods() -> None:
    assert [one.name for one in fields(Named)] == ["x", "y", "names", "name"]
    assert repr(Named(1, name="b")) == "<b>"
    assert Named(1) != Point(1)


def test_one_that_is_not_frozen() -> None:
    one = Counted(1)
    one.number = 2
    assert (one.number, one.seen) == (2, [1])
    with pytest.raises(TypeError):
        hash(one)


def test_copies_and_pickles() -> None:
    assert copy.deepcopy(Point(1, names=["n"])).names == ["n"]
    assert pickle.loads(pickle.dumps(Point(4))) == Point(4)


def test_an_instance_that_was_made_without_init_compares() -> None:
    @dataclass(frozen=True)
    class Fresh:
        x: int

    a, b = (object.__new__(Fresh) for _ in range(2))
    for one in (a, b):
        object.__setattr__(one, "x", 1)
    assert a == b
    assert repr(a).endswith("Fresh(x=1)")


def test_options_that_need_more_methods() -> None:
    @dataclass(frozen=True, order=True)
    class Ordered:
        x: int

    @dataclass(eq=False)
    class Same:
        x: int

    assert Ordered(1) < Ordered(2)
    assert Same(1) != Same(1)
    assert len({Same(1), Same(1)}) == 2


def test_threads_that_use_it_first_at_the_same_time() -> None:
    for _ in range(20):

        @dataclass(frozen=True)
        class Fresh:
            x: int
            y: list[int] = field(default_factory=list)
            z: int = 3

        made: list[Fresh] = []
        begin = threading.Barrier(8)

        def use(fresh: type[Fresh] = Fresh, made: list[Fresh] = made, begin: threading.Barrier = begin) -> None:
            begin.wait()
            made.append(fresh(1))

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made == [Fresh(1, [], 3)] * 8


def test_only_what_is_used_is_made() -> None:
    @dataclass(frozen=True)
    class Fresh:
        x: int = 1
        names: list[str] = field(default_factory=list)

    fresh = Fresh(2)
    assert fresh.names == []
    assert "method" in Fresh.__eq__.__name__  # a stand-in
    assert fresh == Fresh(2)
    assert (Fresh.__eq__.__name__, Fresh.__repr__.__qualname__.rpartition(".")[2]) == ("__eq__", "__repr__")
    assert [one.name for one in fields(Fresh)] == ["x", "names"]
    assert Fresh(2, ["n"]) != fresh
    with pytest.raises(FrozenInstanceError):
        fresh.x = 3  # type: ignore[misc]


def test_one_that_is_not_frozen_has_no_hash_from_the_start() -> None:
    @dataclass
    class Fresh:
        x: int = 1

    assert Fresh.__hash__ is None
    assert Fresh() == Fresh(1)
    assert Fresh.__hash__ is None


def test_an_own_eq_is_kept_beside_a_made_hash() -> None:
    @dataclass(frozen=True)
    class Fresh:
        x: int = 1

        def __eq__(self, other: object) -> bool:
            return True

    assert Fresh(1) == Fresh(2)
    assert hash(Fresh(1)) != hash(Fresh(2))


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("derived", [True, False])
def test_the_first_instances_are_as_the_later_ones(frozen: bool, derived: bool) -> None:
    @dataclass(frozen=frozen)
    class Base:
        a: int
        b: list[int] = field(default_factory=list)
        c: str = "c"

    @dataclass(frozen=frozen)
    class Derived(Base):
        d: float = 0.5
        e: dict[str, int] = field(default_factory=dict, repr=False)

    made: type[Base] = Derived if derived else Base
    for _ in range(FEW + 3):
        one = made(1, c="x")
        assert vars(one) == {"a": 1, "b": [], "c": "x", **({"d": 0.5, "e": {}} if derived else {})}
        assert made(1).b is not made(1).b
        for args, named in (((), {}), ((1,), {"a": 2}), ((1, [], "c", 0.5, {}, 7), {}), ((1,), {"nonsense": 1})):
            with pytest.raises(TypeError, match=r"__init__\(\)"):
                made(*args, **named)
    assert made.__init__.__code__.co_varnames[:3] == ("self", "a", "b")


def test_a_first_instance_is_checked_by_its_own_method() -> None:
    @dataclass(frozen=True)
    class Checked:
        x: int

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("below 0")

    assert Checked(1).x == 1
    with pytest.raises(ValueError, match="below 0"):
        Checked(-1)


def test_unusual_fields_are_those_of_the_standard_library() -> None:
    @dataclass
    class Unusual:
        kind: ClassVar[str] = "k"
        x: int
        given: InitVar[int] = 0
        made: int = field(init=False, default=3)
        named: int = field(default=4, kw_only=True)

        def __post_init__(self, given: int) -> None:
            self.x += given

    one = Unusual(1, 2, named=5)
    assert (one.x, one.made, one.named, Unusual.kind) == (3, 3, 5, "k")
    assert [each.name for each in fields(one)] == ["x", "made", "named"]


def test_the_parameters_of_a_class_are_those_that_were_given() -> None:
    @dataclass(frozen=True)
    class Fresh:
        x: int = 1

    fields(Fresh)
    assert Fresh.__dataclass_params__.frozen  # type: ignore[attr-defined]

    @dataclasses.dataclass(frozen=True)
    class Standard(Fresh):
        y: int = 2

    assert Standard(1, 3) == Standard(y=3)
    with pytest.raises(TypeError, match="non-frozen"):

        @dataclasses.dataclass
        class Open(Fresh):
            y: int = 2
