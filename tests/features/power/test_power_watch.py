"""`invoke power.watch`: mistakes on its command line, and hosts that cannot be watched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rigwright.core.errors import HostError
from rigwright.features.power import power_watch
from tests.cli.run_command import run_command
from tests.features.recorder.recordings import header

HOSTS = "gpu: {hosts: {one: {ansible_host: 192.0.2.1}, two: {ansible_host: 192.0.2.2}}}\n"


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    (tmp_path / "hosts.yml").write_text(HOSTS)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "gpu"}, "2 hosts: one, two"),
        ({"host": "one", "seconds": "0"}, "'0' is no number of seconds"),
        ({"host": "one", "seconds": "90000"}, "a whole number from 1 to 86400"),
        ({"host": "one", "json": "-"}, "a watch writes text"),
        ({"host": "one", "executor": "tls://s:8786"}, "a watch connects from this machine"),
        ({"host": "one", "html": "/nowhere/power.html"}, "/nowhere"),
    ],
)
def test_a_mistake_is_named_before_anything_is_connected(
    inventory: str, options: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("power.watch", inventory=inventory, **options) == 1
    shown = capsys.readouterr()
    assert message in " ".join((shown.out + shown.err).split())


def test_a_host_whose_driver_shows_no_gpu_is_an_error() -> None:
    with pytest.raises(HostError, match="no GPU can be watched: Driver Not Loaded"):
        power_watch._first_lines(json.dumps(header(0, nvml="Driver Not Loaded")), "one")
    with pytest.raises(HostError, match="without its first line"):
        power_watch._first_lines("hello", "one")
