"""The change that reboots a host, and whose sessions it ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rigwright.core.change import Change, Note
from rigwright.facts import reboot_record


def ends(sessions: Sequence[str]) -> Iterator[Note]:
    """A warning that names the graphical sessions which a reboot ends, if there are any."""
    if sessions:
        yield Note(f"the reboot ends a graphical session: {', '.join(sessions)}; unsaved work is lost", warn=True)


def ordered(why: str, after: str, timeout_s: int) -> Change:
    """The change that reboots the host; if it does not help, that is recorded on the host."""
    return Change(
        "run", "reboot", why, after, (reboot_record.forget(),),
        disruptive=True, reboot=True, reboot_timeout_s=timeout_s, in_vain=(reboot_record.write(why),),
    )  # fmt: skip
