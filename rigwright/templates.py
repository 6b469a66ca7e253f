"""Jinja2, sandboxed and strict: a variable that is not defined is an error that names its file and line."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NewType

import jinja2
import jinja2.sandbox

from rigwright.errors import InputError
from rigwright.yamlfile import Mapping as YamlMapping

Template = NewType("Template", str)
"""A parameter that names a file in templates/ and reaches the operation as its rendered text."""

FOLDER = Path(__file__).parent.parent / "templates"


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """The one Jinja2 environment: sandboxed, strict, with the trailing newline kept."""
    return jinja2.sandbox.SandboxedEnvironment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False
    )


def render(name: str, values: Mapping[str, Any], folder: Path = FOLDER) -> str:
    """The text of templates/NAME. Raises InputError with the template's own line."""
    path = folder / name
    if not path.is_file():
        known = ", ".join(sorted(file.name for file in folder.glob("*.j2"))) or "none"
        raise InputError(str(path), "no such template", f"one of {known}")
    return _guarded(path.read_text(encoding="utf-8"), values, f"templates/{name}")


def render_text(text: str, values: Mapping[str, Any], where: str) -> str:
    """A value from a YAML file, with its `{{ }}` filled in. Raises InputError that names `where`."""
    return _guarded(text, values, where)


def evaluate(expression: str, values: Mapping[str, Any], where: str) -> Any:
    """The value of an expression (`when:`, or a value that is one `{{ }}`), with its own type. Raises InputError."""
    try:
        value = _expression(expression)(dict(values))
        if isinstance(value, jinja2.Undefined):
            value._fail_with_undefined_error()
    except jinja2.TemplateError as error:
        raise InputError(where, f"'{expression}': {error.message}", "an expression of defined variables") from None
    except (TypeError, ValueError, ZeroDivisionError, AttributeError, KeyError, OverflowError) as error:
        raise InputError(where, f"'{expression}': {error}", "an expression that has a value") from None
    return value


@lru_cache(maxsize=4096)
def _expression(text: str) -> Any:
    """Compiled once, for all hosts."""
    return environment().compile_expression(text, undefined_to_none=False)


@lru_cache(maxsize=4096)
def _template(text: str) -> jinja2.Template:
    """Compiled once, for all hosts."""
    return environment().from_string(text)


def _guarded(text: str, values: Mapping[str, Any], where: str) -> str:
    try:
        return _template(text).render(dict(values))
    except jinja2.TemplateSyntaxError as error:
        raise InputError(f"{where}:{error.lineno}", f"template error: {error.message}", "valid Jinja2") from None
    except jinja2.TemplateError as error:
        at = f"{where}:{_line(error)}" if where.startswith("templates/") else where
        raise InputError(at, f"template error: {error.message}", "defined variables") from None
    except (TypeError, ValueError, ZeroDivisionError, AttributeError, KeyError, OverflowError) as error:
        raise InputError(where, f"template error: {error}", "an expression that has a value") from None


def _line(error: BaseException) -> int:
    """The template's own line in which rendering failed."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return lines[-1] if lines and lines[-1] else 1


_WHOLE = re.compile(r"\s*\{\{((?:(?!\}\}).)*)\}\}\s*", re.DOTALL)


def settled(variables: dict[str, Any], where: str, origins: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The variables with every template in them filled in from the others.

    `origins` tells where each was given. Raises InputError.
    """
    at = origins or {}
    for _ in range(5):
        templated = [name for name, value in variables.items() if has_template(value)]
        if not templated:
            return variables
        filled = {name: fill(variables[name], variables, at.get(name, f"{where}: {name}")) for name in templated}
        variables = {**variables, **filled}
    name = templated[0]
    raise InputError(at.get(name, where), f"the variable '{name}' never settles", "variables without a circle")


def has_template(value: Any) -> bool:
    """Whether a value, or anything in it, holds a template."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(map(has_template, value.values()))
    return isinstance(value, (list, tuple)) and any(map(has_template, value))


def fill(value: Any, variables: Mapping[str, Any], where: str) -> Any:
    """A value with its templates filled in; one that is a single `{{ }}` keeps its type."""
    if isinstance(value, str) and has_template(value):
        whole = _WHOLE.fullmatch(value)
        return evaluate(whole[1].strip(), variables, where) if whole else render_text(value, variables, where)
    if isinstance(value, YamlMapping) and has_template(value):
        filled = YamlMapping({key: fill(item, variables, value.where(key)) for key, item in value.items()})
        filled.path, filled.line, filled.lines = value.path, value.line, value.lines
        return filled
    if isinstance(value, (list, tuple)) and has_template(value):
        return [fill(item, variables, where) for item in value]
    return value
