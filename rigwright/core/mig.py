"""The inventory variable `mig`: into which instances the GPUs are split. onhost/gpu_mig.py does what it says on the
host."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import Struct, field

from rigwright.core import lazy_re

_INSTANCE = lazy_re.compile(
    r"(?P<profile>(?P<slices>\d)g\.\d{1,4}gb([+-][a-z][a-z.]{0,15}){0,2})(/(?P<parts>\dc(\+\dc){0,6}))?"
)
ALL = "all"
"""The name that stands for every GPU; a model, a position or a UUID is more specific."""


class MigInstance(Struct, frozen=True):
    """A GPU instance by its profile, and the slices of its compute instances."""

    profile: str
    parts: tuple[int, ...]

    def __str__(self) -> str:
        whole = self.parts == (int(self.profile[0]),)
        return self.profile if whole else f"{self.profile}/{'+'.join(f'{part}c' for part in self.parts) or 'none'}"


def instance(text: str) -> MigInstance:
    """`3g.20gb`, with one compute instance of all its slices, or `3g.20gb/1c+2c`. Raises ValueError for another
    text."""
    match = _INSTANCE.fullmatch(text)
    slices = int(match["slices"]) if match else 0
    parts = tuple(sorted(int(part[0]) for part in (match["parts"] or "").split("+") if part)) if match else ()
    if not match or not slices or sum(parts) > slices or 0 in parts:
        raise ValueError(
            f"'{text}' is no instance",
            "a profile such as 3g.20gb, or 3g.20gb/1c+2c with compute instances of 1 and 2 slices",
        )
    return MigInstance(match["profile"], parts or (slices,))


class Mig(Struct, frozen=True):
    """The instances of GPUs: `gpus` by model, position, UUID, or `all`; an empty list switches MIG off. `enabled`
    false: off on every GPU.

    The most specific name counts: UUID, then position, then model, then `all`. A GPU that nothing names is left alone.
    """

    SHORT: ClassVar[str] = "enabled"
    MAPPING: ClassVar[str] = "gpus"
    FORM: ClassVar[str] = "off, or {all: [3g.20gb, 3g.20gb]}"
    enabled: bool = True
    gpus: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.enabled and not self.gpus:
            raise ValueError("no layout", self.FORM)
        for layout in self.gpus.values():
            for text in layout:
                instance(text)

    @property
    def splits(self) -> bool:
        """Whether a GPU is to have instances."""
        return self.enabled and any(self.gpus.values())

    def of(self, *names: str) -> tuple[MigInstance, ...] | None:
        """The instances of a GPU with these names, the least specific first; () for MIG off, None: it is left alone."""
        if not self.enabled:
            return ()
        wanted = self.gpus.get(ALL)
        for name in names:
            wanted = self.gpus.get(name, wanted)
        return None if wanted is None else tuple(map(instance, wanted))


def words(layout: tuple[MigInstance, ...]) -> str:
    """`off`, or the instances in one order: `3g.20gb, 2 x 1g.5gb`."""
    texts = sorted((str(one) for one in layout), reverse=True)
    counts = {text: texts.count(text) for text in texts}
    return ", ".join(text if count == 1 else f"{count} x {text}" for text, count in counts.items()) or "off"


def rule(bus_id: str, layout: tuple[MigInstance, ...]) -> dict[str, Any]:
    """The rule of a GPU in mig.json."""
    return {
        "match": {"pci_bus_id": bus_id},
        "layout": [{"profile": one.profile, "parts": list(one.parts)} for one in layout],
    }
