"""Drafts the rig file and the inventory entry of a machine as texts. Reads and writes no file."""

from __future__ import annotations

import contextlib
import datetime
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

import yaml

from rigwright.catalogue import Model, Rig
from rigwright.catalogue.compatibility import check_branch, cuda_ceiling, fit
from rigwright.core import lazy_re
from rigwright.core.errors import HostError, InputError, UsageError
from rigwright.core.process.program_name import package_name
from rigwright.core.yaml_source import Mapping as YamlMapping, loads
from rigwright.facts.system import Board
from rigwright.inventory.secrets import TAGS

PLACEHOLDER = lazy_re.compile(r"(192\.0\.2|198\.51\.100|203\.0\.113)\.\d+")
"""Addresses reserved for documentation, which hosts of the example inventory have."""
EXAMPLE = "# An example"
"""The begin of a file in host_vars/ that `init` replaces."""


def matching(rigs: Sequence[Rig], models: Sequence[Model], board: Board) -> tuple[Rig, ...]:
    """The rigs that a machine with these GPUs can be: those that know its board, or else those that name none of their
    own.

    Where the machine does not say what it is, every rig with these GPUs.
    """
    here = Counter(model.key for model in models)
    same = tuple(rig for rig in rigs if Counter(rig.models) == here)
    if not (board.product or board.board):
        return same
    by_board = tuple(rig for rig in same if _has_board(rig, board))
    return by_board or tuple(rig for rig in same if not rig.boards)


def lacking(rigs: Sequence[Rig], models: Sequence[Model], board: Board) -> tuple[Rig, ...]:
    """The rigs with this machine's board that have its GPUs and more: a GPU may be off the bus."""
    here = Counter(model.key for model in models)
    return tuple(rig for rig in rigs if here < Counter(rig.models) and _has_board(rig, board))


def _has_board(rig: Rig, board: Board) -> bool:
    return any(name.lower() in own.lower() for name in rig.boards for own in (board.product, board.board))


def slots(rig: Rig, gpus: Mapping[str, Model]) -> dict[str, str]:
    """Positions by bus id, the lower id first. Raises UsageError for a GPU that the rig has no position for."""
    free = dict(rig.gpus)
    positions: dict[str, str] = {}
    for bus_id, model in sorted(gpus.items()):
        position = next((position for position, key in free.items() if key == model.key), None)
        if position is None:
            problem = f"{rig.key} has no position for the {model.label} at {bus_id}"
            raise UsageError("init", problem, "a rig with the machine's GPUs", f"invoke explain {rig.key}")
        positions[bus_id] = position
        del free[position]
    return positions


MIXED = (
    "GPUs of different models: the slowest decides the speed of a job over all of them, and the smallest memory how "
    "much each can hold. Give each model its own job (CUDA_VISIBLE_DEVICES)."
)
"""The note of a drafted rig with GPUs of several models."""


def rig_text(
    board: Board,
    cpu: str,
    gpus: Mapping[str, Model],
    nvswitches: int,
    supply_w: int,
    today: datetime.date,
    *,
    branch: str = "",
    named: Mapping[str, str] | None = None,
) -> str:
    """A rig file for a machine that no rig matches. `supply_w` 0: not known. `branch`: the owner's choice of the
    driver. `named`: positions by bus id. Raises HostError when its GPUs do not fit together or do not run on the
    branch, or no CUDA toolkit is known for them."""
    models = dict(sorted(gpus.items()))
    if branch:
        check_branch(models, branch)
    fitting = fit(models)
    toolkit, limit = cuda_ceiling(fitting, branch or fitting.recommended)
    if toolkit is None:
        expected, fix = "a branch that the catalogue knows", "--rig NAME, a machine of the catalogue with the same GPUs"
        raise HostError("init", f"no CUDA toolkit is known for {limit}", expected, fix)
    sockets: Counter[str] = Counter()
    positions: dict[str, str] = {}
    for bus_id, model in models.items():
        kind = socket(model)
        sockets[kind] += 1
        positions[(named or {}).get(bus_id) or f"{kind}-{sockets[kind]}"] = model.key
    counted = ", ".join(f"{count} x {name}" for name, count in Counter(model.label for model in gpus.values()).items())
    sources = {
        "cpu": f"the machine itself, {today}",
        "gpus": f"the machine itself, {today}",
        "nvswitches": f"the machine itself, {today}" if nvswitches else "",
        "supplies": f"its owner, {today}" if supply_w else "",
        "driver": f"its owner, {today}"
        if branch
        else f"the long-term branch that all its GPUs run, catalogue of {today}",
        "cuda": f"the newest that {limit} allows",
    }
    boards = [name for name in dict.fromkeys((board.product, board.board)) if name]
    rig: dict[str, object] = {
        "title": f"{board}, {counted}" if str(board) else counted,
        **({"boards": boards} if boards else {}),
        "cpu": cpu,
        "gpus": positions,
        **({"supplies": [{"watts": supply_w}]} if supply_w else {}),
        "limits": {"persistence": True},
        "driver": branch or fitting.recommended,
        "cuda": toolkit,
        "p2p": {"path": "nvswitch" if nvswitches else "measure", "why": "nobody has measured this machine yet"},
        **({"nvswitches": nvswitches} if nvswitches else {}),
        **({"notes": [MIXED]} if len({model.key for model in models.values()}) > 1 else {}),
        "sources": {key: source for key, source in sources.items() if source},
    }
    head = f"# Drafted by {package_name()} init on {today} from what the machine says of itself."
    return f"{head} Positions are in bus order.\n{_dump(rig)}"


def socket(model: Model) -> str:
    """SXM2 for a module in such a socket, SXM where its key does not say which, else PCIE."""
    named = re.search(r"sxm\d?", model.key if model.described else model.name.lower())
    return named[0].upper() if named else "SXM" if model.fabric != "none" else "PCIE"


def unlisted_text(
    bus_ids: Sequence[str],
    branch: str,
    toolkit: str,
    flavour: str,
    unlisted: Sequence[str],
    today: datetime.date,
    display: bool | None = None,
) -> str:
    """The text of host_vars/NAME.yml for a host with GPUs that neither gpus/ nor NVIDIA's list has, `unlisted` 10de:ID.

    It names no rig: nothing is known of such GPUs that a rig could say. `toolkit` "": no CUDA toolkit is installed.
    """
    head = (
        f"# Written by {package_name()} init on {today}; yours to change. "
        f"NVIDIA's list here does not have {', '.join(unlisted)}:\n"
        "# nothing is checked for it. "
        "With a list from a newer driver (scripts/devices), init --update describes the machine.\n"
    )
    shown = {} if display is None else {"display": display}
    values: dict[str, object] = {
        "slots": {bus_id: f"PCIE-{number}" for number, bus_id in enumerate(sorted(bus_ids), 1)},
        "driver": {"branch": branch, "source": "auto", "flavour": flavour, **shown},
        **({"cuda": {"toolkit": toolkit}} if toolkit else {}),
        "kernel_cmdline": ["iommu=pt"],
        "limits": {"persistence": True},
    }
    return head + _dump(values)


def host_text(
    rig: Rig, positions: Mapping[str, str], today: datetime.date, branch: str = "", display: bool | None = None
) -> str:
    """The text of host_vars/NAME.yml for a host of that rig; the owner chooses `branch` and `display`."""
    limits: dict[str, object] = {"persistence": bool(rig.limits.persistence) if rig.limits else True}
    if rig.limits and rig.limits.power_limit_w is not None:
        limits["power_limit_w"] = rig.limits.power_limit_w
    if rig.limits and (clocks := rig.limits.application_clocks):
        limits["application_clocks"] = {"memory_mhz": clocks.memory_mhz, "graphics_mhz": clocks.graphics_mhz}
    program = package_name()
    head = f"# {rig.title}. Written by {program} init on {today}; yours to change."
    head += f" `{program} explain {rig.key}` says why.\n"
    of_slots = "# Which position a bus id is, in bus order; swap two names where the machine differs.\n"
    shown = {} if display is None else {"display": display}
    rest = {
        "slots": dict(positions),
        "driver": {"branch": branch or rig.driver, "source": "auto", **shown},
        "cuda": {"toolkit": rig.cuda},
        "kernel_cmdline": ["iommu=pt"],
        "limits": limits,
    }
    return head + _dump({"rig": rig.key}) + of_slots + _dump(rest)


def _dump(value: Mapping[str, object]) -> str:
    """One key per line where it fits: scalars plain, mappings and lists of scalars in braces and brackets."""
    text = ""
    for key, item in value.items():
        flow = None if isinstance(item, (dict, list)) else False
        text += yaml.safe_dump({key: item}, sort_keys=False, default_flow_style=flow, width=120, allow_unicode=True)
    return text


def with_host(text: str, shown: str, name: str, variables: Mapping[str, object]) -> str:
    """An inventory file with one host more in the group `gpu`, its comments and everything else as they were.

    A host of that name that has an example's address gets the new one. Raises UsageError when it has another;
    InputError when the file is laid out so that a line cannot be put in.
    """
    document = loads(text, shown, TAGS)
    lines = text.splitlines(keepends=True)
    end = "\r\n" if "\r\n" in text else "\n"
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += end
    fresh = "".join(_with_host(document, lines, name, variables)).replace("\r\n", "\n").replace("\n", end)
    with contextlib.suppress(InputError, KeyError, TypeError):
        host = loads(fresh, shown, TAGS)["gpu"]["hosts"][name]
        if {key: host[key] for key in variables} == dict(variables):
            return fresh
    line = yaml.safe_dump({name: dict(variables)}, default_flow_style=True, width=1000).strip()[1:-1]
    fix = f"put this under gpu: hosts: yourself: {line}"
    raise InputError(shown, "is laid out so that no line can be put in", "gpu: and hosts:, one host per line", fix)


def _with_host(document: object, lines: list[str], name: str, variables: Mapping[str, object]) -> list[str]:
    """The lines with the host, if they can take it; the caller checks the result."""
    if document is None or (isinstance(document, YamlMapping) and "gpu" not in document):
        return [*lines, _block("", "gpu", {"hosts": {name: dict(variables)}})]
    if not isinstance(document, YamlMapping):
        return lines
    group, at = document["gpu"], document.lines["gpu"]
    if group is None:
        return [*lines[:at], _block("  ", "hosts", {name: dict(variables)}), *lines[at:]]
    hosts = group.get("hosts") if isinstance(group, YamlMapping) else None
    if isinstance(group, YamlMapping) and hosts is None and "hosts" in group:
        at = group.lines["hosts"]
        return [*lines[:at], _block(_indent(lines[at - 1]) + "  ", name, variables), *lines[at:]]
    if not isinstance(hosts, YamlMapping) or not hosts:
        return lines
    if name in hosts:
        return _with_address(lines, hosts, name, variables)
    first = min(hosts.lines.values())
    return [*lines[: first - 1], _block(_indent(lines[first - 1]), name, variables), *lines[first - 1 :]]


def _with_address(lines: list[str], hosts: YamlMapping, name: str, variables: Mapping[str, object]) -> list[str]:
    given, result = hosts[name], list(lines)
    now = given.get("ansible_host") if isinstance(given, YamlMapping) else None
    if not isinstance(given, YamlMapping) or not PLACEHOLDER.fullmatch(str(now)):
        where = hosts.where(name)
        problem = f"'{name}' is in the inventory already ({where})"
        raise UsageError("--host", problem, "another name", f"or edit {where}")
    at = hosts.lines[name] - 1
    if min(given.lines.values()) == hosts.lines[name]:  # {braces}, on the line of the name
        kept = {key: value for key, value in given.items() if key not in _CONNECTION}
        result[at] = _block(_indent(lines[at]), name, {**variables, **kept})
        return result
    for key in given:
        if key in _CONNECTION:
            at = given.lines[key] - 1
            value = re.sub(r"(:\s*)[^\s#]+", rf"\g<1>{variables.get(key)}", result[at], count=1)
            result[at] = value if key in variables else ""
    at = given.lines["ansible_host"] - 1
    missing = {key: value for key, value in variables.items() if key not in given}
    result[at] += "".join(f"{_indent(lines[at])}{key}: {value}\n" for key, value in missing.items())
    return result


_CONNECTION = ("ansible_host", "ansible_user", "ansible_port")


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" "))]


def _block(indent: str, name: str, value: Mapping[str, object]) -> str:
    return textwrap.indent(yaml.safe_dump({name: dict(value)}, sort_keys=False, default_flow_style=False), indent)
