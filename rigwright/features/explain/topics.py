"""Looks up a name, an error message or an Xid in the catalogue."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from rigwright import catalogue
from rigwright.catalogue import Model, Rig
from rigwright.catalogue.advisories import floor
from rigwright.catalogue.devices import Device, bare_name
from rigwright.catalogue.kernels import newest_kernel
from rigwright.catalogue.names import Match, architectures, devices_named, gpus_named, machines, others, topics_within
from rigwright.catalogue.releases import PublishedRelease
from rigwright.catalogue.summary import VERBS, choices
from rigwright.catalogue.symptoms import Cause
from rigwright.catalogue.topics import Topic, topic_of, topics
from rigwright.core.desired import Driver
from rigwright.core.errors import UsageError
from rigwright.core.numbers import count, numbers
from rigwright.core.yaml_source import did_you_mean


class Line(Struct, frozen=True):
    """One line of an explanation: label, text, and source ("" if the source is given elsewhere)."""

    label: str
    text: str
    source: str = ""


class Explanation(Struct, frozen=True):
    """The explanation of one entry of the catalogue."""

    title: str
    lines: tuple[Line, ...]


def named(name: str, today: datetime.date, rigs: Path | None) -> tuple[Explanation, ...]:
    """The entries with a name: GPUs, rigs, driver branches and releases, CUDA toolkits, PCI ids, topics, symptoms and
    Xids; or the machines and GPUs whose names contain it, which are listed if there are several. `rigs`: the folder of
    the user's own rigs."""
    if entries := tuple(_named(name, today, rigs)):
        return entries
    if topic := topic_of(name):
        return (_topic(topic),)
    if devices := devices_named(name):
        return (_devices(devices),)
    return _similar(name, machines(name, rigs), today, rigs)


def containing(name: str, today: datetime.date, rigs: Path | None) -> tuple[Explanation, ...]:
    """The other entries whose names contain a name, or, for several words, those whose names it contains."""
    return _similar(name, others(name), today, rigs) or _similar(name, topics_within(name), today, rigs)


def _similar(name: str, matches: tuple[Match, ...], today: datetime.date, rigs: Path | None) -> tuple[Explanation, ...]:
    if len(matches) == 1 and matches[0].word.casefold() != name.casefold():
        return named(matches[0].word, today, rigs)
    return (_listed(name, matches),) if matches else ()


MOST_LISTED = 24


def _listed(name: str, similar: tuple[Match, ...]) -> Explanation:
    lines = [Line(f"invoke explain {match.word}", match.text) for match in similar[:MOST_LISTED]]
    if len(similar) > MOST_LISTED:
        lines.append(Line("", f"and {len(similar) - MOST_LISTED} more; type more of the name"))
    return Explanation(f"{len(similar)} entries fit '{name}'", tuple(lines))


def _topic(topic: Topic) -> Explanation:
    lines = [Line("", line.text, line.source) for line in topic.lines]
    if topic.see:
        lines.append(Line("see", "; ".join(topic.see)))
    return Explanation(topic.title, tuple(lines))


def _devices(devices: tuple[Device, ...]) -> Explanation:
    if drafted := [model for device in devices if (model := catalogue.model_of(device.device_id))]:
        return _draft(*drafted)
    first = devices[0]
    source = f"NVIDIA's list of driver {catalogue.devices_version()}"
    branches = f"branches to {first.last_branch or 'the newest'}, {' or '.join(first.module_flavours)} module"
    lines = (
        Line("PCI ids", " ".join(f"10de:{device.device_id}" for device in devices), source),
        Line("driver", branches, source),
        Line("not known", "memory, compute capability, first branch, CUDA, power range, clocks, NVLink, peers"),
        Line("see them", "nvidia-smi -q; nvidia-smi topo -p2p r; the GPU's own power range has precedence anyway"),
        Line("add it", "a file in rigwright/catalogue/gpus/ (docs/develop/gpu.md)"),
    )
    return Explanation(first.name, lines)


def _named(name: str, today: datetime.date, rigs: Path | None) -> Iterator[Explanation]:
    """All entries with that name. A rig and a GPU can have the same name."""
    plain = name.casefold()
    own = [path.stem for path in rigs.glob("*.yml")] if rigs else []
    for rig in dict.fromkeys((*own, *catalogue.all_rigs())):
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
    elif device_id and device_id[1] in catalogue.all_devices() and plain.startswith("10de:"):
        yield _devices((catalogue.all_devices()[device_id[1]],))
    elif len(plain) < 50 and re.search(r"[a-z]", plain):
        if xid := re.fullmatch(r"xids?[ :#]*(\d{1,3})", plain):
            yield _xid(int(xid[1]))
            yield from map(_symptom, catalogue.symptoms_in(plain))
        if re.fullmatch(r"[a-z0-9]+\.[a-z0-9_]+", plain) and plain in catalogue.all_symptoms():
            yield _symptom(catalogue.all_symptoms()[plain])
        yield from (_model(catalogue.model(key)) for key in gpus_named(plain))


def unknown(name: str, lines: int = 1) -> UsageError:
    """The error for a name or a text of which nothing is known, with the most similar names and texts."""
    releases = (*catalogue.branches(), *catalogue.toolkits())
    names = (*catalogue.gpu_keys(), *catalogue.all_rigs(), *releases, *topics(), *catalogue.all_symptoms())
    family = [entry for entry in names if bare_name(name) and bare_name(entry).startswith(bare_name(name))]
    alike = [entry for entry in names if re.findall(r"\d+", entry) == re.findall(r"\d+", name)]
    hint = f"; is it one of {', '.join(family)}?" if family else did_you_mean(name.lower(), alike)
    size = f" ({count(lines, 'line')})" if lines > 1 else ""
    near = "; ".join(f"'{entry.texts[0].splitlines()[0][:70]}' ({entry.key})" for entry in catalogue.nearest(name))
    fix = "a log's line as the program printed it, in quotes"
    if near and len(name.split()) > 2:
        fix = f"the nearest texts: {near}"
    elif family:
        fix = f"invoke explain {family[0]}, or another one of them"
    expected = (
        "a GPU (rtx-3090), a rig (servbadge), a driver (535), CUDA 12.2, a PCI id (10de:1db1), a topic (iommu),"
        " 'Xid 79', or an error's own text"
    )
    return UsageError("explain", f"nothing is known of '{' '.join(name.split())[:100]}'{size}{hint}", expected, fix)


def _symptom(symptom: catalogue.Symptom) -> Explanation:
    level = "nothing is wrong" if symptom.level == "info" else symptom.level
    lines = [
        Line("symptom", f"{symptom.key} ({symptom.kind}, {level})"),
        Line("says", symptom.texts[0].splitlines()[0]),
        *cause_lines(symptom.cause, symptom.fix, tuple((cause, False) for cause in symptom.causes)),
    ]
    return Explanation(symptom.title, (*lines, Line("source", symptom.source)))


def cause_lines(cause: str, fix: str, causes: Sequence[tuple[Cause, bool]]) -> Iterator[Line]:
    """The cause and the fix; then the possible causes, each with whether the text shows it."""
    if cause:
        yield Line("cause", cause)
    if fix:
        yield Line("first" if causes else "do", fix)
    other = "or" if any(shown for _, shown in causes) else "one of"
    for possible, shown in causes:
        yield Line("text shows" if shown else other, possible.cause)
        yield Line("  seen by", possible.see)
        yield Line("  do", possible.fix)


def _xid(code: int) -> Explanation:
    known = catalogue.xids().get(code)
    if known is None:
        unknown = Line("what", "a code that the catalogue does not describe")
        return Explanation(f"Xid {code}", (unknown, Line("do", "look at the lines around it in dmesg")))
    lines = [Line("what", f"{known.name}: {known.meaning}")]
    if known.application:
        lines.append(Line("blame", "mostly the program, not the GPU"))
    lines += [Line("first", step) for step in known.first_steps]
    lines.append(Line("do", known.do))
    if known.again:
        lines.append(Line("again", known.again))
    return Explanation(f"Xid {code}", (*lines, Line("source", catalogue.xid_source())))


def _line(entry: Model | Rig, label: str, text: str, key: str) -> Line:
    """A line with the source of one key of the entry."""
    return Line(label, text, entry.sources.get(key, ""))


def _model(model: Model) -> Explanation:
    if not model.described:
        return _draft(model)
    chip = f"{_chip(model)}, {model.tensor_cores or 'no'} tensor cores"
    branches = f"branches {model.first_branch} to {_last_branch(model)}"
    limits = model.power_w
    default_w, min_w, max_w = (
        "?" if watts is None else f"{watts:g} W" for watts in (limits.default, limits.min, limits.max)
    )
    power = f"{default_w} by default, {min_w} to {max_w}; the GPU's own answer decides"
    idle = "unknown"
    if model.idle:
        idle = f"{model.idle.state}, {model.idle.power_w:g} W" if model.idle.power_w else model.idle.state
    link = model.nvlink
    links = f"{link.links} NVLinks, {link.gb_s_per_link:g} GB/s each and direction" if link else "no NVLink"
    peers = f"over PCIe {_PEERS[model.p2p.pcie]}{', over NVLink granted' if model.p2p.nvlink == 'granted' else ''}"
    lines = (
        ("PCI ids", " ".join(f"10de:{device_id}" for device_id in model.pci_ids), "pci_ids"),
        ("chip", chip, "compute_capability"),
        *_tflops(model),
        ("memory", f"{model.memory_mib} MiB, {model.memory_bandwidth_gb_s or 0:g} GB/s", "memory_bandwidth_gb_s"),
        ("driver", branches, "last_branch"),
        ("CUDA", _toolkits(model), "last_cuda"),
        ("clocks", " or ".join(VERBS[verb] for verb in model.clock_verbs) or "cannot be set", "clock_verbs"),
        ("power", power, "power_w"),
        ("idle", f"{idle} is normal", "idle"),
        ("links", links, "nvlink"),
        ("peers", peers, "p2p"),
        *((("MIG", f"{', '.join(model.mig)} (inventory: mig)", "mig"),) if model.mig else ()),
    )
    return Explanation(model.name, tuple(_line(model, *line) for line in lines))


def _tflops(model: Model) -> Iterator[tuple[str, str, str]]:
    """The TFLOPS by number format, then what is assumed of the formats of tensor cores that gpus/ does not list."""
    speed = model.tflops
    if speed is None:
        return
    rates = {"FP64": speed.fp64, "FP32": speed.fp32, "TF32": speed.tf32, "FP16": speed.fp16}
    known = ", ".join(f"{name} {rate:g}" for name, rate in rates.items() if rate)
    none = " and ".join(name for name, rate in rates.items() if not rate)
    cores = " with tensor cores" if model.tensor_cores else ""
    yield "TFLOPS", f"{known}{cores}{f', no {none} with FP32 sums' if none else ''}; at {speed.at_mhz:g} MHz", "tflops"
    capability = numbers(model.compute_capability)
    if capability < (7, 5) or not model.tensor_cores or not speed.fp16:
        yield "", "no tensor cores for FP8 and INT8", "compute_capability"
        return
    assumed = [f"FP8 {2 * speed.fp16:g}" if capability >= (8, 9) else "no FP8"]
    if capability != (10, 3):
        assumed.append(f"INT8 {(4 if 'GeForce' in model.name else 2) * speed.fp16:g} TOPS")
    yield "", f"assumed from FP16 and the architecture: {', '.join(assumed)}", "compute_capability"


def _draft(*models: Model) -> Explanation:
    """The known and the unknown properties of GPUs of one name that gpus/ does not describe."""
    model = models[0]
    branches = f"branches {model.first_branch} at the earliest to {_last_branch(model)}"
    clocks = " or ".join(VERBS[verb] for verb in model.clock_verbs) or "cannot be locked"
    lines = (
        ("PCI ids", " ".join(card.key for card in models), "pci_ids"),
        ("chip", " or ".join(dict.fromkeys(map(_chip, models))), "compute_capability"),
        ("driver", branches, "last_branch"),
        ("CUDA", _toolkits(model), "last_cuda"),
        ("clocks", f"{clocks}; application clocks: the GPU itself is asked", "clock_verbs"),
        (
            "unknown",
            "no file describes it: power range and memory size (the GPU itself is asked), memory bandwidth",
            "",
        ),
        ("", "NVLink and peer access: measured by provision and verify", ""),
        ("add it", "a file in rigwright/catalogue/gpus/ (docs/develop/gpu.md)", ""),
    )
    return Explanation(model.name, tuple(_line(model, *line) for line in lines))


def _chip(model: Model) -> str:
    return f"{model.architecture}, compute capability {model.compute_capability}"


def _last_branch(model: Model) -> str:
    """The last branch and the flavours of its module: `580, proprietary module`."""
    return f"{model.last_branch or 'the newest'}, {' or '.join(model.module_flavours)} module"


def _toolkits(model: Model) -> str:
    return f"toolkits to {model.last_cuda}" if model.last_cuda else "the newest toolkits"


_PEERS = {
    "granted": "granted",
    "denied": "not granted by the stock driver",
    "measure": "to be measured, reports differ",
}


def _rig(rig: Rig, today: datetime.date) -> Explanation:
    models = {position: catalogue.model(key) for position, key in rig.gpus.items()}
    lines = []
    for name in dict.fromkeys(model.label for model in models.values()):
        at = [position for position, model in models.items() if model.label == name]
        lines.append(_line(rig, "GPUs", f"{len(at)} x {name} at {', '.join(at)}", "gpus"))
    if rig.cpu:
        lines.append(Line("machine", rig.cpu + (f", {rig.memory_gib} GiB" if rig.memory_gib else "")))
    lines.append(_line(rig, "driver", rig.driver, "driver"))
    lines += [Line("", note.text) for note in choices(models, Driver(rig.driver), rig.nvswitches, today)]
    lines.append(_line(rig, "CUDA", rig.cuda, "cuda"))
    lines.append(_line(rig, "peers", f"{rig.p2p.path}: {rig.p2p.why}" if rig.p2p.why else rig.p2p.path, "p2p"))
    if rig.bandwidth_gb_s:
        reached = ", ".join(f"{kind} {value:g}" for kind, value in rig.bandwidth_gb_s.items())
        lines.append(_line(rig, "bandwidth", f"{reached} GB/s in one direction", "bandwidth_gb_s"))
    if rig.scaling:
        text = f"{rig.scaling.speed_up:g} times one GPU's speed with {rig.scaling.gpus}"
        lines.append(_line(rig, "scaling", text, "scaling"))
    lines += _power(rig, models)
    lines += [Line("note", note) for note in rig.notes]
    return Explanation(f"{rig.key}: {rig.title}", tuple(lines))


def _power(rig: Rig, models: dict[str, Model]) -> Iterator[Line]:
    defaults = [model.power_w.default for model in models.values()]
    if all(watts is not None for watts in defaults):
        full = sum(watts or 0 for watts in defaults)
        base = f" + {rig.base_load_w} W for the rest" if rig.base_load_w else ""
        text = f"GPUs {full:g} W at their defaults{base}"
        if rig.limits and rig.limits.power_limit_w:
            text += f"; {len(models) * rig.limits.power_limit_w} W at {rig.limits.power_limit_w} W each"
        yield _line(rig, "power", text, "limits")
    if rig.supplies:
        kinds = " and ".join(f"{supply.count} x {supply.watts} W" for supply in rig.supplies)
        yield _line(rig, "supplies", kinds, "supplies")


def _branch(name: str, version: str, today: datetime.date) -> Explanation:
    branch = catalogue.branches()[name]
    last = f"; the last for {', '.join(branch.last_for)}" if branch.last_for else ""
    last_kernel = newest_kernel(branch.versions)
    known, published = branch.versions, catalogue.published_drivers().get(name, {})
    span = f"{known[0]} to {known[-1]}" if len(known) > 1 else known[0] if known else ""
    releases = f"{len(known)} known, {span}" if known else "none known"
    if known and (last_published := published.get(known[-1])) and last_published.date:
        releases += f" of {last_published.date}"
    lines = [
        Line("kind", branch.support(today)),
        Line("drives", f"{', '.join(architectures(int(name)))}{last}"),
        Line("CUDA", f"speaks up to {branch.cuda}" if branch.cuda else "not known"),
        Line("releases", releases),
        *([Line("kernel", f"its module builds up to kernel {last_kernel}")] if last_kernel else []),
        *_security(version or name),
        *(Line("note", note) for note in branch.notes),
        Line("source", catalogue.driver_table().sources["eol"]),
    ]
    if version:
        lines.insert(0, _release(version, known, published.get(version)))
    return Explanation(f"driver {name}", tuple(lines))


def _release(version: str, known: Sequence[str], published: PublishedRelease | None) -> Line:
    if version not in known:
        return Line("release", f"{version} is no release that is known on {catalogue.release_table().read}")
    if published is None:
        return Line("release", f"{version} is a release", catalogue.driver_table().sources["versions"])
    date = f" of {published.date}" if published.date else ""
    return Line("release", f"{version} is a release{date}", published.source)


def _security(version: str) -> Iterator[Line]:
    """The fixes that a release or a branch lacks, or the first release of the branch that has them."""
    if lacking := catalogue.shortfall(version):
        yield Line("security", lacking.text, lacking.source)
        yield Line("do", lacking.fix)
    elif fixed := floor(version.split(".")[0]):
        yield Line("security", f"{fixed[0]} and newer have the fixes of {fixed[1]}", fixed[1].source)


def _toolkit(name: str) -> Explanation:
    released, least = catalogue.toolkits()[name], catalogue.family_minimum(name)
    dropped = [
        f"{', '.join(toolkit.dropped)} (since {other})"
        for other, toolkit in catalogue.toolkits().items()
        if toolkit.dropped and numbers(other) <= numbers(name)
    ]
    lines = (
        Line("driver", f"{released.shipped_driver} came with it; {least} or newer runs it, less PTX JIT"),
        Line("releases", ", ".join(map(str, catalogue.published_toolkits().get(name, {}).values())) or "not known"),
        Line("no code for", "; ".join(dropped) or "no GPU that the catalogue knows is dropped"),
        Line("source", catalogue.cuda_table().sources["shipped_driver"]),
    )
    return Explanation(f"CUDA {name}", lines)
