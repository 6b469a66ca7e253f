"""What prevents a boot that is tried once on a host, and which entry of GRUB runs there."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from msgspec import Struct

from rigwright.core import lazy_re
from rigwright.core.control_characters import one_line
from rigwright.facts import grub
from rigwright.facts.boot.trial import BEGIN, CUSTOM, END, KEPT, MOST_CUSTOM, Boot


class Obstacle(Struct, frozen=True):
    """Why a boot cannot be tried on a host, and what a person can do about it, if anything."""

    found: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.found} ({self.fix})" if self.fix else self.found


_ENV = "/boot/grub/grubenv"
_READ_ONLY = {"btrfs", "zfs", "squash4", "f2fs", "cpiofs", "newc", "odc", "romfs", "tarfs"}
"""File systems that GRUB does not write to (00_header's check_writable)."""
_LAYERS = (
    (lazy_re.compile(r"(?:^|\s)lvm(?=\s|$)"), "LVM"),
    (lazy_re.compile(r"(?:^|\s)(?:mdraid\S*|raid\S*|diskfilter)(?=\s|$)"), "software RAID"),
    (lazy_re.compile(r"(?:^|\s)(?:cryptodisk|luks\S*)(?=\s|$)"), "an encrypted disk"),
)
_IN_THE_WAY = ("next_entry", "prev_saved_entry", "prev_entry", "initrdfail", "recordfail")
_SPARE_KIB = 8 << 10
"""The space in /boot that must stay free (assumed)."""


def obstacles(boot: Boot) -> tuple[Obstacle, ...]:
    """Everything that prevents a trial on this host; () if a trial is possible."""
    return (*_of_grubenv(boot), *_of_disk(boot), *_of_config(boot), *_of_running(boot), *_of_room(boot))


def _of_grubenv(boot: Boot) -> Iterator[Obstacle]:
    for program in boot.missing:
        no_panic = "the initramfs is not made by initramfs-tools, whose panic= a trial needs"
        yield Obstacle(no_panic if program == "update-initramfs" else f"{program} is missing")
    kind, size = boot.grubenv
    if kind == "none":
        yield Obstacle(f"there is no {_ENV}", f"sudo grub-editenv {_ENV} create")
    elif kind != "file":
        yield Obstacle(f"{_ENV} is {'a link' if kind == 'link' else 'no file'}, which GRUB does not write to")
    elif size != 1024:
        yield Obstacle(f"{_ENV} has {size} bytes in place of 1024", f"sudo grub-editenv {_ENV} create")
    elif boot.environment is None:
        yield Obstacle(f"grub-editenv cannot read {_ENV}", f"sudo grub-editenv {_ENV} create")
    for name in _IN_THE_WAY:
        value = boot.variables.get(name, "")
        if value and (name, value) != ("next_entry", grub.TRIAL):
            yield Obstacle(f"{_ENV} has {name}={one_line(value)[:60]}", f"sudo grub-editenv {_ENV} unset {name}")
    if boot.kexec:
        yield Obstacle("a kernel is loaded by kexec, which a reboot starts without GRUB", "sudo kexec -u")


def _of_disk(boot: Boot) -> Iterator[Obstacle]:
    if boot.layers is None or boot.filesystem is None:
        if "grub-probe" not in boot.missing and boot.grubenv[0] == "file":
            yield Obstacle("grub-probe does not say on which disk /boot/grub is")
        return
    if boot.layers:
        known = [name for pattern, name in _LAYERS if pattern.search(boot.layers)]
        names = " and ".join(known) or one_line(boot.layers)[:60]
        yield Obstacle(f"/boot/grub is on {names}, which GRUB cannot write to")
    if boot.filesystem in _READ_ONLY:
        yield Obstacle(f"/boot/grub is on {boot.filesystem}, which GRUB cannot write to")


# [ \t] in place of \s, which would match over many empty lines, again from each of them.
_SAVES_NEXT = lazy_re.compile(r"^[ \t]{0,99}save_env[ \t]{1,99}next_entry\b", re.MULTILINE)
_READS_CUSTOM = lazy_re.compile(r"^[ \t]{0,99}(?:source|\.)[ \t]{1,99}\S{0,999}/custom\.cfg", re.MULTILINE)
_SETS = lazy_re.compile(r"^[ \t]{0,99}(?:set[ \t]{1,99})?(default|timeout)=", re.MULTILINE)
_WAITS = lazy_re.compile(r"^[ \t]{0,99}set[ \t]{1,99}timeout=[\"']?-1", re.MULTILINE)


def _of_config(boot: Boot) -> Iterator[Obstacle]:
    if not _SAVES_NEXT.search(boot.config):
        yield Obstacle("grub.cfg does not save next_entry, so an entry cannot be chosen for one boot")
    if not _READS_CUSTOM.search(boot.config):
        yield Obstacle("grub.cfg does not read custom.cfg", "restore /etc/grub.d/41_custom; sudo update-grub")
    kind, size = boot.custom
    if kind not in ("file", "none"):
        yield Obstacle(f"{CUSTOM} is {'a link' if kind == 'link' else 'no file'}")
    if size >= MOST_CUSTOM:
        yield Obstacle(f"{CUSTOM} has {size} bytes")
    if boot.custom_text.count(BEGIN) != boot.custom_text.count(END) or boot.custom_text.count(BEGIN) > 1:
        yield Obstacle(f"{CUSTOM} has only a part of rigwright's block", f"take the lines from {BEGIN} on out of it")
    own = custom_of_owner(boot.custom_text)
    later = boot.config.partition("### END /etc/grub.d/00_header ###")[2] or ""
    for where, text in (("grub.cfg", later), (CUSTOM, own)):
        if match := _SETS.search(text):
            yield Obstacle(f"{where} sets {match[1]} {'after 00_header' if where == 'grub.cfg' else 'itself'}")
    if _WAITS.search(boot.config):
        problem = "GRUB waits for a key at every boot (GRUB_TIMEOUT=-1)"
        yield Obstacle(problem, "GRUB_TIMEOUT=5 in /etc/default/grub; sudo update-grub")
    try:
        default = grub.default_node(boot.config, boot.variables)
        line = f" {grub.entry_of(default).command_line} "
    except ValueError as error:
        yield Obstacle(f"grub.cfg: {error}")
        return
    if "superusers" in boot.config + own and "--unrestricted" not in default.heading.split():
        yield Obstacle("GRUB asks for a password, and the default entry is not --unrestricted")
    if " -- " in line:
        yield Obstacle("the default entry has words after ` -- `, where rigwright's would have no effect")


_PLAIN_WORD = lazy_re.compile(r"[^\s'\"\\]+")


def _of_running(boot: Boot) -> Iterator[Obstacle]:
    if not boot.kernel:
        yield Obstacle("/proc/cmdline has no BOOT_IMAGE, so the entry that runs is not known")
        return
    if running_node(boot) is None:
        yield Obstacle(f"no entry of grub.cfg loads {one_line(boot.kernel)[:120]}, which runs now")
    if " -- " in f" {boot.words} ":
        yield Obstacle("/proc/cmdline has words after ` -- `, where rigwright's would have no effect")
    if any(not _PLAIN_WORD.fullmatch(word) for word in boot.words.split()):
        yield Obstacle("/proc/cmdline has a parameter with quotes, which cannot be kept")


def running_node(boot: Boot) -> grub.Node | None:
    """The entry of grub.cfg or of rigwright's block that loads the running kernel, preferably with the words of the
    running command line; None without one, or if a menu cannot be read."""
    with_kernel: list[grub.Node] = []
    try:
        nodes = (*grub.menu(boot.config), *grub.menu(boot.custom_text))
    except ValueError:
        return None
    for node in _leaves(nodes):
        with contextlib.suppress(ValueError):
            entry = grub.entry_of(node)
            if re.sub(r"^\([^)]*\)", "", entry.kernel) == boot.kernel:
                if equal_words(entry.command_line, boot.words):
                    return node
                with_kernel.append(node)
    return with_kernel[0] if with_kernel else None


def _leaves(nodes: tuple[grub.Node, ...] | list[grub.Node]) -> Iterator[grub.Node]:
    for node in nodes:
        if node.children:
            yield from _leaves(node.children)
        else:
            yield node


_VARIABLE = lazy_re.compile(r"\$(?:\{\w{1,60}\}|\w{1,60})")


def equal_words(of_grub: str, running: str) -> bool:
    """Whether the words of a `linux` line give this command line. A word that is a variable of GRUB matches any number
    of words."""
    wanted, present = of_grub.split(), running.split()
    variables = [number for number, word in enumerate(wanted) if _VARIABLE.fullmatch(word)]
    if not variables:
        return wanted == present
    before, after = wanted[: variables[0]], wanted[variables[-1] + 1 :]
    fits = present[: len(before)] == before and (not after or present[-len(after) :] == after)
    return fits and len(before) + len(after) <= len(present)


def _of_room(boot: Boot) -> Iterator[Obstacle]:
    node = running_node(boot) if boot.kernel else None
    name = grub.entry_of(node).initrd.rsplit("/", 1)[-1] if node else ""
    if not name or KEPT in boot.images:
        return
    if name not in boot.images:
        yield Obstacle(f"the initramfs /boot/{one_line(name)[:120]}, with which the host runs, is gone")
        return
    needed_kib = 2 * boot.images[name] // 1024 + _SPARE_KIB  # update-initramfs writes the new file beside the old one
    if boot.free_kib < needed_kib:
        free, needed = boot.free_kib // 1024, needed_kib // 1024
        problem = f"/boot has {free} MiB free, and a copy of the initramfs beside a new one needs {needed}"
        yield Obstacle(problem, "sudo apt-get autoremove --purge removes old kernels")


def custom_of_owner(text: str) -> str:
    """custom.cfg without rigwright's block."""
    before, begin, rest = text.partition(BEGIN)
    return before + rest.partition(END)[2] if begin and END in rest else text
