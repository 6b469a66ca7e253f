"""Renders Jinja2 templates in a sandbox. An undefined variable is an error with file and line.

A template sees the plain text of a secret.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.meta
import jinja2.runtime
from jinja2.environment import TemplateExpression
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rigwright.core import secrets
from rigwright.core.errors import InputError
from rigwright.core.files import disk_cache
from rigwright.core.secrets import Secret

_FAILURES = (
    TypeError, ValueError, ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, SyntaxError,
)  # fmt: skip
"""The exceptions that template code can raise besides Jinja2's own errors. SyntaxError: Python does not compile what
Jinja2 made of a template with too many blocks or brackets inside each other."""


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """A sandboxed, strict Jinja2 environment. Like Ansible it keeps the last newline and drops that after a block."""
    environment = ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True, autoescape=False
    )
    environment.context_class = _Context
    return environment


class _Context(jinja2.runtime.Context):
    """The variables of a template, which sees secrets as plain texts."""

    def resolve_or_missing(self, key: str) -> Any:
        return _plain(super().resolve_or_missing(key))


class _PlainMapping(Mapping[str, Any]):
    """A mapping whose secrets are found when they are looked up."""

    def __init__(self, inner: Mapping[str, Any]) -> None:
        self._inner = inner

    def __getitem__(self, key: str) -> Any:
        return _plain(self._inner[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)


def _plain(value: Any) -> Any:
    if isinstance(value, Secret):
        return value.value
    if not secrets.holds(value):
        return value
    return _PlainMapping(value) if isinstance(value, Mapping) else [_plain(item) for item in value]


def needs_secret(text: str, values: Mapping[str, Any]) -> bool:
    """Whether the template reads a variable that is or contains a secret."""
    holding = [name for name, value in values.items() if secrets.holds(value)]
    return bool(holding) and not names(text).isdisjoint(holding)


@lru_cache(maxsize=4096)
def names(text: str) -> frozenset[str]:
    """The variables that a template reads; none for a template with a mistake, which fails when it is rendered."""

    def make() -> frozenset[str]:
        try:
            tree = environment().parse(text)
            return frozenset(jinja2.meta.find_undeclared_variables(tree)) - {*environment().globals}
        except (jinja2.TemplateError, *_FAILURES):
            return frozenset()

    variables: frozenset[str] = disk_cache.template_code("names", text, make)
    return variables


def evaluate(expression: str, values: Mapping[str, Any], where: str) -> Any:
    """The value of an expression (of `when:`, or a single `{{ }}`) with its type. Raises InputError if it fails."""
    shown = _short(expression)
    try:
        value = _expression(expression)(dict(values))
        if isinstance(value, jinja2.Undefined):
            value._fail_with_undefined_error()
    except jinja2.TemplateError as error:
        raise InputError(where, f"'{shown}': {error.message}", "an expression of defined variables") from None
    except _FAILURES as error:
        raise InputError(where, f"'{shown}': {message(error)}", "an expression that has a value") from None
    return value


def _short(expression: str) -> str:
    return expression if len(expression) <= 200 else f"{expression[:200]}..."


@lru_cache(maxsize=4096)
def _expression(text: str) -> TemplateExpression:
    """The compiled expression; cached, because all hosts use it."""
    return TemplateExpression(
        _compiled("expression", text, "{% set result = (" + text + ") %}"), undefined_to_none=False
    )


@lru_cache(maxsize=4096)
def _template(text: str) -> jinja2.Template:
    """The compiled template; cached, because all hosts use it."""
    return _compiled("template", text, text)


def _compiled(kind: str, key: str, source: str) -> jinja2.Template:
    made_in = environment()
    code = disk_cache.template_code(kind, key, lambda: made_in.compile(source))
    return made_in.template_class.from_code(made_in, code, made_in.make_globals(None), None)


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
        raise InputError(at, f"template error: {message(error)}", "an expression that has a value") from None


def message(error: BaseException) -> str:
    """The message of an error. A MemoryError has no message of its own and gets one here."""
    if isinstance(error, (RecursionError, SyntaxError)):
        return "too many blocks, brackets or calls inside each other"
    return _short(str(error)) or "the text is too large for the memory"


def _line(error: BaseException) -> int:
    """The number of the template line in which rendering failed."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return lines[-1] if lines and lines[-1] else 1
