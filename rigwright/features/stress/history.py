"""What the history shows of stresses: the GPUs whose speed differed from earlier ones."""

from __future__ import annotations

from rigwright.features.stress.measured_before import became as changes

__all__ = ["changes"]
