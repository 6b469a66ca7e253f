"""The last lines of provision: the next command where the inventory asks for more than its playbook does."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from rigwright.cli import plan, provision
from rigwright.engine.report import HostReport
from rigwright.inventory.model import Host
from rigwright.report.terminal import Text


def said(**variables: dict[str, Any]) -> str:
    """Returns what is written after hosts with these variables."""
    stream = io.StringIO()
    hosts = [Host(name, (), values) for name, values in variables.items()]
    plan.hint_at_training(hosts, Text(stream, "provision", many=False), "provision")
    return " ".join(stream.getvalue().split())


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"gpu1": {}}, ""),
        (
            {"gpu1": {"containers": {"engine": "podman"}}},
            "containers of the inventory: invoke provision --host gpu1 --playbook train",
        ),
        (
            {"gpu1": {"containers": {}}, "gpu2": {"training": {}}, "gpu3": {}},
            "containers and training of the inventory: invoke provision --host gpu1,gpu2 --playbook train",
        ),
    ],
)
def test_what_the_playbook_train_adds_is_named(variables: dict[str, Any], line: str) -> None:
    assert said(**variables) == line


def test_a_host_that_failed_has_something_else_to_do_first(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = [Host("gpu1", (), {"training": {}}), Host("gpu2", (), {"training": {}})]
    jobs: Any = [
        SimpleNamespace(host=host, report=HostReport(host, status))
        for host, status in zip(hosts, ("failed", "ok"), strict=True)
    ]
    shown: list[Host] = []
    monkeypatch.setattr(provision, "hint_at_training", lambda proved, *_: shown.extend(proved))
    provision._hint(jobs, None, "train")
    assert shown == []
    provision._hint(jobs, None, "")
    assert shown == hosts[1:]


def test_the_same_command_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python3", ".venv/bin/invoke", "provision", "--host", "localhost"])
    words = provision.restart_words("provision", yes=False)
    assert words == (sys.executable, ".venv/bin/invoke", "provision", "--yes", "--host", "localhost")
    assert provision.restart_words("provision", yes=True)[3] == "--host"
    assert provision.restart_words("rollback", yes=True) == ()
