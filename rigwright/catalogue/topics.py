"""Topics: short pages about words that people type and that name no entry of the catalogue, such as `iommu`
(topics/)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from rigwright.catalogue import loader
from rigwright.catalogue.loader import document
from rigwright.catalogue.symptoms import all_symptoms
from rigwright.core.errors import InputError
from rigwright.core.files.disk_cache import cached_on_disk
from rigwright.core.once import once
from rigwright.core.schema import convert
from rigwright.core.yaml_source import Mapping as YamlMapping

MOST_LINES = 15
"""The length of a page: its title, its statements and its commands."""


class Statement(Struct, frozen=True):
    """One statement of a page, with its source."""

    text: str
    source: str


class Topic(Struct, frozen=True):
    """A page. `key` is the name of its file.

    `names`: other words for it; case, spaces, hyphens and underscores do not count. `patterns`: regular expressions for
    the whole text that was typed; `texts` are their examples. `see`: commands that say more.
    """

    title: str
    lines: tuple[Statement, ...]
    see: tuple[str, ...]
    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    key: str = ""

    def is_named(self, text: str) -> bool:
        """Whether a text is the topic's key or one of its names."""
        return plain(text) in {plain(name) for name in (self.key, *self.names)}

    def is_meant(self, text: str) -> bool:
        """Whether one of the patterns matches the whole text."""
        return any(re.fullmatch(pattern, text.strip(), re.IGNORECASE) for pattern in self.patterns)


def plain(text: str) -> str:
    """A text in lower case; spaces, hyphens and underscores are one space: `Persistence-Mode ` is `persistence
    mode`."""
    return re.sub(r"[\s_-]+", " ", text).strip().casefold()


@once
@cached_on_disk
def topics() -> Mapping[str, Topic]:
    """All topics by key. Raises InputError for an invalid file, and for an example that no pattern of its topic
    matches."""
    return {path.stem: _read(path) for path in _paths()}


def _paths() -> list[Path]:
    return sorted((loader.FOLDER / "topics").glob("*.yml"))


def _read(path: Path) -> Topic:
    source = document(path)
    if "key" in source:
        raise InputError(source.where("key"), "'key'", "nothing: the file's name is the key")
    topic: Topic = replace(convert(source, Topic, source.where(), ""), key=path.stem)
    length = 1 + len(topic.lines) + bool(topic.see)
    if not topic.lines or length > MOST_LINES:
        raise InputError(source.where("lines"), f"a page of {length} lines", f"2 to {MOST_LINES}, with title and see")
    for at, pattern in enumerate(topic.patterns):
        try:
            re.compile(pattern)
        except re.error as error:
            raise InputError(source["patterns"].where(at), f"{pattern!r}: {error}", "a regular expression") from None
    for at, text in enumerate(topic.texts):
        if not topic.is_meant(text):
            raise InputError(
                source["texts"].where(at), f"no pattern of '{path.stem}' matches this text", "one that does"
            )
    return topic


def check_conflicts() -> None:
    """Raises InputError for a name or pattern of a topic that is, or matches, an example of another topic or a
    symptom."""
    whole, lines = [*_topic_examples(), *_symptom_examples()], list(_symptom_lines())
    for path in _paths():
        topic, source = topics()[path.stem], document(path)
        for kind in ("names", "patterns"):
            for at, own in enumerate(getattr(topic, kind)):
                for owner, text in whole if kind == "names" else (*whole, *lines):
                    if owner != path.stem and _is_same(kind, own, text):
                        wrong = f"{own!r} is also {text.splitlines()[0][:60]!r} of '{owner}'"
                        raise InputError(_where(source, kind, at), wrong, "texts of this topic only")


def _where(source: YamlMapping, key: str, at: int) -> str:
    return str(source[key].where(at))


def _topic_examples() -> Iterator[tuple[str, str]]:
    for key, topic in topics().items():
        yield from ((key, text) for text in (key, *topic.names, *topic.texts))


def _symptom_examples() -> Iterator[tuple[str, str]]:
    for key, symptom in all_symptoms().items():
        yield from ((key, text) for text in (key, *symptom.texts))


def _symptom_lines() -> Iterator[tuple[str, str]]:
    for key, symptom in all_symptoms().items():
        yield from ((key, line) for text in symptom.texts for line in text.splitlines())


def _is_same(kind: str, own: str, text: str) -> bool:
    if kind == "names":
        return plain(own) == plain(text)
    return re.fullmatch(own, text.strip(), re.IGNORECASE) is not None


def topic_of(text: str) -> Topic | None:
    """The topic that a text names, or else the first that it means; None for other texts."""
    for topic in topics().values():
        if topic.is_named(text):
            return topic
    return next((topic for topic in topics().values() if topic.is_meant(text)), None)
