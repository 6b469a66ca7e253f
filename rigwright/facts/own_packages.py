"""The packages that rigwright brought to a host, and what is installed there now.

/var/lib/rigwright/packages has a line KIND NAME for each. `since`: `whole` if rigwright has recorded every package,
`partial` if an earlier version installed some without a record. `new`: apt will install it. `auto`, `manual`: apt has
installed it, with that mark. `left`: only its configuration remains. `was-auto`, `was-manual`: its mark before
rigwright's work changed it.

The lines `new` are on the disk before apt begins, and packages-before has all packages of that moment until the work of
apt is recorded. So the next run completes a record that a power cut interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Result, command, script
from rigwright.core.host_folders import STATE
from rigwright.facts import Fact
from rigwright.facts.apt.dpkg import AUTOMATIC, LISTED

OWN_PACKAGES = (
    LISTED
    + r"""
own_since() { if [ -s @STATE@/holds ]; then echo partial; else echo whole; fi; }
own_record() {  # KIND NAME VERSION WANT STATUS MARK: the record as it is after the last work of apt
  { [ ! -f @STATE@/packages ] || sed 's/^/record\t/' @STATE@/packages
    [ ! -f @STATE@/packages-before ] || sed 's/^/before\t/' @STATE@/packages-before
    marked | sed 's/^/now\t/'; } | awk -F '\t' -v since="$(own_since)" '
  $1 == "record" && $2 == "since" {since = $3; next}
  $1 == "record" && $2 ~ /^was-/ {was[$3] = $2; next}
  $1 == "record" {own[$3] = $2; next}
  $1 == "before" {if ($5 != "config-files") mark_before[$2] = $6; next}
  {mark[$2] = $6; left[$2] = $5 == "config-files"; rest[$2] = $3 "\t" $4 "\t" $5 "\t" $6; packages++}
  END {
    if (!packages) exit 1
    print "since\t" since
    for (name in own) {
      if (!(name in mark)) continue
      kind = own[name]
      if (left[name]) kind = "left"
      else if (kind == "new" || kind == "manual" || (kind == "auto" && mark_before[name] == "auto")) kind = mark[name]
      print kind "\t" name "\t" rest[name] | "sort"
    }
    for (name in mark) {
      if (left[name] || name in own) continue
      if (!(name in was) && name in mark_before && mark_before[name] != mark[name]) was[name] = "was-" mark_before[name]
      if (name in was && was[name] != "was-" mark[name]) print was[name] "\t" name "\t" rest[name] | "sort"
    }
  }'
}
own_write() {  # a new version of the record, from stdin
  cat >@STATE@/packages.new && chmod 644 @STATE@/packages.new && sync @STATE@/packages.new &&
    mv @STATE@/packages.new @STATE@/packages && sync @STATE@
}
own_ended() {  # records what the last work of apt did, also one that was interrupted
  [ -e @STATE@/packages ] || [ -e @STATE@/packages-before ] || return 0
  recorded=$(own_record) && printf '%s\n' "$recorded" | cut -f 1,2 | own_write && rm -f @STATE@/packages-before
}
own_begun() {  # NAME...: before apt begins; NAMEs are not installed now and will be
  mkdir -p -m 755 @STATE@ && own_ended && marked >@STATE@/packages-before.new && [ -s @STATE@/packages-before.new ] ||
    return
  sync @STATE@/packages-before.new && mv @STATE@/packages-before.new @STATE@/packages-before || return
  { [ -s @STATE@/packages ] && cat @STATE@/packages || printf 'since\t%s\n' "$(own_since)"
    for name; do printf 'new\t%s\n' "$name"; done; } | own_write
}
""".replace("@STATE@", STATE)
)
"""Shell functions around each work of apt, which keep the record: `own_begun NAME...` and `own_ended`."""

RECORD_WORK = script(f"{OWN_PACKAGES}\nown_ended", timeout_s=120)
"""A command that brings the record up to date with dpkg's and apt's own lists."""

_KINDS = ("auto", "manual", "left", "was-auto", "was-manual")
_NAME = lazy_re.compile(r"[a-z0-9][a-z0-9+.-]{0,200}(:[a-z0-9-]{1,20})?")
_MOST = 20_000


class OwnPackage(Struct, frozen=True):
    """A package of the record. `kind`: as in the file. `there`: it is installed now, not only its configuration.
    `automatic`: apt counts it as installed for others now."""

    name: str
    kind: str
    version: str
    held: bool
    there: bool
    automatic: bool


class Record(Struct, frozen=True):
    """What rigwright brought, and packages whose marks it changed. `whole`: every package is recorded."""

    whole: bool
    packages: tuple[OwnPackage, ...]


def _record(result: Result) -> Record:
    if result.code != 0:
        raise ValueError(result.error_text or "dpkg lists no package")
    head, *lines = result.lines
    if head not in ("since\twhole", "since\tpartial") or len(lines) > _MOST:
        raise ValueError("no record of packages")
    packages = []
    for line in lines:
        words = line.split("\t")
        if len(words) != 6 or words[0] not in _KINDS or not _NAME.fullmatch(words[1]):
            raise ValueError(f"{line[:80]!r} is no package")
        kind, name, version, want, status, mark = words
        packages.append(OwnPackage(name, kind, version, want == "hold", status != "config-files", mark == "auto"))
    return Record(head == "since\twhole", tuple(packages))


record = Fact("own_packages.record", script(f"{OWN_PACKAGES}\nown_record", timeout_s=120), _record)
"""The packages that rigwright brought to the host and of which at least the configuration is still there."""


class Installed(Struct, frozen=True):
    """An installed package. `needs`: for each dependency the names of the packages any of which meets it. `provides`:
    further names that it has as a dependency."""

    version: str
    held: bool
    automatic: bool
    maintainer: str
    needs: tuple[tuple[str, ...], ...]
    provides: tuple[str, ...]


_INSTALLED = (
    AUTOMATIC
    + r"""
native=$(dpkg --print-architecture); echo "native $native"
automatic | sed 's/^/auto\t/'
dpkg-query -W -f '${db:Status-Status}\t${Package}\t${Architecture}\t${Version}\t${db:Status-Want}\t${Maintainer}\t'\
'${Pre-Depends}, ${Depends}\t${Provides}\n' |
  grep -v '^not-installed\|^config-files'  # the last command: without packages it fails
"""
)


def _relations(text: str, separator: str) -> tuple[str, ...]:
    """The names in relations such as `libc6 (>= 2.34) | python3:any`."""
    words = (word.partition("(")[0].partition("[")[0].strip().removesuffix(":any") for word in text.split(separator))
    return tuple(filter(None, words))


def _installed(result: Result) -> dict[str, Installed]:
    if result.code != 0:
        raise ValueError(result.error_text or "dpkg lists no package")
    head, *lines = host_text.lines(result.text.replace("\n ", " "))
    if not head.startswith("native ") or len(lines) > _MOST:
        raise ValueError("no list of installed packages")
    native = head.removeprefix("native ")
    automatic: set[str] = set()
    packages: dict[str, Installed] = {}
    for line in lines:
        kind, *words = line.split("\t")
        if kind == "auto" and len(words) == 1:
            automatic.add(words[0])
            continue
        if len(words) != 7:
            raise ValueError(f"{line[:80]!r} is no package")
        name, architecture, version, want, maintainer, needs, provides = words
        full = name if architecture in ("all", native) else f"{name}:{architecture}"
        clauses = tuple(filter(None, (_relations(clause, "|") for clause in needs.split(","))))
        marks = want == "hold", full in automatic
        packages[full] = Installed(version, *marks, maintainer, clauses, _relations(provides, ","))
    return packages


installed = Fact("own_packages.installed", script(_INSTALLED, timeout_s=120), _installed)
"""Every installed package by name; one of a foreign architecture as NAME:ARCHITECTURE."""


class Purge(Struct, frozen=True):
    """What apt would do to purge packages: what it removes and installs, and its message if it refuses."""

    removes: frozenset[str]
    installs: tuple[str, ...]
    error: str = ""


def _purge(result: Result) -> Purge:
    moves = re.findall(r"^(Inst|Remv|Purg) (\S{1,222})", result.text, re.MULTILINE)
    error = "" if result.code == 0 else (result.error_text or "apt refuses it")[:400]
    gone = frozenset(name for verb, name in moves if verb != "Inst")
    return Purge(gone, tuple(name for verb, name in moves if verb == "Inst"), error)


def purge(names: tuple[str, ...]) -> Fact[Purge]:
    """apt's simulation of the removal of packages with their configuration, regardless of holds."""
    words = ("apt-get", "-s", "-q", "-o", "Debug::NoLocking=1", "--allow-change-held-packages", "purge", "--", *names)
    return Fact(f"own_packages.purge({','.join(names)})", command(*words, timeout_s=120), _purge)


def needed(packages: Mapping[str, Installed], go: set[str]) -> dict[str, list[str]]:
    """The packages of `go` that must stay, by the package for which they stay: without them a dependency of a package
    that is not in `go`, or that stays itself, would not be met."""
    meets: dict[str, set[str]] = {}
    for name, package in packages.items():
        for provided in (name, name.partition(":")[0], *package.provides):
            meets.setdefault(provided, set()).add(name)
    go = set(go)
    stay: dict[str, list[str]] = {}
    roots = [(name, name) for name in sorted(packages) if name not in go]
    while roots:
        name, root = roots.pop()
        for clause in packages[name].needs:
            met = {each for needed_name in clause for each in meets.get(needed_name, ())}
            if met and met <= go:
                go -= met
                stay.setdefault(root, []).extend(sorted(met))
                roots += [(each, root) for each in sorted(met)]
    return {root: sorted(names) for root, names in sorted(stay.items())}
