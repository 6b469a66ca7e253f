"""What a playbook sees of a host: its variables, rigwright's own of the right shape, and what follows from its rig."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from rigwright.errors import InputError
from rigwright.hosts import Host
from rigwright.typed import convert
from rigwright.wanted import VARIABLES
from rigwright.yamlfile import did_you_mean


def of_host(host: Host, rigs: Path) -> dict[str, Any]:
    """The host's variables, rigwright's own of the right shape; `expected_gpus`, and the `slots` of its rig where it names none."""
    variables = dict(host.variables)
    if variables.get("limits") == "auto":
        variables["limits"] = _own_limits(variables, host, rigs)
    for name, wanted in VARIABLES.items():
        if name in variables:
            convert(variables[name], wanted, host.origin(name), name)
    if "rig" in variables:
        from rigwright import catalogue

        rig = catalogue.rig(variables["rig"], host.origin("rig"), rigs)
        variables["expected_gpus"] = len(rig.gpus)
        variables.setdefault("slots", rig.slots)
        positions = list(variables["slots"].values())
        twice = next((position for position in positions if positions.count(position) > 1), None)
        if twice:
            raise InputError(host.origin("slots"), f"two bus ids for {twice}", "each position once")
        unknown = [position for position in variables["slots"].values() if position not in rig.gpus]
        if unknown:
            raise InputError(
                host.origin("slots"),
                f"'{unknown[0]}' is no position of {rig.key}{did_you_mean(unknown[0], rig.gpus)}",
                f"one of {', '.join(rig.gpus)}",
            )
    _check_exceptions(variables.get("limits"), list(variables.get("slots", {}).values()), host.origin("limits"))
    return variables


def _own_limits(variables: dict[str, Any], host: Host, rigs: Path) -> dict[str, Any]:
    """The limits of the host's rig, as YAML would give them. Raises InputError where there are none."""
    from rigwright import catalogue

    rig = catalogue.rig(variables["rig"], host.origin("rig"), rigs) if "rig" in variables else None
    if rig is None or rig.limits is None:
        found = f"limits are auto, and {f'the rig {rig.key} has none' if rig else 'there is no rig'}"
        raise InputError(host.origin("limits"), found, "a rig with limits, or limits written out")
    return {key: value for key, value in asdict(rig.limits).items() if value not in (None, {})}


def _check_exceptions(limits: Any, positions: Collection[str], where: str) -> None:
    """Raises InputError for a GPU of `limits.gpus` that is no model, position or UUID."""
    gpus = (limits.get("gpus") or {}) if isinstance(limits, Mapping) else {}
    if not gpus:
        return
    from rigwright import catalogue

    names = [*positions, *catalogue.gpu_keys()]
    for name in gpus:
        if name not in names and not re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", str(name)):
            hint = did_you_mean(str(name), names)
            places = ", ".join(positions) or "none is named: slots names them"
            raise InputError(
                where, f"limits.gpus: no GPU '{name}'{hint}", f"a position ({places}), a model, or a whole UUID"
            )


def parameter(value: Any, hint: Any, where: str, name: str, rigs: Path | None = None) -> Any:
    """A value as the type that a parameter's annotation wants; a rig by its name, of `rigs` or the catalogue. Raises InputError."""
    kinds = (hint, *get_args(hint))
    if any(
        getattr(one, "__name__", "") == "Rig" for one in kinds
    ):  # by name: a playbook without one needs no catalogue
        from rigwright import catalogue

        if value is None and len(kinds) > 1:
            return None
        return catalogue.rig(convert(value, str, where, name), where, rigs)
    return convert(value, hint, where, name)
