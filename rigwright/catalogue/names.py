"""The entries of the catalogue whose names contain what was typed: `V100`, `RTX 6000`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from rigwright import catalogue
from rigwright.catalogue import loader
from rigwright.catalogue.devices import Device, bare_name
from rigwright.catalogue.topics import plain, topics
from rigwright.core.numbers import count


class Match(Struct, frozen=True):
    """An entry of the catalogue: the word that `invoke explain` takes for it, and one sentence."""

    word: str
    text: str


def machines(text: str, rigs: Path | None = None) -> tuple[Match, ...]:
    """The GPUs, the rigs, the GPUs that only NVIDIA's list has, and the topics that a text names in part.

    () if there is no GPU and no rig among them. `rigs` is the folder of the user's own rigs.
    """
    words = _words(text)
    if not _can_name(words) or all(word.isdigit() and len(word) < 3 for word in words):
        return ()
    known = (*_models(text, words), *_rigs(text, words, rigs), *_devices(text, words))
    return (*known, *_topics(words)) if known else ()


def others(text: str) -> tuple[Match, ...]:
    """The toolkits, topics and symptoms that a text names in part."""
    words = _words(text)
    if not _can_name(words):
        return ()
    version = re.fullmatch(r"(?:cuda[ -]?)?(\d{2})", text.strip().casefold())
    toolkits = tuple(
        Match(name, f"CUDA toolkit, came with driver {toolkit.shipped_driver}")
        for name, toolkit in catalogue.toolkits().items()
        if version and name.startswith(f"{version[1]}.")
    )
    symptoms = (
        Match(key, symptom.title)
        for key, symptom in catalogue.all_symptoms().items()
        if words <= _words(key) or words <= _words(symptom.title)
    )
    return (*toolkits, *_topics(words), *symptoms)


def topics_within(text: str) -> tuple[Match, ...]:
    """The topics of whose names a text of two to eight words contains one: `bf16 on V100`."""
    said = f" {plain(text)} "
    if not 2 <= len(said.split()) <= 8:
        return ()
    return tuple(
        Match(key, topic.title)
        for key, topic in topics().items()
        if any(f" {plain(name)} " in said for name in (key, *topic.names))
    )


def _can_name(words: frozenset[str]) -> bool:
    """Whether the words can be part of a name: they are neither nothing nor a whole sentence."""
    return 2 <= len("".join(words)) <= 60


def _words(text: str) -> frozenset[str]:
    """The words of a text in lower case, without the manufacturer's name and its families."""
    return frozenset(re.findall(r"[a-z0-9]+", text.casefold())) - {"nvidia", "tesla", "geforce", "gpu", "driver"}


def _is_part(text: str, words: frozenset[str], name: str) -> bool:
    """Whether a name has all these words, or contains the text from the beginning of a word or number: `2080ti`."""
    if words <= _words(name):
        return True
    bare, whole = bare_name(text), bare_name(name)
    if not bare or (bare.isdigit() and len(bare) < 3):
        return False
    start = r"(?<![0-9])" if bare[0].isdigit() else r"^(?:quadro|titan)?"
    end = r"(?![0-9])" if bare[-1].isdigit() else ""
    return re.search(f"{start}{re.escape(bare)}{end}", whole) is not None


def _models(text: str, words: frozenset[str]) -> Iterator[Match]:
    for key in catalogue.gpu_keys():
        if _is_part(text, words, key):
            model = catalogue.model(key)
            memory, last = f"{(model.memory_mib or 0) / 1024:.3g} GiB", model.last_branch or "the newest"
            yield Match(key, f"GPU: {model.architecture}, {memory}, driver {model.first_branch} to {last}")


def _rigs(text: str, words: frozenset[str], own: Path | None) -> Iterator[Match]:
    folders = (own, loader.FOLDER / "rigs") if own else (loader.FOLDER / "rigs",)
    seen: set[str] = set()
    for path in (path for folder in folders for path in sorted(folder.glob("*.yml"))):
        title = _row(path, "title")
        if path.stem not in seen and (_is_part(text, words, path.stem) or words <= _words(title)):
            yield Match(path.stem, f"machine: {title}")
        seen.add(path.stem)


def _devices(text: str, words: frozenset[str]) -> Iterator[Match]:
    names: dict[str, list[str]] = {}
    for device_id, device in catalogue.all_devices().items():
        if any(_is_part(text, words, name) for name in device.name.split(" / ")):
            names.setdefault(device.name, []).append(device_id)
    rows = (_row(loader.FOLDER / "gpus" / f"{key}.yml", "pci_ids") for key in catalogue.gpu_keys()) if names else ()
    described = {device_id for row in rows for device_id in re.findall(r"[0-9a-f]{4}", row)}
    for name, ids in names.items():
        rest = [device_id for device_id in ids if device_id not in described]
        if rest:
            more = f" ({count(len(rest), 'PCI id')})" if len(rest) > 1 else ""
            yield Match(f"10de:{rest[0]}", f"in NVIDIA's list only: {name.removeprefix('NVIDIA ')}{more}")


def _row(path: Path, key: str) -> str:
    """The text after `key:` in a file of the catalogue, "" without it. Parsing the YAML of every file takes 0.1 s."""
    row = re.search(rf"(?m)^{key}: *(.*\S)", path.read_text(encoding="utf-8", errors="replace"))
    return row[1].strip("\"'") if row else ""


def architectures(branch: int) -> tuple[str, ...]:
    """The architectures of the GPUs in gpus/ that a driver branch supports, oldest first."""
    first_branches: dict[str, int] = {}
    for key in catalogue.gpu_keys():
        path = loader.FOLDER / "gpus" / f"{key}.yml"
        name, first, last = (_row(path, row) for row in ("architecture", "first_branch", "last_branch"))
        if int(first) <= branch and (last == "null" or branch <= int(last)):
            first_branches[name] = min(int(first), first_branches.get(name, int(first)))
    return tuple(sorted(first_branches, key=lambda name: first_branches[name]))


def gpus_named(text: str) -> tuple[str, ...]:
    """The keys of the GPUs with this name or key; manufacturer, family, spaces and hyphens do not count."""
    bare, folder = bare_name(text), loader.FOLDER / "gpus"
    return tuple(
        key
        for key in catalogue.gpu_keys()
        if bare and bare in (bare_name(key), bare_name(_row(folder / f"{key}.yml", "name")))
    )


def devices_named(text: str) -> tuple[Device, ...]:
    """The GPUs of NVIDIA's list with exactly this name (`GTX 1070 Ti`); () if it names GPUs of the catalogue
    in part. Manufacturer and family do not count."""
    bare, words = bare_name(text), _words(text)
    if not bare or not words or any(_is_part(text, words, key) for key in catalogue.gpu_keys()):
        return ()
    return tuple(
        device
        for device in catalogue.all_devices().values()
        if bare in {bare_name(name) for name in device.name.split(" / ")}
    )


def _topics(words: frozenset[str]) -> Iterator[Match]:
    for key, topic in topics().items():
        if any(words <= _words(name) for name in (key, *topic.names)):
            yield Match(key, topic.title)
