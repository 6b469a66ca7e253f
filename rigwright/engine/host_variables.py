"""The variables of one host as a playbook sees them: for templates as the inventory has them, for parameters as
types."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from rigwright.checks.accepted import REQUIRED_TEST
from rigwright.core.desired import VARIABLES, Desired, Limits, variable_names, variable_type
from rigwright.core.errors import InputError
from rigwright.core.mig import ALL
from rigwright.core.schema import convert
from rigwright.core.templates.variables import settled
from rigwright.core.yaml_source import Mapping as YamlMapping, did_you_mean
from rigwright.inventory.model import Host

if TYPE_CHECKING:
    from rigwright.catalogue import Rig


class HostVariables(Struct, frozen=True, dict=True):
    """The variables of one host.

    `variables`: all of them, for templates, with `slots` and `expected_gpus` of the rig. `desired`: rigwright's own, as
    types. `rig`: the machine that `desired.rig` names. `rigs`: the folder of the user's own rigs.
    """

    host: Host
    variables: Mapping[str, Any]
    desired: Desired
    rig: Rig | None
    rigs: Path

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """The values that parameters of these names get where a task does not give them."""
        values = {name: value for name in VARIABLES if (value := getattr(self.desired, name)) is not None}
        values |= self.desired.of_features
        return {**values, "rig": self.rig} if self.rig else values

    def with_vars(self, own: YamlMapping | None, where: str) -> HostVariables:
        """These, with the `vars` of a play or task over them; they count as those of the inventory. Raises
        InputError."""
        if not own:
            return self
        variables = settled({**self.variables, **own}, where, self.host.origins, self.host.closed)
        ours = {name: variables[name] for name in own if name in variable_names()}
        if not ours:
            return replace(self, variables=variables)
        origins = {**self.host.origins, **{name: own.where(name) for name in ours}}
        host = dataclasses.replace(self.host, variables={**self.host.variables, **ours}, origins=origins)
        typed = of_host(host, self.rigs)
        ours = {name: typed.variables[name] for name in variable_names() if name in typed.variables}
        return replace(typed, variables={**variables, **ours})


def of_host(host: Host, rigs: Path) -> HostVariables:
    """The variables of a host, its templates filled in. Raises InputError for a value of rigwright's own that does not
    fit."""
    variables = settled(dict(host.variables), host.where, host.origins, host.closed)
    rig = None
    if "rig" in variables:
        from rigwright import catalogue

        rig = catalogue.rig(convert(variables["rig"], str, host.origin("rig"), "rig"), host.origin("rig"), rigs)
        variables.setdefault("expected_gpus", len(rig.gpus))
        variables.setdefault("slots", rig.slots)
    if variables.get("limits") == "auto":
        if rig is None or rig.limits is None:
            problem = f"limits are auto, and {f'the rig {rig.key} has none' if rig else 'there is no rig'}"
            raise InputError(host.origin("limits"), problem, "a rig with limits, or limits written out")
        variables["limits"] = {key: value for key, value in to_builtins(rig.limits).items() if value not in (None, {})}
    values = {
        name: convert(variables[name], variable_type(name), host.origin(name), name)
        for name in variable_names()
        if name in variables
    }
    own = {name: value for name, value in values.items() if name in VARIABLES}
    of_features = {name: value for name, value in values.items() if name not in VARIABLES and value is not None}
    desired = Desired(**own, of_features=of_features)
    if rig:
        _check_slots(desired.slots or {}, rig, host.origin("slots"))
    _check_exceptions("limits.gpus", (desired.limits or Limits()).gpus, desired, host.origin("limits"))
    _check_exceptions("ecc.gpus", desired.ecc.gpus if desired.ecc else {}, desired, host.origin("ecc"))
    _check_exceptions(
        "mig", [name for name in desired.mig.gpus if name != ALL] if desired.mig else (), desired, host.origin("mig")
    )
    if desired.accepted:
        _check_accepted(variables["accepted"], host.origin("accepted"))
    return HostVariables(host, variables, desired, rig, rigs)


def _check_accepted(names: Mapping[str, Any], origin: str) -> None:
    """Raises InputError for a name that is no warning."""
    from rigwright import catalogue
    from rigwright.checks.problems import DRIFT
    from rigwright.engine import plugins

    symptoms = catalogue.all_symptoms()
    for name in names:
        where = names.where(name) if isinstance(names, YamlMapping) else origin
        if name == REQUIRED_TEST:
            problem = f"accepted: '{name}' says that a test is required, and what is not proved cannot be accepted"
            raise InputError(where, problem, "the name of a warning", "invoke provision, which runs the test")
        if (symptom := symptoms.get(name)) and symptom.level != "warn":
            problem = (
                f"accepted: '{name}' is {'a failure' if symptom.level == 'fail' else 'information'}, not a warning"
            )
            raise InputError(where, problem, "the name of a warning", f"invoke explain {name}")
        if not symptom and name not in DRIFT and plugins.find("checks", name) is None:
            warnings = (key for key, known in symptoms.items() if known.level == "warn")
            problem = f"accepted: no finding '{name}'{did_you_mean(name, [*plugins.known('checks'), *warnings])}"
            fix = "the names are in docs/reference/checks.md, and under `findings` of invoke verify --json -"
            raise InputError(where, problem, "a check, such as driver.patched, or a warning of the catalogue", fix)


def _check_slots(slots: Mapping[Any, str], rig: Rig, where: str) -> None:
    """Raises InputError for a position that is not the rig's, or that has two bus ids."""
    positions = list(slots.values())
    twice = next((position for position in positions if positions.count(position) > 1), None)
    if twice:
        raise InputError(where, f"two bus ids for {twice}", "each position once")
    unknown = next((position for position in positions if position not in rig.gpus), None)
    if unknown is not None:
        problem = f"'{unknown}' is no position of {rig.key}{did_you_mean(unknown, rig.gpus)}"
        raise InputError(where, problem, f"one of {', '.join(rig.gpus)}")


def _check_exceptions(variable: str, gpus: Collection[str], desired: Desired, where: str) -> None:
    """Raises InputError for a GPU in a variable that is no model, position or UUID."""
    if not gpus:
        return
    from rigwright import catalogue

    positions = list((desired.slots or {}).values())
    names = [*positions, *catalogue.gpu_keys()]
    for name in gpus:
        if name not in names and not re.fullmatch(
            r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|10de:[0-9a-f]{4}", name
        ):
            problem = f"{variable}: no GPU '{name}'{did_you_mean(name, names)}"
            places = ", ".join(positions) or "none is named: slots names them"
            raise InputError(where, problem, f"a position ({places}), a model, or a whole UUID")
