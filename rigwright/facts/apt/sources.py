"""The sources of apt as apt reads them, and the keys in a keyring.

`sources` parses both formats of sources.list(5): one line per source (.list), and stanzas (.sources, deb822).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct, field

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Result, script
from rigwright.facts import Fact
from rigwright.facts.installed import INSTALLED

_LINE = lazy_re.compile(r"(deb|deb-src)[ \t]+(?:\[([^\]]*)\][ \t]*)?(\S+)[ \t]+(\S+)(?:[ \t].*)?")
_TRUE = ("yes", "true", "with", "on", "enable", "1")
_FALSE = ("no", "false", "without", "off", "disable", "0")
"""The words of apt for a switch (apt-pkg/contrib/strutl.cc, StringToBool)."""


class Source(Struct, frozen=True):
    """One enabled source of binary packages. `trusted`: apt installs its packages without a signature. `signed_by`:
    keyrings or fingerprints; () if every key that apt trusts may sign it."""

    path: str
    line: int
    url: str
    suite: str
    trusted: bool = False
    signed_by: tuple[str, ...] = field(default=())

    @property
    def where(self) -> str:
        """The file and its line."""
        return f"{self.path}:{self.line}"

    @property
    def ours(self) -> bool:
        """Whether rigwright wrote the file."""
        return self.path.rpartition("/")[2].startswith("rigwright-")

    def is_of(self, url: str) -> bool:
        """Whether this is the source with that URL; a slash at the end makes no difference."""
        return self.url.rstrip("/") == url.rstrip("/")


_SOURCES = r"""
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
  [ -f "$file" ] && printf '\0%s\0' "$file" && head -c 262144 -- "$file"
done; :
"""


def _sources(result: Result) -> tuple[Source, ...]:
    first, *parts = result.text.split("\0")
    if first or len(parts) % 2:
        raise ValueError("no files of sources")
    sources: list[Source] = []
    for path, text in zip(parts[::2], parts[1::2], strict=True):
        if re.fullmatch(r"[A-Za-z0-9_.-]+", path.rpartition("/")[2]):  # apt reads no file with another name
            sources += _stanzas(path, text) if path.endswith(".sources") else _lines(path, text)
    return tuple(sources)


sources = Fact("apt_sources.sources", script(_SOURCES, reads=True, cache_key=INSTALLED), _sources)
"""Every enabled source of binary packages, in the order of apt's files."""


def _lines(path: str, text: str) -> Iterator[Source]:
    for number, line in enumerate(host_text.lines(text), 1):
        match = _LINE.fullmatch(line.partition("#")[0].strip())
        if match is None or match[1] != "deb":
            continue
        options = dict(word.partition("=")[::2] for word in (match[2] or "").split())
        signed_by = tuple(filter(None, options.get("signed-by", "").split(",")))
        yield Source(path, number, match[3], match[4], options.get("trusted", "").lower() in _TRUE, signed_by)


def _stanzas(path: str, text: str) -> Iterator[Source]:
    values: dict[str, list[str]] = {}
    start, key = 1, ""
    for number, line in enumerate((*host_text.lines(text), ""), 1):
        if line.startswith("#"):
            continue
        if line.strip():
            if line[0] not in " \t":
                key, _, line = line.partition(":")
                key = key.strip().lower()
                start = start if values else number
            values.setdefault(key, []).extend(line.split())
            continue
        yield from _of_stanza(path, start, values)
        values, key = {}, ""


def _of_stanza(path: str, line: int, values: dict[str, list[str]]) -> Iterator[Source]:
    switch = values.get("enabled", [])
    if "deb" not in values.get("types", []) or (switch and switch[0].lower() in _FALSE):
        return
    trusted = "".join(values.get("trusted", [])).lower() in _TRUE
    signed_by = tuple(values.get("signed-by", []))
    if signed_by[:1] == ("-----BEGIN",):
        signed_by = ("a key in the stanza",)
    for url in values.get("uris", []):
        for suite in values.get("suites", []):
            yield Source(path, line, url, suite, trusted, signed_by)


KEYS = r"""
binary() {  # the content of a keyring, armored or not
  if [ "$(head -c 10 -- "$1" | tr -d '\0')" = '-----BEGIN' ]; then
    awk '/^-----BEGIN/{h=1;next} h&&/^[ \t\r]*$/{h=0;b=1;next} /^=/||/^-----END/{b=0} b' <"$1" | base64 -d
  else cat -- "$1"; fi | head -c 65536
}
primary_keys() {  # of a binary keyring: start, length, fingerprint of each primary key with what belongs to it
  # RFC 4880, 4.2 and 12.2
  od -An -v -tu1 -- "$1" | awk '{for(i=1;i<=NF;i++)b[n++]=$i} END{p=k=0;while(p<n){t=b[p];if(t<128)break
    if(t>=192){tag=t-192;l=b[p+1];if(l<192){h=2;s=l}else if(l<224){h=3;s=(l-192)*256+b[p+2]+192}
      else if(l==255){h=6;s=((b[p+2]*256+b[p+3])*256+b[p+4])*256+b[p+5]}else break}
    else{tag=int((t-128)/4);l=t%4;if(l==0){h=2;s=b[p+1]}else if(l==1){h=3;s=b[p+1]*256+b[p+2]}
      else if(l==2){h=5;s=((b[p+1]*256+b[p+2])*256+b[p+3])*256+b[p+4]}else break}
    if(p+h+s>n)break;if(k&&tag!=2&&(tag<12||tag>14)&&tag!=17){print k-1,p-k+1,kh,ks;k=0}
    if(tag==5||tag==6){k=p+1;kh=h;ks=s}p+=h+s}if(k)print k-1,p-k+1,kh,ks}' |
  while read -r start length head size; do
    number="\\0$(printf %o $((size / 256)))\\0$(printf %o $((size % 256)))"
    digest=$({ printf '\231%b' "$number"; tail -c +$((start + head + 1)) -- "$1" | head -c "$size"; } | sha1sum)
    echo "$start $length $(echo "${digest%% *}" | tr a-f A-F)"
  done
}
"""
"""Shell functions that read OpenPGP keyrings with od, awk and sha1sum, because a fresh Debian has gpgv and no gpg.

Signatures, user ids and subkeys belong to the primary key before them. A secret key counts as a primary key, because
apt's verifier sqv accepts its signatures.
"""

_KEYRING = (
    KEYS
    + r"""
[ -e "$1" ] || { echo absent; exit 0; }
whole=$(mktemp -p /run) && trap 'rm -f "$whole"' EXIT && binary "$1" >"$whole" && primary_keys "$whole" | cut -d' ' -f3
"""
)


def _fingerprints(result: Result) -> tuple[str, ...] | None:
    lines = result.text.split()
    if lines == ["absent"]:
        return None
    if any(not re.fullmatch(r"[0-9A-F]{40}", line) for line in lines):
        raise ValueError("no fingerprint of 40 digits")
    return tuple(lines)


def keyring(path: str) -> Fact[tuple[str, ...] | None]:
    """The fingerprints (40 hex digits) of the primary keys in a keyring; None without a file, () without a key."""
    return Fact(f"apt_sources.keyring({path})", script(_KEYRING, path, cache_key=INSTALLED), _fingerprints)
