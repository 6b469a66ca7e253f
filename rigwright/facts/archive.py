"""What apt could install: asked of the host's real apt with private sources, lists and pins, so that nothing moves.

NVIDIA's repository may be added to the private sources. Its key is fetched, and believed only when the repository's
InRelease carries a valid signature by the expected fingerprint (gpgv).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rigwright.facts import Fact, Unreadable
from rigwright.facts.apt import Move, moves
from rigwright.shell import Result, script


@dataclass(frozen=True)
class Repository:
    """A flat apt repository: its URL, the URL of its armored key, the key's fingerprint (40 hex digits, "" not pinned)."""

    url: str
    key_url: str
    fingerprint: str


@dataclass(frozen=True)
class Version:
    """One version of a package that a source offers. `transitional`: it only brings another package."""

    version: str
    source: str
    depends: str
    transitional: bool


@dataclass(frozen=True)
class Archive:
    """What the sources offer of the packages that were asked for, newest first, and the added repository's key."""

    versions: dict[str, tuple[Version, ...]]
    key: str


_PRIVATE = """
d=/run/rigwright/apt; mkdir -p "$d" && exec 9>"$d/lock" && flock -w 240 9 || { echo 'no lock on private lists' >&2; exit 1; }
url=$1 key_url=$2 fingerprint=$3 preferences=$4; shift 4
mkdir -p "$d/lists/partial" "$d/cache/archives/partial"
rm -rf "$d/etc" && cp -a /etc/apt "$d/etc" && rm -f "$d"/etc/preferences.d/rigwright-* "$d"/etc/sources.list.d/rigwright-*
private="-o Dir::Etc=$d/etc -o Dir::State::lists=$d/lists -o Dir::Cache=$d/cache -o APT::Get::List-Cleanup=false"
if [ -n "$url" ]; then
  get() { rm -f "$2"; /usr/lib/apt/apt-helper -q $private download-file "$1" "$2" >"$d/get.log" 2>&1 || { tail -3 "$d/get.log" >&2; exit 1; }; }
  [ -s "$d/key.asc" ] && [ "$(cat "$d/key.url" 2>/dev/null)" = "$key_url" ] || { get "$key_url" "$d/key.asc"; get "$url/InRelease" "$d/InRelease"; }
  awk '/^-----BEGIN/{h=1;next} h&&/^[ \\t\\r]*$/{h=0;b=1;next} /^=/||/^-----END/{b=0} b' "$d/key.asc" | base64 -d >"$d/key.gpg"
  signed=$(gpgv --keyring "$d/key.gpg" --status-fd 1 "$d/InRelease" 2>/dev/null | awk '/VALIDSIG/{print $3, $NF}')
  [ -n "$signed" ] || { rm -f "$d/key.asc"; echo "BADSIG $url" >&2; exit 1; }
  case " $signed " in *" $fingerprint "*) ;; *) [ -z "$fingerprint" ] || { rm -f "$d/key.asc"; echo "BADKEY $signed" >&2; exit 1; };; esac
  echo "$key_url" >"$d/key.url"
  echo "deb [signed-by=$d/key.asc] $url /" >"$d/etc/sources.list.d/rigwright-private.list"
fi
if [ -n "$preferences" ]; then printf '%s' "$preferences" >"$d/etc/preferences.d/rigwright-private"; fi
sources=$(cat "$d"/etc/sources.list "$d"/etc/sources.list.d/* 2>/dev/null | sha256sum)
if [ "$(cat "$d/sources" 2>/dev/null)" != "$sources" ] || [ -z "$(find "$d/updated" -mmin -10 2>/dev/null)" ]; then
  apt-get $private -qq update >"$d/update.log" 2>&1 || { grep -E '^(E|W|Err)' "$d/update.log" | head -5 >&2; exit 1; }
  echo "$sources" >"$d/sources"; : >"$d/updated"
fi
"""
_OFFERED = (
    _PRIVATE
    + """
echo "--key"; [ -n "$url" ] && cat "$d/key.asc"
echo "--madison"; apt-cache $private madison "$@"
echo "--show"; apt-cache $private show "$@" 2>/dev/null; :
"""
)
_SIMULATE = (
    _PRIVATE
    + """
awk 'BEGIN{RS="";ORS="\\n\\n"} !/^Package: [^\\n]*(nvidia|cuda-drivers)/' /var/lib/dpkg/status >"$d/status"
apt-get $private -o Dir::State::status="$d/status" -s --no-install-recommends install "$@" 2>&1
echo "rc=$?"
"""
)


def offered(names: tuple[str, ...], repository: Repository | None = None) -> Fact[Archive]:
    """What the host's sources, and the repository if one is given, offer of the named packages."""

    def parse(result: Result) -> Archive:
        if result.code != 0:
            raise Unreadable(_why(result, repository))
        key, found, rest = result.text.partition("--key\n")[2].partition("--madison\n")
        if not found:
            raise Unreadable(f"apt's answer is no answer: {result.text.strip()[:120]}")
        madison, _, show = rest.partition("--show\n")
        return Archive(_versions(madison, show), key)

    asked = tuple(sorted(set(names)))
    return Fact(
        f"archive.offered({','.join(asked)})",
        script(_OFFERED, *_arguments(repository), "", *asked, timeout_s=300),
        parse,
    )


def _arguments(repository: Repository | None) -> tuple[str, str, str]:
    return (repository.url, repository.key_url, repository.fingerprint) if repository else ("", "", "")


def _why(result: Result, repository: Repository | None) -> str:
    error = result.error_text
    if repository and "BADKEY" in error:
        return f"{repository.url} is signed by {error.split('BADKEY', 1)[1].strip()}, not by the expected key {repository.fingerprint}"
    if repository and "BADSIG" in error:
        return f"{repository.url} has no valid signature by the key at {repository.key_url}"
    return f"apt cannot read its sources: {error.splitlines()[-1] if error else 'no message'}"


def _versions(madison: str, show: str) -> dict[str, tuple[Version, ...]]:
    stanzas: dict[tuple[str, str], tuple[str, bool]] = {}
    for stanza in show.split("\n\n"):
        values = dict(re.findall(r"^([A-Za-z-]+): (.*)$", stanza, re.MULTILINE))
        if "Package" in values and "Version" in values:
            description = values.get("Description", "") + values.get("Description-en", "")
            stanzas[values["Package"], values["Version"]] = (
                values.get("Depends", ""),
                "transitional" in description.lower(),
            )
    found: dict[str, list[Version]] = {}
    for line in madison.splitlines():
        name, version, source = (word.strip() for word in line.split("|", 2))
        if not source.endswith("Sources"):
            depends, transitional = stanzas.get((name, version), ("", False))
            found.setdefault(name, []).append(Version(version, source.split()[0], depends, transitional))
    return {name: tuple(versions) for name, versions in found.items()}


@dataclass(frozen=True)
class Simulation:
    """What an installation would do. `error` is apt's own text when it refuses."""

    moves: tuple[Move, ...]
    error: str


def simulated(packages: tuple[str, ...], preferences: str, repository: Repository | None = None) -> Fact[Simulation]:
    """What `apt-get install` of NAME=VERSION words would do on this host, had it no NVIDIA package; nothing is done.

    So the answer is the whole closure, whatever another version or branch that is installed would hide of it.
    """

    def parse(result: Result) -> Simulation:
        if result.code != 0:
            raise Unreadable(_why(result, repository))
        text, found, code = result.text.rpartition("rc=")
        if not found:
            raise ValueError("no exit status")
        errors = [line for line in text.splitlines() if re.match(r"E: | [a-z0-9.+-]+ : ", line)]
        return Simulation(moves(text), "" if code.strip() == "0" else "\n".join(errors) or text.strip()[-300:])

    arguments = (*_arguments(repository), preferences, *packages)
    return Fact(f"archive.simulated({','.join(packages)})", script(_SIMULATE, *arguments, timeout_s=300), parse)
