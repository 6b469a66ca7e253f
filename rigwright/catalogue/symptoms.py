"""Error messages with cause and fix, and the driver's Xid codes (symptoms.yml and xids.yml)."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from rigwright.catalogue import loader
from rigwright.catalogue.loader import document
from rigwright.core.errors import InputError
from rigwright.core.schema import convert
from rigwright.core.yaml_source import Mapping as YamlMapping
from rigwright.core.yaml_source import did_you_mean

Kind = Literal["driver", "boot", "fabric", "p2p", "power", "hardware", "tooling"]
Level = Literal["fail", "warn", "info"]

_FLAGS = re.IGNORECASE | re.MULTILINE
_XID = re.compile(
    r"\bxid\b(?:\s*\((?:PCI:)?[0-9a-f:.]+\))?\s*(?:error|code|number)?\s*[:=#]?\s*(\d{1,3})\b(?![:.][0-9a-f])",
    re.IGNORECASE,
)
_WORD = re.compile(r"[a-z0-9_]{3,}")
_COMMON = frozenset(
    "the and not was when after this that with than then from its are has for into does yet some one".split()
)


@dataclass(frozen=True)
class Symptom:
    """A problem with the messages that it causes: `patterns` find them in a text; `texts` are examples."""

    title: str
    kind: Kind
    level: Level
    patterns: tuple[str, ...]
    texts: tuple[str, ...]
    cause: str
    fix: str
    source: str
    key: str = ""

    def in_text(self, text: str) -> bool:
        """Whether a pattern matches a text."""
        return any(re.search(pattern, text, _FLAGS) for pattern in self.patterns)


@dataclass(frozen=True)
class Xid:
    """An error code in the kernel log. `action` is the key of the recommended action, `do` its text.

    `first_steps`: steps before that action. `application`: whether the cause is usually a program. `again`: the action
    if the Xid occurs again (empty: unknown).
    """

    name: str
    meaning: str
    action: str
    application: bool = False
    first_steps: tuple[str, ...] = ()
    again: str = ""
    code: int = 0
    do: str = ""


@dataclass(frozen=True)
class _Symptoms:
    symptoms: dict[str, Symptom]


@dataclass(frozen=True)
class _Xids:
    actions: dict[str, str]
    xids: dict[str, Xid]
    sources: dict[str, str] = field(repr=False)


@lru_cache(maxsize=1)
def symptoms() -> Mapping[str, Symptom]:
    """All symptoms by key. Raises InputError for invalid patterns, and for a text that no pattern matches."""
    source = document(loader.FOLDER / "symptoms.yml")
    table: _Symptoms = convert(source, _Symptoms, source.where(), "")
    for key, symptom in table.symptoms.items():
        _check(key, symptom, source["symptoms"][key])
    return {key: dataclasses.replace(symptom, key=key) for key, symptom in table.symptoms.items()}


def _check(key: str, symptom: Symptom, row: YamlMapping) -> None:
    if "key" in row:
        raise InputError(row.where("key"), "'key'", "nothing: the row's name is the key")
    for name, values in (("patterns", symptom.patterns), ("texts", symptom.texts)):
        if not values:
            raise InputError(row.where(name), f"'{key}' has no {name}", f"{name}: one at least")
    for at, pattern in enumerate(symptom.patterns):
        try:
            re.compile(pattern, _FLAGS)
        except re.error as error:
            raise InputError(row["patterns"].where(at), f"{pattern!r}: {error}", "a regular expression") from None
    for at, text in enumerate(symptom.texts):
        if not symptom.in_text(text):
            raise InputError(row["texts"].where(at), f"no pattern of '{key}' finds this text", "one that it finds")


def _xid_table() -> _Xids:
    return loader.table("xids.yml", _Xids, "xids")


@lru_cache(maxsize=1)
def xids() -> Mapping[int, Xid]:
    """All Xids by code. Raises InputError for an invalid code or an unknown action."""
    table, source = _xid_table(), document(loader.FOLDER / "xids.yml")
    known = {}
    for key, xid in table.xids.items():
        if not key.isdecimal():
            raise InputError(source["xids"].where(key), f"'{key}' is no Xid", 'a number in quotes, such as "79"')
        if xid.action not in table.actions:
            wrong = f"the action '{xid.action}'{did_you_mean(xid.action, table.actions)}"
            raise InputError(source["xids"][key].where("action"), wrong, ", ".join(table.actions))
        known[int(key)] = dataclasses.replace(xid, code=int(key), do=table.actions[xid.action])
    return known


def symptoms_in(text: str) -> tuple[Symptom, ...]:
    """All symptoms that match a text, in the order of the file."""
    return tuple(symptom for symptom in symptoms().values() if symptom.in_text(text))


def xids_in(text: str) -> tuple[int, ...]:
    """The Xid codes in a text, each once, without SXids: `NVRM: Xid (PCI:0000:3b:00): 79`, `Xid 79`, `xid:79`."""
    return tuple(dict.fromkeys(int(code) for code in _XID.findall(text)))


def nearest(text: str, count: int = 3) -> tuple[Symptom, ...]:
    """Suggestions for a text without a match: symptoms that share its rarest words, best first."""
    query_words = _words(text)
    rows = {
        key: _words(" ".join((key, symptom.title, *symptom.texts, symptom.cause)))
        for key, symptom in symptoms().items()
    }
    spread = Counter(word for words in rows.values() for word in words)
    titles = {key: _words(symptom.title) for key, symptom in symptoms().items()}
    scores = {
        key: sum(math.log(len(rows) / spread[word]) * (2 if word in titles[key] else 1) for word in query_words & words)
        for key, words in rows.items()
    }
    best = sorted((key for key in scores if scores[key] > 0), key=lambda key: (-scores[key], key))
    return tuple(symptoms()[key] for key in best[:count])


def _words(text: str) -> frozenset[str]:
    return frozenset(word.rstrip("s") for word in _WORD.findall(text.lower()) if word not in _COMMON)


def xid_source() -> str:
    """The source of the Xids' meanings."""
    return _xid_table().sources["meaning"]
