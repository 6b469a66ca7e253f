"""A dict that cannot be changed, for values that several hosts use."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict that raises TypeError when it is to be changed. `copy` and `|` make an ordinary dict."""

    def _refuse(self, *_given: Any, **_named: Any) -> NoReturn:
        raise TypeError("this dict is shared and cannot be changed; make a copy: dict(it)")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = _refuse
    __ior__ = _refuse

    def __reduce__(self) -> tuple[type[dict[Any, Any]], tuple[dict[K, V]]]:
        return dict, (dict(self),)
