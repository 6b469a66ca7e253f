"""GRUB: which entry boots next, with which kernel and command line, and whether its file parses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Result, script
from rigwright.facts import Fact, Unavailable, Unreadable
from rigwright.facts.installed import INSTALLED


class Entry(Struct, frozen=True):
    """The menu entry of the generated grub.cfg that boots next."""

    title: str
    kernel: str
    initrd: str
    command_line: str

    @property
    def initrd_path(self) -> str:
        """The path of the initramfs on the running system. GRUB's path lacks /boot or begins with a subvolume."""
        return "/boot/" + self.initrd.rsplit("/", 1)[-1]

    @property
    def release(self) -> str:
        """The kernel's release, as `uname -r` will print it: the file name without `vmlinuz-`."""
        return self.kernel.rsplit("/", 1)[-1].removeprefix("vmlinuz-")


class Grub(Struct, frozen=True):
    """`entry` boots next; `parses`: grub-script-check accepts grub.cfg."""

    entry: Entry
    parses: bool
    defaults_error: str


_SCRIPT = """
cfg=/boot/grub/grub.cfg; [ -r "$cfg" ] || { echo absent; exit 0; }
grub-script-check "$cfg" >/dev/null 2>&1 && echo parses=yes || echo parses=no
for file in /etc/default/grub /etc/default/grub.d/*.cfg; do [ -e "$file" ] && sh -n "$file" 2>&1; done
echo "--env"; grub-editenv /boot/grub/grubenv list 2>/dev/null
echo "--cfg"; exec cat "$cfg"
"""


def _grub(result: Result) -> Grub:
    text = result.text
    if text.startswith("absent"):
        raise Unavailable("there is no /boot/grub/grub.cfg: this machine does not boot by GRUB")
    head, _, rest = text.partition("--env\n")
    environment, _, cfg = rest.partition("--cfg\n")
    values = dict(line.split("=", 1) for line in host_text.lines(environment) if "=" in line)
    errors = "\n".join(line for line in host_text.lines(head)[1:] if line.strip())
    parses = head.startswith("parses=yes")
    try:
        return Grub(default_entry(cfg, values), parses, errors)
    except (ValueError, IndexError) as error:
        if not head.startswith("parses=no"):
            raise
        raise Unreadable(f"/boot/grub/grub.cfg is broken ({error}): sudo update-grub") from None


TRIAL, FALLBACK = "rigwright-trial", "rigwright-fallback"
"""The ids of rigwright's entries in custom.cfg: the boot that is tried once, and what ran before it."""


def default_entry(cfg: str, environment: Mapping[str, str]) -> Entry:
    """The entry that a grub.cfg with this grubenv boots next, or after a trial. Raises ValueError without an entry."""
    return entry_of(default_node(cfg, environment))


def default_node(cfg: str, environment: Mapping[str, str]) -> Node:
    """The menu entry that `default_entry` returns, as written in grub.cfg. Raises ValueError without an entry."""
    wanted = environment.get("next_entry", "")
    if wanted in ("", TRIAL):
        wanted = default_expression(cfg)
        wanted = environment.get("saved_entry", "0") if "saved_entry" in wanted else wanted
    entries = menu(cfg)
    for level in wanted.split(">"):
        if not entries:
            break
        number = host_text.integer(level) if level.isdigit() else len(entries)
        named = (node for node in entries if level and level in (node.title, node.identifier))
        chosen = entries[number] if number < len(entries) else next(named, entries[0])
        if not chosen.children:
            return chosen
        entries = chosen.children
    if entries:
        return entries[0]
    raise ValueError("grub.cfg has no menu entry")


class Node(Struct, frozen=True):
    """A menu entry or a submenu: `heading` is its first line, `body` the lines of an entry, without indentation."""

    title: str
    identifier: str
    heading: str
    body: list[str]
    children: list[Node]


def default_expression(cfg: str) -> str:
    """What grub.cfg sets as the default entry: a number, title or id, `1>2`, or `${saved_entry}`."""
    stripped = (line.strip() for line in host_text.lines(cfg))
    values = [line[13:].partition('"')[0] for line in stripped if line.startswith('set default="') and '"' in line[13:]]
    return next((word for word in reversed(values) if "next_entry" not in word), "0")


MOST_ENTRIES, LONGEST_HEADING = 500, 1000
"""Menu entries and submenus of a grub.cfg, and characters of a heading."""


def menu(cfg: str) -> list[Node]:
    """The menu entries and submenus as a tree. A line with a single brace ends a level. Raises ValueError for too many
    entries or a too long heading."""
    root: list[Node] = []
    stack: list[list[Node]] = [root]
    depths: list[int] = []
    body: list[str] | None = None
    depth, headings = 0, 0
    for line in host_text.lines(cfg):
        words = line.strip()
        if words.startswith(("menuentry", "submenu")) and (opened := re.match(r"(menuentry|submenu)\s", words)):
            headings += 1
            if headings > MOST_ENTRIES or len(words) > LONGEST_HEADING:
                limits = f"{MOST_ENTRIES} menu entries, or a longer heading than {LONGEST_HEADING} characters"
                raise ValueError(f"more than {limits}")
            node = Node(*_heading(words), words, [], [])
            stack[-1].append(node)
            if opened[1] == "submenu":
                stack.append(node.children)
                depths.append(depth)
            else:
                body = node.body
            depth += 1
        elif words == "}":
            depth -= 1
            if depths and depth == depths[-1]:
                depths.pop()
                stack.pop()
            body = None if body is not None and depth == len(depths) else body
        elif words.endswith("{"):
            depth += 1
        elif body is not None:
            body.append(words)
    return root


_USUAL = lazy_re.compile(r"(?:(?:'[^']*'|[^ \t\r\n'\"\\]+)(?:[ \t\r\n]+|$))*")
"""Plain words and words in single quotes: update-grub writes no others, and shlex takes ten times as long for them."""
_USUAL_WORD = lazy_re.compile(r"'([^']*)'|([^ \t\r\n'\"\\]+)")


def _words_of(line: str) -> list[str]:
    """The words of a line as a shell splits it. Raises ValueError for an open quote."""
    if _USUAL.fullmatch(line):
        return [quoted or plain for quoted, plain in _USUAL_WORD.findall(line)]
    return shlex.split(line)


def _heading(line: str) -> tuple[str, str]:
    """The title and the identifier ("" without one) in the first line of an entry."""
    words = _words_of(line.rstrip("{ "))
    options = pairwise(words)
    return words[1], next((value for name, value in options if name in ("--id", "$menuentry_id_option")), "")


_LINUX = lazy_re.compile(r"linux(16|efi)?\s")


def entry_of(node: Node) -> Entry:
    """The kernel, initramfs and command line of a menu entry. Raises ValueError if it loads no kernel."""
    linux: list[str] = []
    initrd = ""
    for line in node.body:
        words = line.split()
        if _LINUX.match(line):
            linux = words[1:]
        if words and re.fullmatch(r"initrd(16|efi)?", words[0]):
            initrd = words[-1]
    if not linux:
        raise ValueError(f"the menu entry '{node.title}' loads no kernel")
    return Entry(node.title, linux[0], initrd, " ".join(linux[1:]))


grub = Fact("grub.grub", script(_SCRIPT, reads=True, cache_key=INSTALLED), _grub)


def _entries(result: Result) -> dict[str, str]:
    return dict(_named(menu(result.text.partition("--cfg\n")[2]), ""))


def _named(nodes: Sequence[Node], above: str) -> Iterator[tuple[str, str]]:
    """The kernel and the name of each entry, in the reverse order of the menu: of two entries the first one counts."""
    for node in reversed(nodes):
        name = above + (node.identifier or node.title)
        if node.children:
            yield from _named(node.children, f"{name}>")
        elif (
            "recovery" not in name and re.fullmatch(r"[\w .,()+>-]{1,300}", name) and any(map(_LINUX.match, node.body))
        ):
            yield entry_of(node).release, name


entries = Fact("grub.entries", script(_SCRIPT, reads=True, cache_key=INSTALLED), _entries)
"""The entries without recovery ones, by kernel release: the name that grub-reboot takes (SUBMENU>ENTRY)."""


def missing(words: Sequence[str], line: str) -> list[str]:
    """The expected words that are not in force on a command line. Of several KEY=VALUE the last one is in force, unless
    all are expected."""
    present = line.split()
    last = {word.partition("=")[0]: word for word in present}
    return [word for word in words if word not in present or last[word.partition("=")[0]] not in words]


class Words(Struct, frozen=True):
    """The kernel parameters that a line of GRUB's files sets. `anew`: it replaces the previous value of `variable`."""

    path: str
    variable: str
    words: tuple[str, ...]
    anew: bool


_WORDS = (
    "grep -HE '^[[:space:]]*(export[[:space:]]+)?GRUB_CMDLINE_LINUX(_DEFAULT)?[+]?=' "
    "/etc/default/grub /etc/default/grub.d/*.cfg 2>/dev/null; :"
)


def _words(result: Result) -> tuple[Words, ...]:
    rows = []
    for line in result.lines:
        match = re.fullmatch(r"(/etc/default/grub[^:]*):\s*(?:export\s+)?(GRUB_CMDLINE_LINUX\w*)([+]?)=(.*)", line)
        if not match:
            raise ValueError("no line of GRUB's files")
        path, name, plus, value = match.groups()
        words = re.sub(r"[\"']", " ", value.partition(" #")[0]).split()
        own = {f"${name}", f"${{{name}}}"}
        anew = not plus and own.isdisjoint(words)
        rows.append(Words(path, name, tuple(word for word in words if word not in own), anew))
    return tuple(rows)


words = Fact("grub.words", script(_WORDS, reads=True, cache_key=INSTALLED), _words)
"""The kernel parameters in /etc/default/grub and its drop-ins, in the order in which GRUB reads the files."""
