"""A unit and /etc/rc.local of the owner set limits of the GPUs: they are named, taken over on request and brought
back. Files of other users are not read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.cli import commands
from lab.hardware.rigfile import describe
from tests.end_to_end.conftest import ssh
from tests.end_to_end.rw import document, inventory, invoke, not_as_wanted
from tests.end_to_end.test_rigs import Server

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(600)]
NAME, RIG = "t-theirs", "rig-3090"
UNIT, LINE = "nvidia-power-cap.service", "/etc/rc.local:2"
CHECK = "foreign_settings.absent"

THEIRS = r"""set -e
unit() { printf '[Service]\nType=oneshot\nExecStart=%s\n[Install]\nWantedBy=multi-user.target\n' "$2" |
  sudo tee "/etc/systemd/system/$1" >/dev/null; sudo systemctl enable -q "$1"; }
printf '#!/bin/sh\nset -e\nnvidia-smi -pm 1\nnvidia-smi -pl 250  # quiet\n' |
  sudo tee /usr/local/sbin/gpu-cap >/dev/null
printf '#!/bin/sh\nnvidia-smi -pl 240\ntouch /run/rc-local\n' | sudo tee /etc/rc.local >/dev/null
sudo chmod 755 /usr/local/sbin/gpu-cap /etc/rc.local
unit nvidia-power-cap.service /usr/local/sbin/gpu-cap
mkdir -p ~/bin && ln -sfn /etc/shadow ~/bin/gpu-fan && mkfifo ~/bin/gpu-clocks
printf '[Service]\nExecStart=/usr/bin/nvidia-smi -pl 230\n' >~/bin/theirs.service
sudo ln -sfn ~/bin/theirs.service /etc/systemd/system/gpu-theirs.service
unit gpu-fan.service /home/ubuntu/bin/gpu-fan
unit gpu-clocks.service /home/ubuntu/bin/gpu-clocks
"""


@pytest.fixture(scope="module")
def _host(snapshots: Path, lab_root: None) -> Iterator[None]:  # noqa: ARG001
    """A host with the driver, the limits of its inventory, and what its owner and another user have put on it."""
    server = Server(RIG, ssh)
    server.host, server.described = NAME, describe(RIG, NAME)
    try:
        server.boots(snapshots)
        server.has_the_driver()
        server.does(THEIRS)
        yield
    finally:
        commands.down(name=NAME, say=print)


def words(folder: Path, **variables: Any) -> list[str]:
    """The words for a run that sets limits, with these variables in the inventory."""
    limits = {"limits": {"persistence": True, "power_limit_w": 285}}
    return ["--host", NAME, "--inventory", inventory(folder, **{NAME: {**limits, **variables}}), "--tags", "limits"]


def findings(written: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The findings about settings of others, by subject."""
    return {each["subject"]: each for each in written["hosts"][NAME]["findings"] if each["check"] == CHECK}


def state() -> tuple[str, str]:
    """Whether the unit is enabled, and the lines of rc.local."""
    enabled = ssh(NAME, f"systemctl is-enabled {UNIT}").stdout.strip()
    return enabled, ssh(NAME, "sh -n /etc/rc.local && stat -c %a /etc/rc.local && cat /etc/rc.local").stdout


@pytest.mark.usefixtures("_host")
def test_named_accepted_taken_over_and_brought_back(tmp_path: Path) -> None:
    before = state()
    done = document("provision", *words(tmp_path), "--yes")
    (step,) = (step for step in done["hosts"][NAME]["steps"] if step["name"] == "Settings of others")
    notes = step["notes"]
    assert [note.partition(" sets ")[0] for note in notes] == [LINE, UNIT]
    assert all("`take_over: true` in the inventory takes it over" in note for note in notes)
    assert state() == before

    verified = document("verify", *words(tmp_path))
    found = findings(verified)
    assert {subject: each["verdict"] for subject, each in found.items()} == {
        UNIT: "warn", LINE: "warn", "gpu-fan.service": "info", "gpu-clocks.service": "info",
    }, not_as_wanted(verified)  # fmt: skip
    assert "/usr/local/sbin/gpu-cap:4" in found[UNIT]["seen"]
    assert found[UNIT]["fix"].startswith("take_over: true in the inventory, then ")
    assert found["gpu-fan.service"]["seen"] == "/home/ubuntu/bin/gpu-fan was not read"

    decision = {CHECK: {"until": "9999-12-31", "because": "until the fans are new"}}
    accepted = findings(document("verify", *words(tmp_path, accepted=decision)))
    assert accepted[UNIT]["accepted"] == "until 9999-12-31, because until the fans are new"
    assert {each["verdict"] for each in accepted.values()} == {"info"}
    shown = invoke("verify", *words(tmp_path, accepted=decision)).stdout
    assert "2 warnings accepted" in shown
    assert shown.count("until the fans are new") == 2

    taken = document("provision", *words(tmp_path, take_over=True), "--yes")
    assert taken["exit_code"] == 0, not_as_wanted(taken)
    enabled, text = state()
    assert (enabled, text.splitlines()) == (
        "disabled", ["755", "#!/bin/sh", ": # taken over by rigwright: nvidia-smi -pl 240", "touch /run/rc-local"]
    )  # fmt: skip
    again = document("provision", *words(tmp_path, take_over=True), "--yes")
    assert (again["exit_code"], again["hosts"][NAME]["changes"]) == (0, []), not_as_wanted(again)
    assert {*findings(document("verify", *words(tmp_path)))} == {"gpu-fan.service", "gpu-clocks.service"}

    back = invoke("rollback", *words(tmp_path)[:4], "--yes", "--to", taken["run"], "--tags", "files,units,limits")
    assert back.returncode == 0, back.stdout + back.stderr
    assert state() == before
