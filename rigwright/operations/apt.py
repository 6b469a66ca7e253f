"""apt and dpkg: packages, sources, pins, holds, and the repair of half-installed packages."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.core.change import Change, Note
from rigwright.core.command import Command, command, script
from rigwright.core.errors import HostError
from rigwright.core.schema import AbsolutePath, FileName, Word
from rigwright.core.templates.host_files import SHIPPED, Templates
from rigwright.driver.apt_pin import held_back, pin_path, pin_text
from rigwright.facts import Facts, files
from rigwright.facts.apt import archive as apt_archive, dpkg, sources as apt_sources
from rigwright.facts.footprint import NOTE
from rigwright.facts.own_packages import OWN_PACKAGES
from rigwright.operations import file, operation
from rigwright.operations._run_recording import APT_WORK

FLAT = Word("/")
"""The suite of an archive without suites."""

_APT = """
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l NEEDRESTART_SUSPEND=1
quiet="-o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0"
quiet="$quiet -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold"
holders() { @HOLDERS@ }
coming() { printf '%s\\n' "$1" | sed -n 's/^Inst \\([^ ]*\\) (.*/\\1/p'; }  # the new packages of a simulation
turn() {
  n=0
  while who=$(holders) && [ -n "$who" ] && [ $n -lt 120 ]; do
    [ $((n % 6)) = 0 ] &&
      echo "rigwright: waiting for $(echo "$who" | cut -d' ' -f2- | paste -sd,), which holds dpkg's lock"
    n=$((n+1)); sleep 5
  done
}
update() {
  turn
  n=0
  while said=$(apt-get -q update 2>&1) || :; case $said in *"Could not get lock"*) [ $n -lt 60 ];; *) false;; esac; do
    n=$((n+1)); sleep 5
  done
  case $said in *"
E: "*|"E: "*) echo "$said"; return 1;; esac
}
"""
_APT = OWN_PACKAGES + APT_WORK + _APT.replace("@HOLDERS@", f"\n{dpkg.LOCK_HOLDERS}\n")
_INSTALL = """
update || echo 'rigwright: some lists could not be read; going on with the others'
apt() { apt-get -y -q $quiet --no-install-recommends --allow-downgrades --allow-change-held-packages "$@"; }
fetched() {
  errors=$(mktemp -p /run) && apt --download-only install "$@" 2>"$errors"; code=$?; cat "$errors"
  if [ $code != 0 ]; then
    failed='s/^E: Failed to fetch [^ ]*\\/\\([^ ]*\\)  *\\(.*\\)/\\1: \\2/p'; n=$(sed -n "$failed" "$errors" | wc -l)
    [ "$n" = 0 ] ||
      echo "E: nothing was installed, $n packages could not be fetched: $(sed -n "$failed" "$errors" | head -1)"
  fi
  rm -f "$errors"; return $code
}
named=" "; for word in "$@"; do case $word in *-) named="$named${word%-} ";; esac; done
planned=$(apt -s install "$@")
also=$(printf '%s\\n' "$planned" | sed -n 's/^Remv \\([^ :]*\\).*/\\1/p' | while read name; do
  case $named in *" $name "*) ;; *) printf ' %s' "$name";; esac; done)
if [ -n "$also" ]; then echo "E: apt would also remove$also"; exit 1; fi
fetched "$@" || exit
# Kept before they are installed: a run that repairs an interrupted one fetches nothing.
for deb in /var/cache/apt/archives/*nvidia*.deb; do
  [ -e "$deb" ] && mkdir -p /var/lib/rigwright/debs &&
    { ln -f "$deb" /var/lib/rigwright/debs/ 2>/dev/null || cp -u "$deb" /var/lib/rigwright/debs/; }
done
turn && begun && own_begun $(coming "$planned") && apt install "$@"; code=$?
ended "$own"; own_ended; [ $code = 0 ] || exit $code
cd /var/lib/rigwright/debs 2>/dev/null && ls -t | awk -F_ '!($2 in seen){seen[$2]=++n} seen[$2]>12' |
  while read -r old; do rm -f -- "$old"; done; :
"""
_HEAL = """
turn; begun; own_begun || exit; dpkg --configure -a --force-confdef --force-confold || :
fresh=$(dpkg-query -W -f '${db:Status-Status} [${Config-Version}] ${Package}\\n' |
  sed -nE 's/^(unpacked|half-configured) \\[\\] //p')
undone=$(echo "$fresh" | grep -E 'nvidia|^cuda-')
if [ -n "$undone" ]; then
  also=$(apt-get -s remove $undone | sed -n 's/^Remv \\([^ :]*\\).*/\\1/p' | grep -vxF -e "$fresh")
  if [ -z "$also" ]; then
    echo "rigwright: removes $(echo $undone), whose first installation was cut off;" \\
      "a later step installs what is needed"
    apt-get -y -q $quiet --allow-change-held-packages remove $undone
  fi
fi
@BROKEN@ | grep nvidia | xargs -r apt-mark unhold
planned=$(apt-get -s -f install)
also=$(printf '%s\\n' "$planned" | sed -n 's/^Remv \\([^ :]*\\).*/\\1/p' | grep -vE 'nvidia|^cuda-drivers')
if [ -n "$also" ]; then echo "E: apt --fix-broken install would also remove $also"; exit 1; fi
own_begun $(coming "$planned") && apt-get -y -q $quiet -f install; code=$?
ended "$own"; own_ended; exit $code
""".replace("@BROKEN@", dpkg.BROKEN)


_REMOVE = """
verb=$1; shift
also=$(apt-get -s $verb "$@" | sed -n 's/^\\(Remv\\|Purg\\) \\([^ ]*\\).*/\\2/p' |
  grep -vxF -e "$(printf '%s\\n' "$@")" | sort -u | paste -sd' ')
if [ -n "$also" ]; then echo "E: apt would also remove $also"; exit 1; fi
turn; begun; own_begun; apt-get -y -q $quiet --allow-change-held-packages $verb "$@"; code=$?
ended "$own"; own_ended; exit $code
"""
_PURGE_LEFT = """
left=$(for name; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' -- "$name" 2>/dev/null)" != config-files ] || echo "$name"
done)
[ -n "$left" ] || exit 0
rm -f /var/lib/docker/nuke-graph-directory.sh  # docker.io's own script would delete all images and volumes with it
turn; begun; own_begun; dpkg --purge $left; code=$?
ended "$own"; own_ended; exit $code
"""


def purge(names: list[str]) -> Command:
    """A job that removes packages with their files in /etc. It fails if another package would be removed too."""
    return script(_APT + _REMOVE, "purge", *names, timeout_s=900, long=True)


def remove(names: list[str]) -> Command:
    """A job that removes packages but not their files in /etc. It fails if another package would be removed too."""
    return script(_APT + _REMOVE, "remove", *names, timeout_s=900, long=True)


def purge_left(names: list[str]) -> Command:
    """A job that deletes the remaining configuration of removed packages."""
    return script(_APT + _PURGE_LEFT, *names, timeout_s=900, long=True)


def install(words: list[str]) -> Command:
    """A job that installs NAME or NAME=VERSION. It downloads every package before it unpacks the first.

    NVIDIA's packages of the last twelve versions are kept in /var/lib/rigwright/debs, because archives drop old ones.
    """
    return script(_APT + _INSTALL, *words, timeout_s=3600, long=True)


@operation()
def packages(facts: Facts, *, names: list[str]) -> Iterator[Change]:
    """Each package is installed; NAME=VERSION at exactly that version (upgraded or downgraded to it). Raises HostError
    if no source has a package or the version."""
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
    offered = facts(apt_archive.offered(tuple(missing))).versions
    for name, version in missing.items():
        have = list(dict.fromkeys(candidate.version for candidate in offered.get(name, ())))
        if not have:
            fix = f"correct the name, or add its source with apt.source; on the host: apt-cache search {name}"
            raise HostError("apt", f"no source has the package {name}", "a package that apt knows", fix)
        if version and version not in have:
            problem, expected = f"no source has {name}={version}", f"one of {', '.join(have[:5])}"
            raise HostError("apt", problem, expected, f"{name}={have[0]}, or only {name}")
    words = [f"{name}={version}" if version else name for name, version in missing.items()]
    for number, (name, version) in enumerate(missing.items()):
        before = now[name].version if name in now else ""
        job = (install(words),) if number == len(missing) - 1 else ()
        yield Change("change" if before else "add", name, before, version or offered[name][0].version, job)


@operation()
def source(
    facts: Facts,
    *,
    name: FileName,
    url: Word,
    key: str,
    suite: Word = FLAT,
    components: list[Word] | None = None,
    templates: Templates = SHIPPED,
) -> Iterator[Change]:
    """sources.list.d/rigwright-NAME.list has the source, and apt trusts it by `key` (armored text) only."""
    listed, keyring = source_paths(name)
    facts.all(files.file(listed), files.file(keyring))
    values = {"option": f"signed-by={keyring}", "url": url, "suite": suite, "components": components or []}
    changes = [*file.differing(facts, keyring, key.encode())]
    changes += file.differing(facts, listed, templates.render("apt/source.list.j2", values).encode())
    yield from _with_update(changes)


def _with_update(changes: list[Change]) -> Iterator[Change]:
    """The changes of sources, followed by apt-get update."""
    yield from changes
    if changes:
        yield Change("run", "apt-get update", "", "lists read", (update(),))


def update() -> Command:
    """A command that reads the lists of all sources."""
    return script(f"{_APT}\nupdate", timeout_s=900)


def require_signed(facts: Facts, sources: list[apt_sources.Source], fingerprint: str) -> Iterator[Note]:
    """Warnings about sources of NVIDIA's repository that somebody else configured; a second source of the same URL
    would stop apt.

    Raises HostError for a source whose packages need no signature, and for a keyring without NVIDIA's key.
    """
    keyrings = sorted({path for source in sources for path in source.signed_by if path.startswith("/")})
    known = dict(zip(keyrings, facts.all(*map(apt_sources.keyring, keyrings)), strict=True)) if keyrings else {}
    fix = f"delete the source there, then run the same command again: it adds one with the key {fingerprint} only"
    for source in sources:
        if source.trusted:
            problem = "the source of NVIDIA's repository has trusted=yes: apt installs its packages without a signature"
            raise HostError(source.where, problem, f"a source that is signed by {fingerprint}", fix)
        if not source.signed_by:
            yield Note(f"{source.where}: every key that apt trusts may sign these packages; {fix}", warn=True)
        for path in source.signed_by:
            keys = known.get(path, (path,)) or ()
            if fingerprint not in keys and path in known:
                problem = f"{path} has {', '.join(keys) or 'no key'}"
                raise HostError(source.where, problem, f"NVIDIA's key {fingerprint}", fix)
            if others := [key for key in keys if key != fingerprint and path in known]:
                yield Note(f"{source.where}: {path} also trusts the key {', '.join(others)}; {fix}", warn=True)


@operation()
def directory(facts: Facts, *, path: AbsolutePath, templates: Templates = SHIPPED) -> Iterator[Change]:
    """A directory of .debs on the host (with its Packages index) is a source. It is not signed, so apt trusts
    everybody who can write there."""
    values = {"option": "trusted=yes", "url": f"file:{path}", "suite": "./", "components": []}
    text = templates.render("apt/source.list.j2", values)
    yield from _with_update(list(file.differing(facts, source_paths("local")[0], text.encode())))


def source_paths(name: str) -> tuple[str, str]:
    """The paths of a source and of its key."""
    return f"/etc/apt/sources.list.d/rigwright-{name}.list", f"/usr/share/keyrings/rigwright-{name}.asc"


@operation()
def pin(
    facts: Facts,
    *,
    name: FileName,
    packages: list[Word],
    version: Word,
    block: str = "",
    also: dict[str, list[str]] | None = None,
    not_from: str = "",
    templates: Templates = SHIPPED,
) -> Iterator[Change]:
    """The preferences file rigwright-NAME holds the packages at `version`, even if it is lower than the installed one.

    `also`: packages by other versions. `not_from` (release l=LABEL): an archive from which the packages are never
    installed. `block`: names of packages that are never installed.
    """
    text = pin_text(packages, version, block, also, not_from, templates)
    yield from file.differing(facts, pin_path(name), text.encode())


@operation()
def hold(facts: Facts, *, names: list[str]) -> Iterator[Change]:
    """Each package is held: upgrade, dist-upgrade and unattended-upgrades do not change it."""
    now = facts(dpkg.packages(*names))
    free = [name for name in names if name not in now or not now[name].held]
    if free:
        commands = (script(f'{NOTE}\nnote holds "$@"', *free), command("apt-mark", "hold", *free))
        before = f"{len(free)} of {len(names)} free to move"
        yield Change("change", "apt-mark hold", before, ", ".join(free), commands)


@operation()
def unattended_block(facts: Facts, *, patterns: list[str], templates: Templates = SHIPPED) -> Iterator[Change]:
    """unattended-upgrades never upgrades packages whose names begin with one of these regular expressions."""
    text = templates.render("apt/unattended.conf.j2", {"patterns": patterns})
    yield from file.differing(facts, "/etc/apt/apt.conf.d/51rigwright-unattended", text.encode())


@operation()
def clean(facts: Facts) -> Iterator[Change]:
    """dpkg has no half-installed package, and no package lacks a dependency.

    Packages of an interrupted run are configured. Packages of NVIDIA that were never configured and now cannot be are
    removed: their scripts may need packages that are not unpacked yet. Dependencies that a half removed driver lacks
    are installed again, so that apt can remove the driver as a whole.

    Raises HostError if apt cannot repair it, or only by removing packages that are not NVIDIA's.
    """
    audit, repair = facts.all(dpkg.dpkg_audit, dpkg.repair)
    heal = (script(_APT + _HEAL, timeout_s=1800, long=True),)
    if audit:
        yield Change("run", "dpkg --configure -a", audit.splitlines()[0], "every package configured", heal)
    elif repair.broken:
        lacking = f"{', '.join(repair.broken)}: a dependency is not met"
        removed = [move.name for move in repair.moves if not move.version]
        lost = [name for name in removed if "nvidia" not in name and not name.startswith("cuda-drivers")]
        if (repair.error or lost) and repair.held:
            raise held_back("dpkg", repair.held, lacking)
        if repair.error or lost:
            reason = repair.error or f"apt --fix-broken install would remove {', '.join(lost)}"
            todo = "look at what they need, decide yourself: sudo apt-get -f install"
            raise HostError("dpkg", f"{lacking}; {reason}", "packages that have what they depend on", todo)
        after = ", ".join(f"{'' if move.version else '-'}{move.name}" for move in repair.moves)
        yield Change("run", "apt --fix-broken install", lacking, after, heal)
