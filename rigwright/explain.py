"""What the catalogue knows of a name, an error text or an Xid: offline, with causes, fixes and sources."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rigwright import catalogue
from rigwright.catalogue import Model, Rig
from rigwright.choices import VERBS, choices, unknown_model
from rigwright.compatibility import runs
from rigwright.errors import UsageError
from rigwright.versions import numbers
from rigwright.wanted import Driver
from rigwright.yamlfile import did_you_mean


@dataclass(frozen=True)
class Line:
    """One thing that is known: what it is about, the text, and where it comes from ("" where that is said elsewhere)."""

    label: str
    text: str
    source: str = ""


@dataclass(frozen=True)
class Explanation:
    """What is known of one thing."""

    title: str
    lines: tuple[Line, ...]


def explain(text: str, today: datetime.date, rigs: Path | None = None) -> tuple[Explanation, ...]:
    """What is known of a GPU, rig, driver branch or release, CUDA toolkit, PCI id, symptom, Xid, or of an error text.

    `rigs` is the folder of the user's own rigs. Raises UsageError with the nearest names and texts when nothing is.
    """
    name = text.strip()
    named = tuple(_named(name, today, rigs))
    if named:
        return named
    found = [*map(_xid, catalogue.xids_in(name)), *map(_symptom, catalogue.symptoms_in(name))]
    if found:
        return tuple(found)
    raise _unknown(name)


def _named(name: str, today: datetime.date, rigs: Path | None) -> Iterator[Explanation]:
    """Everything of that name: a rig and its GPU may share one."""
    plain = name.casefold()
    own = [path.stem for path in rigs.glob("*.yml")] if rigs else []
    for rig in dict.fromkeys((*own, *catalogue.rigs())):
        if plain == rig.casefold():
            yield _rig(catalogue.rig(rig, "explain", rigs), today)
    branch = re.fullmatch(r"(?:nvidia[ -]?)?(?:driver[ -]?)?(\d{3})((?:\.\d+)*)", plain)
    if branch and branch[1] in catalogue.branches():
        yield _branch(branch[1], branch[1] + branch[2] if branch[2] else "", today)
        return
    toolkit = re.fullmatch(r"(?:cuda[ -]?)?(\d+\.\d+)", plain)
    if toolkit and toolkit[1] in catalogue.toolkits():
        yield _toolkit(toolkit[1])
        return
    device_id = re.fullmatch(r"(?:10de:)?([0-9a-f]{4})", plain)
    if plain in catalogue.gpu_keys():
        yield _model(catalogue.model(plain))
    elif device_id and (known := catalogue.model_of(device_id[1])):
        yield _model(known)
    elif device_id and device_id[1] in catalogue.devices() and plain.startswith("10de:"):
        yield Explanation(f"10de:{device_id[1]}", (Line("what", unknown_model(device_id[1])),))
    elif len(plain) < 50 and re.search(r"[a-z]", plain):
        if plain in catalogue.symptoms():
            yield _symptom(catalogue.symptoms()[plain])
        yield from (
            _model(model)
            for model in catalogue.models().values()
            if _bare(plain) in (_bare(model.name), _bare(model.key))
        )


def _bare(name: str) -> str:
    """A GPU's name without its maker's and family's words, spaces and dashes: `GeForce RTX 3090` is rtx-3090."""
    return re.sub(r"nvidia|tesla|geforce|[^a-z0-9]", "", name.lower())


def _unknown(name: str) -> UsageError:
    names = [
        *catalogue.gpu_keys(),
        *catalogue.rigs(),
        *catalogue.branches(),
        *catalogue.toolkits(),
        *catalogue.symptoms(),
    ]
    digits = re.findall(r"\d+", name)
    family = [one for one in names if _bare(name) and _bare(one).startswith(_bare(name))]
    alike = [one for one in names if re.findall(r"\d+", one) == digits]
    hint = f"; is it one of {', '.join(family)}?" if family else did_you_mean(name.lower(), alike)
    near = "; ".join(f"'{one.texts[0].splitlines()[0][:70]}' ({one.key})" for one in catalogue.nearest(name))
    return UsageError(
        "explain",
        f"nothing is known of '{' '.join(name.split())[:100]}'{hint}",
        "a GPU (rtx-3090), a rig (servbadge), a driver (535), CUDA 12.2, a PCI id (10de:1db1), 'Xid 79', or an error's own text",
        f"the nearest texts: {near}"
        if near and len(name.split()) > 2
        else "a log's line as the program printed it, in quotes",
    )


def _symptom(one: catalogue.Symptom) -> Explanation:
    return Explanation(
        one.title,
        (
            Line("symptom", f"{one.key} ({one.kind}, {'nothing is wrong' if one.level == 'info' else one.level})"),
            Line("says", one.texts[0].splitlines()[0]),
            Line("cause", one.cause),
            Line("do", one.fix),
            Line("source", one.source),
        ),
    )


def _xid(code: int) -> Explanation:
    known = catalogue.xids().get(code)
    if known is None:
        return Explanation(
            f"Xid {code}",
            (
                Line("what", "a code that the catalogue does not describe"),
                Line("do", "look at the lines around it in dmesg"),
            ),
        )
    lines = [Line("what", f"{known.name}: {known.meaning}")]
    if known.application:
        lines.append(Line("blame", "mostly the program, not the GPU"))
    lines += [Line("first", step) for step in known.first_steps]
    lines.append(Line("do", known.do))
    if known.again:
        lines.append(Line("again", known.again))
    return Explanation(f"Xid {code}", (*lines, Line("source", catalogue.xid_source())))


def _model(one: Model) -> Explanation:
    def line(label: str, text: str, key: str) -> Line:
        return Line(label, text, one.sources.get(key, ""))

    watts = one.power_w
    link = one.nvlink
    links = f"{link.links} NVLinks, {link.gb_s_per_link:g} GB/s each and direction" if link else "no NVLink"
    idle = f"{one.idle.state}, {one.idle.power_w:g} W" if one.idle.power_w else one.idle.state
    return Explanation(
        one.name,
        (
            line("PCI ids", " ".join(f"10de:{device_id}" for device_id in one.pci_ids), "pci_ids"),
            line(
                "chip",
                f"{one.architecture}, compute capability {one.compute_capability}, {one.tensor_cores or 'no'} tensor cores",
                "compute_capability",
            ),
            line("memory", f"{one.memory_mib} MiB, {one.memory_bandwidth_gb_s:g} GB/s", "memory_bandwidth_gb_s"),
            line(
                "driver",
                f"branches {one.first_branch} to {one.last_branch or 'the newest'}, {' or '.join(one.module_flavours)} module",
                "last_branch",
            ),
            line("CUDA", f"toolkits to {one.last_cuda}" if one.last_cuda else "the newest toolkits", "last_cuda"),
            line("clocks", " or ".join(VERBS[verb] for verb in one.clock_verbs) or "cannot be set", "clock_verbs"),
            line(
                "power",
                f"{_w(watts.default)} by default, {_w(watts.min)} to {_w(watts.max)}; the GPU's own answer decides",
                "power_w",
            ),
            line("idle", f"{idle} is normal", "idle"),
            line("links", links, "nvlink"),
            line(
                "peers",
                f"over PCIe {_PEERS[one.p2p.pcie]}" + (", over NVLink granted" if one.p2p.nvlink == "granted" else ""),
                "p2p",
            ),
        ),
    )


_PEERS = {
    "granted": "granted",
    "denied": "not granted by the stock driver",
    "measure": "to be measured, reports differ",
}


def _w(watts: float | None) -> str:
    return "?" if watts is None else f"{watts:g} W"


def _rig(one: Rig, today: datetime.date) -> Explanation:
    models = {position: catalogue.model(key) for position, key in one.gpus.items()}
    lines = [Line("GPUs", text, one.sources.get("gpus", "")) for text in _positions(models)]
    if one.cpu:
        lines.append(Line("machine", one.cpu + (f", {one.memory_gib} GiB" if one.memory_gib else "")))
    lines.append(Line("driver", one.driver, one.sources.get("driver", "")))
    lines += [Line("", note.text) for note in choices(models, Driver(one.driver), one.nvswitches, today)]
    lines.append(Line("CUDA", one.cuda, one.sources.get("cuda", "")))
    lines.append(
        Line("peers", f"{one.p2p.path}: {one.p2p.why}" if one.p2p.why else one.p2p.path, one.sources.get("p2p", ""))
    )
    if one.bandwidth_gb_s:
        reached = ", ".join(f"{kind} {value:g}" for kind, value in one.bandwidth_gb_s.items())
        lines.append(Line("bandwidth", f"{reached} GB/s in one direction", one.sources.get("bandwidth_gb_s", "")))
    if one.scaling:
        lines.append(
            Line(
                "scaling",
                f"{one.scaling.speed_up:g} times one GPU's speed with {one.scaling.gpus}",
                one.sources.get("scaling", ""),
            )
        )
    lines += _power(one, models)
    lines += [Line("note", note) for note in one.notes]
    return Explanation(f"{one.key}: {one.title}", tuple(lines))


def _positions(models: dict[str, Model]) -> Iterator[str]:
    for name in dict.fromkeys(model.label for model in models.values()):
        at = [position for position, model in models.items() if model.label == name]
        yield f"{len(at)} x {name} at {', '.join(at)}"


def _power(one: Rig, models: dict[str, Model]) -> Iterator[Line]:
    defaults = [model.power_w.default for model in models.values()]
    if all(watts is not None for watts in defaults):
        full = sum(watts or 0 for watts in defaults)
        base = f" + {one.base_load_w} W for the rest" if one.base_load_w else ""
        text = f"GPUs {full:g} W at their defaults{base}"
        if one.limits and one.limits.power_limit_w:
            text += f"; {len(models) * one.limits.power_limit_w} W at {one.limits.power_limit_w} W each"
        yield Line("power", text, one.sources.get("limits", ""))
    if one.supplies:
        kinds = " and ".join(f"{supply.count} x {supply.watts} W" for supply in one.supplies)
        yield Line("supplies", kinds, one.sources.get("supplies", ""))


def _branch(name: str, version: str, today: datetime.date) -> Explanation:
    one = catalogue.branches()[name]
    drives = [model for model in catalogue.models().values() if runs(model, int(name))]
    architectures = list(
        dict.fromkeys(model.architecture for model in sorted(drives, key=lambda model: model.first_branch))
    )
    over = "" if one.eol is None else f"{'ended on' if one.eol < today else 'until'} {one.eol}"
    lines = [
        Line("kind", f"{one.kind}{', support ' + over if over else ''}"),
        Line(
            "drives", ", ".join(architectures) + (f"; the last for {', '.join(one.last_for)}" if one.last_for else "")
        ),
        Line("CUDA", f"speaks up to {one.cuda}" if one.cuda else "not known"),
        Line(
            "releases",
            f"{len(one.versions)} known, {one.versions[0]} to {one.versions[-1]}" if one.versions else "none known",
        ),
    ]
    if version:
        known = version in one.versions
        lines.insert(0, Line("release", f"{version} is {'a release' if known else 'no release that is known'}"))
    return Explanation(
        f"driver {name}",
        (
            *lines,
            *(Line("note", note) for note in one.notes),
            Line("source", catalogue.branch_source()),
        ),
    )


def _toolkit(name: str) -> Explanation:
    one = catalogue.toolkits()[name]
    gone = [
        other for other, toolkit in catalogue.toolkits().items() if toolkit.dropped and numbers(other) <= numbers(name)
    ]
    dropped = [f"{', '.join(catalogue.toolkits()[other].dropped)} (since {other})" for other in gone]
    return Explanation(
        f"CUDA {name}",
        (
            Line(
                "driver",
                f"{one.shipped_driver} came with it; {catalogue.family_minimum(name)} or newer runs it, less PTX JIT",
            ),
            Line("no code for", "; ".join(dropped) or "no GPU that the catalogue knows is dropped"),
            Line("source", catalogue.toolkit_source()),
        ),
    )
