"""Removes what rigwright put on a host, in an order in which no running program loses what it needs."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.core.change import Change, Note
from rigwright.core.command import Command, command, script
from rigwright.core.host_folders import RUNS, STATE
from rigwright.facts import Facts, footprint, grub, systemd as units
from rigwright.facts.footprint import ORIGINALS, OwnFile
from rigwright.operations import apt, operation
from rigwright.operations._run_recording import KEEP
from rigwright.operations.file import ENTER
from rigwright.operations.grub import update_grub

_UNITS = "/etc/systemd/system/"

_TAKE_AWAY = f"""{ENTER}{KEEP}
path=$1 folder=${{1%/*}} name=${{1##*/}} original="{ORIGINALS}$1"
if [ -e "$original" ] || [ -L "$original" ]; then enter "$folder" make || exit 1; else
  [ -e "$folder/" ] || exit 0
  enter "$folder" || exit 1
fi
if [ -e "./$name" ] || [ -L "./$name" ]; then
  keep="{RUNS}/${{RIGWRIGHT_RUN:-removed}}/before$folder"
  (umask 077; mkdir -p -- "$keep") && cp -an -- "./$name" "$keep/" || exit 1
fi
kept "./$name" "$path" && wrote "$(state "$original" "$path")" || exit 1
if [ -e "$original" ] || [ -L "$original" ]; then mv -fT -- "$original" "./$name"; else rm -f -- "./$name"; fi || exit 1
case $folder in */rigwright) rm -rf ./__pycache__; cd / && rmdir -- "$folder" 2>/dev/null;; esac; :
"""


def _consequences(release: str) -> tuple[tuple[str, str, str, Command, str], ...]:
    """What must run after files of a directory are removed: directory, subject and result in the plan, command, and
    what it leads to. `release`: the kernel that boots next."""
    docker = "systemctl cat docker.service >/dev/null 2>&1 || exit 0; exec systemctl try-restart docker.service"
    reload, initramfs = command("systemctl", "daemon-reload"), ("update-initramfs", "-u", "-k", release)
    initramfs_made = command(*initramfs, timeout_s=900, long=True)
    return (
        ("/etc/apt/sources.list.d/", "apt-get update", "lists read", apt.update(), ""),
        ("/etc/docker/", "docker", "without the runtime nvidia", script(docker, timeout_s=180), ""),
        ("/etc/systemd/system.conf.d/", "systemctl daemon-reload", "systemd's own limits", reload, ""),
        ("/etc/ld.so.conf.d/", "ldconfig", "without the CUDA libraries", command("ldconfig"), ""),
        ("/etc/modprobe.d/", f"initramfs of {release}", "without the block", initramfs_made, "reboot"),
        ("/etc/default/grub.d/", "update-grub", "without the kernel parameters", update_grub(), "reboot"),
    )


@operation()
def units_removed(facts: Facts) -> Iterator[Change]:
    """No unit that rigwright wrote is on the host; those that ran are stopped first."""
    own = facts(footprint.footprint)
    paths = [file for file in own.files if file.path.startswith(_UNITS)]
    states = dict(zip(own.units, facts.all(*map(units.unit, own.units)), strict=True)) if own.units else {}
    for file in sorted(paths, key=lambda file: not file.path.endswith(".timer")):
        name = file.path.removeprefix(_UNITS)
        state = states[name]
        stop = command("systemctl", "disable", "--now", "--", name, timeout_s=300)
        clear = script('systemctl reset-failed -- "$1" 2>/dev/null || :', name)
        after = (command("systemctl", "daemon-reload"), clear, footprint.forget([file.path]))
        commands = (*((stop,) if file.there else ()), *_taken_away(file), *after)
        before = f"{state.active}, {state.enabled or 'not enabled'}"
        yield Change("remove", name, before, _after(file), commands, units=(name,))


@operation()
def holds_removed(facts: Facts) -> Iterator[Change]:
    """No package that rigwright held is held."""
    own = facts(footprint.footprint)
    if own.held:
        free = command("apt-mark", "unhold", *own.held)
        yield Change("change", "apt-mark unhold", f"{len(own.held)} held", ", ".join(own.held), (free,))


@operation()
def files_removed(facts: Facts) -> Iterator[Change | Note]:
    """No file that rigwright wrote is on the host; a file that rigwright replaced is back.

    Then apt reads its lists, and the initramfs and grub.cfg are made again if files that they contain are removed.
    """
    own = facts(footprint.footprint)
    files = [file for file in own.files if not file.path.startswith(_UNITS)]
    of_boot = any(file.path.startswith(("/etc/modprobe.d/", "/etc/default/")) for file in files)
    release = facts(grub.grub).entry.release if of_boot else ""
    others = list(files)
    for folder, subject, after, make, lead in _consequences(release):
        of_folder = [file for file in files if file.path.startswith(folder)]
        others = [file for file in others if file not in of_folder]
        for file in of_folder:
            if file.there:
                yield Change("remove", file.path, "written by rigwright", _after(file), _taken_away(file))
        if of_folder:
            commands = (make, footprint.forget([file.path for file in of_folder]))
            yield Change("run", subject, "", after, commands, leads_to=lead)
    for file in others:
        remove = (*_taken_away(file), footprint.forget([file.path]))
        yield Change("remove", file.path, "written by rigwright" if file.there else "gone", _after(file), remove)


def _taken_away(file: OwnFile) -> tuple[Command, ...]:
    return (script(_TAKE_AWAY, file.path),) if file.there or file.replaced else ()


def _after(file: OwnFile) -> str:
    return "the file that stood there before" if file.replaced else ""


@operation()
def state_removed(facts: Facts) -> Iterator[Change | Note]:
    """/var/lib/rigwright has only the lease, and under runs/ the previous contents of files."""
    own = facts(footprint.footprint)
    if own.kept:
        delete = script(f'cd {STATE} && rm -rf -- "$@" files originals', *own.kept)
        yield Change("remove", STATE, ", ".join(own.kept), "", (delete,))
    yield Note(f"{RUNS} keeps the previous contents of files; sudo rm -r {STATE} deletes them")
