"""What rigwright put on a host: its files, the packages that it held, and its own directory.

/var/lib/rigwright/files and /var/lib/rigwright/holds have a line for each path that was written and for each package
that was held, /var/lib/rigwright/originals the files that were replaced.
"""

from __future__ import annotations

import re

from msgspec import Struct

from rigwright.core.command import Command, Result, script
from rigwright.core.host_folders import STATE
from rigwright.core.templates.host_files import HOST_FILES
from rigwright.facts import Fact

ORIGINALS = f"{STATE}/originals"

NOTE = f"""
note() {{  # LIST TEXT...: adds lines to a list of what was put on this host, each once
  mkdir -p -m 755 {STATE} || return
  list={STATE}/$1; shift
  for text; do grep -qxF -e "$text" "$list" 2>/dev/null || printf '%s\\n' "$text" >>"$list" || return; done
  sync "$list"
}}
"""
"""Shell function: records what will be put on the host."""

_FORGET = f"""
list={STATE}/$1; shift
[ -e "$list" ] || exit 0
printf '%s\\n' "$@" | grep -vxF -f - "$list" >"$list.new"
sync "$list.new" && mv -f "$list.new" "$list"
"""


def forget(paths: list[str]) -> Command:
    """A command that takes paths out of the list of files."""
    return script(_FORGET, "files", *paths)


class OwnFile(Struct, frozen=True):
    """A path that rigwright wrote. `there`: the file exists. `replaced`: it replaced another file, which is kept."""

    path: str
    there: bool
    replaced: bool


class Footprint(Struct, frozen=True):
    """What rigwright put on a host. `held`: packages that it held and that are held now. `kept`: names in
    /var/lib/rigwright of files that only later runs need (package files, libraries, records, an empty list of
    packages)."""

    files: tuple[OwnFile, ...]
    held: tuple[str, ...]
    kept: tuple[str, ...]

    @property
    def units(self) -> tuple[str, ...]:
        """The units of systemd among the files."""
        folder = "/etc/systemd/system/"
        return tuple(file.path.rpartition("/")[2] for file in self.files if file.path.startswith(folder))


_USUAL = sorted(
    {file.path.replace("NAME", "*") for file in HOST_FILES.values() if not file.part}
    | {"/usr/share/keyrings/rigwright-*.asc", "/etc/rigwright/limits.json", "/etc/rigwright/mig.json"}
    | {"/etc/motd.d/rigwright", "/etc/rigwright/guard.json", "/usr/local/lib/rigwright/*.py"}
)
"""The paths of rigwright's files, also for a host that has lost its list."""

_READ = f"""
echo footprint; cd {STATE} 2>/dev/null || cd /
{{ [ ! -f files ] || head -c 262144 files; for path in {" ".join(_USUAL)}; do
  [ ! -f "$path" ] || echo "$path"; done; }} | sort -u |
while read -r path; do
  case $path in /*) ;; *) continue;; esac
  there=gone; if [ -e "$path" ] || [ -L "$path" ]; then there=there; fi
  before=new; if [ -e "{ORIGINALS}$path" ] || [ -L "{ORIGINALS}$path" ]; then before=replaced; fi
  printf 'file %s %s %s\\n' "$there" "$before" "$path"
done
[ ! -f holds ] || apt-mark showhold | grep -xF -f holds | sed 's/^/held /'
[ ! -d {STATE} ] || ls -A {STATE} | grep -vE '^(runs|lease.*|originals|files|packages(-before)?)$' | sed 's/^/kept /'
[ ! -f {STATE}/packages ] || grep -qv '^since' {STATE}/packages || echo 'kept packages'; :
"""


def _footprint(result: Result) -> Footprint:
    head, *lines = result.lines
    if head != "footprint":
        raise ValueError("no footprint")
    files: list[OwnFile] = []
    named: dict[str, list[str]] = {"held": [], "kept": []}
    for line in lines:
        if match := re.fullmatch(r"file (there|gone) (new|replaced) (/.+)", line):
            files.append(OwnFile(match[3], match[1] == "there", match[2] == "replaced"))
        elif match := re.fullmatch(r"(held|kept) (\S.*)", line):
            named[match[1]].append(match[2])
        else:
            raise ValueError(f"'{line[:80]}' is no line of it")
    return Footprint(tuple(files), tuple(named["held"]), tuple(named["kept"]))


footprint = Fact("footprint.footprint", script(_READ, reads=True), _footprint)
"""What rigwright put on the host. A path whose file is gone stays in it until `remove` has finished its
consequences."""

recorded_holds = Fact(
    "footprint.recorded_holds",
    script(f"[ ! -f {STATE}/holds ] || head -c 262144 {STATE}/holds", reads=True),
    lambda result: frozenset(result.text.split()),
)
"""The packages that rigwright held at any time."""
