"""`invoke remove` on the command line; what it does on a host is in tests/end_to_end/test_remove.py."""

from __future__ import annotations

import pytest

from rigwright.cli import runner
from rigwright.cli.options import RemoveOptions
from rigwright.cli.remove import remove
from rigwright.core.errors import UsageError


def test_the_host_must_be_named() -> None:
    with pytest.raises(UsageError, match="it is not given") as caught:
        remove(RemoveOptions())
    assert caught.value.fix.endswith(" remove --host NAME")


def test_the_flag_that_the_error_about_gpus_in_use_names_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[runner.HostCommand] = []
    monkeypatch.setattr(runner, "run", lambda _options, prepare: commands.append(prepare("id")) or 0)
    assert remove(RemoveOptions(host="one", driver=True, disrupt=True)) == 0
    assert commands[0].disrupt
