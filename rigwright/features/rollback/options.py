"""The options of `invoke rollback`."""

from __future__ import annotations

from rigwright.cli.options import StepsOptions, option


class RollbackOptions(StepsOptions, command="rollback", changes_hosts=True):
    """Make a host what it was before a run: files, GRUB, packages and holds, limits and units.

    Without --to it goes back to before the last run that changed something. The same
    command goes on with a rollback that was interrupted, and changes nothing after one
    that ended; --to RUN_OF_THE_ROLLBACK brings back what that one took away.
    What cannot go back is named before anything is changed (docs/guide/rollback.md).

        invoke rollback --host servbadge
        invoke rollback --host servbadge --list
        invoke rollback --host servbadge --to 20261122-141753-136a7c05
        invoke rollback --host servbadge --adopt      # records of before the disk was copied

    Exit 1 when it cannot go back, 2 when it was not confirmed or the host was changed since
    the rollback, 3 when a host does not answer.
    """

    host: str | None = option("a host, a group or a pattern of the inventory; it must be named", None)
    to: str = option("the run before which to go back: its id, or the beginning of one (default: the last run)")
    list: bool = option("only show the runs that the host remembers; changes nothing", False)
    adopt: bool = option("only say that records under another machine-id are of this disk: it was copied", False)
    yes: bool = option("make the changes without asking", False)
    disrupt: bool = option("also while processes use the GPUs", False)
