"""What holds for every test: a history of its own, and the network only when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chromium import Chromium


@pytest.fixture(scope="session", autouse=True)
def own_history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What runs of the tests leave, in processes of their own too, stands in a folder of the tests and not in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIGWRIGHT_HISTORY", str(tmp_path_factory.mktemp("history") / "history.sqlite"))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("RIGWRIGHT_HISTORY_DAYS", raising=False)
        yield


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """A browser, the same for all tests."""
    with Chromium() as browser:
        yield browser


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `network` or `rack` are left out unless `-m` names the mark."""
    asked = config.getoption("markexpr") or ""
    left_out = [
        item for item in items for mark in ("network", "rack") if item.get_closest_marker(mark) and mark not in asked
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
