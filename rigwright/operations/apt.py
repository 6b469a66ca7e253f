"""Packages, sources, pins and holds."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.change import Change
from rigwright.errors import HostError
from rigwright.facts import Facts, archive, files
from rigwright.facts import apt as dpkg
from rigwright.operations import file
from rigwright.preferences import pin_path, pin_text
from rigwright.shell import Command, command, script
from rigwright.typed import AbsolutePath

_APT = """
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l NEEDRESTART_SUSPEND=1
quiet="-o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold"
holders() { @HOLDERS@ }
turn() {
  n=0
  while who=$(holders) && [ -n "$who" ] && [ $n -lt 120 ]; do
    [ $((n % 6)) = 0 ] && echo "rigwright: waiting for $(echo "$who" | cut -d' ' -f2- | paste -sd,), which holds dpkg's lock"
    n=$((n+1)); sleep 5
  done
}
update() {
  turn
  n=0
  while said=$(apt-get -q update 2>&1) || :; case $said in *"Could not get lock"*) [ $n -lt 60 ];; *) false;; esac; do n=$((n+1)); sleep 5; done
  case $said in *"
E: "*|"E: "*) echo "$said"; return 1;; esac
}
"""
_APT = _APT.replace("@HOLDERS@", f"\n{dpkg.LOCK_HOLDERS}\n")
_INSTALL = (
    _APT
    + """
update || echo 'rigwright: some lists could not be read; going on with the others'
apt() { apt-get -y -q $quiet --no-install-recommends --allow-downgrades --allow-change-held-packages "$@"; }
fetched() {
  errors=$(mktemp -p /run) && apt --download-only install "$@" 2>"$errors"; code=$?; cat "$errors"
  if [ $code != 0 ]; then
    failed='s/^E: Failed to fetch [^ ]*\\/\\([^ ]*\\)  *\\(.*\\)/\\1: \\2/p'; n=$(sed -n "$failed" "$errors" | wc -l)
    [ "$n" = 0 ] || echo "E: nothing was installed, $n packages could not be fetched: $(sed -n "$failed" "$errors" | head -1)"
  fi
  rm -f "$errors"; return $code
}
named=" "; for word in "$@"; do case $word in *-) named="$named${word%-} ";; esac; done
also=$(apt -s install "$@" | sed -n 's/^Remv \\([^ :]*\\).*/\\1/p' | while read name; do
  case $named in *" $name "*) ;; *) printf ' %s' "$name";; esac; done)
if [ -n "$also" ]; then echo "E: apt would also remove$also"; exit 1; fi
fetched "$@" && turn && apt install "$@" || exit
for deb in /var/cache/apt/archives/*nvidia*.deb; do
  [ -e "$deb" ] && mkdir -p /var/lib/rigwright/debs && { ln -f "$deb" /var/lib/rigwright/debs/ 2>/dev/null || cp -u "$deb" /var/lib/rigwright/debs/; }
done; :
"""
)
_HEAL = (
    _APT
    + """
turn; dpkg --configure -a --force-confdef --force-confold || :
@BROKEN@ | grep nvidia | xargs -r apt-mark unhold
also=$(apt-get -s -f install | sed -n 's/^Remv \\([^ :]*\\).*/\\1/p' | grep -vE 'nvidia|^cuda-drivers')
if [ -n "$also" ]; then echo "E: apt --fix-broken install would also remove $also"; exit 1; fi
exec apt-get -y -q $quiet -f install
"""
).replace("@BROKEN@", dpkg.BROKEN)


def install(words: list[str]) -> Command:
    """A detached job that installs NAME or NAME=VERSION words, everything downloaded before anything is unpacked.

    NVIDIA's packages are kept in /var/lib/rigwright/debs, for the day when no archive has them any more.
    """
    return script(_INSTALL, *words, timeout_s=3600, long=True)


def packages(facts: Facts, *, names: list[str]) -> Iterator[Change]:
    """Each package is installed; NAME=VERSION at exactly that version (moved up or down to it).

    Raises HostError when no source has a package or the version.
    """
    wanted = {word.partition("=")[0]: word.partition("=")[2] for word in names}
    known = facts(dpkg.packages(*wanted))
    now = {name: known[key] for name in wanted for key in (name.removesuffix(":amd64"),) if key in known}
    missing = {
        name: version
        for name, version in wanted.items()
        if name not in now or not now[name].installed or (version and now[name].version != version)
    }
    if not missing:
        return
    offered = facts(archive.offered(tuple(missing))).versions
    for name, version in missing.items():
        have = list(dict.fromkeys(found.version for found in offered.get(name, ())))
        if not have:
            raise HostError(
                "",
                f"no source has the package {name}",
                "a package that apt knows",
                "is the name right, and its source configured?",
            )
        if version and version not in have:
            raise HostError("", f"no source has {name}={version}", f"one of {', '.join(have[:5])}")
    words = [f"{name}={version}" if version else name for name, version in missing.items()]
    for number, (name, version) in enumerate(missing.items()):
        before = now[name].version if name in now else ""
        job = (install(words),) if number == len(missing) - 1 else ()
        yield Change("change" if before else "add", name, before, version or offered[name][0].version, job)


def source(
    facts: Facts, *, name: str, url: str, key: str, suite: str = "/", components: list[str] | None = None
) -> Iterator[Change]:
    """The source stands in sources.list.d under rigwright-NAME, signed by its own key only (armored text)."""
    listed, keyring = source_paths(name)
    facts.all(files.file(listed), files.file(keyring))
    line = " ".join([f"deb [signed-by={keyring}]", url, suite, *(components or [])]) + "\n"
    changes = [*file.differing(facts, keyring, key.encode())]
    changes += file.differing(facts, listed, line.encode())
    yield from changes
    if changes:
        yield Change("run", "apt-get update", "", "lists read", (script(f"{_APT}\nupdate", timeout_s=900),))


def directory(facts: Facts, *, path: AbsolutePath) -> Iterator[Change]:
    """A directory of .debs on the host (with its Packages index) is a source, unsigned: whoever writes there is trusted."""
    line = f"deb [trusted=yes] file:{path} ./\n"
    changes = list(file.differing(facts, source_paths("local")[0], line.encode()))
    yield from changes
    if changes:
        yield Change("run", "apt-get update", "", "lists read", (script(f"{_APT}\nupdate", timeout_s=900),))


def source_paths(name: str) -> tuple[str, str]:
    """Where a source and its key stand."""
    return f"/etc/apt/sources.list.d/rigwright-{name}.list", f"/usr/share/keyrings/rigwright-{name}.asc"


def pin(
    facts: Facts,
    *,
    name: str,
    packages: list[str],
    version: str,
    block: str = "",
    also: dict[str, list[str]] | None = None,
    not_from: str = "",
) -> Iterator[Change]:
    """The preferences file rigwright-NAME holds the packages at `version` (1001: also downwards), and those of `also` at
    theirs (version: [names]); `not_from` (release l=LABEL) is where they are never taken from, `block` names are never
    installed."""
    yield from file.differing(facts, pin_path(name), pin_text(packages, version, block, also, not_from).encode())


def hold(facts: Facts, *, names: list[str]) -> Iterator[Change]:
    """Each package is held: upgrade, dist-upgrade and unattended-upgrades leave it alone."""
    now = facts(dpkg.packages(*names))
    free = [name for name in names if name not in now or not now[name].held]
    if free:
        yield Change(
            "change",
            "apt-mark hold",
            f"{len(free)} of {len(names)} free to move",
            ", ".join(free),
            (command("apt-mark", "hold", *free),),
        )


def unattended_block(facts: Facts, *, patterns: list[str]) -> Iterator[Change]:
    """unattended-upgrades never touches packages whose names begin like these (regular expressions)."""
    lines = "".join(f'  "{pattern}";\n' for pattern in patterns)
    text = f"// Written by rigwright: the driver moves when you say so.\nUnattended-Upgrade::Package-Blacklist {{\n{lines}}};\n"
    yield from file.differing(facts, "/etc/apt/apt.conf.d/51rigwright-unattended", text.encode())


def clean(facts: Facts) -> Iterator[Change]:
    """dpkg has no half-installed package and no package lacks another; what an interrupted run left is configured, and what
    a half removed driver lacks is back, so that apt can take it away as a whole.

    Raises HostError when apt could only mend it by removing what is not NVIDIA's, or not at all.
    """
    audit, repair = facts.all(dpkg.dpkg_audit, dpkg.repair)
    heal = (script(_HEAL, timeout_s=1800, long=True),)
    if audit:
        yield Change("run", "dpkg --configure -a", audit.splitlines()[0], "every package configured", heal)
    elif repair.broken:
        lacking = f"{', '.join(repair.broken)}: a dependency is not met"
        lost = [one.name for one in repair.moves if not one.version and not _is_drivers(one.name)]
        if repair.error or lost:
            mends = repair.error or f"apt --fix-broken install would remove {', '.join(lost)}"
            todo = "look at what they need, decide yourself: sudo apt-get -f install"
            raise HostError("dpkg", f"{lacking}; {mends}", "packages that have what they depend on", todo)
        after = ", ".join(f"{'' if one.version else '-'}{one.name}" for one in repair.moves)
        yield Change("run", "apt --fix-broken install", lacking, after, heal)


def _is_drivers(name: str) -> bool:
    return "nvidia" in name or name.startswith("cuda-drivers")
