"""A boot that is tried once: how a host boots, and the state of a trial on the host."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
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
MOST_CUSTOM = 60_000

_READ_BOOT = f"""
PATH=$PATH:/usr/sbin:/sbin; cfg=/boot/grub/grub.cfg; env=/boot/grub/grubenv; custom={CUSTOM}
[ -r "$cfg" ] || {{ echo absent; exit 0; }}
echo "boot $(cat /proc/sys/kernel/random/boot_id)"
echo "line $(cat /proc/cmdline)"
kind() {{ if [ -L "$1" ]; then echo link; elif [ -f "$1" ]; then echo file; elif [ -e "$1" ]; then echo other;
  else echo none; fi; }}
echo "grubenv $(kind "$env") $(stat -L -c %s "$env" 2>/dev/null || echo 0)"
echo "custom $(kind "$custom") $(stat -L -c %s "$custom" 2>/dev/null || echo 0)"
for program in {" ".join(PROGRAMS)}; do command -v $program >/dev/null || echo "missing $program"; done
[ -x /usr/lib/systemd/system-generators/systemd-debug-generator ] ||
  [ -x /lib/systemd/system-generators/systemd-debug-generator ] ||
  echo "missing systemd-debug-generator"
[ -x /usr/sbin/update-initramfs ] || echo "missing update-initramfs"
layers=$(timeout 60 grub-probe --target=abstraction "$env" 2>/dev/null) && echo "layers" $layers
system=$(timeout 60 grub-probe --target=fs "$env" 2>/dev/null) && echo "filesystem" $system
[ "$(cat /sys/kernel/kexec_loaded 2>/dev/null)" != 1 ] || echo "kexec"
echo "free $(df -Pk /boot | awk 'NR == 2 {{print $4}}')"
for image in /boot/initrd* /boot/initramfs*; do
  [ ! -f "$image" ] || echo "image $(stat -c %s "$image") ${{image##*/}}"; done
echo "--env"; grub-editenv "$env" list 2>/dev/null || echo "unreadable"
echo "--custom"; [ ! -f "$custom" ] || head -c {MOST_CUSTOM} "$custom"; echo
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
