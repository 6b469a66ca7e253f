"""Parses and checks the names in an inventory: hosts with ranges and ports, variables, and groups."""

from __future__ import annotations

import re
from collections.abc import Collection

from rigwright.core import lazy_re
from rigwright.core.desired import variable_names
from rigwright.core.errors import InputError
from rigwright.core.host_ranges import expand
from rigwright.core.yaml_source import did_you_mean

_PORT = lazy_re.compile(r"(?:\[(?P<bracketed>[^\[\]]+)\]|(?P<name>(?:[^:\[\]]|\[[^\]]*\])+)):(?P<port>\d{1,5})")
_HOST = lazy_re.compile(r"[\w.:\[\]-]+")
_LONGEST = 255
"""The most characters of a name, as in DNS."""


def hosts(pattern: str, where: str) -> tuple[list[str], int | None]:
    """Expands a host name with ranges, and splits off its port: `node[01:16]`, `gw:2222`, `[2001:db8::1]:22`.

    Returns the host names and the port, or None without a port. Raises InputError for an invalid name, port or range.
    """
    if len(pattern) > _LONGEST:
        raise InputError(where, f"the name of a host has {len(pattern)} characters", f"at most {_LONGEST}")
    match = _PORT.fullmatch(pattern)
    if match and match["bracketed"] and ":" not in match["bracketed"]:
        match = None  # no IPv6 address in the brackets
    name = (match["bracketed"] or match["name"]) if match else pattern
    if not _HOST.fullmatch(name):
        raise InputError(
            where, f"'{pattern}' is no name of a host", "letters, digits, . _ - and ranges such as [01:16]"
        )
    if match and not 0 < int(match["port"]) < 65536:
        raise InputError(where, f"'{pattern}': the port {match['port']}", "a number from 1 to 65535")
    try:
        return expand(name), int(match["port"]) if match else None
    except ValueError as error:
        raise InputError(where, str(error), "a range such as [01:16] or [a:c]") from None


def variable(name: str, where: str) -> None:
    """Raises InputError for an invalid variable name, and for a misspelled variable of rigwright (`limts`)."""
    if not re.fullmatch(r"[A-Za-z_]\w*", name) or len(name) > _LONGEST:
        raise InputError(where, f"'{name[:80]}' is no name of a variable", "letters, digits and _")
    if name in variable_names():
        return
    import difflib

    if near := difflib.get_close_matches(name, variable_names(), n=1, cutoff=0.82):
        problem = f"unknown variable '{name}'; did you mean '{near[0]}'?"
        raise InputError(
            where, problem, f"one of {', '.join(variable_names())}; a variable of your own has a name unlike these"
        )


def group(name: str, known: Collection[str], where: str) -> None:
    """Raises InputError for a group that is not in `known`; the message contains the most similar known group."""
    if name not in known:
        hint = did_you_mean(name, known)
        raise InputError(where, f"no group '{name}' is declared{hint}", f"a section [{name}], or [{name}:children]")
