"""Each speed trick can be turned off: a renamed function would leave it on, and its gain would look like noise."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lab.bench.tricks import TRICKS


@pytest.mark.parametrize("name", TRICKS)
def test_a_trick_is_turned_off(name: str) -> None:
    code = f"from lab.bench.tricks import TRICKS; TRICKS[{name!r}]()"
    subprocess.run([sys.executable, "-c", code], check=True)
