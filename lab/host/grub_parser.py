"""Parses GRUB's script language into statements: the part of it that grub-mkconfig and a custom.cfg use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


class GrubError(Exception):
    """The message that GRUB would print when it cannot boot."""


@dataclass(frozen=True)
class Part:
    """A part of a word: literal text or the name of a variable. An unquoted variable is split at blanks."""

    text: str
    variable: bool = False
    quoted: bool = False


Word = tuple[Part, ...]


@dataclass(frozen=True)
class Command:
    """A command with its arguments, and the block in braces of menuentry, submenu and function."""

    words: tuple[Word, ...]
    block: tuple[Statement, ...] | None = None


@dataclass(frozen=True)
class If:
    """An if statement: its branches (condition, body) in order, and the body of its else."""

    branches: tuple[tuple[tuple[Statement, ...], tuple[Statement, ...]], ...]
    otherwise: tuple[Statement, ...]


Statement = Command | If
Token = Word | str
"""A word, or one of `;` `{` `}`; the end of a line is a `;`."""

_VARIABLE = re.compile(r"\$(?:\{([A-Za-z0-9_?]+)\}|([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[?@*#]))")
_PLAIN = re.compile(r"[^\s;{}|&<>'\"$\\]+")


def parse(text: str) -> tuple[Statement, ...]:
    """Returns the statements of a script. Raises GrubError where GRUB would report a syntax error."""
    tokens = _Tokens(list(_tokens(text)))
    body = tokens.body(())
    if tokens.peek() is not None:
        raise GrubError(f"syntax error near `{tokens.shown()}'")
    return body


def _tokens(text: str) -> Iterator[Token]:
    at, parts = 0, list[Part]()
    while at < len(text):
        char = text[at]
        if char.isspace() or char in ";{}" or (char == "#" and not parts):
            if parts:
                yield tuple(parts)
                parts = []
            if char == "#":
                at = (text + "\n").index("\n", at)
                continue
            if char in ";{}\n":
                yield ";" if char == "\n" else char
            at += 1
        elif char in "|&<>":
            raise GrubError(f"syntax error near `{char}'")
        else:
            at = _part(text, at, parts)
    if parts:
        yield tuple(parts)


def _part(text: str, at: int, parts: list[Part]) -> int:
    """Adds the part of a word that begins at `at` to `parts`, and returns the position after it."""
    char, variable, plain = text[at], _VARIABLE.match(text, at), _PLAIN.match(text, at)
    if char == "\\":
        if text[at + 1 : at + 2] != "\n":
            parts.append(Part(text[at + 1 : at + 2], quoted=True))
        return at + 2
    if char in "'\"":
        return _quoted(text, at, parts)
    if variable:
        parts.append(Part(variable[1] or variable[2], variable=True))
        return variable.end()
    parts.append(Part(plain[0] if plain else char))
    return plain.end() if plain else at + 1


def _quoted(text: str, at: int, parts: list[Part]) -> int:
    quote, literal = text[at], ""
    at += 1
    while at < len(text) and text[at] != quote:
        variable = _VARIABLE.match(text, at) if quote == '"' else None
        if variable:
            parts += [Part(literal, quoted=True), Part(variable[1] or variable[2], variable=True, quoted=True)]
            literal, at = "", variable.end()
        elif quote == '"' and text[at] == "\\" and text[at + 1 : at + 2] in ('"', "\\", "$", "\n"):
            literal, at = literal + text[at + 1].replace("\n", ""), at + 2
        else:
            literal, at = literal + text[at], at + 1
    if at >= len(text):
        raise GrubError("syntax error: unterminated quote")
    parts.append(Part(literal, quoted=True))
    return at + 1


class _Tokens:
    """Reads the tokens, with one method per rule of the grammar."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.at = tokens, 0

    def peek(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def shown(self) -> str:
        token = self.peek()
        return token if isinstance(token, str) else "".join(p.text for p in token or ())

    def keyword(self) -> str:
        """Returns the next token if it is an unquoted word or `}`, else an empty string.

        A quoted keyword is an ordinary word.
        """
        token = self.peek()
        if isinstance(token, tuple):
            return token[0].text if len(token) == 1 and not (token[0].quoted or token[0].variable) else ""
        return token if token == "}" else ""

    def expect(self, keyword: str) -> None:
        if self.keyword() != keyword:
            raise GrubError(f"syntax error near `{self.shown()}', expected `{keyword}'")
        self.at += 1

    def body(self, ends: tuple[str, ...]) -> tuple[Statement, ...]:
        """Returns the statements before one of `ends`, which stays unread."""
        found: list[Statement] = []
        while (token := self.peek()) is not None and (self.keyword() not in ends or not ends):
            if token == ";":
                self.at += 1
            elif self.keyword() == "if":
                found.append(self.conditional())
            elif self.keyword() in ("while", "until", "for", "then", "elif", "else", "fi", "}") or token == "{":
                raise GrubError(f"syntax error near `{self.shown()}' (the lab knows no loops)")
            else:
                found.append(self.command())
        return tuple(found)

    def conditional(self) -> If:
        self.expect("if")
        branches = []
        while True:
            condition = self.body(("then",))
            self.expect("then")
            branches.append((condition, self.body(("elif", "else", "fi"))))
            if self.keyword() != "elif":
                break
            self.at += 1
        otherwise: tuple[Statement, ...] = ()
        if self.keyword() == "else":
            self.at += 1
            otherwise = self.body(("fi",))
        self.expect("fi")
        return If(tuple(branches), otherwise)

    def command(self) -> Command:
        words = []
        while isinstance(token := self.peek(), tuple):
            words.append(token)
            self.at += 1
        if self.peek() != "{":
            return Command(tuple(words))
        self.at += 1
        block = self.body(("}",))
        self.expect("}")
        return Command(tuple(words), block)
