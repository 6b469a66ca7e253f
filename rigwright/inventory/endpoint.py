"""Checks the address, user, port and files with which a connection is made. Nothing else decides what is a valid one.

The values come from an inventory, from `--address` or from ssh_config, and go into ssh_config's conditions, into the
command line of a ProxyCommand, and into commands that a person pastes. So they contain no white space, no control
character, no character that a shell expands, and do not begin as an option does.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

from msgspec import Struct

from rigwright.core import lazy_re
from rigwright.core.errors import InputError
from rigwright.core.numbers import number

_NAME = r"\w[\w.-]{0,252}"
_IPV6 = r"[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:.]{1,45}(?:%[\w.-]{1,15})?"
_USER = r"\w[\w.+@\\-]{0,127}"
_PLACE = lazy_re.compile(
    rf"(?:(?P<user>{_USER})@)?(?:(?P<name>{_NAME}|\[{_IPV6}\])(?::(?P<port>[0-9]{{1,5}}))?|(?P<bare>{_IPV6}))"
)
PLACE = "USER@HOST or USER@HOST:PORT, such as ubuntu@192.168.1.20; IPv6 in brackets where a port follows"
"""What a text such as that of `--address` must be."""


class Endpoint(Struct, frozen=True):
    """Where to log in. `user`: "" if it is not given; `port`: 0 if it is not given."""

    address: str
    user: str = ""
    port: int = 0


def parse(text: str) -> Endpoint | None:
    """The endpoint of a text such as `ubuntu@192.168.1.20:22`; None for any other text."""
    match = _PLACE.fullmatch(text)
    if not match or (match["port"] and not 0 < int(match["port"]) < 65536):
        return None
    user = match["user"] or ""
    address = (match["bare"] or match["name"]).strip("[]")
    if user.endswith("\\") or not _is_address(address):
        return None
    return Endpoint(address, user, int(match["port"] or 0))


def _is_address(text: str) -> bool:
    if re.fullmatch(_NAME, text):
        return True
    if ":" not in text:
        return False
    import ipaddress

    with contextlib.suppress(ValueError):
        return bool(re.fullmatch(_IPV6, text) and ipaddress.IPv6Address(text))
    return False


def checked_address(value: Any, variable: str, where: str) -> str:
    """The name or IP address. Raises InputError for any other value."""
    text = _text(value)
    if not _is_address(text):
        expected = "a name or an IP address: letters, digits, . _ and -, without a user or a port"
        raise _wrong(value, variable, where, expected)
    return text


def checked_user(value: Any, variable: str, where: str) -> str:
    """The name of a user. Raises InputError for any other value."""
    text = _text(value)
    if not re.fullmatch(_USER, text) or text.endswith("\\"):
        raise _wrong(value, variable, where, "a user: letters, digits, . _ + @ \\ and -")
    return text


def checked_port(value: Any, variable: str, where: str) -> int:
    """The number of a port. Raises InputError for any other value."""
    port = number(value)
    if port is None or not 0 < port < 65536:
        raise _wrong(value, variable, where, "a number from 1 to 65535")
    return port


def checked_path(value: Any, variable: str, where: str) -> str:
    """The path of a file on this machine. Raises InputError for a value that is no path."""
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 4096:
        raise _wrong(value, variable, where, "the path of a file, in one line")
    return value


def _text(value: Any) -> str:
    return str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""


def _wrong(value: Any, variable: str, where: str, expected: str) -> InputError:
    text = repr(value)
    return InputError(where, f"{variable} is {text if len(text) <= 80 else f'{text[:80]}...'}", expected)
