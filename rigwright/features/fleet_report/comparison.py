"""A host compared with an earlier report of the fleet (`fleet.report`)."""

from __future__ import annotations

from typing import Any

from msgspec import field

from rigwright.core.host_result import HostResult


class ComparisonResult(HostResult, frozen=True):
    """What changed since an earlier report of the fleet: the key `fleet` in docs/reference/json.md."""

    KEY = FIELD = "fleet"
    fleet: dict[str, Any] = field(default_factory=dict)
