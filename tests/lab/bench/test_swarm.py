"""scripts/bench --swarm: 200 endpoints that speak SSH, of which some fail. Every host ends with one verdict: the one of its failure.

The recording is made of this machine, with a playbook that only reads here, so the test needs neither root nor a simulated host.
A host that hangs in a command is left out: its deadline is longer than that of this test (`stuck` of scripts/bench).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lab.bench import swarm, swarm_recording
from tests.paths import ROOT

COUNT, SEED = 200, 7
SHARES = {kind: share for kind, share in swarm.SHARES.items() if kind != "stuck"}
PLAYBOOK = """- name: What every machine has
  hosts: all
  tasks:
    - name: Folder
      file.directory: {path: /usr, mode: '0755'}
"""
DEADLINE_S, MOST_MIB = 60.0, 286.0
"""Seconds for one command, and 300 MB: the goal for 1000 hosts."""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> swarm.Swarm:
    """Returns the endpoints, which answer as this machine did to fleet.check."""
    folder = tmp_path_factory.mktemp("swarm")
    (folder / "play.yml").write_text(PLAYBOOK)
    (folder / "hosts.yml").write_text("all: {hosts: {here: {ansible_connection: local}}}\n")
    words = ("fleet.check", "--playbook", str(folder / "play.yml"), "--inventory", str(folder / "hosts.yml"))
    argv = [sys.executable, "-m", "lab.bench.swarm_recording", str(folder / "recording"), *words]
    own = {"RIGWRIGHT_HISTORY": str(folder / "one.sqlite"), "XDG_STATE_HOME": str(folder / "state")}
    argv += ["--host", "here", "--json", str(folder / "one.json")]
    subprocess.run(argv, cwd=ROOT, env={**os.environ, **own}, stdin=subprocess.DEVNULL, check=True, timeout=60)
    return swarm.prepare(folder, folder / "recording", COUNT, SEED, {}, SHARES)


def test_200_endpoints_end_with_their_verdicts(hosts: swarm.Swarm) -> None:
    with swarm.endpoints(hosts) as missing:
        run = swarm.measured(hosts, ("fleet.check", "--playbook", str(hosts.folder / "play.yml")))
    assert (missing, swarm.wrong(hosts, run)) == ([], [])
    assert Counter(hosts.kinds.values()) == {"ok": 192, "away": 4, "silent": 1, "wrong key": 2, "flood": 1}
    assert swarm.verdicts(hosts, run).total() == COUNT
    assert run.wall_s < DEADLINE_S
    assert run.peak_mib < MOST_MIB


def test_a_lost_host_and_a_wrong_verdict_are_found(tmp_path: Path) -> None:
    hosts = swarm.Swarm(tmp_path, {"a": "ok", "b": "away", "c": "flood"})
    error = {"found": "the host key has changed"}
    said = {"a": {"status": "ok", "error": None}, "b": {"status": "unreachable", "error": error}}
    run = swarm.Run(3, 1.0, 1.0, 50.0, said)
    assert [line.split(":")[0] for line in swarm.wrong(hosts, run)] == ["b (away)", "c"]


def test_the_seed_draws_the_failures() -> None:
    assert swarm.drawn(1000, 1) == swarm.drawn(1000, 1) != swarm.drawn(1000, 2)
    assert Counter(swarm.drawn(1000, 3)) == {
        "ok": 955, "away": 20, "silent": 5, "stuck": 5, "wrong key": 10, "flood": 5,
    }  # fmt: skip


def test_an_endpoint_has_its_own_identifiers() -> None:
    uuid = b"GPU-12345678-1234-1234-1234-123456789abc"
    one, two = swarm_recording.of_endpoint(1, uuid), swarm_recording.of_endpoint(2, uuid)
    assert one != two
    assert len(one) == len(uuid)
    assert swarm_recording.identifiers([one]) == (one,)
