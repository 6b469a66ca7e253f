"""What a low rail does to a host, without a host. End-to-end tests show it on one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.faults import brownout
from lab.host import disk
from lab.host.disk import Host


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the list of what was done to a host called badge."""
    seen: list[str] = []
    monkeypatch.setattr(disk, "HOSTS", tmp_path)
    host = Host("badge", "servbadge", 10, ())
    disk.save(host)
    host.folder.mkdir()
    monkeypatch.setattr(brownout.gpu_lost, "apply", lambda one, gpu: seen.append(f"{one.name} loses GPU {gpu}"))
    monkeypatch.setattr(brownout.cgroups, "enter", lambda group: seen.append(f"enters {group}"))
    monkeypatch.setattr(brownout.switch, "cut", lambda name: seen.append(f"cuts {name}"))
    monkeypatch.setattr(brownout.switch, "on", lambda one: seen.append(f"switches {one.name} on"))
    return seen


def test_a_gpu_is_lost(done: list[str]) -> None:
    assert brownout.main("badge", "2") == 0
    assert done == ["badge loses GPU 2"]


def test_the_machine_resets_by_a_process_that_the_power_cut_does_not_end(done: list[str]) -> None:
    assert brownout.main("badge", "reset") == 0
    assert done == ["enters _kernel", "cuts badge", "switches badge on"]
    assert "the machine resets" in (disk.HOSTS / "badge/console.log").read_text()


def test_a_host_that_was_deleted_is_left_alone(done: list[str]) -> None:
    assert brownout.main("gone", "reset") == 1
    assert done == []
