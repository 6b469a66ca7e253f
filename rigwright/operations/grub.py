"""The kernel command line, through a GRUB drop-in that is read last."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.core.change import Change
from rigwright.core.command import command
from rigwright.core.errors import HostError
from rigwright.core.host_templates import SHIPPED, Templates
from rigwright.core.schema import KernelWord
from rigwright.facts import Facts, files, grub
from rigwright.facts import kernel as kernels
from rigwright.operations import file, operation

DROP_IN = "/etc/default/grub.d/zz-rigwright.cfg"


@operation(affects_p2p=True)
def cmdline(
    facts: Facts, *, kernel_cmdline: tuple[KernelWord, ...] = (), templates: Templates = SHIPPED
) -> Iterator[Change]:
    """The default boot entry in grub.cfg has these kernel parameters; a reboot puts them in force.

    Raises HostError when GRUB's own files do not parse.
    """
    now, running, mine = facts.all(grub.grub, kernels.command_line, files.file(DROP_IN))
    if now.defaults_error:
        raise HostError(
            "/etc/default/grub",
            now.defaults_error.splitlines()[0],
            "a file that a shell can read",
            "correct the file, then sudo update-grub",
        )
    if not now.parses:
        raise HostError(
            "/boot/grub/grub.cfg",
            "grub-script-check refuses it",
            "a file that GRUB can read",
            "sudo update-grub, and look at its messages",
        )
    lead = "reboot" if grub.missing(kernel_cmdline, running) else ""
    if not kernel_cmdline and mine is None:
        return
    text = templates.render("grub/cmdline.cfg.j2", {"kernel_cmdline": kernel_cmdline})
    changes = list(file.differing(facts, DROP_IN, text.encode(), leads_to=lead))
    yield from changes
    lost = grub.missing(kernel_cmdline, now.entry.command_line)
    if changes or lost:
        update = command("update-grub", timeout_s=600, long=True)
        yield Change(
            "run",
            "update-grub",
            now.entry.command_line,
            f"with {' '.join(lost or kernel_cmdline)}",
            (update,),
            leads_to=lead,
        )
