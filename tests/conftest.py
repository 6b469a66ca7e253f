"""What holds for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs of the tests, in processes of their own too, stand in a history of the tests and not in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIGWRIGHT_HISTORY", str(tmp_path_factory.mktemp("history") / "history.sqlite"))
        patch.delenv("RIGWRIGHT_HISTORY_DAYS", raising=False)
        yield
