"""A folder for the real apt."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yields a folder that apt's own user may read."""
    path = Path(tempfile.mkdtemp(prefix="rigwright-pins-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
