"""Where the package versions of before a run can come from: the sources of that time, or a package file on the host.

The host's own apt answers, with a copy of /etc/apt that is as it was before the run, and with lists of its own. Nothing
is installed; the copy and the lists are in a scratch directory, which the end of the run removes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.command import Result, script
from rigwright.core.host_folders import STATE
from rigwright.facts import Fact
from rigwright.facts.apt.dpkg import Move, moves
from rigwright.facts.scratch import USE

FOLDERS = ("/var/cache/apt/archives", f"{STATE}/debs")
"""Where package files are looked for that no source has any more."""


class Sources(Struct, frozen=True):
    """Where each package comes from: NAME=VERSION for a source's, a path for a file; "" nowhere. `moves`, `error`: what
    apt would do with all of them, if none is missing. `room_mib`: the space that apt needs to fetch and unpack the
    packages, MiB."""

    words: dict[str, str]
    moves: tuple[Move, ...]
    error: str
    room_mib: int = 0


_SOURCES = (
    USE
    + """
scratch rollback || { echo 'no scratch directory in /var/cache/rigwright' >&2; exit 1; }
[ "$(df -Pm "$d" | awk 'NR == 2 {print $4}')" -ge 600 ] || { echo "less than 600 MiB free for $d" >&2; exit 1; }
rm -rf "$d/lists" "$d/cache" "$d/keys" "$d/etc"
mkdir -p "$d/lists/partial" "$d/cache/archives/partial" "$d/keys" && cp -a /etc/apt "$d/etc" || exit 1
cp -a /var/lib/apt/lists/. "$d/lists/" 2>/dev/null
before=$(cat "$d"/etc/sources.list "$d"/etc/sources.list.d/* 2>/dev/null | sha256sum)
while [ "$1" != -- ]; do
  case "$2" in
  /etc/apt/*) rm -f -- "$d/etc${2#/etc/apt}"
    [ -z "$1" ] || { mkdir -p -- "$d/etc$(dirname -- "${2#/etc/apt}")" &&
      cp -a -- "/var/lib/rigwright/runs/$1${2}" "$d/etc${2#/etc/apt}"; };;
  *) [ -z "$1" ] || { cp -- "/var/lib/rigwright/runs/$1${2}" "$d/keys/" && chmod 644 "$d/keys/${2##*/}"; };;
  esac || exit 1
  shift 2
done
shift
for key in "$d"/keys/*; do
  [ ! -f "$key" ] || sed -i "s|/usr/share/keyrings/${key##*/}|$key|g" "$d"/etc/sources.list.d/rigwright-*.list \\
    2>/dev/null || :
done
private="-o Dir::Etc=$d/etc -o Dir::State::lists=$d/lists -o Dir::Cache=$d/cache -o Acquire::Retries=1"
private="$private -o Acquire::http::Timeout=20 -o Acquire::Languages=none"
if [ "$before" != "$(cat "$d"/etc/sources.list "$d"/etc/sources.list.d/* 2>/dev/null | sha256sum)" ] ||
  [ -z "$(find /var/lib/apt/lists -maxdepth 1 -mmin -60 -name '*Packages*' | head -n 1)" ]; then
  timeout 200 apt-get $private -q update >"$d/update.log" 2>&1 ||
    grep -E '^(E|W|Err)' "$d/update.log" | head -n 3 | sed 's/^/said\\t/'
fi
names=; for word; do case $word in *=*) names="$names ${word%%=*}";; esac; done
[ -z "$names" ] || apt-cache $private madison $names | sed 's/ *| */|/g; s/^ *//' |
  awk -F'|' '$3 !~ / Sources$/ {print $1 "=" $2}' >"$d/offered"
found=; missing=
for word; do
  case $word in
  *=*) from=$word
    if ! grep -qxF -e "$word" "$d/offered" && ! grep -qxF -e "${word%%:*}=${word#*=}" "$d/offered"; then
      from= version=$(printf %s "${word#*=}" | sed 's/:/%3a/'); name=${word%%=*}
      for file in @FOLDERS@; do
        for deb in "$file/${name%%:*}_${version}_"*.deb; do
          [ ! -f "$deb" ] || [ "$(dpkg-deb -f "$deb" Package)=$(dpkg-deb -f "$deb" Version)" \\
            != "${name%%:*}=${word#*=}" ] || from=$deb
        done
      done
    fi
    printf 'word\\t%s\\t%s\\n' "$word" "$from"; [ -n "$from" ] || missing=1
    found="$found $from";;
  *) found="$found $word";;
  esac
done
[ -z "$missing" ] || exit 0
dpkg-query -W -f '${Package} ${Installed-Size}\\n' >"$d/sizes" 2>/dev/null
for word in $found; do
  case $word in
  *-) ;;
  /*) dpkg-deb -f "$word" Package Installed-Size;;
  *) apt-cache $private show "$word" | sed '/^$/q';;
  esac
done | awk -v sizes="$d/sizes" '
  BEGIN {while ((getline <sizes) > 0) old[$1] = $2}
  $1 == "Package:" {name = $2} $1 == "Size:" {fetched += $2 / 1024}
  $1 == "Installed-Size:" {if ($2 > old[name]) more += $2 - old[name]; if ($2 > most) most = $2}
  END {printf "room\\t%d\\n", (fetched + more + most) / 1024 + 1}'
apt-get $private -s -q --no-install-recommends --allow-downgrades --allow-change-held-packages install $found \\
  >"$d/plan" 2>&1; code=$?
printf 'rc\\t%s\\n' "$code"; head -c 1048576 "$d/plan"
"""
).replace("@FOLDERS@", " ".join(FOLDERS))
"""Words and paths have no spaces: the caller has checked them, and package files are named by dpkg's rules."""


def sources(rules: Sequence[tuple[str, str]], words: Sequence[str]) -> Fact[Sources]:
    """Where the versions of `words` (NAME=VERSION, or NAME- to remove it) come from when apt's files are as before a
    run.

    `rules`: the folder under runs/ that has what stood at a path, "" if nothing stood there, and the path.
    """

    def parse(result: Result) -> Sources:
        if result.code != 0:
            raise ValueError(result.error_text or "no answer")
        head, *answered = re.split(r"^rc\t", result.text, maxsplit=1, flags=re.MULTILINE)
        places: dict[str, str] = {}
        said, room_mib = "", -1
        for line in host_text.lines(head):
            kind, *fields = line.split("\t")
            if kind == "word" and len(fields) == 2 and re.fullmatch(r"[\w.+:~=%/-]*", fields[1]):
                places[fields[0]] = fields[1]
            elif kind == "room":
                room_mib = host_text.integer(fields[0])
            elif kind == "said":
                said = said or fields[0][:200]
            else:
                raise ValueError(f"{line[:80]!r} is no line of it")
        if answered and room_mib < 0:
            raise ValueError("it does not say how much room the packages need")
        code, _, plan = "".join(answered).partition("\n")
        errors = [line.strip() for line in host_text.lines(plan) if re.match(r"E: | [a-z0-9.+-]+ : ", line)]
        error = "" if code.strip() in ("", "0") else "; ".join(errors[:4]) or "apt refuses it"
        if "" in places.values() and said:
            error = said
        return Sources(places, moves(plan), error, max(room_mib, 0))

    flat = [part for rule in rules for part in rule]
    name = f"rollback_source.sources({','.join(words)};{','.join(flat)})"
    return Fact(name, script(_SOURCES, *flat, "--", *words, timeout_s=300), parse, scratch=True)
