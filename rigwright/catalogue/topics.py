"""Topics (topics/): short pages about words that name no entry of the catalogue, such as `iommu`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from rigwright.catalogue import loader
from rigwright.catalogue.loader import document
from rigwright.catalogue.symptoms import all_symptoms
from rigwright.core.errors import InputError
from rigwright.core.files.disk_cache import cached_on_disk

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
    """A text in lower case, with a space for spaces, hyphens and underscores: `persistence mode`."""
    return re.sub(r"[\s_-]+", " ", text).strip().casefold()


@cached_on_disk
def topics() -> Mapping[str, Topic]:
    """All topics by key. Raises InputError for an invalid file, and for an example that none of its patterns fits."""
    return {path.stem: _read(path) for path in _paths()}


def _paths() -> list[Path]:
    return sorted((loader.FOLDER / "topics").glob("*.yml"))


def _read(path: Path) -> Topic:
    source = document(path)
    if "key" in source:
        raise InputError(source.where("key"), "'key'", "nothing: the file's name is the key")
    topic = replace(loader.whole(source, Topic), key=path.stem)
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
    """Raises InputError for a name or pattern that fits an example of another topic or of a symptom."""
    examples = [(key, text) for key, topic in topics().items() for text in (key, *topic.names, *topic.texts)]
    examples += [(key, text) for key, symptom in all_symptoms().items() for text in (key, *symptom.texts)]
    lines = [
        (key, line) for key, symptom in all_symptoms().items() for text in symptom.texts for line in text.splitlines()
    ]
    for path in _paths():
        topic, source = topics()[path.stem], document(path)
        for key, fits, texts in (
            ("names", lambda name, text: plain(name) == plain(text), examples),
            ("patterns", lambda own, text: re.fullmatch(own, text.strip(), re.IGNORECASE), [*examples, *lines]),
        ):
            for at, own in enumerate(getattr(topic, key)):
                for owner, text in texts:
                    if owner != path.stem and fits(own, text):
                        wrong = f"{own!r} is also {text.splitlines()[0][:60]!r} of '{owner}'"
                        raise InputError(source[key].where(at), wrong, "texts of this topic only")


def topic_of(text: str) -> Topic | None:
    """The topic that a text names, or else the first that it means; None for other texts."""
    every = topics().values()
    return next(
        (topic for topic in every if topic.is_named(text)),
        next((topic for topic in every if topic.is_meant(text)), None),
    )
