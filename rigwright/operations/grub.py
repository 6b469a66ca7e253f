"""The kernel command line, through a GRUB drop-in that is read last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rigwright.change import Change
from rigwright.errors import HostError
from rigwright.facts import Facts, files, grub
from rigwright.facts import kernel as kernels
from rigwright.operations import file
from rigwright.shell import command
from rigwright.typed import KernelWord

DROP_IN = "/etc/default/grub.d/zz-rigwright.cfg"


def missing(words: Sequence[str], line: str) -> list[str]:
    """The wanted words that a kernel command line does not have in force.

    Of a repeated KEY= the last one counts, unless it is wanted more than once itself (console=).
    """
    present = line.split()
    last = {word.partition("=")[0]: word for word in present}
    return [word for word in words if word not in present or last[word.partition("=")[0]] not in words]


def drop_in(words: Sequence[str]) -> str:
    """The drop-in's text: appended, so that what others set stays."""
    text = " ".join(words)
    return f'# Written by rigwright, read after every other file here.\nGRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {text}"\n'


def cmdline(facts: Facts, *, words: list[KernelWord]) -> Iterator[Change]:
    """The entry that boots next has the words, proved in the generated grub.cfg; a reboot puts them in force.

    Raises HostError when GRUB's own files do not parse.
    """
    now, running, mine = facts.all(grub.grub, kernels.command_line, files.file(DROP_IN))
    if now.defaults_error:
        raise HostError(
            "/etc/default/grub",
            now.defaults_error.splitlines()[0],
            "a file that a shell can read",
            "mend it, then sudo update-grub",
        )
    if not now.parses:
        raise HostError(
            "/boot/grub/grub.cfg",
            "grub-script-check refuses it",
            "a file that GRUB can read",
            "sudo update-grub, and look at its messages",
        )
    lead = "reboot" if missing(words, running) else ""
    text = drop_in(words)
    if not words and mine is None:
        return
    changes = list(file.differing(facts, DROP_IN, text.encode(), leads_to=lead))
    yield from changes
    lost = missing(words, now.entry.command_line)
    if changes or lost:
        update = command("update-grub", timeout_s=600, long=True)
        yield Change(
            "run", "update-grub", now.entry.command_line, f"with {' '.join(lost or words)}", (update,), leads_to=lead
        )
