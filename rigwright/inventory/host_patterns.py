"""The patterns of --host and of `hosts:` in a play, as in Ansible: the hosts that they select, and their errors."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from rigwright.core.errors import UsageError
from rigwright.core.yaml_source import did_you_mean

NO_MATCH = "matches no host"


class HostPatterns(Struct, frozen=True):
    """The names from which patterns select. `groups`: by name all hosts of a group."""

    path: Path
    hosts: Mapping[str, Any]
    groups: Mapping[str, tuple[str, ...]]

    @property
    def folder(self) -> Path:
        """The folder of the inventory, with its rigs, templates and variables."""
        return self.path if self.path.is_dir() else self.path.parent

    def names(self, pattern: str) -> list[str]:
        """The names of the hosts that match a pattern in Ansible's syntax.

        A part is NAME, GROUP, glob, ~regex, GROUP[0] or GROUP[1:3]. Parts are joined by `:` or `,`; `:&` selects the
        intersection, and `:!` excludes hosts. Raises UsageError when a part matches nothing, or when no host is left.
        """
        chosen: list[str] = []
        parts = self._parts(pattern)
        if parts and all(part[0] in "!&" for part in parts):
            chosen = list(self._members("all"))
        order = {"!": 2, "&": 1}
        for part in sorted(parts, key=lambda text: order.get(text[0], 0)):
            names = self._matching(part[1:] if part[0] in "!&" else part, pattern)
            if part[0] == "!":
                chosen = [name for name in chosen if name not in names]
            elif part[0] == "&":
                chosen = [name for name in chosen if name in names]
            else:
                chosen = list(dict.fromkeys([*chosen, *names]))
        if not chosen:
            raise UsageError(f"--host {pattern}", NO_MATCH, "a host, a group or a pattern", self.fix())
        return chosen

    def _parts(self, pattern: str) -> list[str]:
        """Splits a pattern at `,` and `:`, but not inside `[1:3]` or a known name with colons (an IPv6 address)."""
        known = {*self.hosts, *self.groups}
        parts: list[str] = []
        for piece in re.split(r",(?![^\[]*\])", pattern):
            whole = piece.strip().lstrip("!&") in known
            parts += [piece] if whole else re.split(r":(?![^\[]*\])", piece)
        return [part.strip() for part in parts if part.strip()]

    def _matching(self, part: str, pattern: str) -> list[str]:
        """The hosts of one part of a pattern.

        `[...]` is a subscript if the text before it matches hosts, else part of a glob. Raises UsageError for an
        unknown name, an invalid regex, or a subscript that is out of range.
        """
        if part in self.hosts:
            return [part]
        match = re.fullmatch(r"([^~].*)\[(?:(-?\d+)|(\d+)[:-](\d*))\]", part)
        if match and (names := self._alike(match[1], pattern)):
            if match[2] is None:
                return names[int(match[3]) : int(match[4]) + 1 if match[4] else None]
            at = int(match[2])
            if not -len(names) <= at < len(names):
                wanted = f"a number from 0 to {len(names) - 1}, or from the end -1 to -{len(names)}"
                raise UsageError(f"--host {pattern}", f"{match[1]} has {len(names)} hosts, so no [{at}]", wanted)
            return [names[at]]
        names = self._alike(part, pattern)
        if not names and not part.startswith("~") and part not in self.groups:
            known = [*self.hosts, *self.groups]
            hint, todo = did_you_mean(part, known), self.fix()
            if part == "localhost":
                todo = f"invoke init --local adds this machine; {todo}"
            described = self.folder / "host_vars" / f"{part}.yml"
            if "/" not in part and described.exists():
                hint = f"; {described} describes one, and no file of {self.path} has it"
                todo = f"invoke init --host {part} --address USER@HOST adds it; {todo}"
            raise UsageError(
                f"--host {pattern}", f"no host or group '{part}'{hint}", "a host, a group or a pattern", todo
            )
        return names

    def _alike(self, part: str, pattern: str) -> list[str]:
        """The hosts of the groups that match a name, glob or ~regex, then the hosts that match a glob or regex.

        A name that matches no group is compared with the names of hosts. Raises UsageError for an invalid regex.
        """
        if part.startswith("~"):
            try:
                match = re.compile(part[1:]).match
            except re.error as error:
                wanted = "a regular expression after ~, such as ~v100-0[1-4]"
                problem = f"'{part[1:]}' is not a valid regular expression: {error}"
                raise UsageError(f"--host {pattern}", problem, wanted, self.fix()) from None
        else:
            match = re.compile(fnmatch.translate(part)).match
        groups = [name for name in self.groups if match(name)]
        hosts = [name for name in self.hosts if match(name)] if not groups or re.search(r"^~|[.?*\[]", part) else []
        return [name for group in groups for name in self._members(group)] + hosts

    def _members(self, group: str) -> tuple[str, ...]:
        return self.groups.get(group, tuple(self.hosts))

    def fix(self) -> str:
        """What to type in place of a pattern that is refused: the hosts of the inventory."""
        names = list(self.hosts)
        if not names:
            return f"{self.path} declares no host; invoke init adds one"
        return f"{self.path} has: {', '.join(names[:8])}{', ...' * (len(names) > 8)}; `all` means every one"
