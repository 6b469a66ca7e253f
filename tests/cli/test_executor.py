"""Every command with `--executor`: only the workers connect to hosts, also when something fails."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pynvml
import pytest

from rigwright.cli import slice_command
from rigwright.core.command import Command, Result
from rigwright.facts import files, pci
from rigwright.facts.gpu import gpus as gpu
from rigwright.operations import limits
from tests import nvidia_smi
from tests.cli import workers_here
from tests.cli.run_command import run_command
from tests.cli.workers_here import ADDRESS
from tests.fleet import fake_fleet
from tests.fleet.fake_fleet import Answering, Fleet
from tests.paths import ROOT
from tests.test_cases import file_on_host

UUID = "GPU-5a1c00%s-0001-4000-8000-0000000000a0"
PLAY = """- name: Limits
  hosts: all
  tasks:
    - name: Limits in force
      limits.applied: {limits: {power_limit_w: 200}}
  checks:
    - name: GPUs answer
      gpu.answering: {}
"""


@pytest.fixture
def asked_by(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Returns who sent a command to a host: a worker or the controller."""
    found: set[str] = set()
    run = Answering.run

    def noted(self: Answering, cmds: Sequence[Command], *, together: bool = False) -> list[Result]:
        found.add("worker" if slice_command.here else "controller")
        return run(self, cmds, together=together)

    monkeypatch.setattr(Answering, "run", noted)
    return found


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Returns hosts with a GPU at 300 W, and workers for them; setting the power limit fails on the last host."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = fake_fleet.fleet(tmp_path, monkeypatch, "gpu01", "gpu02", "gpu03")
    made.broken = {"gpu03"}
    (tmp_path / "play.yml").write_text(PLAY)
    usual = made.answer
    config = {"gpus": [{"match": {}, "power_limit_w": 200}]}
    content = {
        limits.PROGRAM: ((ROOT / "onhost/gpu_limits.py").read_bytes(), "755"),
        limits.PYNVML: (Path(str(pynvml.__file__)).read_bytes(), "644"),
        limits.CONFIG: (json.dumps(config, indent=2, sort_keys=True).encode() + b"\n", "644"),
    }
    kept = {files.file(path).command: file_on_host(*given) for path, given in content.items()}

    def answer(name: str, cmd: Command) -> Result:
        watts = 200 if name in made.made else 300
        row = (
            f"0, {UUID % name[-2:]}, 00000000:06:00.0, Tesla V100-SXM2-16GB, Enabled, {watts}.00, 150.00, 300.00, "
            "300.00, 877, 1312, 877, 1312\n"
        )
        said: dict[Command, str] = {
            gpu.gpus.command: nvidia_smi.xml("gpu.gpus", row),
            pci.gpus.command: "0000:06:00.0 0x030200 1db1 nvidia\n",
            gpu.locked.command: "b1 -\n",
        }
        if cmd in said:
            return Result(0, said[cmd].encode())
        if cmd in kept:
            return kept[cmd]
        if "apply" in cmd.argv:
            if name in made.broken:
                return Result(1, b"", b"E: the power limit cannot be set")
            made.made.append(name)
        return usual(name, cmd)

    monkeypatch.setattr(made, "answer", answer)
    workers_here.use(tmp_path, monkeypatch)
    return made


def run(gpus: Fleet, command: str, **words: Any) -> tuple[int, dict[str, Any]]:
    """Runs a command; returns the exit code and the hosts of the JSON document."""
    file = gpus.folder / "out.json"
    given = {"host": "gpu", "inventory": gpus.inventory, "json": str(file), "executor": ADDRESS, **words}
    return run_command(command, **given), json.loads(file.read_text())["hosts"]


COMMANDS: dict[str, dict[str, Any]] = {
    "plan": {},
    "provision": {"yes": True, "serial": "100%", "max_fail": "3"},
    "verify": {"quick": True},
    "accept": {"quick": True},
    "facts": {"playbook": None},
    "limits": {},
    "gpus.choose": {"count": "1", "playbook": None},
    "remove": {"yes": True},
    "rollback": {"list": True, "playbook": None},
    "fleet.check": {},
    "fleet.report": {},
    "fleet.run": {"cmd": "true", "playbook": None},
}


@pytest.mark.parametrize("command", COMMANDS)
def test_text_and_document_are_those_of_the_command_without_workers(
    command: str,
    gpus: Fleet,
    asked_by: set[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One slice; gpu01 is as expected, gpu02 does not answer, and setting the power limit of gpu03 fails."""
    monkeypatch.setenv("COLUMNS", "160")
    gpus.away = {"gpu02"}
    words = {"playbook": gpus.playbook, **COMMANDS[command]}
    words = {name: value for name, value in words.items() if value is not None}
    found = []
    for executor in ("", ADDRESS):
        monkeypatch.setenv("RIGWRIGHT_HISTORY", str(gpus.folder / f"history{len(found)}.sqlite"))
        gpus.made = ["gpu01"]
        asked_by.clear()
        code, hosts = run(gpus, command, executor=executor, **words)
        for host in hosts.values():
            for key in ("seconds", "connecting_s", "asking_s", "events"):
                del host[key]
            if host["fleet"]:
                del host["fleet"]["readings"]
        lines = re.sub(r"[0-9.]+ s\b", "", capsys.readouterr().out).splitlines()
        assert asked_by == {"worker" if executor else "controller"}
        found.append((code, hosts, sorted(line for line in lines if ": failed, " not in line)))
    assert found[0] == found[1]
    assert "the connection was refused" in "\n".join(found[0][2])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"slice": "20"},
            "--slice: is for --executor, which is not given\n  expected: --slice with --executor\n"
            "  fix:      --executor tls://SCHEDULER:8786 --slice 20; to connect from this machine, leave --slice out\n",
        ),
        (
            {"insecure": True},
            "--insecure: is for --executor, which is not given\n  expected: --insecure with --executor\n"
            "  fix:      --executor tcp://SCHEDULER:8786 --insecure; "
            "to connect from this machine, leave --insecure out\n",
        ),
        (
            {"executor": ADDRESS, "slice": "some"},
            "--slice: 'some' is no number of hosts\n  expected: a whole number from 1 to 999999\n"
            "  fix:      --slice 100\n",
        ),
    ],
)
def test_an_option_that_does_not_fit_says_what_to_type(
    options: dict[str, Any],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    workers_here.use(tmp_path, monkeypatch)
    fleet = fake_fleet.fleet(tmp_path, monkeypatch, "gpu1")
    assert run_command("facts", host="all", inventory=fleet.inventory, **options) == 1
    assert "".join(capsys.readouterr()) == f"error {said}"
    assert fleet.connected == []
