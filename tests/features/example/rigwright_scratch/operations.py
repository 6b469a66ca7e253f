"""Operations of the feature `scratch`."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.core.change import Change, Note
from rigwright.core.schema import OctalMode
from rigwright.facts import Facts
from rigwright.operations import file, operation
from rigwright_scratch.variables import Scratch


@operation()
def present(facts: Facts, *, scratch: Scratch) -> Iterator[Change | Note]:
    """The folder is there, and every user may write into it."""
    yield from file.directory(facts, path=scratch.path, mode=OctalMode("1777"))
