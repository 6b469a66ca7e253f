"""Renders Jinja2 templates in a sandbox. An undefined variable is an error with file and line.

What a template makes of a secret is a secret, and is made when it is needed. A template sees the plain text.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NewType

import jinja2
import jinja2.meta
import jinja2.runtime

from rigwright.core import secrets, template_limits, work_limits, yaml_source
from rigwright.core.errors import InputError
from rigwright.core.secrets import Secret
from rigwright.core.yaml_source import Mapping as YamlMapping

Template = NewType("Template", str)
"""The type of a parameter whose value is the name of a file in templates/; the operation gets the rendered text."""


_FAILURES = (
    TypeError, ValueError, ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, SyntaxError,
)  # fmt: skip
"""The exceptions that template code can raise besides Jinja2's own errors. SyntaxError: Python does not compile what
Jinja2 made of a template with too many blocks or brackets inside each other."""


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """A sandboxed, strict and limited Jinja2 environment. Like Ansible, it keeps the last newline and drops that after a block."""
    environment = template_limits.Environment(
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
    return bool(holding) and not _names(text).isdisjoint(holding)


@lru_cache(maxsize=4096)
def _names(text: str) -> frozenset[str]:
    """The variables that a template reads; none of one with a mistake, which fails when it is rendered."""
    try:
        tree = environment().parse(_bounded(text))
        return frozenset(jinja2.meta.find_undeclared_variables(tree)) - {*environment().globals}
    except (jinja2.TemplateError, work_limits.LimitExceeded, *_FAILURES):
        return frozenset()


def require_inside(path: Path, folder: Path, where: str) -> None:
    """Raises InputError for a template that is a link to a file outside the directory of its templates/: a link in a repository
    could name a private file of the person who runs rigwright."""
    if not path.resolve().is_relative_to(folder.parent.resolve()):
        found = f"the template {path} is a link to {path.resolve()}, outside {folder.parent}"
        fix = f"put the file itself there: cp --remove-destination {path.resolve()} {path}"
        raise InputError(where, found, "a template in that directory", fix)


def render_file(path: Path, values: Mapping[str, Any], closed: str = "") -> str | Secret:
    """Renders a template file with the values; `closed` as for `settled`. Raises InputError with the line in the template."""
    text = yaml_source.text(path, str(path))
    if closed and (unknown := _names(text) - {*values}):
        return Secret(partial(_unknown, path.name, unknown, str(path), closed))
    render = partial(render_text, text, values, str(path), lines=True)
    return Secret(render) if needs_secret(text, values) else render()


def evaluate(expression: str, values: Mapping[str, Any], where: str) -> Any:
    """The value of an expression (of `when:`, or a single `{{ }}`) with its type. Raises InputError if it fails."""
    shown = _short(expression)
    try:
        with work_limits.counted():
            work_limits.spend(_STEPS)
            value = _expression(_bounded(expression))(dict(values))
        if isinstance(value, jinja2.Undefined):
            value._fail_with_undefined_error()
    except work_limits.LimitExceeded as error:
        raise InputError(where, f"'{shown}': {error}", _SMALLER) from None
    except jinja2.TemplateError as error:
        raise InputError(where, f"'{shown}': {error.message}", "an expression of defined variables") from None
    except _FAILURES as error:
        raise InputError(where, f"'{shown}': {_text(error)}", "an expression that has a value") from None
    return value


_STEPS = 10
"""The steps that one template counts besides its own: beginning an evaluation takes as long as ten turns of a loop."""
_SMALLER = "a template that needs less"


def _bounded(text: str) -> str:
    """The text of a template. Raises LimitExceeded for one that is too long to compile."""
    if len(text) > template_limits.MOST_TEXT:
        raise work_limits.LimitExceeded(f"more than {template_limits.MOST_TEXT >> 10} KiB of template")
    return text


def _short(expression: str) -> str:
    return expression if len(expression) <= 200 else f"{expression[:200]}..."


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
        with work_limits.counted():
            work_limits.spend(_STEPS)
            return _template(_bounded(text)).render(dict(values))
    except jinja2.TemplateSyntaxError as error:
        raise InputError(f"{where}:{error.lineno}", f"template error: {error.message}", "valid Jinja2") from None
    except work_limits.LimitExceeded as error:
        at = f"{where}:{_line(error)}" if lines else where
        raise InputError(at, f"template error: {error}", _SMALLER) from None
    except jinja2.TemplateError as error:
        at = f"{where}:{_line(error)}" if lines else where
        raise InputError(at, f"template error: {error.message}", "defined variables") from None
    except _FAILURES as error:
        at = f"{where}:{_line(error)}" if lines else where
        raise InputError(at, f"template error: {_text(error)}", "an expression that has a value") from None


def _text(error: BaseException) -> str:
    """The message of an error. A MemoryError has no message of its own and gets one here."""
    if isinstance(error, (RecursionError, SyntaxError)):
        return "too many blocks, brackets or calls inside each other"
    return _short(str(error)) or "the text is too large for the memory"


def _line(error: BaseException) -> int:
    """The number of the template line in which rendering failed."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return lines[-1] if lines and lines[-1] else 1


_WHOLE = re.compile(r"\s*\{\{((?:(?!\}\}).)*)\}\}\s*", re.DOTALL)


def settled(
    variables: dict[str, Any], where: str, origins: Mapping[str, str] | None = None, closed: str = ""
) -> dict[str, Any]:
    """Renders every template in the variables with the values of the other variables.

    `origins` has the FILE:LINE of each variable, for errors. `closed` is what to type when variables are in files that are not
    open: then a template with an undefined variable is an error only when its value is needed.
    Raises InputError for an invalid template, an undefined variable, or a variable that refers to itself.
    """
    at = origins or {}
    done: dict[str, Any] = {}
    with work_limits.counted():
        for _ in range(5):
            templated = [name for name, value in variables.items() if has_template(value, at.get(name, where))]
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


def has_template(value: Any, where: str = "") -> bool:
    """Whether a value contains a template at any depth; a secret does if its text is known and is one.

    Raises InputError with `where` for a value that has too many parts.
    """
    try:
        with work_limits.counted():
            return _has_template(value)
    except (work_limits.LimitExceeded, RecursionError) as error:
        raise _too_large(where, error) from None


def _too_large(where: str, error: Exception) -> InputError:
    found = str(error) if isinstance(error, work_limits.LimitExceeded) else _text(error)
    return InputError(where, f"templates in templates: {found}", "a smaller value")


def _has_template(value: Any) -> bool:
    work_limits.spend()
    if isinstance(value, Secret):
        return value.known and _has_template(value.value)
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(map(_has_template, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_has_template, value))


def fill(
    value: Any,
    variables: Mapping[str, Any],
    where: str,
    closed: str = "",
    later: Mapping[str, Any] | None = None,
) -> Any:
    """Renders all templates in a value. A text that is a single `{{ }}` becomes a value of the expression's type.

    A text that reads a secret becomes one, and a secret text stays one; both are rendered with the variables `later` (default:
    `variables`) when they are needed. `closed`: as for `settled`. A value without a template is returned itself.
    """
    if later is None:
        later = variables
    try:
        with work_limits.counted():
            return _filled_value(value, variables, where, closed, later)
    except (work_limits.LimitExceeded, RecursionError) as error:
        raise _too_large(where, error) from None


def _filled_value(value: Any, variables: Mapping[str, Any], where: str, closed: str, later: Mapping[str, Any]) -> Any:
    work_limits.spend()
    if isinstance(value, Mapping):
        places = value.where if isinstance(value, YamlMapping) else lambda _key: where
        items = {key: _filled_value(item, variables, places(key), closed, later) for key, item in value.items()}
        if all(items[key] is value[key] for key in items):
            return value
        if not isinstance(value, YamlMapping):
            return items
        filled = YamlMapping(items)
        filled.path, filled.line, filled.lines = value.path, value.line, value.lines
        return filled
    if isinstance(value, (list, tuple)):
        changed = [_filled_value(item, variables, where, closed, later) for item in value]
        return value if all(new is old for new, old in zip(changed, value, strict=True)) else changed
    if not _has_template(value):
        return value
    text: str = _bounded(value.value if isinstance(value, Secret) else value)
    if closed and (unknown := _names(text) - {*variables}):
        return Secret(partial(_unknown, text, unknown, where, closed))
    if isinstance(value, Secret) or needs_secret(text, variables):
        return Secret(partial(_filled, text, later, where))
    return _filled(text, variables, where)


def _filled(text: str, variables: Mapping[str, Any], where: str) -> Any:
    whole = _WHOLE.fullmatch(text)
    return evaluate(whole[1].strip(), variables, where) if whole else render_text(text, variables, where)


def _unknown(what: str, names: Iterable[str], where: str, closed: str) -> str:
    found = f"'{what}' needs {', '.join(sorted(names))}, which no file that is open sets"
    raise InputError(where, found, "a variable of the host", closed)
