"""The command line of the root of Debian 13; nothing is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.base import debian13_root
from rigwright.core.errors import UsageError


def test_a_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("need_root", "need"):
        monkeypatch.setattr(debian13_root, name, lambda _what: None)
    with pytest.raises(UsageError, match="nowhere is no folder"):
        debian13_root.main([str(tmp_path / "nowhere"), "true"])
