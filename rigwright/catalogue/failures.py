"""Failures that people met: texts with their cause and fix, and the driver's Xid codes: symptoms.yml and xids.yml."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from rigwright.catalogue import reading
from rigwright.catalogue.reading import document, rows_sourced
from rigwright.errors import InputError
from rigwright.typed import convert
from rigwright.yamlfile import Mapping as YamlMapping
from rigwright.yamlfile import did_you_mean

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
    """What a program or the kernel prints when this is wrong. `patterns` find it in a text; `texts` are examples."""

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
        """Whether one of the patterns is in a text."""
        return any(re.search(pattern, text, _FLAGS) for pattern in self.patterns)


@dataclass(frozen=True)
class Xid:
    """A code in the driver's kernel log. `action` is one of a few words, `do` what it means, `first_steps` what to try
    before. `application`: mostly the program's fault. `again`: what it means when it comes back (empty: not known)."""

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
    """Every symptom by its key. Raises InputError: no pattern, no text, no regular expression, a text that none finds."""
    found = document(reading.FOLDER / "symptoms.yml")
    made: _Symptoms = convert(found, _Symptoms, found.where(), "")
    for key, one in made.symptoms.items():
        _check(key, one, found["symptoms"][key])
    return {key: dataclasses.replace(one, key=key) for key, one in made.symptoms.items()}


def _check(key: str, one: Symptom, row: YamlMapping) -> None:
    if "key" in row:
        raise InputError(row.where("key"), "'key'", "nothing: the row's name is the key")
    for name, given in (("patterns", one.patterns), ("texts", one.texts)):
        if not given:
            raise InputError(row.where(name), f"'{key}' has no {name}", f"{name}: one at least")
    for at, pattern in enumerate(one.patterns):
        try:
            re.compile(pattern, _FLAGS)
        except re.error as error:
            raise InputError(row["patterns"].where(at), f"{pattern!r}: {error}", "a regular expression") from None
    for at, text in enumerate(one.texts):
        if not one.in_text(text):
            raise InputError(row["texts"].where(at), f"no pattern of '{key}' finds this text", "one that it finds")


@lru_cache(maxsize=1)
def xids() -> Mapping[int, Xid]:
    """Every Xid in use by its code. Raises InputError: a key that is no code, an action that the file does not explain."""
    found = document(reading.FOLDER / "xids.yml")
    rows_sourced(found, "xids")
    made: _Xids = convert(found, _Xids, found.where(), "")
    known = {}
    for key, one in made.xids.items():
        if not key.isdecimal():
            raise InputError(found["xids"].where(key), f"'{key}' is no Xid", 'a number in quotes, such as "79"')
        if one.action not in made.actions:
            wrong = f"the action '{one.action}'{did_you_mean(one.action, made.actions)}"
            raise InputError(found["xids"][key].where("action"), wrong, ", ".join(made.actions))
        known[int(key)] = dataclasses.replace(one, code=int(key), do=made.actions[one.action])
    return known


def symptoms_in(text: str) -> tuple[Symptom, ...]:
    """Every symptom that a text shows, in the order of the file."""
    return tuple(one for one in symptoms().values() if one.in_text(text))


def xids_in(text: str) -> tuple[int, ...]:
    """The codes in a text, each once: `NVRM: Xid (PCI:0000:3b:00): 79, ...`, `Xid 79`, `xid:79`; not those of switches (SXid)."""
    return tuple(dict.fromkeys(int(code) for code in _XID.findall(text)))


def nearest(text: str, count: int = 3) -> tuple[Symptom, ...]:
    """For a text that no pattern finds: the symptoms that share its rarest words, best first; none that shares none."""
    wanted = _words(text)
    rows = {key: _words(" ".join((key, one.title, *one.texts, one.cause))) for key, one in symptoms().items()}
    spread = Counter(word for words in rows.values() for word in words)
    titles = {key: _words(one.title) for key, one in symptoms().items()}
    scores = {
        key: sum(math.log(len(rows) / spread[word]) * (2 if word in titles[key] else 1) for word in wanted & words)
        for key, words in rows.items()
    }
    best = sorted((key for key in scores if scores[key] > 0), key=lambda key: (-scores[key], key))
    return tuple(symptoms()[key] for key in best[:count])


def _words(text: str) -> frozenset[str]:
    return frozenset(word.rstrip("s") for word in _WORD.findall(text.lower()) if word not in _COMMON)


def xid_source() -> str:
    """Where the meanings of the Xids are from."""
    return str(document(reading.FOLDER / "xids.yml")["sources"]["meaning"])
