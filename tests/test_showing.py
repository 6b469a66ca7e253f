"""Commands that show what a host says of itself: whatever it says, it steers no terminal and is no markup."""

from __future__ import annotations

from pathlib import Path

import pytest

from rigwright import commands
from rigwright.facts import os as system
from rigwright.shell import Command, Result
from rigwright.showing import Said
from tests import fake_fleet


def test_a_fact_that_cannot_be_read_is_shown_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(tmp_path / "history.sqlite"))
    gpu = fake_fleet.fleet(tmp_path, monkeypatch, "gpu01")
    usual = gpu.answer

    def answer(name: str, cmd: Command) -> Result:
        return Result(0, b"[/bold]\x1b[2J") if cmd == system.free_mib.command else usual(name, cmd)

    monkeypatch.setattr(gpu, "answer", answer)
    assert commands.run(Said("facts", "gpu", inventory=gpu.inventory)) == 0
    out = capsys.readouterr().out
    assert "os.free_mib unavailable: os.free_mib: cannot read '[/bold]" in out
    assert "\x1b" not in out
