"""Which symptoms follow from which others (consequences.yml)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from rigwright.catalogue import loader
from rigwright.catalogue.loader import document
from rigwright.catalogue.symptoms import all_symptoms, xids
from rigwright.core.errors import InputError
from rigwright.core.files.disk_cache import cached_on_disk
from rigwright.core.yaml_source import did_you_mean


class Consequence(Struct, frozen=True):
    """What a symptom follows from: keys, groups of keys that end with a dot, or `Xid 13`."""

    after: tuple[str, ...]
    source: str


class _Table(Struct, frozen=True):
    consequences: dict[str, Consequence]


@cached_on_disk
def consequences() -> Mapping[str, Consequence]:
    """All consequences by the key of the symptom, or `Xid 45`. Raises InputError for an invalid file."""
    return loader.whole(document(loader.FOLDER / "consequences.yml"), _Table).consequences


def check_consequences() -> None:
    """Raises InputError for a name that is no symptom, no group of symptoms and no Xid."""
    known = {*all_symptoms(), *(f"Xid {code}" for code in xids())}
    groups = {f"{key.partition('.')[0]}." for key in all_symptoms()}
    rows = document(loader.FOLDER / "consequences.yml")["consequences"]
    for key, consequence in consequences().items():
        for name in (key, *consequence.after):
            if name not in known and (name == key or name not in groups):
                line = rows.where(key)
                raise InputError(
                    line, f"'{name}'{did_you_mean(name, known)}", "a symptom, a group such as 'ecc.', or 'Xid 45'"
                )


def follows(effect: str, cause: str) -> bool:
    """Whether a symptom may follow from another one; both are keys, or `Xid 45`."""
    known = consequences().get(effect)
    return known is not None and any(
        cause == name or (name.endswith(".") and cause.startswith(name)) for name in known.after
    )
