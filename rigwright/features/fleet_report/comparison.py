"""A host compared with an earlier report of the fleet (`fleet.report`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import field

from rigwright.core.host_result import HostResult

if TYPE_CHECKING:
    from rigwright.engine.report import HostReport


class ComparisonResult(HostResult, frozen=True):
    """What changed since an earlier report of the fleet: the key `fleet` in docs/reference/json.md."""

    KEY = "fleet"
    fleet: dict[str, Any] = field(default_factory=dict)

    def as_json(self, report: HostReport) -> dict[str, Any]:
        """The comparison."""
        del report
        return self.fleet
