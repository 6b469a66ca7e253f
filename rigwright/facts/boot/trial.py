"""A boot that is tried once: whether a host's GRUB can do that, and how far a trial on the host has come."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct, field

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Result, script
from rigwright.core.control_characters import one_line
from rigwright.core.host_folders import STATE
from rigwright.facts import Fact, Unavailable, Unreadable, grub
from rigwright.facts.kernel import TRIAL_WORDS
from rigwright.facts.run_record import run_id

FOLDER = f"{STATE}/trial"
OUTCOME = f"{STATE}/trial-outcome.json"
CUSTOM = "/boot/grub/custom.cfg"
KEPT = "initrd-rigwright-fallback"
"""The name, in the folder of the kernels, of the kept copy of the initramfs with which the host runs."""
UNIT = "/etc/systemd/system/rigwright-trial.service"
WATCH = "/etc/rigwright/trial-watch.sh"
ROOM = 30_000
"""The bytes that a boot which is tried can write down. They are on the disk before it, so a full disk does not keep
them away."""
BEGIN, END = "### BEGIN rigwright trial ###", "### END rigwright trial ###"
PROGRAMS = ("grub-editenv", "grub-probe", "grub-script-check", "systemd-run", "update-grub")
_MOST_CUSTOM = 60_000

_READ_BOOT = f"""
PATH=$PATH:/usr/sbin:/sbin; cfg=/boot/grub/grub.cfg; env=/boot/grub/grubenv; custom={CUSTOM}
[ -r "$cfg" ] || {{ echo absent; exit 0; }}
echo "boot $(cat /proc/sys/kernel/random/boot_id)"
echo "line $(cat /proc/cmdline)"
kind() {{ if [ -L "$1" ]; then echo link; elif [ -f "$1" ]; then echo file; elif [ -e "$1" ]; then echo other; else echo none; fi; }}
echo "grubenv $(kind "$env") $(stat -L -c %s "$env" 2>/dev/null || echo 0)"
echo "custom $(kind "$custom") $(stat -L -c %s "$custom" 2>/dev/null || echo 0)"
for program in {" ".join(PROGRAMS)}; do command -v $program >/dev/null || echo "missing $program"; done
[ -x /usr/lib/systemd/system-generators/systemd-debug-generator ] || [ -x /lib/systemd/system-generators/systemd-debug-generator ] ||
  echo "missing systemd-debug-generator"
[ -x /usr/sbin/update-initramfs ] || echo "missing update-initramfs"
layers=$(timeout 60 grub-probe --target=abstraction "$env" 2>/dev/null) && echo "layers" $layers
system=$(timeout 60 grub-probe --target=fs "$env" 2>/dev/null) && echo "filesystem" $system
[ "$(cat /sys/kernel/kexec_loaded 2>/dev/null)" != 1 ] || echo "kexec"
echo "free $(df -Pk /boot | awk 'NR == 2 {{print $4}}')"
for image in /boot/initrd* /boot/initramfs*; do [ ! -f "$image" ] || echo "image $(stat -c %s "$image") ${{image##*/}}"; done
echo "--env"; grub-editenv "$env" list 2>/dev/null || echo "unreadable"
echo "--custom"; [ ! -f "$custom" ] || head -c {_MOST_CUSTOM} "$custom"; echo
echo "--cfg"; exec cat "$cfg"
"""


class Boot(Struct, frozen=True):
    """How a host boots, as far as a trial needs it.

    `command_line`: /proc/cmdline as it is. `grubenv`, `custom`: kind (file, link, other, none) and size of grubenv and
    of custom.cfg. `layers`, `filesystem`: what grub-probe says of the disk of grubenv; None where it says nothing.
    `missing`: programs that are not there. `kexec`: a kernel is loaded that a reboot starts without GRUB. `images`: the
    bytes of each initramfs in /boot. `environment`: the variables of grubenv; None where grub-editenv cannot read it.
    """

    boot_id: str
    command_line: str
    grubenv: tuple[str, int]
    custom: tuple[str, int]
    missing: tuple[str, ...]
    layers: str | None
    filesystem: str | None
    kexec: bool
    free_kib: int
    images: dict[str, int]
    environment: dict[str, str] | None
    custom_text: str
    config: str

    @property
    def variables(self) -> dict[str, str]:
        """The variables of grubenv, none where it cannot be read."""
        return self.environment or {}

    @property
    def words(self) -> str:
        """The parameters with which the host runs, without BOOT_IMAGE and without rigwright's own words."""
        line = TRIAL_WORDS.sub("", self.command_line)
        line = re.sub(r"( module_blacklist=\S{1,2000})? rigwright\.fallback=[\w.-]{1,64}$", "", line)
        return " ".join(word for word in line.split() if not word.startswith("BOOT_IMAGE="))

    @property
    def kernel(self) -> str:
        """The path of the running kernel as GRUB loaded it, "" where the command line does not tell."""
        match = re.search(r"(?:^| )BOOT_IMAGE=(?:\([^)\s]{0,100}\))?(/\S{1,400})", self.command_line)
        return match[1] if match else ""

    @property
    def runs_fallback(self) -> bool:
        """Whether the host runs what rigwright kept of an earlier boot."""
        return " rigwright.fallback=" in self.command_line


def _boot(result: Result) -> Boot:
    if result.text.startswith("absent"):
        raise Unavailable("there is no /boot/grub/grub.cfg: this machine does not boot by GRUB")
    head, _, rest = result.text.partition("--env\n")
    environment, _, rest = rest.partition("--custom\n")
    custom, _, config = rest.partition("\n--cfg\n")
    said: dict[str, str] = {}
    missing: list[str] = []
    images: dict[str, int] = {}
    for line in host_text.lines(head):
        name, _, value = line.partition(" ")
        if name == "missing":
            missing.append(value)
        elif name == "image":
            size, _, image = value.partition(" ")
            images[image] = host_text.integer(size)
        else:
            said[name] = value
    values = dict(line.split("=", 1) for line in host_text.lines(environment) if "=" in line)
    return Boot(
        said["boot"], said["line"], _sized(said["grubenv"]), _sized(said["custom"]), tuple(missing), said.get("layers"),
        said.get("filesystem"), "kexec" in said, host_text.integer(said["free"]), images,
        None if environment.startswith("unreadable") else values, custom, config,
    )  # fmt: skip


def _sized(text: str) -> tuple[str, int]:
    kind, size = text.split()
    return kind, host_text.integer(size)


boot = Fact("trial.boot", script(_READ_BOOT, timeout_s=150), _boot)
"""How the host boots. Slow where grub-probe is; so it is read only when a reboot is due."""


class Obstacle(Struct, frozen=True):
    """Why a boot cannot be tried on a host, and what a person can do about it ("" for nothing)."""

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
ROOM_KIB = 8 << 10


def obstacles(boot: Boot) -> tuple[Obstacle, ...]:
    """Everything that keeps a boot from being tried once on this host; () where it can be."""
    return (*_of_grubenv(boot), *_of_disk(boot), *_of_config(boot), *_of_running(boot), *_of_room(boot))


def _of_grubenv(boot: Boot) -> Iterator[Obstacle]:
    for program in boot.missing:
        if program == "update-initramfs":
            yield Obstacle("the initramfs is not made by initramfs-tools, whose panic= a trial needs")
        else:
            yield Obstacle(f"{program} is missing")
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


# A blank is [ \t]: with \s, a pattern goes on from an empty line to the next one, again from each of them.
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
    if size >= _MOST_CUSTOM:
        yield Obstacle(f"{CUSTOM} has {size} bytes")
    if boot.custom_text.count(BEGIN) != boot.custom_text.count(END) or boot.custom_text.count(BEGIN) > 1:
        yield Obstacle(f"{CUSTOM} has only a part of rigwright's block", f"take the lines from {BEGIN} on out of it")
    own = custom_of_owner(boot.custom_text)
    later = boot.config.partition("### END /etc/grub.d/00_header ###")[2] or ""
    for where, text in (("grub.cfg", later), (CUSTOM, own)):
        if match := _SETS.search(text):
            yield Obstacle(f"{where} sets {match[1]} {'after 00_header' if where == 'grub.cfg' else 'itself'}")
    if _WAITS.search(boot.config):
        yield Obstacle(
            "GRUB waits for a key at every boot (GRUB_TIMEOUT=-1)",
            "GRUB_TIMEOUT=5 in /etc/default/grub; sudo update-grub",
        )
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
    """The entry of grub.cfg, or of rigwright's block, that loads the running kernel; the one with the words that run,
    if any has them."""
    found: list[tuple[bool, grub.Node]] = []
    try:
        nodes = (*grub.menu(boot.config), *grub.menu(boot.custom_text))
    except ValueError:
        return None  # a menu that cannot be read
    for node in _leaves(nodes):
        try:
            entry = grub.entry_of(node)
        except ValueError:
            continue
        if re.sub(r"^\([^)]*\)", "", entry.kernel) == boot.kernel:
            found.append((equal_words(entry.command_line, boot.words), node))
    return next((node for same, node in found if same), found[0][1] if found else None)


def _leaves(nodes: tuple[grub.Node, ...] | list[grub.Node]) -> Iterator[grub.Node]:
    for node in nodes:
        if node.children:
            yield from _leaves(node.children)
        else:
            yield node


_VARIABLE = lazy_re.compile(r"\$(?:\{\w{1,60}\}|\w{1,60})")


def equal_words(of_grub: str, running: str) -> bool:
    """Whether the words of a `linux` line give this command line; a word that is a variable of GRUB stands for any
    words, or none."""
    wanted, there = of_grub.split(), running.split()
    variables = [number for number, word in enumerate(wanted) if _VARIABLE.fullmatch(word)]
    if not variables:
        return wanted == there
    before, after = wanted[: variables[0]], wanted[variables[-1] + 1 :]
    fits = there[: len(before)] == before and (not after or there[-len(after) :] == after)
    return fits and len(before) + len(after) <= len(there)


def _of_room(boot: Boot) -> Iterator[Obstacle]:
    node = running_node(boot) if boot.kernel else None
    name = grub.entry_of(node).initrd.rsplit("/", 1)[-1] if node else ""
    if not name or KEPT in boot.images:
        return
    if name not in boot.images:
        yield Obstacle(f"the initramfs /boot/{one_line(name)[:120]}, with which the host runs, is gone")
        return
    # The copy, and another one while update-initramfs writes the new file beside the old one.
    needed = 2 * boot.images[name] // 1024 + ROOM_KIB
    if boot.free_kib < needed:
        found = f"/boot has {boot.free_kib // 1024} MiB free, and a copy of the initramfs beside a new one needs {needed // 1024}"
        yield Obstacle(found, "sudo apt-get autoremove --purge removes old kernels")


def custom_of_owner(text: str) -> str:
    """custom.cfg without rigwright's block."""
    before, begin, rest = text.partition(BEGIN)
    return before + rest.partition(END)[2] if begin and END in rest else text


Words = Mapping[str, tuple[str, ...]]
"""What templates/trial/watch.sh.j2 prints: the texts of the lines that begin with a key (`state`, `address`, `failed`,
...)."""
Stage = Literal["prepared", "armed", "running", "permanent", "returned", "not tried", "left"]


class Trial(Struct, frozen=True):
    """How far a trial on the host has come.

    `stage`: `prepared`: what ran is kept and is the default, the new state was not booted; `armed`: the next boot is
    the trial; `running`: this boot is the trial; `permanent`: it was made permanent, and files of it are left;
    `returned`: the trial was booted and the host came back to what was; `not tried`: GRUB started what was in place of
    the trial, because it could not write grubenv; `left`: a block without a record. `run`: the run that prepared it.
    `record`: what it wrote. `systemd`: the trial got as far as systemd. `words`: what the host wrote down before it
    left the trial, by key; `said`: the last lines of its journal. `before`: what it wrote down before the run changed
    anything.
    """

    stage: Stage
    run: str
    record: dict[str, Any]
    boot_id: str
    systemd: bool
    words: Words
    said: tuple[str, ...]
    before: Words = field(default_factory=dict)


_READ_TRIAL = f"""
PATH=$PATH:/usr/sbin:/sbin
[ -d {FOLDER} ] || grep -q '^{BEGIN}' {CUSTOM} 2>/dev/null || {{ echo none; exit 0; }}
echo "boot $(cat /proc/sys/kernel/random/boot_id)"
echo "line $(cat /proc/cmdline)"
cd {FOLDER} 2>/dev/null || exit 0
[ ! -e confirmed ] || grep -q '^{BEGIN}' {CUSTOM} 2>/dev/null || echo "permanent yes"
echo "record $(head -c 60000 record.json 2>/dev/null | head -n 1)"
[ ! -s armed ] || echo "armed $(head -c 64 armed)"
[ ! -s started ] || echo "started $(head -c 64 started)"
echo "next $(grub-editenv /boot/grub/grubenv list 2>/dev/null | sed -n 's/^next_entry=//p' | head -c 100)"
[ ! -s before ] || {{ echo "--before"; head -c {ROOM} before; }}
[ ! -s words ] || {{ echo "--words"; grep . words | head -c {ROOM}; }}
"""
_MOST_SAID = 16
_MOST_LINES = 400
_FILE_NAME = lazy_re.compile(r"[\w.+~-]{0,200}")


def _trial(result: Result) -> Trial | None:
    if result.text.startswith("none"):
        return None
    head, _, words = result.text.partition("--words\n")
    head, _, before = head.partition("--before\n")
    said = dict(line.partition(" ")[::2] for line in host_text.lines(head))
    record = _record(said.get("record", ""))
    run = str(record.get("run", ""))
    boot_id, armed, line = said["boot"], said.get("armed", ""), said["line"]
    # Until the next boot the command line has the words of a trial that was confirmed, too.
    words_of = TRIAL_WORDS.search(line)
    stage: Stage
    if not record:
        stage = "left"
    elif words_of and words_of[1] == run and armed != boot_id:
        stage = "running"
    elif not armed:
        stage = "prepared"
    elif "permanent" in said and armed != boot_id:
        stage = "permanent"
    elif armed == boot_id:
        stage = "armed"
    else:
        stage = "not tried" if said.get("next") == grub.TRIAL else "returned"
    started = said.get("started", "")
    of_trial = bool(started) and started not in (armed, "")
    written = words_of_boot(words)
    if not of_trial or written.get("boot") != (started,):
        written = {}
    said_last = written.get("said", ())[-_MOST_SAID:]
    without = {key: texts for key, texts in written.items() if key != "said"}
    return Trial(stage, run, record, boot_id, of_trial, without, said_last, words_of_boot(before))


def words_of_boot(text: str) -> Words:
    """What a boot wrote down, by key; at most 400 lines of 300 characters."""
    words: dict[str, tuple[str, ...]] = {}
    for line in host_text.lines(text)[:_MOST_LINES]:
        key, _, value = line.partition(" ")
        words[key] = (*words.get(key, ()), one_line(value)[:300])
    return words


def _record(text: str) -> dict[str, Any]:
    """The record of a trial; {} without one. Raises Unreadable for one that rigwright did not write."""
    if not text:
        return {}
    try:
        found = host_text.json_value(text)
    except ValueError:
        found = None
    if (
        not isinstance(found, dict)
        or not run_id(str(found.get("run")))
        or not _FILE_NAME.fullmatch(str(found.get("image", "")))
    ):
        fix = f"sudo rm -r {FOLDER}, on the host, where nothing but this file is lost"
        raise Unreadable(f"{FOLDER}/record.json is no record of a trial: {text[:60]!r}", fix)
    return found


trial = Fact("trial.trial", script(_READ_TRIAL, reads=True), _trial)
"""The trial that is on the host; None for none."""


class Outcome(Struct, frozen=True):
    """The last trial that did not become permanent: its run, when (UTC, by the clock of the controller), what was
    tried, and why it ended."""

    run: str
    at: str
    tried: str
    why: str


def _outcome(result: Result) -> Outcome | None:
    if not result.text.strip():
        return None
    found = host_text.json_value(result.text)
    return Outcome(*(one_line(str(found[key]))[:600] for key in ("run", "at", "tried", "why")))


outcome = Fact("trial.outcome", script(f"[ ! -s {OUTCOME} ] || head -c 60000 {OUTCOME}", reads=True), _outcome)
"""The last trial that fell back, None when the last one became permanent."""
