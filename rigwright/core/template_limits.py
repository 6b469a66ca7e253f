"""Limits of a Jinja2 template: what it may call, how many steps it may take, and how much text it may make.

An inventory must not stop the program that reads it. So the environment counts the work of a template: the turns of its
loops, its calls, and the characters that each operation will make, before it makes them. Operations whose work cannot be
known before are left out.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from types import CodeType
from typing import Any

import jinja2
from jinja2 import compiler, nodes, sandbox
from jinja2.parser import Parser
from jinja2.runtime import Context

from rigwright.core.work_limits import LimitExceeded, spend

MOST_TEXT = 64 << 10
"""The most characters of a template."""
MOST_BITS = 20_000
"""The most bits of a whole number."""


def _each(items: Iterable[Any]) -> Iterator[Any]:
    """The items, each counted as a step."""
    for item in items:
        spend()
        yield item


def _joined(parts: Iterable[str]) -> str:
    texts = list(parts)
    spend(1, sum(map(len, texts)))
    return "".join(texts)


def _joined_values(values: Iterable[Any]) -> str:
    return _joined(map(str, values))


class _Compiler(compiler.CodeGenerator):
    """Makes `~` count its result, as concatenated output does."""

    def visit_Concat(self, node: nodes.Concat, frame: compiler.Frame) -> None:
        self.write("environment.joined_values((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class Environment(sandbox.ImmutableSandboxedEnvironment):
    """A sandbox whose templates cannot change values, and whose work is limited."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = _Compiler
    concat = staticmethod(_joined)
    joined_values = staticmethod(_joined_values)
    each = staticmethod(_each)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        del self.globals["lipsum"]
        for name in ("urlize", "striptags", "xmlattr"):
            del self.filters[name]
        self.filters = {name: _limited(name, function) for name, function in self.filters.items()}

    def expression_code(self, text: str) -> CodeType:
        """The code of a template that sets `result` to the value of an expression. Raises TemplateSyntaxError."""
        parser = Parser(self, text, state="variable")
        try:
            expression = parser.parse_expression()
            if not parser.stream.eos:
                raise jinja2.TemplateSyntaxError("chunk after expression", parser.stream.current.lineno, None, None)
            expression.set_environment(self)
        except jinja2.TemplateSyntaxError:
            self.handle_exception(source=text)
        body: list[nodes.Node] = [nodes.Assign(nodes.Name("result", "store"), expression, lineno=1)]
        return self.compile(nodes.Template(body, lineno=1))

    def _generate(
        self, source: nodes.Template, name: str | None, filename: str | None, defer_init: bool = False
    ) -> str:
        for loop in source.find_all(nodes.For):
            loop.iter = nodes.Call(nodes.EnvironmentAttribute("each"), [loop.iter], [], None, None, lineno=loop.lineno)
        return super()._generate(source, name, filename, defer_init)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may use an attribute; not `translate`, whose work is not known before."""
        untold = isinstance(obj, (str, bytes)) and attr in ("translate", "maketrans")
        return not untold and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls a function or method of a template after its work is counted."""
        spend()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, (str, bytes)):
            args = _counted_method(owner, __obj.__name__, args)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The result of an operation after its work is counted."""
        if operator == "%" and isinstance(left, (str, bytes)):
            _spend_format(left, right)
        elif isinstance(left, int) and isinstance(right, int):
            _spend_number(operator, left, right)
        elif operator == "*" and (isinstance(left, int) or isinstance(right, int)):
            times, items = (left, right) if isinstance(left, int) else (right, left)
            spend(1, len(items) * max(times, 0) if isinstance(items, Sized) else 0)
        elif operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
            spend(1, len(left) + len(right))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """A counted form of `str.format` and `str.format_map`; None for any other value."""
        if super().wrap_str_format(value) is None:
            return None
        text = value.__self__

        def formatted(*args: Any, **kwargs: Any) -> str:
            fields = args[0] if value.__name__ == "format_map" else kwargs
            return str(_Formatter(self).vformat(text, args, fields))

        return formatted


class _Formatter(sandbox.SandboxedFormatter):
    """Counts each field before it makes it."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        """The text of a field."""
        _require_width(format_spec)
        text = super().format_field(value, format_spec)
        spend(1, len(text))
        return text


def _require_width(text: str) -> int:
    """The greatest number in a format. Raises LimitExceeded for a number of five digits."""
    widths = [int(word) for word in re.findall(r"[0-9]+", text) if len(word) < 5]
    if re.search(r"[0-9]{5}", text):
        raise LimitExceeded("a width of more than 9999")
    return max(widths, default=0)


def _spend_format(format_: str | bytes, values: Any) -> None:
    """Counts the result of `format_ % values`."""
    text = format_ if isinstance(format_, str) else format_.decode("latin-1")
    width = _require_width(text)
    if "*" in text:
        raise LimitExceeded("a width that is a value")
    fields = values.values() if isinstance(values, Mapping) else values if isinstance(values, tuple) else (values,)
    longest = max((len(str(value)) for value in fields), default=0)
    spend(1, len(text) + text.count("%") * max(longest, width))


def _spend_number(operator: str, left: int, right: int) -> None:
    bits = left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
    if operator in ("*", "**") and bits > MOST_BITS:
        raise LimitExceeded(f"a number of more than {MOST_BITS} bits")
    spend()


def _counted_method(text: str | bytes, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Counts the result of a method of a text; returns its arguments, with an iterator as a list."""
    number = max((value for value in args if isinstance(value, int)), default=0)
    made = len(text)
    if name in ("center", "ljust", "rjust", "zfill"):
        made += number
    elif name == "expandtabs":
        made *= max(number, 8)
    elif name == "replace" and len(args) > 1:
        made += _replaced(text, args[0], args[1])
    elif name == "join" and args:
        parts = list(_each(args[0]))
        made = sum(len(part) + len(text) for part in parts if isinstance(part, Sized))
        args = (parts, *args[1:])
    elif name in _COMPARING and args and isinstance(args[0], (str, bytes)):
        _spend_comparisons(text, args[0])
    spend(1, made)
    return args


_COMPARING = ("strip", "lstrip", "rstrip", "rfind", "rindex", "rpartition", "rsplit")
"""Methods that may compare each character of the text with each one of their argument."""


def _spend_comparisons(text: str | bytes, other: str | bytes) -> None:
    spend(len(text) * len(other) // 10_000)


def _replaced(text: Any, old: Any, new: Any) -> int:
    """The characters that a replacement adds at most."""
    return (len(text) + 1 if not old else text.count(old)) * len(new)


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, whose work is counted before it runs."""
    before = _BEFORE.get(name)
    parameters = list(inspect.signature(function).parameters) if before else []
    own = 1 if hasattr(function, "jinja_pass_arg") else 0  # Jinja2 puts an argument of its own before the value
    if parameters[:1] in (["eval_ctx"], ["environment"], ["context"]):
        parameters = parameters[1:]

    @functools.wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        values = list(args[own:])
        spend(1 + _steps(values[0]))
        if before:
            if isinstance(values[0], Iterator):  # read once, so that it can be counted
                values[0] = list(_each(values[0]))
            before(values, {**dict(zip(parameters, values, strict=False)), **kwargs})
        return function(*args[:own], *values, **kwargs)

    return limited


def _steps(value: Any) -> int:
    """The steps of a filter that visits each item or character of a value."""
    if not isinstance(value, Sized) or isinstance(value, jinja2.Undefined):
        return 0
    return len(value) // (1000 if isinstance(value, (str, bytes)) else 10)


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    spend(1, len(text))
    return text


def _whole(value: Any) -> int:
    return abs(value) if isinstance(value, int) else 0


_Given = dict[str, Any]
"""The arguments of a filter by name."""


def _before_format(values: list[Any], given: _Given) -> None:
    _spend_format(_text(values[0]), (*values[1:], *given.values()))


def _before_indent(values: list[Any], given: _Given) -> None:
    width = given.get("width", 4)
    spend(1, (_text(values[0]).count("\n") + 1) * (len(width) if isinstance(width, str) else _whole(width)))


def _before_join(values: list[Any], given: _Given) -> None:
    items = values[0]
    spend(1, sum(len(item) for item in items if isinstance(item, str)))
    spend(1, len(items) * len(_text(given.get("d", ""))))


def _before_round(_values: list[Any], given: _Given) -> None:
    if _whole(given.get("precision")) > 100:
        raise LimitExceeded("a precision of more than 100 digits")


def _before_sum(_values: list[Any], given: _Given) -> None:
    if not isinstance(given.get("start", 0), (int, float)):
        raise LimitExceeded("a sum that does not begin with a number")


def _before_tojson(_values: list[Any], given: _Given) -> None:
    if _whole(given.get("indent")) > 8:
        raise LimitExceeded("an indentation of more than 8 characters")


def _before_replace(values: list[Any], given: _Given) -> None:
    spend(1, _replaced(_text(values[0]), _text(given.get("old", "")), _text(given.get("new", ""))))


def _before_trim(values: list[Any], given: _Given) -> None:
    _spend_comparisons(_text(values[0]), _text(given.get("chars") or ""))


def _before_wordwrap(values: list[Any], given: _Given) -> None:
    if len(_text(values[0])) > MOST_TEXT:  # its time grows with the square of the longest word
        raise LimitExceeded(f"a text of more than {MOST_TEXT >> 10} KiB to wrap")
    spend(1, len(_text(values[0])) * len(_text(given.get("wrapstring") or "\n")))


def _number(name: str) -> Callable[[list[Any], _Given], None]:
    """Counts the argument of that name, a number of characters or items."""
    return lambda _values, given: spend(1, _whole(given.get(name)))


_BEFORE: Mapping[str, Callable[[list[Any], _Given], None]] = {
    "batch": _number("linecount"),
    "center": _number("width"),
    "format": _before_format,
    "indent": _before_indent,
    "join": _before_join,
    "replace": _before_replace,
    "round": _before_round,
    "slice": _number("slices"),
    "sum": _before_sum,
    "tojson": _before_tojson,
    "trim": _before_trim,
    "wordwrap": _before_wordwrap,
}
"""What is counted before a filter runs, from its positional arguments and from all arguments by name."""
