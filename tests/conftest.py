"""Which tests run: those that need the network only when they are asked for."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `network` are left out unless `-m` names them."""
    if "network" in (config.getoption("markexpr") or ""):
        return
    left_out = [item for item in items if item.get_closest_marker("network")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
