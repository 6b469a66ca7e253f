"""Packages that apt could install, from the host's own apt with private sources, lists and pins, without any change.

The private lists are in a scratch directory (scratch.py): package lists and one cache, with limited size. They are
fetched again after ten minutes, and after a change of the host's own lists or sources.

NVIDIA's repository may be added to the private sources. Only the key with the expected fingerprint is taken from its
key file, and only if the repository's InRelease has a valid signature by that key (gpgv).
"""

from __future__ import annotations

import base64
import re

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.command import Result, script
from rigwright.core.command_failures import failure_in
from rigwright.facts import Fact, Unreadable
from rigwright.facts.apt.dpkg import HOLDS, Move, moves
from rigwright.facts.apt.sources import KEYS
from rigwright.facts.scratch import FOLDER, USE


class Repository(Struct, frozen=True):
    """A flat apt repository, the URL of its armored key, and the key's fingerprint (40 hex digits; "" not pinned)."""

    url: str
    key_url: str
    fingerprint: str


class Version(Struct, frozen=True):
    """One version of a package in a source. `transitional`: it only depends on another package; `brings`: the driver
    branch in the name of that one, or "". For prebuilt kernel modules, `driver`: the release of the modules, and
    `kernel`: the newest kernel release, if the package is for a whole flavour.
    """

    version: str
    source: str
    transitional: bool
    driver: str = ""
    kernel: str = ""
    brings: str = ""


class Archive(Struct, frozen=True):
    """The versions of the requested packages in the sources, newest first, and the key of the added repository."""

    versions: dict[str, tuple[Version, ...]]
    key: str


LISTS_MIB = 200
"""The space that the private lists need besides twice the size of the host's own, of which a new host may have none."""
MOST_MIB = 2000
"""The largest size of the private lists."""

_PRIVATE = (
    KEYS
    + USE
    + """
url=$1 key_url=$2 fingerprint=$3 preferences=$4; shift 4
scratch "apt-$(printf %s "$url" | sha256sum | cut -c1-8)" || { echo 'no lock on private lists' >&2; exit 1; }
own() { find /var/lib/apt/lists -maxdepth 1 -type f ! -name '*.diff_Index' \\( -name '*Packages*' -o \\
  -name '*Release*' \\) "$@"; }
room() {
  free=$(df -Pm "$d" | awk 'NR==2{print $4}')
  need=$((@LISTS@ + 2 * ($(own -printf '%s\\n' | awk '{n+=$1} END{printf "%d", n/1048576}'))))
  [ "${free:-0}" -ge "$need" ] || { rm -rf "$d"; echo "NOROOM $free $need" >&2; exit 1; }
}
[ -d "$d/lists" ] || { room; mkdir -p "$d/lists"; own -exec cp -a -t "$d/lists" {} +; }
mkdir -p "$d/lists/partial" "$d/cache/archives/partial"
rm -rf "$d/etc" && cp -a /etc/apt "$d/etc" &&
  rm -f "$d"/etc/preferences.d/rigwright-* "$d"/etc/preferences.d/nvidia-driver-pin "$d"/etc/sources.list.d/rigwright-*
private="-o Dir::Etc=$d/etc -o Dir::State::lists=$d/lists -o Dir::Cache=$d/cache -o Dir::Cache::srcpkgcache="
private="$private -o Acquire::Languages=none -o APT::Get::List-Cleanup=false -o Acquire::Retries=1"
private="$private -o Acquire::http::Timeout=20"
for target in $(apt-config dump |
  sed -n 's/^Acquire::IndexTargets::\\(deb\\|deb-src\\)::\\([A-Za-z0-9_.-]*\\)::MetaKey .*/\\1::\\2/p'); do
  [ "$target" = deb::Packages ] || private="$private -o Acquire::IndexTargets::$target::DefaultEnabled=false"
done
fetch="/usr/lib/apt/apt-helper -q $private download-file"
get() { rm -f "$2"; (ulimit -f 8192; exec $fetch "$1" "$2") >"$d/get.log" 2>&1 ||
  { tail -3 "$d/get.log" >&2; exit 1; }; }
case $url in
"") ;;
file:*)
  [ -e "${url#file:}/Packages" ] || { echo "NOINDEX" >&2; exit 1; }
  echo "deb [trusted=yes] $url ./" >"$d/etc/sources.list.d/rigwright-private.list";;
*)
  command -v gpgv >/dev/null || { echo 'gpgv is missing: sudo apt-get install gpgv' >&2; exit 1; }
  if ! [ -s "$d/key.asc" ] || [ "$(cat "$d/key.url" 2>/dev/null)" != "$key_url" ]; then
    get "$key_url" "$d/key.asc"; get "$url/InRelease" "$d/InRelease"
  fi
  binary "$d/key.asc" >"$d/whole.gpg"; primary_keys "$d/whole.gpg" >"$d/keys"
  block=$(awk -v pinned="$fingerprint" '$3==pinned{print $1+1, $2; exit}' "$d/keys")
  [ -n "$block" ] || {
    rm -f "$d/key.asc"; echo "BADKEY $(cut -d' ' -f3 "$d/keys" | head -9 | paste -sd' ')" >&2; exit 1; }
  tail -c +"${block% *}" "$d/whole.gpg" | head -c "${block#* }" >"$d/key.gpg"
  { printf -- '-----BEGIN PGP PUBLIC KEY BLOCK-----\\n\\n'; base64 -w 64 "$d/key.gpg";
    printf -- '-----END PGP PUBLIC KEY BLOCK-----\\n'; } >"$d/key.asc"
  signed=$(gpgv --keyring "$d/key.gpg" --status-fd 1 "$d/InRelease" 2>/dev/null | grep VALIDSIG)
  [ -n "$signed" ] || { rm -f "$d/key.asc"; echo "BADSIG $url" >&2; exit 1; }
  echo "$key_url" >"$d/key.url"
  for file in "$d"/etc/sources.list "$d"/etc/sources.list.d/*.list; do
    [ -f "$file" ] && awk -v url="${url%/}" '{for(i=1;i<=NF;i++)if($i==url||$i==url"/")next} 1' "$file" >"$d/kept" &&
      cat "$d/kept" >"$file"
  done
  for file in "$d"/etc/sources.list.d/*.sources; do
    [ -f "$file" ] && awk -v url="${url%/}" 'BEGIN{RS="";ORS="\\n\\n"}
      {n=split($0,w,/[ \\t\\n]+/);for(i=1;i<=n;i++)if(w[i]==url||w[i]==url"/")next} 1' "$file" >"$d/kept" &&
      cat "$d/kept" >"$file"
  done
  echo "deb [signed-by=$d/key.asc] $url /" >"$d/etc/sources.list.d/rigwright-private.list";;
esac
if [ -n "$preferences" ]; then printf '%s' "$preferences" >"$d/etc/preferences.d/rigwright-private"; fi
sources=$(cat "$d"/etc/sources.list "$d"/etc/sources.list.d/* 2>/dev/null | sha256sum)
if [ -e "$d/updated" ] &&
  [ -n "$(find /var/lib/apt/lists /etc/apt/sources.list /etc/apt/sources.list.d \\
    -newer "$d/updated" 2>/dev/null | head -1)" ]; then
  rm -f "$d/updated"; own -exec cp -a -t "$d/lists" {} +
fi
if [ "$(cat "$d/sources" 2>/dev/null)" != "$sources" ] || [ -z "$(find "$d/updated" -mmin -10 2>/dev/null)" ]; then
  rm -f "$d/updated"
  room
  if (ulimit -f $((@MOST@ * 2048)); exec apt-get $private -q update) >"$d/update.log" 2>&1 &&
    ! grep -qE '^(W|Err)' "$d/update.log"; then
    echo "$sources" >"$d/sources"; : >"$d/updated"
  elif [ -z "$(find "$d/lists" -maxdepth 1 -name '*Packages*')" ]; then
    grep -E '^(E|W|Err)' "$d/update.log" | head -5 >&2; exit 1
  fi
fi
size=$(du -sm "$d" | cut -f1)
[ "$size" -le @MOST@ ] || { rm -rf "$d"; echo "TOOLARGE $size" >&2; exit 1; }
if [ -n "$url" ] && ! apt-cache $private policy | grep -qF "${url%/}"; then
  echo "the packages of $url could not be read: $(grep -E '^(E|W|Err)' "$d/update.log" | head -1)" >&2; exit 1
fi
""".replace("@LISTS@", str(LISTS_MIB)).replace("@MOST@", str(MOST_MIB))
)
_OFFERED = (
    _PRIVATE
    + """
echo "--key"; [ -s "$d/key.asc" ] && cat "$d/key.asc"
echo "--madison"; apt-cache $private madison "$@"
echo "--show"; apt-cache $private show "$@" 2>/dev/null; :
"""
)
_SIMULATE = (
    _PRIVATE
    + """
modules='^Package: linux-(modules|objects|signatures)-nvidia-'
awk -v modules="$modules" 'BEGIN{RS="";ORS="\\n\\n"} $0 !~ modules &&
  !(/^Package: [^\\n]*(nvidia|cuda-drivers|libcuda(1|debugger1)\\n|libnvcuvid|libnvoptix)/ &&
  /\\nVersion: ([0-9]+:)?[0-9][0-9][0-9]\\./)' /var/lib/dpkg/status >"$d/status"
apt-get $private -o Dir::State::status="$d/status" -s --no-install-recommends install "$@" 2>&1 && { echo rc=0; exit; }
code=$?
@HELD@
free="$d/status.free"; without_holds "$d/status" >"$free"
moved=$(apt-get $private -o Dir::State::status="$free" -s --no-install-recommends install "$@" 2>/dev/null) &&
  echo "held=$(held_of "$d/status" "$moved")"
echo "rc=$code"
""".replace("@HELD@", HOLDS)
)


def offered(names: tuple[str, ...], repository: Repository | None = None) -> Fact[Archive]:
    """The versions of these packages in the host's sources and, if given, in a repository."""

    def parse(result: Result) -> Archive:
        if result.code != 0:
            raise _unreadable(result, repository)
        key, complete, rest = result.text.partition("--key\n")[2].partition("--madison\n")
        if not complete:
            raise Unreadable(f"apt's answer is no answer: {result.text.strip()[:120]}")
        madison, _, show = rest.partition("--show\n")
        return Archive(_versions(madison, show), _with_checksum(key))

    words = sorted(set(names))
    name = f"apt_archive.offered({','.join(words)}){_from(repository)}"
    return Fact(name, script(_OFFERED, *_arguments(repository), "", *words, timeout_s=300), parse, scratch=True)


def _with_checksum(armored: str) -> str:
    """An armored key with its CRC-24 (RFC 4880, 6.1), without which gpg cannot read every key; apt needs none."""
    match = re.fullmatch(r"(-----BEGIN [A-Z ]+-----\n\n)([A-Za-z0-9+/=\n]+\n)(-----END [A-Z ]+-----\n)", armored)
    if match is None:
        return armored
    crc = 0xB704CE
    for byte in base64.b64decode(match[2]):
        crc ^= byte << 16
        for _ in range(8):
            crc = (crc << 1) ^ (0x1864CFB if crc & 0x800000 else 0)
    checksum = base64.b64encode((crc & 0xFFFFFF).to_bytes(3, "big")).decode()
    return f"{match[1]}{match[2]}={checksum}\n{match[3]}"


def _from(repository: Repository | None) -> str:
    return f" from {repository.url}" if repository else ""


def _arguments(repository: Repository | None) -> tuple[str, str, str]:
    return (repository.url, repository.key_url, repository.fingerprint) if repository else ("", "", "")


def _unreadable(result: Result, repository: Repository | None) -> Unreadable:
    """The reason for a failed script, with the fix if its output tells the cause."""
    error = result.error_text
    if match := re.search(r"^NOROOM (\d{1,9}) (\d{1,9})$", error, re.MULTILINE):
        reason = (
            f"{FOLDER} has {match[1]} MiB free, and apt's private lists need {match[2]} MiB for the length of a run"
        )
        return Unreadable(reason, f"on the host: df -h {FOLDER.rpartition('/')[0]}; sudo apt-get clean")
    if match := re.search(r"^TOOLARGE (\d{1,9})$", error, re.MULTILINE):
        return Unreadable(f"the package lists of the host's sources have {match[1]} MiB; {MOST_MIB} MiB is the most")
    failure = failure_in(error)
    own = bool(repository) and any(word in error for word in ("NOINDEX", "BADKEY", "BADSIG"))
    if failure:
        where = f"{repository.url} cannot be read" if repository and not own else "apt cannot read its sources"
        return Unreadable(f"{where}: {failure.found}", failure.fix)
    message = host_text.lines(error)[-1] if error else "no message"
    if repository is None:
        return Unreadable(f"apt cannot read its sources: {message}")
    url, key_url, fingerprint = _arguments(repository)
    if "NOINDEX" in error:
        folder = url.removeprefix("file:")
        fix = f"cd {folder} && dpkg-scanpackages . > Packages (dpkg-dev has it)"
        return Unreadable(f"{folder} has no file Packages: {fix}")
    if "BADKEY" in error:
        keys = " and ".join(dict.fromkeys(error.split("BADKEY", 1)[1].split())) or "no key"
        return Unreadable(f"the key file {key_url} holds {keys}, not the expected key {fingerprint}")
    if "BADSIG" in error:
        return Unreadable(f"{url} has no valid signature by the key {fingerprint} of {key_url}")
    unreached = "Failed" in error or "Could not" in error
    return Unreadable(f"{f'{url} cannot be reached' if unreached else 'apt cannot read its sources'}: {message}")


def _versions(madison: str, show: str) -> dict[str, tuple[Version, ...]]:
    stanzas: dict[tuple[str, str], tuple[bool, str, str, str]] = {}
    for stanza in host_text.paragraphs(show):
        parts = (line.partition(": ") for line in stanza)
        values = {key: value for key, colon, value in parts if colon and key[:1].isalpha()}
        if "Package" in values and "Version" in values:
            description = values.get("Description", "") + values.get("Description-en", "")
            other_branch = _other_branch(values["Package"], values.get("Depends", ""))
            transitional = "transitional" in description.lower() or bool(other_branch)
            stanzas[values["Package"], values["Version"]] = (transitional, *_modules(values), other_branch)
    by_name: dict[str, list[Version]] = {}
    for line in host_text.lines(madison):
        name, version, source = (word.strip() for word in line.split("|", 2))
        if not source.endswith("Sources"):
            more = stanzas.get((name, version), (False, "", "", ""))
            by_name.setdefault(name, []).append(Version(version, source.split()[0], *more))
    return {name: tuple(versions) for name, versions in by_name.items()}


def _modules(values: dict[str, str]) -> tuple[str, str]:
    """The driver release of a package of prebuilt modules, and the kernel release if it is for a flavour; or ""."""
    name, depends = values["Package"], values.get("Depends", "")
    if not name.startswith("linux-modules-nvidia-"):
        return "", ""
    driver = _first(r"nvidia-dkms-\S+ \(= ([0-9.]+)", values.get("Provides", ""))
    driver = driver or _first(r"nvidia-kernel-common-\S+ \(>= ([0-9.]+)", depends)
    return driver, _first(r"linux-modules-nvidia-\d{3}(?:-server)?(?:-open)?-(\d+\.\d+\.\S+) \(=", depends)


def _groups(pattern: str, relations: str) -> list[str]:
    """The groups of the packages of a line Depends or Provides that match; a package has at most 300 characters."""
    matches = (re.match(pattern, relation.strip()[:300]) for relation in relations.replace("|", ",").split(","))
    return [match[1] for match in matches if match]


def _first(pattern: str, relations: str) -> str:
    return next(iter(_groups(pattern, relations)), "")


def _other_branch(name: str, depends: str) -> str:
    """The branch of a package's dependencies, if the package is named after another branch; or ""."""
    own = re.search(r"-(\d{3})(-|$)", name)
    others = _groups(r".*?nvidia-[a-z0-9-]*?(\d{3})(?:[- ]|$)", depends)
    return others[0] if own and others and own[1] not in others else ""


class Simulation(Struct, frozen=True):
    """The result of a simulated installation. `error`: apt's message if it refuses. `held`: the packages whose holds
    are the reason; without the holds apt would install, and change these packages."""

    moves: tuple[Move, ...]
    error: str
    held: tuple[str, ...] = ()


def simulated(packages: tuple[str, ...], preferences: str, repository: Repository | None = None) -> Fact[Simulation]:
    """Simulates `apt-get install NAME=VERSION...` as if no NVIDIA package were installed, so that the result has all
    packages of the installation."""

    def parse(result: Result) -> Simulation:
        if result.code != 0:
            raise _unreadable(result, repository)
        text, complete, code = result.text.rpartition("rc=")
        if not complete:
            raise ValueError("no exit status")
        if code.strip() == "0":
            return Simulation(moves(text), "")
        errors = "\n".join(line for line in host_text.lines(text) if re.match(r"E: | [a-z0-9.+-]+ : ", line))
        text, _, held = text.partition("\nheld=")
        return Simulation(moves(text), errors or text.strip()[-300:], tuple(held.split()))

    arguments = (*_arguments(repository), preferences, *packages)
    name = f"apt_archive.simulated({','.join(packages)}){_from(repository)}"
    return Fact(name, script(_SIMULATE, *arguments, timeout_s=300), parse, scratch=True)
