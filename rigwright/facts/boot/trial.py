"""A boot that is tried once: whether a host's GRUB can do that, and how far a trial on the host has come."""

from __future__ import annotations

import contextlib
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
"""The name of the copy of the initramfs with which the host runs, in the folder of the kernels."""
UNIT = "/etc/systemd/system/rigwright-trial.service"
WATCH = "/etc/rigwright/trial-watch.sh"
ROOM = 30_000
"""The bytes that a trial can write. The file has them before the boot, so a full disk does not matter."""
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

    `command_line`: /proc/cmdline. `grubenv`, `custom`: kind (file, link, other, none) and size of grubenv and of
    custom.cfg. `layers`, `filesystem`: of the disk of grubenv by grub-probe; None if unknown. `missing`: programs.
    `kexec`: a kernel is loaded that a reboot starts without GRUB. `images`: the bytes of each initramfs in /boot.
    `environment`: the variables of grubenv; None if grub-editenv cannot read it.
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
        """The variables of grubenv; {} if it cannot be read."""
        return self.environment or {}

    @property
    def words(self) -> str:
        """The parameters with which the host runs, without BOOT_IMAGE and without rigwright's own words."""
        line = TRIAL_WORDS.sub("", self.command_line)
        line = re.sub(r"( module_blacklist=\S{1,2000})? rigwright\.fallback=[\w.-]{1,64}$", "", line)
        return " ".join(word for word in line.split() if not word.startswith("BOOT_IMAGE="))

    @property
    def kernel(self) -> str:
        """The path from which GRUB loaded the running kernel; "" if unknown."""
        match = re.search(r"(?:^| )BOOT_IMAGE=(?:\([^)\s]{0,100}\))?(/\S{1,400})", self.command_line)
        return match[1] if match else ""

    @property
    def runs_fallback(self) -> bool:
        """Whether the host runs rigwright's fallback entry."""
        return " rigwright.fallback=" in self.command_line


def _boot(result: Result) -> Boot:
    if result.text.startswith("absent"):
        raise Unavailable("there is no /boot/grub/grub.cfg: this machine does not boot by GRUB")
    head, _, rest = result.text.partition("--env\n")
    environment, _, rest = rest.partition("--custom\n")
    custom, _, config = rest.partition("\n--cfg\n")
    values: dict[str, str] = {}
    missing: list[str] = []
    images: dict[str, int] = {}
    sizes: dict[str, tuple[str, int]] = {}
    for line in host_text.lines(head):
        name, _, value = line.partition(" ")
        if name == "missing":
            missing.append(value)
        elif name == "image":
            size, _, image = value.partition(" ")
            images[image] = host_text.integer(size)
        elif name in ("grubenv", "custom"):
            kind, size = value.split()
            sizes[name] = kind, host_text.integer(size)
        else:
            values[name] = value
    variables = dict(line.split("=", 1) for line in host_text.lines(environment) if "=" in line)
    return Boot(
        values["boot"], values["line"], sizes["grubenv"], sizes["custom"], tuple(missing), values.get("layers"),
        values.get("filesystem"), "kexec" in values, host_text.integer(values["free"]), images,
        None if environment.startswith("unreadable") else variables, custom, config,
    )  # fmt: skip


boot = Fact("trial.boot", script(_READ_BOOT, timeout_s=150), _boot)
"""How the host boots. grub-probe may be slow, so it is read only before a reboot."""


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
        found = "GRUB waits for a key at every boot (GRUB_TIMEOUT=-1)"
        yield Obstacle(found, "GRUB_TIMEOUT=5 in /etc/default/grub; sudo update-grub")
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
        found = f"/boot has {free} MiB free, and a copy of the initramfs beside a new one needs {needed}"
        yield Obstacle(found, "sudo apt-get autoremove --purge removes old kernels")


def custom_of_owner(text: str) -> str:
    """custom.cfg without rigwright's block."""
    before, begin, rest = text.partition(BEGIN)
    return before + rest.partition(END)[2] if begin and END in rest else text


Words = Mapping[str, tuple[str, ...]]
"""The output of templates/trial/watch.sh.j2: the texts of the lines that begin with a key (`state`, `failed`, ...)."""
Stage = Literal["prepared", "armed", "running", "permanent", "returned", "not tried", "left"]


class Trial(Struct, frozen=True):
    """The state of a trial on the host.

    `stage`: `prepared`: the old state is the default, the new one was not booted; `armed`: the next boot is the trial;
    `running`: this boot is the trial; `permanent`: it was made permanent, and files of it remain; `returned`: the host
    went back to the old state after the trial; `not tried`: GRUB could not write grubenv and started the old state;
    `left`: a block without a record. `run`, `record`: the run that prepared it, and its record. `systemd`: the trial
    reached systemd. `words`: what the host wrote in the trial, by key; `said`: the last lines of its journal. `before`:
    what it wrote before the run changed anything.
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
    values = dict(line.partition(" ")[::2] for line in host_text.lines(head))
    record = _record(values.get("record", ""))
    run = str(record.get("run", ""))
    boot_id, armed, started = values["boot"], values.get("armed", ""), values.get("started", "")
    # Until the next boot the command line has the words of a trial that was confirmed, too.
    trial_words = TRIAL_WORDS.search(values["line"])
    stage: Stage
    if not record:
        stage = "left"
    elif trial_words and trial_words[1] == run and armed != boot_id:
        stage = "running"
    elif not armed:
        stage = "prepared"
    elif "permanent" in values and armed != boot_id:
        stage = "permanent"
    elif armed == boot_id:
        stage = "armed"
    else:
        stage = "not tried" if values.get("next") == grub.TRIAL else "returned"
    of_trial = bool(started) and started != armed
    written = dict(words_of_boot(words))
    if not of_trial or written.get("boot") != (started,):
        written = {}
    journal = written.pop("said", ())[-_MOST_SAID:]
    return Trial(stage, run, record, boot_id, of_trial, written, journal, words_of_boot(before))


def words_of_boot(text: str) -> Words:
    """What a boot wrote, by key; at most 400 lines of 300 characters."""
    words: dict[str, tuple[str, ...]] = {}
    for line in host_text.lines(text)[:_MOST_LINES]:
        key, _, value = line.partition(" ")
        words[key] = (*words.get(key, ()), one_line(value)[:300])
    return words


def _record(text: str) -> dict[str, Any]:
    """The record of a trial; {} without one. Raises Unreadable for one that rigwright did not write."""
    if not text:
        return {}
    with contextlib.suppress(ValueError):
        record = host_text.json_value(text)
        named = isinstance(record, dict) and run_id(str(record.get("run")))
        if named and _FILE_NAME.fullmatch(str(record.get("image", ""))):
            return dict(record)
    fix = f"sudo rm -r {FOLDER}, on the host, where nothing but this file is lost"
    raise Unreadable(f"{FOLDER}/record.json is no record of a trial: {text[:60]!r}", fix)


trial = Fact("trial.trial", script(_READ_TRIAL, reads=True), _trial)
"""The trial on the host; None without one."""


class Outcome(Struct, frozen=True):
    """The last trial that did not become permanent: its run, its end (UTC, the controller's clock) and the reason of
    it, and what was tried."""

    run: str
    at: str
    tried: str
    why: str


def _outcome(result: Result) -> Outcome | None:
    if not result.text.strip():
        return None
    written = host_text.json_value(result.text)
    return Outcome(*(one_line(str(written[key]))[:600] for key in ("run", "at", "tried", "why")))


outcome = Fact("trial.outcome", script(f"[ ! -s {OUTCOME} ] || head -c 60000 {OUTCOME}", reads=True), _outcome)
"""The last trial that fell back; None if the last one became permanent."""
