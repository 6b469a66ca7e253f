"""What units of /etc, cron jobs, /etc/rc.local and the scripts that they name set on the GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.command import Result, script
from rigwright.core.control_characters import one_line
from rigwright.facts import Fact, Facts, systemd as units

Kind = Literal["power limit", "clocks", "persistence", "fans"]
LONGEST = 120
"""Characters of a command that are shown."""
LONGEST_READ = 2000
"""Characters of a command that are looked at."""
MOST = 64
"""The most settings that are reported."""

_SETS: tuple[tuple[Kind, str], ...] = (
    ("power limit", r"nvidia-smi\s.*(?<!\S)(-pl|--power-limit)\b|nvmlDeviceSetPowerManagementLimit"),
    (
        "clocks",
        r"nvidia-smi\s.*(?<!\S)(-[lr][gm]c|-r?ac|--(un)?lock-[a-z-]+clocks|--reset-[a-z-]+clocks|--applications-clocks)"
        r"\b|nvidia-settings\s.*(ClockOffset|TransferRateOffset|PowerMizerMode)"
        r"|nvmlDeviceSet(GpuLocked|MemoryLocked|Applications)Clocks",
    ),
    ("persistence", r"nvidia-smi\s.*(?<!\S)(-pm|--persistence-mode)\b|nvmlDeviceSetPersistenceMode"),
    ("fans", r"nvidia-settings\s.*(GPUFanControlState|GPUTargetFanSpeed)|nvmlDeviceSetFanSpeed|\bcoolgpus\b"),
)
"""What a command sets, by a regular expression."""

_FOLDERS = "data|home|mnt|opt|root|scripts|srv|usr/local/[a-z]+"
"""Where owners put their programs."""

# The first grep is all that a host without anything of that kind costs.
# A script that a unit or a line names is read only if no other user can change it or a folder on the way to it.
# Lines of cron and rc.local begin with no capital letter, as the other keys of a unit do.
_FILES = r"""
folders=$1 scripts='' owned=''
shift
for file in /etc/systemd/system/*.service /etc/systemd/system/*.service.d/*.conf \
  /usr/local/lib/systemd/system/*.service /etc/crontab /etc/cron.d/* /var/spool/cron/crontabs/root \
  /etc/cron.hourly/* /etc/cron.daily/* /etc/cron.weekly/* /etc/cron.monthly/* /etc/rc.local; do
  [ -f "$file" ] && [ ! -L "$file" ] || continue
  IFS= read -r first <"$file" || :
  case $first in '# Written by rigwright'*) ;; *) set -- "$@" "$file";; esac
done
[ $# != 0 ] && grep -qsIiE "nvidia|gpu|/($folders)/[[:alnum:]]" -- "$@" || exit 0
named=$(grep -hsIE '^ *(Exec[A-Za-z]*=|[^A-Z #[])' -- "$@" | grep -oE "/($folders)(/[A-Za-z0-9_.+-]+)+" |
  sort -u | head -n 200)
[ -z "$named" ] || owned=$(stat -c '%n|%F|%u|%g|%a|%s' -- / $(for path in $named; do
  while [ -n "$path" ]; do echo "$path"; path=${path%/*}; done; done | sort -u) 2>/dev/null |
  named=$named awk -F '|' '
    $3 || $5 ~ /[2367]$/ || ($5 ~ /[2367].$/ && $4 && $4 != 50) { next }  # 50: staff, the administrators of /usr/local
    $2 == "directory" { folder[$1] = 1 }
    $2 ~ /^regular/ && $6 <= 65536 { file[$1] = 1 }
    END {
      count = split(ENVIRON["named"], paths, "\n")
      for (at = 1; at <= count; at++) {
        place = paths[at]; good = (place in file) && ("/" in folder)
        while (sub(/\/[^\/]*$/, "", place) && place != "") if (!(place in folder)) good = 0
        if (good) print paths[at]
      }
    }')
[ -z "$owned" ] || scripts=$(grep -lsIE 'nvidia-smi|nvidia-settings|nvmlDeviceSet|coolgpus' -- $owned)
{ grep -lsIiE 'nvidia|gpu' -- "$@"; [ -z "$scripts" ] || { grep -lsIF -- "$scripts" "$@"; echo "$scripts"; }; } |
  sort -u | head -n 40 | while IFS= read -r file; do
    stat -c 'file|%a|%n' -- "$file"; head -c 65536 -- "$file" | tr -d '\000' | sed 's/^/ /'; echo
  done
"""


class ForeignSetting(Struct, frozen=True):
    """A command that sets something on the GPUs.

    `source`: the unit, or the file of cron, rc.local or a drop-in. `source_line`: its line there that leads to the
    command; 0 for a unit. `path`, `line`: the place of the command, which may be in a script. `other`: what else the
    unit or the line does, or why that is not known; "": nothing.
    """

    source: str
    source_line: int
    path: str
    line: int
    command: str
    sets: tuple[Kind, ...]
    other: str = ""

    @property
    def place(self) -> str:
        """The unit, or the file and line."""
        return f"{self.source}:{self.source_line}" if self.source_line else self.source

    @property
    def is_unit(self) -> bool:
        """Whether the source is a unit that systemd can be asked about."""
        return not self.source.startswith("/")


class _File(Struct, frozen=True):
    """A text file of the host; `is_executable`: for anybody."""

    path: str
    text: str
    is_executable: bool


def _read(result: Result) -> dict[str, _File]:
    files: dict[str, _File] = {}
    for part in re.split(r"(?m)^file\|", result.text)[1:]:
        head, _, body = part.partition("\n")
        mode, _, path = head.partition("|")
        text = "\n".join(line[1:] for line in host_text.lines(body) if line.startswith(" "))
        files[path] = _File(path, text, bool(int(mode, 8) & 0o111))
    return files


def _settings(result: Result) -> tuple[ForeignSetting, ...]:
    files = _read(result)
    found: list[ForeignSetting] = []
    for file in files.values():
        if re.fullmatch(r"/etc/systemd/system/.*|/usr/local/lib/systemd/.*", file.path):
            found += _of_unit(file, files)
        elif file.path.startswith("/etc/cron.d/") or file.path == "/etc/crontab":
            found += _of_lines(file, files, _CRON_WITH_USER)
        elif file.path == "/var/spool/cron/crontabs/root":
            found += _of_lines(file, files, _CRON)
        elif file.path == "/etc/rc.local" and file.is_executable:
            found += _of_lines(file, files, re.compile(""))
        elif file.path.startswith("/etc/cron.") and file.is_executable:
            found += _of_whole(file.path, [*_numbered(file.text)], file, files, other="cron runs the whole file")
    return tuple(found[:MOST])


settings: Fact[tuple[ForeignSetting, ...]] = Fact(
    "foreign_settings.settings", script(_FILES, _FOLDERS, reads=True), _settings
)
"""The settings of others, also those of units that are not enabled."""

_UNIT = re.compile(r"[A-Za-z0-9_.:-]{1,120}\.service")
_CRON = re.compile(r"(@\w+|(\S+\s+){4}\S+)\s+")
_CRON_WITH_USER = re.compile(rf"{_CRON.pattern}[\w-]+\s+")
_OWNERS = re.compile(rf"(?<!\S)/(?:{_FOLDERS})/[^\s'\";]+")
_COMMENT = re.compile(r"^\s*;.*|^([^'\"#]*\s)?#.*")
_EXEC = re.compile(r"\s*Exec\w+\s*=\s*[-@:+!]*")
_SHELL = re.compile(r"^(\S*/)?(env\s+)?(ba|da)?sh(\s+-[a-z]+)*\s+(?=['\"/])")
_SCRIPT = re.compile(r"((\S*/)?(env|(ba|da)?sh|python[\d.]*)\s+(-\S+\s+)*)?(?P<path>/[^\s'\"]+)")
_HARMLESS = re.compile(
    r"(#.*|set\s+[-+].*|sleep\s+[\d.]+[smhd]?|exit(\s+\d+)?|(echo|logger)\s[^>`(]*|for\s+\w+\s+in\s[^`(]*|do|done|then|else|fi|"
    r"(export\s+)?\w+=[^\s`(]*|((if|while|until)\s+(!\s+)?)?nvidia-smi(\s+(-q|-L))?(\s*>\s*/dev/null.*)?|true|:)?"
)
"""Commands beside which a setting is alone."""


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    """The commands of a text with their line numbers; continued lines are one, and comments are left out."""
    begun, number = "", 0
    for at, line in enumerate(text.split("\n"), 1):
        number = number if begun else at
        begun += _COMMENT.sub(r"\1", line).strip()
        if begun.endswith("\\"):
            begun = begun[:-1] + " "
            continue
        if begun:
            yield number, begun[:LONGEST_READ]
        begun = ""


def _parts(command: str) -> Iterator[str]:
    """The simple commands of a line of shell text."""
    for part in re.split(r"&&|\|\||[;|]|(?<![>&])&(?![>&])", command):
        part = part.strip()
        for mark in "'\"":
            part = part.strip(mark) if part.count(mark) % 2 else part
        yield re.sub(r"^((do|then|else|sudo)\s+|[-\w/.]*/(?=nvidia-s))+", "", part)


def _kinds(command: str) -> tuple[Kind, ...]:
    """What a simple command sets on GPUs."""
    return tuple(kind for kind, pattern in _SETS if re.search(pattern, command))


def _of_unit(file: _File, files: Mapping[str, _File]) -> list[ForeignSetting]:
    name = file.path.rpartition("/")[2]
    commands = [(number, line[found.end() :]) for number, line in _numbered(file.text) if (found := _EXEC.match(line))]
    if _UNIT.fullmatch(name):
        settings = _of_whole(name, commands, file, files)
        unread = (path for _, line in commands for path in _OWNERS.findall(line) if path not in files)
        if not settings and re.search("nvidia|gpu", name, re.IGNORECASE) and (path := next(unread, "")):
            why = "a program, or a script that others than root may change, was not read"
            return [ForeignSetting(name, 0, file.path, 1, path[:LONGEST], (), why)]
        return settings
    return [
        each
        for number, command in commands
        for each in _of_whole(file.path, [(number, command)], file, files, number, "it belongs to another unit")
    ]


def _of_lines(file: _File, files: Mapping[str, _File], before: re.Pattern[str]) -> list[ForeignSetting]:
    """The settings of single lines; `before`: what stands before the command of a line."""
    written = file.text.split("\n")
    settings: list[ForeignSetting] = []
    for number, line in _numbered(file.text):
        if found := before.match(line):
            several = "its command has several lines" if written[number - 1].rstrip().endswith("\\") else ""
            settings += _of_whole(file.path, [(number, line[found.end() :])], file, files, number, several)
    return settings


def _of_whole(
    source: str,
    commands: list[tuple[int, str]],
    file: _File,
    files: Mapping[str, _File],
    source_line: int = 0,
    other: str = "",
) -> list[ForeignSetting]:
    """The settings of commands and of the scripts that they name, each with what all of them do beside settings."""
    found: list[tuple[str, int, str]] = []
    for number, text in commands:
        for part in _parts(_SHELL.sub("", text)):
            named = files.get(match["path"]) if (match := _SCRIPT.match(part)) else None
            if named is None or named is file:
                found.append((file.path, number, part))
            else:
                found += [(named.path, at, each) for at, line in _numbered(named.text) for each in _parts(line)]
    found = [(path, at, one_line(part)[:LONGEST]) for path, at, part in found if not _HARMLESS.fullmatch(part)]
    rest = [f"it also runs {part} ({path}:{at})" for path, at, part in found if not _kinds(part)]
    return [
        ForeignSetting(source, source_line, path, at, part, kinds, other or "".join(rest[:1]))
        for path, at, part in found
        if (kinds := _kinds(part))
    ]


def in_effect(facts: Facts) -> tuple[ForeignSetting, ...]:
    """The settings of others, without those of units that neither run nor start, by themselves or by their timer."""
    known = facts(settings)
    names = dict.fromkeys(each.source for each in known if each.is_unit)
    asked = [unit for name in names for unit in (name, timer_of(name))]
    states = dict(zip(asked, facts.all(*map(units.unit, asked)), strict=True))
    starts = {name for name, now in states.items() if now.enabled.startswith("enabled") or is_at_work(now)}
    return tuple(each for each in known if not each.is_unit or {each.source, timer_of(each.source)} & starts)


def is_at_work(unit: units.Unit) -> bool:
    """Whether a unit runs or waits. A oneshot unit that has ended (`exited`) does not, but is called active."""
    return unit.active.startswith("activ") and unit.sub != "exited"


def by_source(settings: tuple[ForeignSetting, ...]) -> dict[str, list[ForeignSetting]]:
    """The settings by `place`."""
    sources: dict[str, list[ForeignSetting]] = {}
    for each in settings:
        sources.setdefault(each.place, []).append(each)
    return sources


def timer_of(name: str) -> str:
    """The timer that starts a service of this name."""
    return f"{name.removesuffix('.service')}.timer"
