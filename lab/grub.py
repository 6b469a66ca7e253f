"""Owns GRUB while it reads its configuration: runs statements over variables, menu and grubenv. Touches no file itself."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

from lab.grubparse import Command, GrubError, If, Statement, Word, parse

PREFIX = "/boot/grub"
_FEATURES = (
    "menuentry_id timeout_style default_font_path all_video_module platform_search_hint 200_final menuentry_options"
)
_HARMLESS = (
    "true echo insmod rmmod search loadfont load_video export terminal_input terminal_output gfxpayload play sleep clear"
    " probe background_color background_image serial keymap"
)

Read = Callable[[str], "str | None"]
"""Path in the host -> the file's text, None when it is not there."""


@dataclass(frozen=True)
class Item:
    """A line of the menu: its title and ids, and what runs when it is chosen (for a submenu: what fills it)."""

    names: tuple[str, ...]
    body: tuple[Statement, ...]
    submenu: bool


class Grub:
    """Variables, the menu so far, what is loaded to boot, and grubenv as it is now."""

    def __init__(self, read: Read, saved: dict[str, str]) -> None:
        self.read = read
        self.saved = dict(saved)
        self.variables = {f"feature_{name}": "y" for name in _FEATURES.split()}
        self.variables |= {"prefix": PREFIX, "config_directory": PREFIX, "grub_platform": "pc", "grub_cpu": "i386"}
        self.functions: dict[str, tuple[Statement, ...]] = {}
        self.menu: list[Item] = []
        self.kernel: str | None = None
        self.command_line = ""
        self.initrds: tuple[str, ...] = ()

    def execute(self, statements: tuple[Statement, ...]) -> bool:
        """Runs them in order; the last one's success."""
        status = True
        for statement in statements:
            if isinstance(statement, If):
                body = next((body for test, body in statement.branches if self.execute(test)), statement.otherwise)
                status = self.execute(body)
            else:
                status = self.command(statement)
        return status

    def words(self, words: tuple[Word, ...]) -> list[str]:
        """The words with variables put in; an unquoted empty one vanishes, an unquoted one with blanks is split."""
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
        """One command; an unknown one is an error message on the real console and nothing else, so it just fails."""
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
        """A block in braces: a menu entry, a submenu or a function."""
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
        """GRUB's `[ ... ]`, as far as configurations use it; raises GrubError for an operator it does not know."""
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
    """The path without GRUB's device in front: one disk has everything."""
    return re.sub(r"^\([^)]*\)", "", word)


def _arguments(words: list[str]) -> list[str]:
    """load_env's and save_env's variables, without `-f FILE` or `--file=FILE`."""
    if words[:1] and words[0] in ("-f", "--file"):
        return words[2:]
    return [word for word in words if not word.startswith("--file=")]
