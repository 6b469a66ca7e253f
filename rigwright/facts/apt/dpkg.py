"""Packages: installed and held ones from dpkg, and what apt would do next."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Command, Result, command, script
from rigwright.core.host_folders import STATE
from rigwright.facts import Fact, Merger, Unreadable
from rigwright.facts.installed import INSTALLED


class Package(Struct, frozen=True):
    """A package in dpkg's database. `installed`: unpacked and configured. A held package that is removed has no
    version."""

    version: str
    installed: bool
    held: bool


def packages(*names: str) -> Fact[dict[str, Package]]:
    """The named packages in dpkg's database, by name. Unknown and removed packages are left out."""

    def parse(result: Result) -> dict[str, Package]:
        if result.code not in (0, 1):  # 1: some names are unknown
            raise Unreadable(result.error_text)
        packages: dict[str, Package] = {}
        for line in result.lines:
            name, version, want, status, *architecture = line.split("\t")
            if architecture and architecture[0] not in ("amd64", "all"):
                name = f"{name}:{architecture[0]}"  # the 32-bit variant of a library; the driver is 64-bit
            if status not in ("not-installed", "config-files") or want == "hold":
                packages[name] = Package(version, status == "installed", want == "hold")
        return packages

    form = "${Package}\\t${Version}\\t${db:Status-Want}\\t${db:Status-Status}\\t${Architecture}\\n"
    words = sorted(set(names))
    asks = command("dpkg-query", "-W", "-f", form, "--", *words, reads=True, cache_key=INSTALLED)
    return Fact(f"dpkg.packages({','.join(words)})", asks, parse)


def matching(*globs: str) -> Fact[dict[str, Package]]:
    """The installed packages whose names match."""
    return dataclasses.replace(packages(*globs), name=f"dpkg.matching({','.join(globs)})")


def _form(cmd: Command) -> str:
    """The form of the rows of a command of `packages`; "" for another command."""
    argv = cmd.argv
    asks = argv[:3] == ("dpkg-query", "-W", "-f") and argv[4:5] == ("--",) and argv[3].startswith("${Package}\\t")
    return argv[3] if asks else ""


def _together(commands: Sequence[Command]) -> Command:
    patterns = dict.fromkeys(pattern for command in commands for pattern in command.argv[5:])
    return replace(commands[0], argv=(*commands[0].argv[:5], *patterns))


def _split(result: Result, commands: tuple[Command, ...]) -> list[Result] | None:
    """The rows whose package matches a pattern of the command, in the order of the answer; exit code 1 if a pattern
    matches no package."""
    if result.code not in (0, 1):
        return None
    rows = [(row.partition("\t")[0], row) for row in result.lines]
    answers = []
    for cmd in commands:
        patterns = cmd.argv[5:]
        if any(set(pattern) & set("[]\\:") for pattern in patterns):
            return None
        globs = [pattern for pattern in patterns if set(pattern) & set("*?")]
        names = {*patterns}.difference(globs)
        own = [(name, row) for name, row in rows if name in names or any(fnmatchcase(name, glob) for glob in globs)]
        present = {name for name, _ in own}
        matched = present.union(glob for glob in globs if any(fnmatchcase(name, glob) for name in present))
        unknown = [pattern for pattern in patterns if pattern not in matched]
        error = "".join(f"dpkg-query: no packages found matching {pattern}\n" for pattern in unknown)
        text = "".join(f"{row}\n" for _, row in own)
        answers.append(Result(1 if unknown else 0, text.encode(), error.encode()))
    return answers


MERGER = Merger(_form, _together, _split)


_AUDIT = """
ls /var/lib/dpkg/updates 2>/dev/null | grep -q '[0-9]' &&
  echo "dpkg was interrupted: /var/lib/dpkg/updates is not empty"
exec dpkg --audit
"""


def _audit(result: Result) -> str:
    if result.code not in (0, 1):
        raise Unreadable(result.error_text)
    return result.text.strip()


dpkg_audit = Fact("dpkg.dpkg_audit", script(_AUDIT, cache_key=INSTALLED), _audit)


class Proof(Struct, frozen=True):
    """Digest of dpkg's status and of apt's lists and preferences, now and at the last proof of the pin."""

    now: str
    proved: str


_PROOF_NOW = (
    "stat -c '%n %Y %s' /var/lib/dpkg/status /var/lib/apt/lists /etc/apt/preferences.d /etc/apt/preferences.d/* "
    "/etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/sources.list.d/* 2>/dev/null | sha256sum | cut -d' ' -f1"
)
PROOF_FILE = f"{STATE}/pin-proof"
PROOF_WRITE = f"mkdir -p {STATE} && {{ {_PROOF_NOW}; }} > {PROOF_FILE}"


pin_proof = Fact(
    "dpkg.pin_proof",
    script(f"{_PROOF_NOW}; cat {PROOF_FILE} 2>/dev/null; :", cache_key=INSTALLED),
    lambda result: Proof(*[*result.lines, ""][:2]),
)


class Move(Struct, frozen=True):
    """One line of an apt simulation: `version` would replace `before`; `version` "": the package would be removed."""

    name: str
    before: str
    version: str


_MOVE = lazy_re.compile(r"(Inst|Remv|Purg) (\S+)(?: \[([^\]]*)\])?(?: \((\S+))?")


def moves(text: str) -> tuple[Move, ...]:
    """The Inst, Remv and Purg lines of `apt-get -s`."""
    matches = (_MOVE.match(line) for line in host_text.lines(text) if line.startswith(("Inst ", "Remv ", "Purg ")))
    parts = (match.groups("") for match in matches if match)
    return tuple(
        Move(name.split(":")[0], before, version if verb == "Inst" else "") for verb, name, before, version in parts
    )


_PREFERENCES = """
for file in /etc/apt/preferences.d/* /etc/apt/preferences; do
  case ${file##*/} in rigwright-*|*[!A-Za-z0-9_.-]*) continue;; *.pref) ;; *.*) continue;; esac
  [ -f "$file" ] && { echo "--file $file"; head -c 65536 "$file"; echo; }
done; :
"""


def _preferences(result: Result) -> dict[str, str]:
    first, *parts = re.split(r"^--file (/\S+)\n", result.text, flags=re.MULTILINE)
    if first.strip():
        raise ValueError("text before the first file")
    return dict(zip(parts[::2], parts[1::2], strict=True))


preferences = Fact("dpkg.preferences", script(_PREFERENCES, reads=True, cache_key=INSTALLED), _preferences)
"""The texts of the preferences files that apt reads, up to 64 KiB of each, by path, without rigwright's own."""


def _held(result: Result) -> tuple[str, ...]:
    if result.code != 0:
        raise Unreadable(result.error_text)
    return tuple(result.text.split())


held = Fact(
    "dpkg.held",
    script(
        "all=$(dpkg-query -W -f '${db:Status-Want} ${Package}\\n') || exit; echo \"$all\" | "
        "sed -n 's/^hold //p' | sort -u",
        reads=True,
        cache_key=INSTALLED,
    ),
    _held,
)
"""The packages on hold, also those that are not installed."""


class Repair(Struct, frozen=True):
    """Packages with unmet dependencies, the changes of `apt --fix-broken install`, and its message if it refuses.
    `held`: the packages whose holds prevent the repair, or make it remove others."""

    broken: tuple[str, ...]
    moves: tuple[Move, ...]
    error: str
    held: tuple[str, ...] = ()


HOLDS = """
without_holds() { sed 's/^Status: hold /Status: install /' "$1"; }
held_of() {
  printf '%s\\n' "$2" | awk 'NR == FNR {if (/^Package: /) name = $2; if (/^Status: hold /) held[name]; next}
    /^(Inst|Remv|Purg) / {sub(/:.*/, "", $2); if ($2 in held && !shown[$2]++) printf "%s ", $2}' "$1" -
}
"""
"""Shell functions that print a dpkg status without its holds, and the held packages of a status that a simulation of
apt changes."""

_CHECK = "apt-get -o Debug::NoLocking=1 check"
_NAMES_OF_BROKEN = "sed -n 's/^ \\([a-z0-9][a-z0-9.+-]*\\)\\(:[a-z0-9]*\\)\\{0,1\\} : .*/\\1/p'"
BROKEN = f"{_CHECK} 2>&1 | {_NAMES_OF_BROKEN}"
"""Shell text that prints the packages with unmet dependencies, one per line."""

_NO_NAMES = 3
"""The exit code if apt-get check fails and names no package, so for another reason. Such an answer is not kept."""

_REPAIR = f"""
checked=$({_CHECK} 2>&1); code=$?
broken=$(printf '%s\\n' "$checked" | {_NAMES_OF_BROKEN})
[ -n "$broken" ] || {{ [ $code = 0 ] && exit; [ $code -lt 124 ] && exit {_NO_NAMES}
  echo "apt-get check ended with $code" >&2; exit $code; }}
echo "$broken"; echo "--fix"
status=$(mktemp -p /run) && trap 'rm -f "$status" "$status.plan" "$status.free"' EXIT
awk 'BEGIN{{RS="";ORS="\\n\\n"}} /^Package: [^\\n]*nvidia/{{sub(/\\nStatus: hold /, "\\nStatus: install ")}} 1' \\
  /var/lib/dpkg/status >"$status"
apt-get -o Debug::NoLocking=1 -o Dir::State::status="$status" -s -f install >"$status.plan" 2>&1; code=$?
cat "$status.plan"
if [ $code != 0 ] || grep -q '^Remv' "$status.plan"; then
  {HOLDS}
  without_holds "$status" >"$status.free"
  moved=$(apt-get -o Debug::NoLocking=1 -o Dir::State::status="$status.free" -s -f install 2>/dev/null) &&
    echo "held=$(held_of "$status" "$moved")"
fi
:
"""


def _repair(result: Result) -> Repair:
    if result.code not in (0, _NO_NAMES):
        raise Unreadable(result.error_text)
    names, _, plan = result.text.partition("--fix\n")
    plan, _, held = plan.partition("\nheld=")
    error = next((line for line in host_text.lines(plan) if line.startswith("E: ")), "")
    return Repair(tuple(names.split()), moves(plan), error, tuple(held.split()))


repair = Fact("dpkg.repair", script(_REPAIR, cache_key=INSTALLED), _repair)
"""Packages with unmet dependencies, and apt's repair of them. The repair may change held NVIDIA packages."""


def _output(result: Result) -> str:
    if result.code != 0:
        raise ValueError(result.error_text)
    return result.text


next_upgrade = Fact(
    "dpkg.next_upgrade",
    script("apt-get -s upgrade && apt-get -s dist-upgrade", timeout_s=300),
    lambda result: moves(_output(result)),
)

_UPGRADE_WITHOUT = """
parts=$(mktemp -d -p /run) && trap 'rm -rf "$parts"' EXIT && cp /etc/apt/preferences.d/* "$parts"
rm -f "$parts/${1##*/}" && apt-get -o Dir::Etc::preferencesparts="$parts" -s dist-upgrade
"""


def upgrade_without(path: str) -> Fact[tuple[Move, ...]]:
    """What a full upgrade would change without one of the preferences files in /etc/apt/preferences.d; () if apt
    refuses to upgrade."""
    asks = script(_UPGRADE_WITHOUT, path, timeout_s=300, cache_key=INSTALLED)
    return Fact(f"dpkg.upgrade_without({path})", asks, lambda result: moves(result.text))


_BLACKLIST = lazy_re.compile(r'^Unattended-Upgrade::Package-Blacklist:: "(.*)";$', re.MULTILINE)
unattended_blocked = Fact(
    "dpkg.unattended_blocked",
    command("apt-config", "dump", "Unattended-Upgrade::Package-Blacklist", cache_key=INSTALLED),
    lambda result: tuple(map(str, _BLACKLIST.findall(_output(result)))),
)
"""The package blacklist of unattended-upgrades: regular expressions for the start of a name."""


class Holder(Struct, frozen=True):
    """A process that holds a lock of apt or dpkg."""

    pid: int
    name: str


LOCK_HOLDERS = """
stat -c %i /var/lib/dpkg/lock-frontend /var/lib/dpkg/lock /var/lib/apt/lists/lock /var/cache/apt/archives/lock \\
  2>/dev/null |
awk 'NR == FNR {locks[$1]; next} $2 != "->" && split($6, at, ":") == 3 && at[3] in locks {print $5}' - /proc/locks |
sort -un | while read pid; do
  [ -r "/proc/$pid/cmdline" ] && printf '%s %s\\n' "$pid" "$(tr '\\0\\n' '  ' <"/proc/$pid/cmdline" | cut -c1-80)"
done; :
"""
"""Shell text that prints `PID COMMAND` of every process that holds a lock of dpkg or apt."""


def _lock_holders(result: Result) -> tuple[Holder, ...]:
    rows = (line.partition(" ") for line in result.lines)
    return tuple(Holder(host_text.integer(pid), name.strip()) for pid, _, name in rows)


lock_holders = Fact("dpkg.lock_holders", script(LOCK_HOLDERS, reads=True), _lock_holders)

AUTOMATIC = r"""
automatic() {
  awk '/^Package:/{p=$2} /^Architecture:/{a=$2} /^Auto-Installed: 1/{print p ":" a}' /var/lib/apt/extended_states \
    2>/dev/null |
    sed "s/:$(dpkg --print-architecture)\$//; s/:all\$//"
}
"""
"""Shell function that prints each package that apt marks as installed automatically. `apt-mark showauto` reads the
package lists of all archives for the same answer, which took more than a minute in an emulated machine."""
LISTED = (
    AUTOMATIC
    + r"""
listed() {
  dpkg-query -W -f '${Package}\t${Architecture}\t${Version}\t${db:Status-Want}\t${db:Status-Status}\n' |
    awk -F '\t' -v native="$(dpkg --print-architecture)" \
      '{print ($2 == "all" || $2 == native ? $1 : $1 ":" $2) "\t" $3 "\t" $4 "\t" $5}' |
    LC_ALL=C sort
}
marked() {  # NAME VERSION WANT STATUS MARK of each package; MARK: auto or manual
  { automatic | sed 's/$/\tauto/'; listed; } |
    awk -F '\t' 'NF == 2 {automatic[$1]; next}
      $4 != "not-installed" {print $0 "\t" ($1 in automatic ? "auto" : "manual")}'
}
"""
)
"""Shell functions: `listed` prints NAME VERSION WANT STATUS of each package, `marked` those with apt's mark."""
