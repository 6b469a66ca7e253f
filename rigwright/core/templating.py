"""Renders Jinja2 templates in a sandbox. An undefined variable is an error with file and line."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NewType

import jinja2
import jinja2.sandbox

from rigwright.core import yaml_source
from rigwright.core.errors import InputError
from rigwright.core.yaml_source import Mapping as YamlMapping

Template = NewType("Template", str)
"""The type of a parameter whose value is the name of a file in templates/; the operation gets the rendered text."""


_FAILURES = (TypeError, ValueError, ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError)
"""The exceptions that template code can raise besides Jinja2's own errors."""


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """A sandboxed, strict Jinja2 environment. Like Ansible, it keeps the last newline and drops that after a block."""
    return jinja2.sandbox.SandboxedEnvironment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True, autoescape=False
    )


def render_file(path: Path, values: Mapping[str, Any]) -> str:
    """Renders a template file with the values. Raises InputError with the line in the template."""
    return render_text(yaml_source.text(path, str(path)), values, str(path), lines=True)


def evaluate(expression: str, values: Mapping[str, Any], where: str) -> Any:
    """The value of an expression (of `when:`, or a single `{{ }}`) with its type. Raises InputError if it fails."""
    try:
        value = _expression(expression)(dict(values))
        if isinstance(value, jinja2.Undefined):
            value._fail_with_undefined_error()
    except jinja2.TemplateError as error:
        raise InputError(where, f"'{expression}': {error.message}", "an expression of defined variables") from None
    except _FAILURES as error:
        raise InputError(where, f"'{expression}': {_text(error)}", "an expression that has a value") from None
    return value


@lru_cache(maxsize=4096)
def _expression(text: str) -> Any:
    """The compiled expression; cached, because all hosts use it."""
    return environment().compile_expression(text, undefined_to_none=False)


@lru_cache(maxsize=4096)
def _template(text: str) -> jinja2.Template:
    """The compiled template; cached, because all hosts use it."""
    return environment().from_string(text)


def render_text(text: str, values: Mapping[str, Any], where: str, *, lines: bool = False) -> str:
    """Renders a text. Raises InputError with `where`, and with the line in the text if `lines` is true."""
    try:
        return _template(text).render(dict(values))
    except jinja2.TemplateSyntaxError as error:
        raise InputError(f"{where}:{error.lineno}", f"template error: {error.message}", "valid Jinja2") from None
    except jinja2.TemplateError as error:
        at = f"{where}:{_line(error)}" if lines else where
        raise InputError(at, f"template error: {error.message}", "defined variables") from None
    except _FAILURES as error:
        at = f"{where}:{_line(error)}" if lines else where
        raise InputError(at, f"template error: {_text(error)}", "an expression that has a value") from None


def _text(error: BaseException) -> str:
    """The message of an error. A MemoryError has no message of its own and gets one here."""
    return str(error) or "the text is too large for the memory"


def _line(error: BaseException) -> int:
    """The number of the template line in which rendering failed."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return lines[-1] if lines and lines[-1] else 1


_WHOLE = re.compile(r"\s*\{\{((?:(?!\}\}).)*)\}\}\s*", re.DOTALL)


def settled(variables: dict[str, Any], where: str, origins: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Renders every template in the variables with the values of the other variables.

    `origins` has the FILE:LINE of each variable, for errors. Raises InputError for an invalid template, an undefined
    variable, or a variable that refers to itself.
    """
    at = origins or {}
    for _ in range(5):
        templated = [name for name, value in variables.items() if has_template(value)]
        if not templated:
            return variables
        filled = {name: fill(variables[name], variables, at.get(name, f"{where}: {name}")) for name in templated}
        variables = {**variables, **filled}
    name = templated[0]
    raise InputError(at.get(name, where), f"the variable '{name}' refers to itself", "variables without a cycle")


def has_template(value: Any) -> bool:
    """Whether a value contains a template at any depth."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(map(has_template, value.values()))
    return isinstance(value, (list, tuple)) and any(map(has_template, value))


def fill(value: Any, variables: Mapping[str, Any], where: str) -> Any:
    """Renders all templates in a value. A text that is a single `{{ }}` becomes a value of the expression's type."""
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
