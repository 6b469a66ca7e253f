"""The menu entries of a trial for custom.cfg: the boot that is tried once, and what ran before it."""

from __future__ import annotations

import re
import shlex

from rigwright.core import lazy_re
from rigwright.core.errors import HostError
from rigwright.core.templates.host_files import Templates
from rigwright.engine.boot.obstacles import running_node
from rigwright.facts import grub
from rigwright.facts.boot.trial import BEGIN, END, KEPT, Boot

_DROPPED = lazy_re.compile(r"(savedefault|recordfail|initrdfail)(\s|;|$)")
"""Calls that write to grubenv: a trial and the way back leave the owner's variables alone."""
_MOST_LINES = 200
_SAFE = lazy_re.compile(r"[A-Za-z0-9_./:,=@%+-]+")


def block(boot: Boot, templates: Templates, run_id: str, modules: tuple[str, ...], with_trial: bool) -> str:
    """rigwright's block for custom.cfg: an entry of what runs now, which loads none of the `modules`, and is the
    default; and, `with_trial`, grub.cfg's default entry as the boot that is tried once. Raises HostError if the host's
    entries cannot be copied."""
    node = running_node(boot)
    if node is None:
        problem = f"no entry of grub.cfg loads {boot.kernel}, which runs now"
        raise HostError("boot entries", problem, "the entry that runs", "sudo update-grub")
    trial = _trial(grub.default_node(boot.config, boot.variables), run_id) if with_trial else ""
    values = {
        "run": run_id,
        "default": grub.default_expression(boot.config),
        "fallback": _fallback(node, boot.words, run_id, modules),
        "trial": trial,
    }
    return f"{BEGIN}\n{templates.render('grub/trial.cfg.j2', values).rstrip()}\n{END}\n"


def _trial(node: grub.Node, run_id: str) -> str:
    more = f" panic=60 rigwright.trial={run_id} systemd.wants=rigwright-trial.service"
    return _entry(
        node, grub.TRIAL, f"rigwright: trial of run {run_id}",
        [re.sub(r"\s#.*", "", line) + more if _loads(line, "linux") else line for line in _body(node)],
    )  # fmt: skip


def _fallback(node: grub.Node, words: str, run_id: str, modules: tuple[str, ...]) -> str:
    kept = [word for word in words.split() if not (modules and word.startswith("module_blacklist="))]
    if modules:
        listed = [word.partition("=")[2] for word in words.split() if word.startswith("module_blacklist=")][-1:]
        kept.append(f"module_blacklist={','.join((*listed, *modules))}")
    line = " ".join(map(_in_quotes, (*kept, f"rigwright.fallback={run_id}")))
    body: list[str] = []
    for text in _body(node):
        if _loads(text, "linux"):
            body.append(f"{' '.join(text.split()[:2])} {line}")
        elif _loads(text, "initrd") and KEPT not in " ".join(_body(node)):
            command, *images = text.split()
            own = f"{images[-1].rpartition('/')[0]}/{KEPT}"
            body += [f"if [ -e {own} ]; then", " ".join((command, *images[:-1], own)), "else", text, "fi"]
        else:
            body.append(text)
    return _entry(node, grub.FALLBACK, f"rigwright: what ran before run {run_id}", body)


def _in_quotes(word: str) -> str:
    if "'" in word:
        problem = f"the kernel parameter {word[:80]} cannot be written for GRUB"
        raise HostError("boot entries", problem, "a parameter without quotes", "remove the quotes from its value")
    return word if _SAFE.fullmatch(word) else f"'{word}'"


def _body(node: grub.Node) -> list[str]:
    if len(node.body) > _MOST_LINES:
        problem = f"the menu entry '{node.title[:80]}' has {len(node.body)} lines"
        raise HostError("boot entries", problem, f"at most {_MOST_LINES}", "shorten it; or reboot: {trial: false}")
    return [line for line in node.body if line and not line.startswith("#") and not _DROPPED.match(line)]


def _loads(line: str, what: str) -> bool:
    words = line.split()
    return len(words) > 1 and re.fullmatch(rf"{what}(16|efi)?", words[0]) is not None


def _entry(node: grub.Node, identifier: str, title: str, body: list[str]) -> str:
    """A menu entry with the options of another one that are not its title and id."""
    words = shlex.split(node.heading.rstrip("{ "))
    options: list[str] = []
    for number, word in enumerate(words):
        value = words[number + 1] if number + 1 < len(words) else ""
        if word in ("--class", "--users") and re.fullmatch(r"[\w.,-]{1,60}", value):
            options += [word, value]
        elif word == "--unrestricted":
            options.append(word)
    head = " ".join(("menuentry", f"'{title}'", *options, "--id", identifier, "{"))
    return "\n".join((head, *(f"    {line}" for line in body), "}"))
