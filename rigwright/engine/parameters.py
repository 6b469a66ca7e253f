"""Parameters of operations and checks: given by the task, else the host's variable of that name, else the default.

A run adds what a task cannot know (`earlier`) by the same rule, before it calls a check.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from rigwright.core import features
from rigwright.core.desired import variable_names, variable_type
from rigwright.core.errors import InputError
from rigwright.core.schema import convert
from rigwright.core.secrets import Secret
from rigwright.core.templates.variables import Template, fill, render_file, require_inside
from rigwright.core.yaml_source import Mapping as YamlMapping, did_you_mean, only_keys
from rigwright.engine.host_variables import HostVariables

NOT_OF_TASKS = ("facts", "earlier", "figures_before", "smoke_before", "nodes_measured", "templates")
"""Parameters that no task can give: the host's facts, its last run, its GPUs' earlier stresses, what a run over several
nodes found, and the owner's templates."""


@cache
def types(function: Callable[..., Any]) -> dict[str, Any]:
    """The type of every parameter that a task can give, by name. Any stands for the type of a feature's variable of
    that name."""
    hints = get_type_hints(function)
    return {
        name: variable_type(name) if hints[name] is Any and name in features.variables() else hints[name]
        for name in _parameters(function)
        if name not in NOT_OF_TASKS
    }


@cache
def _parameters(function: Callable[..., Any]) -> Mapping[str, bool]:
    """The names of the parameters, each with whether it has no default."""
    parameters = inspect.signature(function).parameters.values()
    return {parameter.name: parameter.default is inspect.Parameter.empty for parameter in parameters}


def inject(function: Callable[..., Any], given: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The given parameters, and those of `values` that the function has and that were not given."""
    return {**{name: values[name] for name in _parameters(function) if name in values}, **given}


def check(name: str, function: Callable[..., Any], given: Any, where: str) -> None:
    """Raises InputError for parameters that are no mapping, or that the operation or check `name` does not have."""
    if given is not None and not isinstance(given, Mapping):
        fix = f"give each parameter by its name; {name} has {', '.join(types(function)) or 'none'}"
        raise InputError(where, f"the parameters of {name} are {given!r}", "{NAME: VALUE, ...}", fix)
    if isinstance(given, YamlMapping) and given:
        only_keys(given, types(function), f"parameter of {name}")


def bind(
    name: str,
    function: Callable[..., Any],
    given: Mapping[str, Any] | None,
    variables: Mapping[str, Any],
    host: HostVariables,
    where: str,
    folders: Sequence[Path],
    others: Mapping[str, Any],
) -> dict[str, Any]:
    """The parameters of one step or check on one host.

    `variables`: for templates in `given`. `folders` have the files that a parameter of type Template names. `others`:
    values of the parameters that no task can give. Raises InputError for a value of the wrong type, and for a required
    parameter that neither the task nor the host gives.
    """
    values: dict[str, Any] = {}
    for parameter, value in (given or {}).items():
        at = given.where(parameter) if isinstance(given, YamlMapping) else where
        hint = types(function)[parameter]
        is_template = Template in (hint, *get_args(hint))
        closed = host.host.closed
        filled = convert_value(
            fill(value, variables, at, closed), Template if is_template else hint, at, parameter, host.rigs
        )
        if is_template:
            filled = convert(_render_template(filled, variables, folders, at, closed), hint, at, parameter)
        values[parameter] = filled
    values = inject(function, values, {**host.parameters, **others})
    for missing, required in _parameters(function).items():
        if not required or missing in values or missing in NOT_OF_TASKS:
            continue
        if missing not in variable_names():
            fix = (
                f"add `{missing}: ...` below {name}; docs/reference/operations.md and checks.md describe all parameters"
            )
            raise InputError(where, f"{name} lacks '{missing}'", f"{missing}: ...", fix)
        problem = f"{name} needs '{missing}': neither the task nor host {host.host.name} in the inventory has it"
        expected = f"the variable {missing} in the inventory, or {missing}: ... in the task"
        fix = f"see docs/reference/inventory.md; `when: {missing} is defined` skips the task on hosts without it"
        raise InputError(where, problem, expected, fix)
    return values


def convert_value(value: Any, hint: Any, where: str, name: str, rigs: Path | None = None) -> Any:
    """A value from YAML as the type of a parameter; a rig by its name, of the folder `rigs` or the catalogue. Raises
    InputError."""
    kinds = (hint, *get_args(hint))
    if any(getattr(kind, "__name__", "") == "Rig" for kind in kinds):  # by name, so that the catalogue is not imported
        from rigwright import catalogue

        if value is None and len(kinds) > 1:
            return None
        return catalogue.rig(convert(value, str, where, name), where, rigs)
    return convert(value, hint, where, name)


def _render_template(
    name: str, variables: Mapping[str, Any], folders: Sequence[Path], where: str, closed: str
) -> str | Secret:
    """The text of the template file in the first folder that has it. Raises InputError: a name outside the folders, no
    such file, a mistake in it."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise InputError(where, f"the template '{name}' is outside templates/", "the name of a file in templates/")
    folder = next((folder for folder in folders if (folder / name).is_file()), None)
    if folder is None:
        files = [(folder, file) for folder in folders for file in folder.rglob("*.j2") if file.parent.name != "report"]
        known = sorted({str(file.relative_to(folder)) for folder, file in files})
        problem = f"no such template '{name}'{did_you_mean(name, known)}"
        expected = f"one of {', '.join(known)}" if known else f"one of the files in {' or '.join(map(str, folders))}"
        raise InputError(where, problem, expected)
    require_inside(folder / name, folder, where)
    return render_file(folder / name, variables, closed)
