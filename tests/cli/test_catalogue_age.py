"""plan, verify and explain warn when the catalogue is older than 90 days."""

from __future__ import annotations

import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rigwright import catalogue
from rigwright.cli import runner
from rigwright.features.explain import command as explain_command
from tests.cli.run_command import run_command
from tests.fleet import fake_fleet

READ = catalogue.release_table().read


class _Clock(datetime.date):
    """A date class whose today is chosen by the test."""

    now = READ

    @classmethod
    def today(cls) -> Any:
        return cls.now


@pytest.fixture(params=[(90, False), (91, True)], ids=["90 days", "91 days"])
def warned(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Returns whether a warning is expected; today is so many days after the catalogue's date."""
    days, expected = request.param
    monkeypatch.setattr(_Clock, "now", READ + datetime.timedelta(days))
    for module in (explain_command, runner):
        monkeypatch.setattr(module, "datetime", SimpleNamespace(**{**vars(datetime), "date": _Clock}))
    return bool(expected)


TEXT = f"the catalogue is of {READ}, 91 days old"


@pytest.mark.parametrize(("name", "options"), [("plan", {}), ("verify", {"quick": True})])
def test_hosts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    warned: bool,
    name: str,
    options: dict[str, Any],
) -> None:
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(tmp_path / "history.sqlite"))
    hosts = fake_fleet.fleet(tmp_path, monkeypatch, "gpu01", "gpu02")
    run_command(name, host="gpu", inventory=hosts.inventory, playbook=hosts.playbook, **options)
    out = capsys.readouterr().out
    assert "gpu01" in out
    assert out.count("the catalogue is of") == warned
    assert (TEXT in out) == warned


def test_explain(capsys: pytest.CaptureFixture[str], warned: bool) -> None:
    assert run_command("explain", name="535") == 0
    out = capsys.readouterr().out
    assert out.startswith("driver 535\n")
    assert (TEXT in out) == warned


def test_explain_of_what_is_not_known(capsys: pytest.CaptureFixture[str], warned: bool) -> None:
    assert run_command("explain", name="driver 999.99") == 1
    assert (TEXT in capsys.readouterr().err) == warned
