"""The kernel command line, through a GRUB drop-in that is read last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rigwright.core import lazy_re
from rigwright.core.change import Change, Note
from rigwright.core.command import Command, script
from rigwright.core.command_failures import missing_program
from rigwright.core.errors import HostError
from rigwright.core.schema import KernelWord
from rigwright.core.templates.host_files import SHIPPED, Templates
from rigwright.facts import Facts, files, grub, kernel as kernels, system
from rigwright.operations import file, operation

DROP_IN = "/etc/default/grub.d/zz-rigwright.cfg"
_UPDATE = """
cfg=$(readlink -m /boot/grub/grub.cfg); new=$cfg.rigwright
rm -f -- "$new"
update-grub -o "$new"; code=$?
if [ $code = 0 ] && [ -s "$new" ]; then  # one that takes no options has written grub.cfg itself
  if [ -e "$cfg" ]; then
    chown --reference="$cfg" -- "$new" && chmod --reference="$cfg" -- "$new" || code=$?
  else chmod 0444 -- "$new"; fi
  [ $code = 0 ] && sync -- "$new" && mv -fT -- "$new" "$cfg" && sync -- "${cfg%/*}" || code=1
fi
rm -f -- "$new" "$new.new"
exit $code
"""


def update_grub() -> Command:
    """A job that makes grub.cfg and replaces the old one atomically and synced. update-grub alone writes over the old
    file: a power cut then leaves a host without a menu."""
    return script(_UPDATE, timeout_s=600, long=True)


@operation(affects_p2p=True)
def cmdline(
    facts: Facts, *, kernel_cmdline: tuple[KernelWord, ...] = (), templates: Templates = SHIPPED
) -> Iterator[Change | Note]:
    """The default boot entry in grub.cfg has these kernel parameters; a reboot applies them.

    A warning has parameters of other files that contradict these or keep the NVIDIA driver from loading, with the file.
    Raises HostError if GRUB's own files do not parse, or update-grub is needed and not installed.
    """
    now, running, mine, others, there = facts.all(
        grub.grub, kernels.command_line, files.file(DROP_IN), grub.words, system.program("update-grub")
    )
    if now.defaults_error:
        found, fix = now.defaults_error.splitlines()[0], "correct the file, then sudo update-grub"
        raise HostError("/etc/default/grub", found, "a file that a shell can read", fix)
    if not now.parses:
        found, fix = "grub-script-check refuses it", "sudo update-grub, and look at its messages"
        raise HostError("/boot/grub/grub.cfg", found, "a file that GRUB can read", fix)
    yield from _contradictions(kernel_cmdline, now.entry.command_line, others)
    lead = "reboot" if grub.missing(kernel_cmdline, running) else ""
    if not kernel_cmdline and mine is None:
        return
    text = templates.render("grub/cmdline.cfg.j2", {"kernel_cmdline": kernel_cmdline})
    changes = list(file.differing(facts, DROP_IN, text.encode(), leads_to=lead))
    yield from changes
    lost = grub.missing(kernel_cmdline, now.entry.command_line)
    if (changes or lost) and not there:
        failure = missing_program("update-grub")
        raise HostError("kernel command line", failure.found, "update-grub, which makes grub.cfg", failure.fix)
    if changes or lost:
        after = f"with {' '.join(lost or kernel_cmdline)}"
        yield Change("run", "update-grub", now.entry.command_line, after, (update_grub(),), leads_to=lead)


_IOMMU_OFF = ("intel_iommu=off", "amd_iommu=off", "noiommu")
"""Parameters other than `iommu` that turn the IOMMU off."""
_BLACKLIST = lazy_re.compile(r"(?:module_blacklist|modprobe\.blacklist)=(?:\S{0,400},)?nvidia(?:,\S{0,400})?")


def _contradictions(wanted: Sequence[str], next_boot: str, others: Sequence[grub.Words]) -> Iterator[Note]:
    """A warning for each foreign parameter that contradicts a wanted one, with the file, and for files that drop
    parameters."""
    mine = {word.partition("=")[0]: word for word in wanted}
    for word in dict.fromkeys([*next_boot.split(), *(word for other in others for word in other.words)]):
        key = word.partition("=")[0]
        beside = mine.get(key, "") if word not in wanted else ""
        if word in _IOMMU_OFF and any(own.startswith(("iommu=", "intel_iommu=on", "amd_iommu=on")) for own in wanted):
            beside = next(own for own in wanted if "iommu=" in own)
        if not beside and not _BLACKLIST.fullmatch(word):
            continue
        paths = [other.path for other in others if word in other.words and other.path != DROP_IN]
        if not paths and word not in next_boot.split():
            continue
        where = " and ".join(dict.fromkeys(paths)) or "/boot/grub/grub.cfg, and none of the files that it is made of,"
        why = f"beside {beside}" if beside else "(it keeps the NVIDIA driver from loading)"
        text = f"{where} has the kernel parameter {word} {why}: take it out there, then sudo update-grub"
        yield Note(text, warn=True, foreign=True)
    for other in others:
        later = other.path > DROP_IN and other.variable == "GRUB_CMDLINE_LINUX_DEFAULT"
        if later and other.anew and not set(wanted) <= set(other.words):
            text = f"{other.path} is read after {DROP_IN} and replaces its parameters: take the line out there"
            yield Note(text, warn=True, foreign=True)
