"""`invoke remove` on the command line; what it does on a host is in tests/end_to_end/test_remove.py."""

from __future__ import annotations

import pytest

from rigwright.cli.options import RemoveOptions
from rigwright.cli.remove import remove
from rigwright.core.errors import UsageError


def test_the_host_must_be_named() -> None:
    with pytest.raises(UsageError, match="it is not given") as caught:
        remove(RemoveOptions())
    assert caught.value.fix.endswith(" remove --host NAME")
