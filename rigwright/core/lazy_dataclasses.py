"""The decorator `dataclass` of the standard library, which makes the methods of a class when the class is first used.

Making `__init__`, `__eq__` and the others compiles six texts for each class: a fifth of the processor time of a short command, which uses few of its
classes. Here the fields are made when the class is instantiated, when they are read, or when a dataclass is derived from it, `__init__` when
it has been called a few times, and the others when one of them is first used; from then on they are those of `dataclasses.dataclass`. A type
checker sees that function itself.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from functools import partial
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
    """The class, with a stand-in for each method of _METHODS that it does not define itself.

    `__init__` is made alone, with the fields: most classes are never compared, hashed or shown.
    """
    missing = [
        name for name in _METHODS if vars(cls).get(name) is None
    ]  # Python sets __hash__ to None beside an own __eq__
    if options.get("eq", True) and not options.get("frozen") and "__hash__" in missing:
        missing.remove("__hash__")
        cls.__hash__ = None  # type: ignore[assignment]
    own: dict[str, Any] = {}
    """The attributes of the class before its fields were made."""
    left = set(missing)
    """The methods that are still stand-ins."""

    def make(method: str = "") -> None:
        """Makes the fields, and what is wanted: `__init__`, or one of the others and with it all others."""
        with _lock:
            if isinstance(vars(cls).get(_FIELDS), _Fields):
                own.update({name: value for name, value in vars(cls).items() if name not in (*missing, *_NOT_COPIED)})
                own["__doc__"] = cls.__doc__ or cls.__name__  # in place of its signature, which takes long to make
                frozen = bool(options.get("frozen"))
                inherits = any(_FIELDS in vars(base) for base in cls.__mro__[1:])
                _make(cls, {**_NOTHING, "frozen": frozen and inherits}, own, [])
                cls.__dataclass_params__.frozen = frozen  # type: ignore[attr-defined]
                if "__init__" in left and (init := _few_times(cls, frozen, partial(make, "__init__"))):
                    cls.__init__ = init  # type: ignore[misc]
                    return
            if method == "__init__" and method in left:
                _make(cls, {**options, "repr": False, "eq": False}, own, ["__init__"])
                left.discard(method)
            elif method in left:
                others = sorted(left - {"__init__"})
                _make(cls, {**options, "init": False}, own, others)
                left.difference_update(others)

    def stand_in(name: str) -> Callable[..., Any]:
        def method(self: Any, *given: Any, **named: Any) -> Any:
            make(name)
            return getattr(cls, name)(self, *given, **named)

        return method

    setattr(cls, _FIELDS, _Fields(make))
    for name in missing:
        setattr(cls, name, stand_in(name))
    if options.get("frozen"):
        cls.__setattr__ = _refuse  # type: ignore[method-assign]
        cls.__delattr__ = _refuse  # type: ignore[assignment, method-assign]
    return cls


_NOTHING = {"init": False, "repr": False, "eq": False}
FEW = 8
"""So many instances are made before the `__init__` of their class is compiled, which takes as long as a hundred of them."""


def _few_times(cls: type, frozen: bool, compile_it: Callable[[], None]) -> Callable[..., None] | None:
    """An `__init__` that does what the compiled one does, without being compiled; None for a class with unusual fields.

    After FEW calls, and for arguments that do not fit, it calls `compile_it`, which replaces it, and leaves the call to the compiled one.
    """
    fields = vars(cls)[_FIELDS].values()
    if any(field._field_type is not dataclasses._FIELD or field.kw_only or not field.init for field in fields):  # type: ignore[attr-defined]
        return None
    names = tuple(field.name for field in fields)
    missing = dataclasses.MISSING
    defaults = {field.name: field.default for field in fields if field.default is not missing}
    factories = {field.name: field.default_factory for field in fields if field.default_factory is not missing}
    calls = 0

    def __init__(self: Any, *args: Any, **named: Any) -> None:
        nonlocal calls
        calls += 1
        given = dict(zip(names, args, strict=False))
        fits = len(args) <= len(names) and not (named.keys() & given.keys() or named.keys() - frozenset(names))
        given.update(named)
        if (
            calls > FEW
            or not fits
            or any(name not in given and name not in defaults and name not in factories for name in names)
        ):
            compile_it()
            cls.__init__(self, *args, **named)  # type: ignore[misc]
            return
        put = object.__setattr__ if frozen else setattr
        for name in names:
            put(self, name, given[name] if name in given else defaults[name] if name in defaults else factories[name]())
        if hasattr(self, "__post_init__"):
            self.__post_init__()

    return __init__


def _make(cls: type, options: dict[str, Any], own: dict[str, Any], methods: list[str]) -> None:
    """Gives the class its fields and these methods, as `dataclasses.dataclass` makes them of a class with these attributes.

    That one is made first, because another thread may use the class meanwhile: it meets a stand-in, which waits, until all else is there.
    """
    made: type = dataclasses.dataclass(**options)(type(cls)(cls.__name__, cls.__bases__, dict(own)))
    for name, value in vars(cls).copy().items():
        if isinstance(value, dataclasses.Field):
            if name in vars(made):
                setattr(cls, name, vars(made)[name])
            else:
                delattr(cls, name)
    for name in ("__dataclass_params__", "__match_args__", "__doc__", *methods):
        if name in vars(made):
            setattr(cls, name, vars(made)[name])
        elif name in methods:
            delattr(cls, name)  # such as __eq__ with eq=False
    setattr(cls, _FIELDS, vars(made)[_FIELDS])


_NOT_COPIED = (_FIELDS, "__setattr__", "__delattr__", "__dict__", "__weakref__")


def _refuse(self: object, name: str, *_value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change the field {name!r} of {type(self).__name__}")
