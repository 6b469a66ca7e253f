"""The fixtures for programs that run on hosts."""

from __future__ import annotations

from tests.onhost.conftest import folder, module, rig_3090, rigs, servbadge

__all__ = ["folder", "module", "rig_3090", "rigs", "servbadge"]
