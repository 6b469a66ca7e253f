"""Interprets GRUB's configuration: statements over variables, menu and grubenv. Opens no file itself."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

from lab.host.grub_parser import Command, GrubError, If, Statement, Word, parse

PREFIX = "/boot/grub"
_FEATURES = (
    "menuentry_id timeout_style default_font_path all_video_module platform_search_hint 200_final menuentry_options"
)
_HARMLESS = (
    "true echo insmod rmmod search loadfont load_video export terminal_input terminal_output gfxpayload play sleep"
    " clear probe background_color background_image serial keymap"
)

Read = Callable[[str], "str | None"]
"""Maps a path in the host to the file's text, or None when the file does not exist."""


@dataclass(frozen=True)
class Item:
    """A menu entry: title and ids, and the statements that run when it is chosen (in a submenu: those that fill it)."""

    names: tuple[str, ...]
    body: tuple[Statement, ...]
    submenu: bool


class Grub:
    """An interpreter's state: the variables, the menu so far, the loaded kernel and initrd, and the current grubenv."""

    def __init__(self, read: Read, saved: dict[str, str], writable: bool = True) -> None:
        self.read, self.writable = read, writable
        self.saved = dict(saved)
        self.variables = {f"feature_{name}": "y" for name in _FEATURES.split()}
        self.variables |= {"prefix": PREFIX, "config_directory": PREFIX, "grub_platform": "pc", "grub_cpu": "i386"}
        self.functions: dict[str, tuple[Statement, ...]] = {}
        self.menu: list[Item] = []
        self.kernel: str | None = None
        self.command_line = ""
        self.initrds: tuple[str, ...] = ()

    def execute(self, statements: tuple[Statement, ...]) -> bool:
        """Runs the statements in order and returns whether the last one succeeded."""
        status = True
        for statement in statements:
            if isinstance(statement, If):
                body = next((body for test, body in statement.branches if self.execute(test)), statement.otherwise)
                status = self.execute(body)
            else:
                status = self.command(statement)
        return status

    def words(self, words: tuple[Word, ...]) -> list[str]:
        """Returns the words with variables replaced.

        Drops an unquoted empty word and splits an unquoted one at blanks.
        """
        done = []
        for word in words:
            pieces, kept = [""], False
            for part in word:
                text = self.variables.get(part.text, "") if part.variable else part.text
                kept = kept or part.quoted or bool(text)
                if part.variable and not part.quoted:
                    first, *rest = re.split(r"\s+", text)
                    pieces[-1] += first
                    pieces += rest
                else:
                    pieces[-1] += text
            done += pieces if kept else []
        return done

    def command(self, command: Command) -> bool:
        """Runs one command and returns whether it succeeded.

        An unknown command fails: real GRUB prints an error and continues.
        """
        name, *rest = self.words(command.words) or [""]
        path = _path(rest[0]) if rest else ""
        if command.block is not None:
            return self.define(name, rest, command.block)
        if re.fullmatch(r"[A-Za-z_]\w*=.*", name, re.DOTALL):
            name, rest = "set", [name]
        if name == "set":
            self.variables |= dict(word.split("=", 1) for word in rest if "=" in word)
        elif name == "unset":
            self.variables = {k: v for k, v in self.variables.items() if k not in rest}
        elif name in ("[", "test"):
            return self.test(rest[:-1] if name == "[" else rest)
        elif name == "load_env":
            only = _arguments(rest)
            self.variables |= {k: v for k, v in self.saved.items() if not only or k in only}
        elif name == "save_env":
            if not self.writable:  # GRUB prints an error and goes on
                return False
            self.saved |= {k: self.variables.get(k, "") for k in _arguments(rest)}
        elif name in ("source", ".", "configfile"):
            text = self.read(path)
            return text is not None and self.execute(parse(text))
        elif name in ("linux", "linux16", "linuxefi"):
            self.kernel, self.command_line = path, " ".join([f"BOOT_IMAGE={path}", *rest[1:]])
        elif name in ("initrd", "initrd16", "initrdefi"):
            self.initrds = tuple(_path(word) for word in rest)
        elif name in self.functions:
            return self.execute(self.functions[name])
        else:
            return name in _HARMLESS.split(" ")
        return True

    def define(self, name: str, words: list[str], block: tuple[Statement, ...]) -> bool:
        """Defines a menu entry, a submenu or a function from a block in braces."""
        if name == "function":
            self.functions[words[0]] = block
        elif name in ("menuentry", "submenu"):
            ids = [after for option, after in itertools.pairwise(words) if option == "--id"]
            ids += [word.removeprefix("--id=") for word in words if word.startswith("--id=")]
            self.menu.append(Item((words[0], *ids), block, name == "submenu"))
        else:
            raise GrubError(f"syntax error: `{name}' takes no block")
        return True

    def test(self, words: list[str]) -> bool:
        """Evaluates GRUB's `[ ... ]` with the operators that configurations use.

        Raises GrubError for an unknown operator.
        """
        for word, meets in (("-o", any), ("-a", all)):
            if word in words:
                at = words.index(word)
                return meets((self.test(words[:at]), self.test(words[at + 1 :])))
        match words:
            case ["!", *rest]:
                return not self.test(rest)
            case [] | [""]:
                return False
            case [_]:
                return True
            case ["-n" | "-z" as flag, text]:
                return bool(text) == (flag == "-n")
            case ["-e" | "-f" | "-s" as flag, path]:
                content = self.read(_path(path))
                return content is not None and (flag != "-s" or content != "")
            case [left, "=" | "==" | "!=" as sign, right]:
                return (left == right) == (sign != "!=")
        raise GrubError(f"error: the lab knows no test `{' '.join(words)}'")


def _path(word: str) -> str:
    """Returns the path without GRUB's device prefix: one disk holds everything."""
    return re.sub(r"^\([^)]*\)", "", word)


def _arguments(words: list[str]) -> list[str]:
    """Returns the variables of load_env and save_env, without `-f FILE` or `--file=FILE`."""
    if words[:1] and words[0] in ("-f", "--file"):
        return words[2:]
    return [word for word in words if not word.startswith("--file=")]
