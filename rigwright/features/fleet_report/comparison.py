"""A host compared with an earlier report of the fleet (`fleet.report`)."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from rigwright.core.host_result import HostResult
from rigwright.core.lazy_dataclasses import dataclass

if TYPE_CHECKING:
    from rigwright.engine.report import HostReport


@dataclass(frozen=True)
class ComparisonResult(HostResult):
    """What changed since an earlier report of the fleet: the key `fleet` in docs/reference/json.md."""

    KEY = "fleet"
    fleet: dict[str, Any] = field(default_factory=dict)

    def as_json(self, report: HostReport) -> dict[str, Any]:
        """The comparison."""
        del report
        return self.fleet
