"""The decorator `dataclass` of the standard library, which makes the methods of a class when the class is first used.

Making `__init__`, `__eq__` and the others compiles six texts for each class: a fifth of the processor time of a short command, which uses few of its
classes. Here they are made when the class is instantiated, when its fields are read, or when a dataclass is derived from it; from
then on they are those of `dataclasses.dataclass`. A type checker sees that function itself.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

_FIELDS = "__dataclass_fields__"
_OPTIONS = {"frozen", "eq", "repr"}
_METHODS = ("__repr__", "__eq__", "__hash__", "__init__")
_lock = threading.RLock()

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, **options: Any) -> Any:
        """As `dataclasses.dataclass`; with other options than _OPTIONS, such as `slots`, the class is made at once."""
        if options.keys() - _OPTIONS:
            return dataclasses.dataclass(cls, **options)
        if cls is None:
            return lambda given: _lazy(given, options)
        return _lazy(cls, options)


class _Fields:
    """Stands for the fields of a class until they are read, which makes the class."""

    def __init__(self, make: Callable[[], None]) -> None:
        self._make = make

    def __get__(self, _instance: object, owner: type) -> Any:
        self._make()
        return getattr(owner, _FIELDS)


def _lazy(cls: type, options: dict[str, Any]) -> type:
    """The class, with a stand-in for each method of _METHODS that it does not define itself."""
    missing = [
        name for name in _METHODS if vars(cls).get(name) is None
    ]  # Python sets __hash__ to None beside an own __eq__

    def make() -> None:
        with _lock:
            if isinstance(vars(cls).get(_FIELDS), _Fields):
                _make(cls, options, missing)

    def stand_in(name: str) -> Callable[..., Any]:
        def method(self: Any, *given: Any, **named: Any) -> Any:
            make()
            return getattr(cls, name)(self, *given, **named)

        return method

    setattr(cls, _FIELDS, _Fields(make))
    for name in missing:
        setattr(cls, name, stand_in(name))
    if options.get("frozen"):
        cls.__setattr__ = _refuse  # type: ignore[method-assign]
        cls.__delattr__ = _refuse  # type: ignore[assignment, method-assign]
    return cls


def _make(cls: type, options: dict[str, Any], missing: list[str]) -> None:
    """Gives the class what `dataclasses.dataclass` makes of a class like it.

    That one is made first, because another thread may use the class meanwhile: it meets a stand-in, which waits, until all else is there.
    """
    own = {name: value for name, value in vars(cls).items() if name not in (*missing, *_NOT_COPIED)}
    made: type = dataclasses.dataclass(**options)(type(cls)(cls.__name__, cls.__bases__, own))
    for name, value in vars(cls).copy().items():
        if isinstance(value, dataclasses.Field):
            if name in vars(made):
                setattr(cls, name, vars(made)[name])
            else:
                delattr(cls, name)
    for name in ("__dataclass_params__", "__match_args__", "__doc__", *missing):
        if name in vars(made):
            setattr(cls, name, vars(made)[name])
        elif name in missing:
            delattr(cls, name)  # such as __eq__ with eq=False
    setattr(cls, _FIELDS, vars(made)[_FIELDS])


_NOT_COPIED = (_FIELDS, "__setattr__", "__delattr__", "__dict__", "__weakref__")


def _refuse(self: object, name: str, *_value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change the field {name!r} of {type(self).__name__}")
