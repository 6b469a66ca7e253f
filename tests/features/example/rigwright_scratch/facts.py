"""The room of a folder on a host."""

from __future__ import annotations

from rigwright.core.command import Result, command
from rigwright.facts import Fact, Unavailable


def room_gib(path: str) -> Fact[int]:
    """The free room of the file system of a folder, GiB."""

    def parse(result: Result) -> int:
        if result.code != 0:
            raise Unavailable(f"there is no folder {path}")
        return int(result.text.splitlines()[1]) // 2**20

    return Fact(f"scratch.room:{path}", command("df", "--output=avail", "-k", path), parse)
