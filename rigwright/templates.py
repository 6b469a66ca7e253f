"""Jinja2, sandboxed and strict: a variable that is not defined is an error that names its file and line."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NewType

import jinja2
import jinja2.sandbox

from rigwright.errors import InputError

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
        template = environment().compile_expression(expression, undefined_to_none=False)
        value = template(dict(values))
        if isinstance(value, jinja2.Undefined):
            value._fail_with_undefined_error()
    except jinja2.TemplateError as error:
        raise InputError(where, f"'{expression}': {error.message}", "an expression of defined variables") from None
    except (TypeError, ValueError, ZeroDivisionError, AttributeError, KeyError, OverflowError) as error:
        raise InputError(where, f"'{expression}': {error}", "an expression that has a value") from None
    return value


def _guarded(text: str, values: Mapping[str, Any], where: str) -> str:
    try:
        return environment().from_string(text).render(dict(values))
    except jinja2.TemplateSyntaxError as error:
        raise InputError(f"{where}:{error.lineno}", f"template error: {error.message}", "valid Jinja2") from None
    except jinja2.TemplateError as error:
        raise InputError(where, f"template error: {error.message}", "defined variables") from None
    except (TypeError, ValueError, ZeroDivisionError, AttributeError, KeyError, OverflowError) as error:
        raise InputError(where, f"template error: {error}", "an expression that has a value") from None
