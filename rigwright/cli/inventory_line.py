"""The line of the inventory that keeps the change of `invoke try` or `invoke limits.find`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from rigwright.cli import init_update
from rigwright.core.errors import RigwrightError
from rigwright.core.files import atomic
from rigwright.core.process import prompt
from rigwright.inventory.model import Host

_ENDINGS = ("", ".yml", ".yaml", ".json")


class Line(Struct, frozen=True):
    """A variable with its value. `place`: where it is to be written, FILE:LINE where it stands there already.

    `file`: the host's own file of variables, which may not exist yet; None when it has several, or one that is no YAML.
    """

    variable: str
    value: Any
    place: str
    file: Path | None

    @property
    def text(self) -> str:
        """The line, or the lines of a value with more levels."""
        return init_update.flow(self.variable, self.value)


def in_words(variable: str, value: Any) -> str:
    """The change on one line: `driver: {branch: '580'}`."""
    return " ".join(init_update.flow(variable, value).split())


def of(host: Host, folder: Path, variable: str, value: Any) -> Line:
    """The line for a host of an inventory whose `host_vars/` are in `folder`."""
    own = folder / "host_vars"
    paths = [path for ending in _ENDINGS if (path := own / f"{host.name}{ending}").exists()]
    first = paths[0] if paths else own / f"{host.name}.yml"
    origin, _, _ = (at := host.origins.get(variable, "")).rpartition(":")
    if origin == str(first) or origin.startswith(f"{first}/"):
        return Line(variable, value, at, Path(origin))
    plain = not first.is_dir() and first.suffix != ".json"
    return Line(variable, value, str(first), first if plain else None)


def settle(
    line: Line,
    write: bool,
    proof: Callable[[], object],
    text: Any,
    otherwise: str = "The next provision takes it back, unless you write this into",
) -> bool:
    """Writes the line into the host's file with `write` or a yes on the terminal; returns whether it is there.

    Where it is not written, `otherwise` and the line with its place are shown. `proof` reads the inventory again; when
    it raises an error, the file is as it was.
    """
    if line.file is not None and not write and prompt.on_terminal():
        with text.paused():
            question = f"Write `{in_words(line.variable, line.value)}` into {line.file}? [y/N] "
            write = prompt.answer(question).lower() in ("y", "yes")
    problem = ""
    if line.file is not None and write:
        try:
            with atomic.alone(line.file.parent):
                given = atomic.text_of(line.file)
                fresh = init_update.with_value(given, str(line.file), line.variable, line.value)
                atomic.change({line.file: fresh}, proof)
        except RigwrightError as error:
            problem = f" ({error.found})"
        else:
            text.plain(f"written: {line.file}")
            return True
    text.plain(f"{otherwise} {line.place}{problem}:")
    for one in line.text.splitlines():
        text.plain(f"    {one}")
    return False
