"""Secret texts, and their replacement by `(secret)` in everything that is written or shown.

A text becomes a known secret when it is read or typed. From then on `redacted` replaces it, also in quoted and encoded
forms.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

SHOWN = "(secret)"
SHORTEST = 4
"""Characters. A shorter text is not replaced, because it is part of many words."""

_LINE = 8
"""Characters. A shorter line of a secret with several lines is not replaced alone."""

_KEYS = ("api", "access", "secret", "private", "auth", "encryption")
_NAMES = frozenset(
    (*"pass password passwd passphrase secret token credential credentials".split(), *(f"{kind}key" for kind in _KEYS))
)
"""The last words of names that tell a secret; so does `key` after one of _KEYS."""

_RIGWRIGHTS_OWN = frozenset(
    ("action", "check", "command", "event", "kind", "level", "run", "schema", "source", "status", "verdict")
)
"""Keys of documents whose values are words of rigwright, which a secret of the same text must not replace."""


class Secret:
    """A text that is printed, formatted and written to JSON as `(secret)`, and that cannot be pickled.

    `source` is the text, or a function that returns it, which is called when the text is needed.
    """

    __slots__ = ("_source",)

    def __init__(self, source: str | Callable[[], Any]) -> None:
        self._source = source
        if isinstance(source, str):
            learn(source)

    @property
    def known(self) -> bool:
        """Whether the text is known without a call of the source."""
        return isinstance(self._source, str)

    @property
    def value(self) -> Any:
        """The plain value, for templates; a text unless a template made another. Raises what the source raises."""
        if isinstance(self._source, str):
            return self._source
        value = self._source()
        learn(value)
        return value

    def reveal(self) -> str:
        """The plain text; send it only to a program's stdin. Raises what its source raises."""
        return str(self.value)

    def __reduce__(self) -> str:
        raise TypeError("a secret is not sent anywhere")

    def __repr__(self) -> str:
        return SHOWN

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._source == self._source

    def __hash__(self) -> int:
        return hash(self._source)


def is_name(name: str) -> bool:
    """Whether the name is one of a secret: it ends in password, token, secret, api_key, ..."""
    *before, last = name.lower().split("_")
    return last in _NAMES or (last == "key" and before[-1:] != [] and before[-1] in _KEYS)


_HOLD_NOTHING = frozenset((str, int, float, bool, type(None)))


def holds(value: Any) -> bool:
    """Whether a value is a secret or contains one at any depth, also in the fields of a Struct."""
    if type(value) in _HOLD_NOTHING:
        return False
    if isinstance(value, Secret):
        return True
    if isinstance(value, Mapping):
        return any(map(holds, value.values()))
    if isinstance(value, Struct):
        return any(holds(getattr(value, name)) for name in value.__struct_fields__)
    return isinstance(value, (list, tuple)) and any(map(holds, value))


def sealed(value: Any) -> Any:
    """The value with every text and number in it as a secret, at any depth."""
    if isinstance(value, Mapping):
        return {key: sealed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [sealed(item) for item in value]
    return Secret(str(value)) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else value


def learn(value: Any) -> None:
    """Makes every text in a value a known secret, which is replaced from now on."""
    global _known
    fresh = {form for text in _texts(value) if len(text) >= SHORTEST for form in _forms(text)}
    with _lock:
        if fresh <= _known.forms:
            return
        _known = _Known(_known.forms | fresh)


def forget() -> None:
    """Forgets all secrets; for tests, which share a process."""
    global _known
    with _lock:
        _known = _Known(frozenset())


def redacted(text: str) -> str:
    """The text with `(secret)` in place of every known secret."""
    return _known.redacted(text) if _known.forms else text


def redacted_document(value: Any) -> Any:
    """A document with `(secret)` in place of every known secret in its texts. Keys, and words of rigwright, stay."""
    if not _known.forms:
        return value
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {
            key: item if key in _RIGWRIGHTS_OWN and isinstance(item, str) else redacted_document(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redacted_document(item) for item in value]
    return value


class _Known:
    """The forms of all known secrets. It never changes, so that any thread may read it."""

    def __init__(self, forms: frozenset[str]) -> None:
        self.forms = forms
        self._lengths: dict[str, list[int]] = {}
        """The lengths of the forms with a beginning, the longest first, because a secret may contain another."""
        for beginning, length in sorted({(form[:SHORTEST], -len(form)) for form in forms}):
            self._lengths.setdefault(beginning, []).append(-length)

    def redacted(self, text: str) -> str:
        if len(self.forms) <= _FEW and not any(form in text for form in self.forms):
            return text
        parts, begin, at = [], 0, 0
        while at <= len(text) - SHORTEST:
            lengths = self._lengths.get(text[at : at + SHORTEST], ())
            length = next((length for length in lengths if text[at : at + length] in self.forms), 0)
            if length:
                parts += [text[begin:at], SHOWN]
                begin = at + length
            at += length or 1
        return "".join([*parts, text[begin:]])


_FEW = 200
"""Up to this number of forms, searching for each of them is faster than one walk over the text."""

_lock = threading.Lock()
_known = _Known(frozenset())


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
        yield str(value)


def _forms(text: str) -> set[str]:
    """The text, its lines, and what quoting and encoding make of them."""
    import base64
    import html
    import json
    from urllib.parse import quote, quote_plus

    lines = [line.strip() for line in text.splitlines()]
    plain = {text, text.strip(), " ".join(text.split()), *(line for line in lines if len(line) >= _LINE)}
    forms = set(plain)
    for each in plain:
        escaped = html.escape(each)
        forms |= {repr(each)[1:-1], json.dumps(each)[1:-1], json.dumps(each, ensure_ascii=False)[1:-1]}
        forms |= {each.replace("'", "'\"'\"'"), each.replace("'", "\\'"), each.replace("[", "\\[")}
        forms |= {escaped, html.escape(each, quote=False), escaped.replace("&#x27;", "&#39;")}
        forms |= {escaped.replace("&#x27;", "&#39;").replace("&quot;", "&#34;"), quote_plus(each, errors="replace")}
        forms |= {quote(each, errors="replace"), quote(each, safe="", errors="replace")}
        data = each.encode("utf-8", "replace")
        encoded = {data.hex()}
        for before in range(3):  # base64 of a longer text has one of three forms of this one
            whole = base64.b64encode(b"\0" * before + data).decode("ascii").rstrip("=")
            core = whole[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
            encoded |= {core, core.replace("+", "-").replace("/", "_")}
        forms |= {form for form in encoded if len(form) >= _LINE}
    return {form for form in forms if len(form) >= SHORTEST}
