"""scripts/bench --swarm: 200 endpoints that speak SSH, of which some fail. Every host ends with one verdict: the one of
its failure.

The recording is made of this machine, with the playbook that rigwright brings, which reads a hundred facts; so the test
needs neither a simulated host nor a GPU. Every endpoint is then a host that differs from its playbook, as this machine
does. A host that hangs in a command is left out: its deadline is longer than that of this test (`stuck` of
scripts/bench).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lab.bench import swarm, swarm_workers
from rigwright.history import History
from tests.machine_speed import within
from tests.paths import ROOT

COUNT, SEED = 200, 7
SHARES = {kind: share for kind, share in swarm.SHARES.items() if kind != "stuck"}
VARIABLES = {"rig": "servbadge", "driver": {"branch": "535", "source": "distribution"}, "p2p_wheels": "none"}
DEADLINE_S = 60.0
MOST_CPU_S, MOST_MIB = 0.035, 130.0
"""Processor time of a host, and memory of the controller: before equal answers were parsed once, 0.041 s and 149
MiB."""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> swarm.Swarm:
    """Returns the endpoints, which answer as this machine did to fleet.check."""
    folder = tmp_path_factory.mktemp("swarm")
    recording = folder / "recording"
    here = {"hosts": {"here": {"ansible_connection": "local", **VARIABLES}}}
    (folder / "hosts.yml").write_text(json.dumps({"all": {"children": {"gpu": here}}}))
    words = ("fleet.check", "--inventory", str(folder / "hosts.yml"), "--host", "here", "--json", str(folder / "one"))
    own = {"RIGWRIGHT_HISTORY": str(folder / "one.sqlite"), "XDG_STATE_HOME": str(folder / "state")}
    argv = [sys.executable, "-m", "lab.bench.swarm_recording", str(recording), *words]
    environment = {**os.environ, **own}
    done = subprocess.run(argv, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=False, timeout=120)
    assert done.returncode in (0, 2)
    return swarm.prepare(folder, recording, COUNT, SEED, VARIABLES, SHARES)


@pytest.mark.timeout(240)
def test_200_endpoints_end_with_their_verdicts(hosts: swarm.Swarm) -> None:
    with swarm.endpoints(hosts) as missing:
        run = swarm.measured(hosts, ("fleet.check",))
    assert (missing, swarm.wrong(hosts, run)) == ([], [])
    assert Counter(hosts.kinds.values()) == {"ok": 192, "away": 4, "silent": 1, "wrong key": 2, "flood": 1}
    assert swarm.verdicts(hosts, run).total() == COUNT
    assert run.wall_s < DEADLINE_S
    assert run.peak_mib < MOST_MIB
    assert within(run.cpu_s / COUNT, MOST_CPU_S)
    with History.open(hosts.folder / "history" / "history.sqlite", write=False) as history:
        (recorded,) = history.runs()
    assert Counter(host.name for host in recorded.hosts) == dict.fromkeys(hosts.kinds, 1)


@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_200_endpoints_of_two_workers_end_with_their_verdicts(hosts: swarm.Swarm, tmp_path: Path) -> None:
    """Also when the history has all of them: a slice then takes little more, because it has the machines of the history
    once."""
    with swarm_workers.running(2, 50, tmp_path / "workers") as workers:
        runs = []
        for forget in (True, False):
            with swarm.endpoints(hosts) as missing:
                runs.append(swarm.measured(hosts, ("fleet.check",), forget=forget, workers=workers))
            assert (missing, swarm.wrong(hosts, runs[-1])) == ([], [])
    first, again = runs
    assert first.workers_cpu_s > 1
    assert again.cpu_s + again.workers_cpu_s < 2 * (first.cpu_s + first.workers_cpu_s)


def test_a_lost_host_and_a_wrong_verdict_are_found(tmp_path: Path) -> None:
    hosts = swarm.Swarm(tmp_path, {"a": "ok", "b": "away", "c": "flood", "d": "ok", "e": "ok", "swarm-real1": "ok"})
    error = {"found": "the host key has changed"}
    same = {"status": "ok", "error": None, "kept": {"fact": 1}}
    said = {"a": same, "b": {"status": "unreachable", "error": error}, "d": same, "e": {**same, "kept": {}}}
    said["swarm-real1"] = {
        **same,
        "changes": [{"subject": "/etc/fstab", "done": True}, {"subject": "b", "done": False}],
    }
    run = swarm.Run(3, 1.0, 1.0, 50.0, said)
    assert [line.split(":")[0] for line in swarm.wrong(hosts, run)] == ["b (away)", "c", "e", "swarm-real1"]
