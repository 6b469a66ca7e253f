"""What a stage of a run finds on one host. A report holds the last result of each class (`engine/report.py`)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeVar

from msgspec import Struct

HostStatus = Literal["ok", "pending", "changed", "failed", "unreachable", "not_attempted"]

R = TypeVar("R", bound="HostResult")


class HostResult(Struct, frozen=True):
    """The base of all results.

    `KEY`: its key in the host's part of the JSON document; "" for a result that the document does not hold as a whole.
    `FIELD`: the field that is the value of KEY; "": the whole result. `STATUS`: the status of the host after it; None:
    the status stays. `FAILURE_CODE`: the exit code if the host's status is failed after it.
    """

    KEY: ClassVar[str] = ""
    FIELD: ClassVar[str] = ""
    STATUS: ClassVar[HostStatus | None] = None
    FAILURE_CODE: ClassVar[int] = 2

    def host_status(self, earlier: HostStatus) -> HostStatus:
        """The status of the host after this result."""
        return self.STATUS or earlier

    def combine(self: R, earlier: R) -> R:
        """This result and an earlier one of the same class together; by default this one alone."""
        del earlier
        return self

    @property
    def outdates_facts(self) -> bool:
        """Whether facts that were read before it are not recorded in the history."""
        return False

    def as_json(self, report: Any) -> Any:
        """The value of KEY in the document of this HostReport, before `facts.plain.plain` converts it to JSON types."""
        del report
        return getattr(self, self.FIELD) if self.FIELD else self
