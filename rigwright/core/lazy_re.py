"""Regular expressions of modules, compiled at their first use: a command uses few of those that it imports."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

__all__ = ["compile"]

if TYPE_CHECKING:
    from re import compile
else:

    def compile(pattern: str | bytes, flags: int = 0) -> Any:
        """As `re.compile`, but not a `re.Pattern`; an error in the pattern is raised at its first use."""
        return _Lazy(pattern, flags)


_METHODS = ("match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer", "flags")


class _Lazy:
    """Stands for a compiled regular expression; has its methods from the first use on."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self._given: tuple[Any, int] = (pattern, flags)
        self.pattern = pattern

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        compiled = re.compile(*self._given)
        vars(self).update({method: getattr(compiled, method) for method in _METHODS})
        return getattr(compiled, name)

    def __repr__(self) -> str:
        return repr(re.compile(*self._given))
