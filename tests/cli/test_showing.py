"""Commands that print texts from a host escape terminal control sequences and markup in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rigwright.core.command import Command, Result
from rigwright.facts import system
from tests.cli.run_command import run_command
from tests.fleet import fake_fleet


def test_a_fact_that_cannot_be_read_is_shown_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(tmp_path / "history.sqlite"))
    gpu = fake_fleet.fleet(tmp_path, monkeypatch, "gpu01")
    usual = gpu.answer

    def answer(name: str, cmd: Command) -> Result:
        return Result(0, b"[/bold]\x1b[2J") if cmd == system.free_mib.command else usual(name, cmd)

    monkeypatch.setattr(gpu, "answer", answer)
    assert run_command("facts", host="gpu", inventory=gpu.inventory) == 0
    out = capsys.readouterr().out
    assert "system.free_mib unavailable: system.free_mib: cannot read '[/bold]" in out
    assert "\x1b" not in out
