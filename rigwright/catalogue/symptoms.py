"""Error messages with cause and fix, and the driver's Xid codes (symptoms.yml and xids.yml)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from rigwright.catalogue import loader
from rigwright.catalogue.loader import document
from rigwright.core import lazy_re
from rigwright.core.errors import InputError
from rigwright.core.files.disk_cache import cached_on_disk
from rigwright.core.yaml_source import Mapping as YamlMapping, Sequence as YamlSequence, did_you_mean

Kind = Literal["driver", "boot", "fabric", "p2p", "power", "hardware", "tooling"]
Level = Literal["fail", "warn", "info"]
Rank = Literal["cause", "consequence", "wrapper"]

_FLAGS = re.IGNORECASE | re.MULTILINE
_XID = lazy_re.compile(
    r"\bxid\b(?:\s{0,4}\((?:PCI:)?[0-9a-f:.]{1,32}\))?\s{0,8}(?:error|code|number)?\s{0,4}[:=#]?\s{0,8}(\d{1,3})\b(?![:.][0-9a-f])",
    re.IGNORECASE,
)
_WORD = lazy_re.compile(r"[a-z0-9_]{3,}")
_TOKEN = lazy_re.compile(
    r"\\(?P<escaped>[^A-Za-z0-9])|(?P<any>\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[.^$])"
    r"|(?P<optional>[?*]\??|\{[\d,]+\}\??)|(?P<more>\+\??)|(?P<group>[()|])|(?P<plain>.)",
    re.DOTALL,
)
_COMMON = frozenset(
    "the and not was when after this that with than then from its are has for into does yet some one".split()
)


class Cause(Struct, frozen=True):
    """One of several possible causes of a symptom: `see` is a command or a place that shows it, `fix` what then helps.

    A text that a `shown_by` pattern matches shows that this is the cause.
    """

    cause: str
    see: str
    fix: str
    shown_by: tuple[str, ...] = ()


class Symptom(Struct, frozen=True):
    """A problem with the messages that it causes: `patterns` find them in a text; `texts` are examples.

    `causes` are possible causes that the patterns do not tell apart; `cause` is then what is certain, and `fix` the
    first step, which is right for each of them. `only_with`: where it is set, a text shows the symptom only if one of
    these patterns matches in it, too. `rank`: a `consequence` comes after the other symptoms of a text; a
    `wrapper` only reports that something else failed, and is left out where the text has another symptom. `short`: the
    title in a few words, `GPU lost`; "" where the title is used. After the name of a GPU it has no `GPU`: `SXM2-3:
    lost`.
    """

    title: str
    kind: Kind
    level: Level
    patterns: tuple[str, ...]
    texts: tuple[str, ...]
    cause: str
    fix: str
    source: str
    causes: tuple[Cause, ...] = ()
    only_with: tuple[str, ...] = ()
    rank: Rank = "cause"
    short: str = ""
    key: str = ""

    def in_text(self, text: str, lower: str = "") -> bool:
        """Whether a text shows the symptom. `lower` is the text in lower case, if the caller has it."""
        searched = searched_part(text)
        lower = lower or searched.lower()
        return _any_in(self.patterns, searched, lower) and (
            not self.only_with or _any_in(self.only_with, searched, lower)
        )

    def causes_in(self, text: str) -> tuple[tuple[Cause, bool], ...]:
        """The possible causes, each with whether the text shows it; those that it shows come first."""
        text = searched_part(text)
        lower = text.lower()
        rows = [(cause, _any_in(cause.shown_by, text, lower)) for cause in self.causes]
        return tuple(sorted(rows, key=lambda row: not row[1]))


SEARCHED_CHARACTERS = 1 << 17
"""Characters of a text in which symptoms are searched, half of them at its beginning. `LogSearch` reads more."""


def searched_part(text: str) -> str:
    """The text; the beginning and the end of a longer one than SEARCHED_CHARACTERS."""
    half = SEARCHED_CHARACTERS // 2
    return text if len(text) <= SEARCHED_CHARACTERS else f"{text[:half]}\n{text[-half:]}"


@cache
def literal(pattern: str) -> str:
    """The longest text, in lower case, that each match of a pattern contains; "" for a pattern with alternatives.

    Only a pattern whose literal is in a text is compiled and searched for: a text has the literals of few.
    """
    runs, depth = [""], 0
    for token in _TOKEN.finditer(pattern):
        kind = token.lastgroup
        if kind == "group":
            if token[0] == "|" and not depth:
                return ""
            depth += {"(": 1, ")": -1}.get(token[0], 0)
            runs.append("")
        elif depth:
            continue
        elif kind in ("plain", "escaped"):
            runs[-1] += token[kind].lower()
        else:
            if kind == "optional":
                runs[-1] = runs[-1][:-1]
            runs.append("")
    return max(runs, key=len)


_compiled = cache(re.compile)


def _any_in(patterns: tuple[str, ...], text: str, lower: str) -> bool:
    """Whether one of the patterns matches a text, which `lower` repeats in lower case."""
    return any(literal(pattern) in lower and _compiled(pattern, _FLAGS).search(text) for pattern in patterns)


class Xid(Struct, frozen=True):
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


class _Symptoms(Struct, frozen=True):
    symptoms: dict[str, Symptom]


class _Xids(Struct, frozen=True):
    actions: dict[str, str]
    xids: dict[str, Xid]
    sources: dict[str, str]


@cached_on_disk
def all_symptoms() -> Mapping[str, Symptom]:
    """All symptoms by key. Raises InputError for an unknown key and a wrong type; `check_symptoms` checks the rest."""
    table = loader.whole(document(loader.FOLDER / "symptoms.yml"), _Symptoms)
    return {key: replace(symptom, key=key) for key, symptom in table.symptoms.items()}


def check_symptoms() -> None:
    """Raises InputError for an invalid pattern, a text that no pattern matches, and a symptom without either."""
    rows = document(loader.FOLDER / "symptoms.yml")["symptoms"]
    for key, symptom in all_symptoms().items():
        _check(key, symptom, rows[key])


def _check(key: str, symptom: Symptom, row: YamlMapping) -> None:
    if "key" in row:
        raise InputError(row.where("key"), "'key'", "nothing: the row's name is the key")
    for name, values in (("patterns", symptom.patterns), ("texts", symptom.texts)):
        if not values:
            raise InputError(row.where(name), f"'{key}' has no {name}", f"{name}: one at least")
    for name in ("patterns", "only_with"):
        if patterns := getattr(symptom, name):
            _check_patterns(patterns, row[name])
        for at, pattern in enumerate(patterns):
            if len(literal(pattern)) < 3:
                problem = f"{pattern!r} has no word that each match contains"
                meant = (
                    "a pattern for each alternative, with three characters or more in a row that are no special ones"
                )
                raise InputError(row[name].where(at), problem, meant)
    for at, cause in enumerate(symptom.causes):
        if cause.shown_by:
            _check_patterns(cause.shown_by, row["causes"][at]["shown_by"])
    for at, text in enumerate(symptom.texts):
        if not symptom.in_text(text):
            raise InputError(row["texts"].where(at), f"no pattern of '{key}' finds this text", "one that it finds")


def _check_patterns(patterns: tuple[str, ...], rows: YamlSequence) -> None:
    for at, pattern in enumerate(patterns):
        try:
            re.compile(pattern, _FLAGS)
        except re.error as error:
            raise InputError(rows.where(at), f"{pattern!r}: {error}", "a regular expression") from None


@lru_cache(maxsize=1)
def _xid_table(_folder: Path) -> _Xids:
    return loader.table("xids.yml", _Xids, "xids")


@cached_on_disk
def xids() -> Mapping[int, Xid]:
    """All Xids by code. Raises InputError for an invalid code or an unknown action."""
    table = _xid_table(loader.FOLDER)
    known = {}
    for key, xid in table.xids.items():
        if not key.isdecimal() or xid.action not in table.actions:
            rows = document(loader.FOLDER / "xids.yml")["xids"]
            if not key.isdecimal():
                raise InputError(rows.where(key), f"'{key}' is no Xid", 'a number in quotes, such as "79"')
            wrong = f"the action '{xid.action}'{did_you_mean(xid.action, table.actions)}"
            raise InputError(rows[key].where("action"), wrong, ", ".join(table.actions))
        known[int(key)] = replace(xid, code=int(key), do=table.actions[xid.action])
    return known


def symptoms_in(text: str) -> tuple[Symptom, ...]:
    """The symptoms that match a text, in the order of the file; consequences come last, and wrappers only alone."""
    return _symptoms_in(text) if len(text) <= _REPEATED_CHARACTERS else _symptoms_in.__wrapped__(searched_part(text))


_REPEATED_CHARACTERS = 2000
"""Texts up to this length are searched once: equal hosts fail with equal messages."""


@lru_cache(maxsize=512)
def _symptoms_in(text: str) -> tuple[Symptom, ...]:
    lower = text.lower()
    matching = [symptom for symptom in all_symptoms().values() if symptom.in_text(text, lower)]
    telling = [symptom for symptom in matching if symptom.rank != "wrapper"] or matching
    return tuple(sorted(telling, key=lambda symptom: symptom.rank == "consequence"))


def xids_in(text: str) -> tuple[int, ...]:
    """The Xid codes in a text, each once, without SXids: `NVRM: Xid (PCI:0000:3b:00): 79`, `Xid 79`, `xid:79`."""
    return tuple(dict.fromkeys(int(code) for code in _XID.findall(searched_part(text))))


_NEAR = 8.0
"""The least score of the first suggestion: words that many symptoms have (error, failed) are not enough."""


def nearest(text: str, count: int = 3) -> tuple[Symptom, ...]:
    """Suggestions for a text without a match: symptoms that share its rarest words, best first."""
    query_words = _words(text)
    rows = {
        key: _words(" ".join((key, symptom.title, *symptom.texts, symptom.cause)))
        for key, symptom in all_symptoms().items()
    }
    spread = Counter(word for words in rows.values() for word in words)
    titles = {key: _words(symptom.title) for key, symptom in all_symptoms().items()}
    scores = {
        key: sum(math.log(len(rows) / spread[word]) * (2 if word in titles[key] else 1) for word in query_words & words)
        for key, words in rows.items()
    }
    best = sorted((key for key in scores if scores[key] > 0), key=lambda key: (-scores[key], key))
    return tuple(all_symptoms()[key] for key in best[:count]) if best and scores[best[0]] >= _NEAR else ()


def _words(text: str) -> frozenset[str]:
    return frozenset(word.rstrip("s") for word in _WORD.findall(text.lower()) if word not in _COMMON)


def xid_source() -> str:
    """The source of the Xids' meanings."""
    return _xid_table(loader.FOLDER).sources["meaning"]
