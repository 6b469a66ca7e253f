"""Renders the templates in the variables of a host (rendering.py, which is imported when there is one).

What a template makes of a secret is a secret, and is made when it is needed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NewType

from rigwright.core import lazy_re, yaml_source
from rigwright.core.errors import InputError
from rigwright.core.secrets import Secret
from rigwright.core.yaml_source import Mapping as YamlMapping

Template = NewType("Template", str)
"""The type of a parameter whose value is the name of a file in templates/; the operation gets the rendered text."""


def require_inside(path: Path, folder: Path, where: str) -> None:
    """Raises InputError for a template that is a link to a file outside the directory of its templates/.

    Such a link in a repository could name a private file of the person who runs rigwright."""
    if not path.resolve().is_relative_to(folder.parent.resolve()):
        problem = f"the template {path} is a link to {path.resolve()}, outside {folder.parent}"
        fix = f"put the file itself there: cp --remove-destination {path.resolve()} {path}"
        raise InputError(where, problem, "a template in that directory", fix)


def render_file(path: Path, values: Mapping[str, Any], closed: str = "") -> str | Secret:
    """Renders a template file; `closed` as for `settled`. Raises InputError with the line in the template."""
    from rigwright.core.templates.rendering import names, needs_secret, render_text

    text = yaml_source.text(path, str(path))
    if closed and (unknown := names(text) - {*values}):
        return Secret(partial(_unknown, path.name, unknown, str(path), closed))
    render = partial(render_text, text, values, str(path), lines=True)
    return Secret(render) if needs_secret(text, values) else render()


_WHOLE = lazy_re.compile(r"\s*\{\{((?:(?!\}\}).)*)\}\}\s*", re.DOTALL)


def settled(
    variables: dict[str, Any], where: str, origins: Mapping[str, str] | None = None, closed: str = ""
) -> dict[str, Any]:
    """Renders every template in the variables with the values of the other variables.

    `origins` has the FILE:LINE of each variable, for errors. `closed` is what to type when variables are in files that
    are not open: then a template with an undefined variable is an error only when its value is needed.
    Raises InputError for an invalid template, an undefined variable, or a variable that refers to itself.
    """
    at = origins or {}
    done: dict[str, Any] = {}
    with contextlib.suppress(RecursionError):  # lists that hold themselves
        for _ in range(5):
            templated = [name for name, value in variables.items() if has_template(value)]
            if not templated:
                done.update(variables)  # secrets are rendered later, with these
                return done
            filled = {
                name: fill(variables[name], variables, at.get(name, f"{where}: {name}"), closed, done)
                for name in templated
            }
            variables = {**variables, **filled}
    name = templated[0]
    raise InputError(at.get(name, where), f"the variable '{name}' refers to itself", "variables without a cycle")


MOST_TEXT = 64 << 10
"""The most characters of a template in a variable: texts of variables that refer to each other grow with each round."""


def has_template(value: Any) -> bool:
    """Whether a value contains a template at any depth; a secret does if its text is known and is one."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Secret):
        return value.known and has_template(value.value)
    if isinstance(value, Mapping):
        return any(map(has_template, value.values()))
    return isinstance(value, (list, tuple)) and any(map(has_template, value))


def fill(
    value: Any, variables: Mapping[str, Any], where: str, closed: str = "", later: Mapping[str, Any] | None = None
) -> Any:
    """Renders all templates in a value. A text that is a single `{{ }}` becomes a value of the expression's type.

    A text that reads a secret becomes one, and a secret text stays one; both are rendered with the variables `later`
    (default: `variables`) when they are needed. `closed`: as for `settled`. A value without a template is returned
    itself.
    """
    if later is None:
        later = variables
    if isinstance(value, Mapping):
        places = value.where if isinstance(value, YamlMapping) else lambda _key: where
        items = {key: fill(item, variables, places(key), closed, later) for key, item in value.items()}
        if all(items[key] is value[key] for key in items):
            return value
        return value.with_values(items) if isinstance(value, YamlMapping) else items
    if isinstance(value, (list, tuple)):
        changed = [fill(item, variables, where, closed, later) for item in value]
        return value if all(new is old for new, old in zip(changed, value, strict=True)) else changed
    if not has_template(value):
        return value
    from rigwright.core.templates.rendering import names, needs_secret

    text: str = value.value if isinstance(value, Secret) else value
    if len(text) > MOST_TEXT:
        raise InputError(where, f"more than {MOST_TEXT >> 10} KiB of template", "a smaller template")
    if closed and (unknown := names(text) - {*variables}):
        return Secret(partial(_unknown, text, unknown, where, closed))
    if isinstance(value, Secret) or needs_secret(text, variables):
        return Secret(partial(_filled, text, later, where))
    return _filled(text, variables, where)


def _filled(text: str, variables: Mapping[str, Any], where: str) -> Any:
    from rigwright.core.templates.rendering import evaluate, render_text

    whole = _WHOLE.fullmatch(text)
    return evaluate(whole[1].strip(), variables, where) if whole else render_text(text, variables, where)


def _unknown(what: str, names: Iterable[str], where: str, closed: str) -> str:
    problem = f"'{what}' needs {', '.join(sorted(names))}, which no file that is open sets"
    raise InputError(where, problem, "a variable of the host", closed)
