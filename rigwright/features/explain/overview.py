"""`invoke explain` without a word: the names that it explains, in groups."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from rigwright import catalogue
from rigwright.catalogue.topics import topics
from rigwright.core.numbers import numbers
from rigwright.features.explain.topics import Explanation, Line

_COLUMNS = 60


def overview(rigs: Path | None = None) -> tuple[Explanation, ...]:
    """The topics, the machines (also those of the user's own folder `rigs`), the GPUs by architecture, and the driver
    branches and CUDA toolkits."""
    by_architecture: dict[str, list[str]] = {}
    for key, model in sorted(catalogue.models().items(), key=lambda row: numbers(row[1].compute_capability)):
        by_architecture.setdefault(model.architecture, []).append(key)
    own = [path.stem for path in sorted(rigs.glob("*.yml"))] if rigs else []
    gpus = (line for name, keys in by_architecture.items() for line in _lines(name, sorted(keys)))
    named = (*_lines("machines", sorted(catalogue.all_rigs())), *_lines("yours", own))
    software = (*_lines("driver", catalogue.branches()), *_lines("CUDA", catalogue.toolkits()))
    errors = Line("", "'Xid 79', an error's own text in quotes, or - for what programs printed (dmesg, nvidia-smi -q)")
    return (
        Explanation(
            "Topics: invoke explain iommu, or in your words: 'training hangs', PSU, fans", tuple(_lines("", topics()))
        ),
        Explanation("Machines: invoke explain servbadge", named),
        Explanation("GPUs: invoke explain v100-sxm2-16gb, or a part of the name: V100", tuple(gpus)),
        Explanation("Drivers and CUDA: invoke explain 535, or 12.2", software),
        Explanation(f"Errors: {len(catalogue.all_symptoms())} messages and {len(catalogue.xids())} Xids", (errors,)),
    )


def _lines(label: str, names: Iterable[str]) -> Iterator[Line]:
    for number, text in enumerate(textwrap.wrap(", ".join(names), _COLUMNS, break_on_hyphens=False)):
        yield Line("" if number else label, text)
