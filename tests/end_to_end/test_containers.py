"""Containers on a host with Debian's real podman and docker: the toolkit is pinned, the CDI specification is true, each
GPU is seen from a container.

The toolkit's programs and the GPUs are the lab's; podman, crun, conmon, dockerd and containerd are Debian's own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.archive import engines
from lab.base.paths import CACHE
from lab.base.programs import run
from lab.cli import commands
from lab.faults import inject
from lab.power import switch
from tests.end_to_end.conftest import reboot, ssh
from tests.end_to_end.rw import document, inventory, invoke, not_as_wanted

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(1800)]

NAME, RIG, GPUS = "t-containers", "rig-3090", 3
WANTED: dict[str, Any] = {
    "driver": {"branch": "580"},
    "cuda": None,
    "p2p_wheels": "none",
    "containers": {"engine": "podman"},
}
TRAIN = ["--playbook", "train"]
RELOAD = """
for module in nvidia_drm nvidia_modeset nvidia_uvm nvidia; do
  [ ! -d "/sys/module/$module" ] || sudo modprobe -r "$module"; done
sudo modprobe nvidia && sudo modprobe nvidia-uvm
"""


@pytest.fixture(scope="module")
def words(lab_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:  # noqa: ARG001
    """Yields the words for a run with `containers` in the inventory, on an empty disk."""
    commands.down(name=NAME, say=print)
    try:
        commands.up(name=NAME, rig=RIG, distro="ubuntu2404", say=print)
        yield ["--host", NAME, "--inventory", inventory(tmp_path_factory.mktemp("containers"), **{NAME: WANTED})]
    finally:
        commands.down(name=NAME, say=print)


def findings(found: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The findings of the checks of containers, by subject."""
    return {one["subject"]: one for one in found["hosts"][NAME]["findings"] if one["check"].startswith("containers.")}


def specification() -> str:
    return ssh(NAME, "cat /var/run/cdi/nvidia.yaml").stdout


def test_from_podman_to_the_removal(words: list[str], tmp_path: Path) -> None:
    a_driver_change_makes_the_specification_stale_and_it_is_mended(words)
    docker_beside_podman_keeps_its_settings(tmp_path)
    what_stands_in_the_way_is_named_before_the_first_change(tmp_path)
    remove_takes_away_source_pin_and_holds(words)


def a_driver_change_makes_the_specification_stale_and_it_is_mended(words: list[str]) -> None:
    done = document("provision", *TRAIN, *words, "--yes")
    assert findings(done)["podman container"]["seen"] == f"starts on each of {GPUS} GPUs and lists it", not_as_wanted(
        done
    )
    assert {one["verdict"] for one in findings(done).values()} == {"pass"}
    again = document("provision", *TRAIN, *words, "--yes")
    assert again["hosts"][NAME]["changes"] == []
    left = ssh(NAME, "ls -d /var/tmp/rigwright-smoke* 2>/dev/null; sudo podman ps -aq")
    assert left.stdout == ""

    inject.fault(NAME, "library-moved", "", print)
    moved = findings(document("verify", *TRAIN, *words, "--tags", "containers"))["CDI specification"]
    assert (moved["verdict"], moved["symptom"]) == ("fail", "container.cdi_outdated")
    assert "libcuda.so.580.178.04" in moved["seen"]
    assert "which is not there" in moved["seen"]
    early = document("provision", *TRAIN, *words, "--yes", "--tags", "containers")
    assert "its libraries are 580.179.01" in json.dumps(early)
    assert early["hosts"][NAME]["changes"] == []

    assert ssh(NAME, RELOAD).returncode == 0
    stale = findings(document("verify", *TRAIN, *words, "--tags", "containers"))
    assert (
        stale["CDI specification"]["seen"]
        == "/var/run/cdi/nvidia.yaml names driver 580.178.04, and 580.179.01 is loaded"
    )
    assert stale["podman container with GPU 0"]["symptom"] == "container.cdi_outdated"
    mended = document("provision", *TRAIN, *words, "--yes", "--tags", "containers")
    assert [change["subject"] for change in mended["hosts"][NAME]["changes"]] == ["/var/run/cdi/nvidia.yaml"]
    assert {one["verdict"] for one in findings(mended).values()} == {"pass"}, not_as_wanted(mended)
    assert "libcuda.so.580.179.01" in specification()
    assert "580.178.04" not in specification()

    reboot(NAME)
    booted = findings(document("verify", *TRAIN, *words, "--tags", "containers"))
    assert {one["verdict"] for one in booted.values()} == {"pass"}, booted


DAEMON = {
    "storage-driver": "vfs",
    "iptables": False,
    "ip6tables": False,
    "bridge": "none",
    "exec-opts": ["native.cgroupdriver=cgroupfs"],
    "log-driver": "json-file",
}
"""What docker needs on a host that is itself a container; to rigwright they are settings of others."""


def docker_beside_podman_keeps_its_settings(tmp_path: Path) -> None:
    folder = switch.get(NAME).root / "srv/docker"
    folder.mkdir()
    for deb in engines.engines(CACHE, engines.DOCKER):
        shutil.copy(deb, folder)
    (folder / "Packages").write_text(run(["env", "-C", folder, "apt-ftparchive", "packages", "."]).stdout)
    source = "deb [trusted=yes] file:/srv/docker ./"
    ssh(
        NAME,
        f"echo '{source}' | sudo tee /etc/apt/sources.list.d/docker.list; sudo apt-get -qq update; "
        "sudo mkdir -p /etc/docker",
    )
    ssh(NAME, f"echo '{json.dumps(DAEMON)}' | sudo tee /etc/docker/daemon.json >/dev/null")
    wanted = {**WANTED, "containers": {"engine": "both"}}
    both = ["--host", NAME, "--inventory", inventory(tmp_path, **{NAME: wanted}), "--tags", "containers"]
    done = document("provision", *TRAIN, *both, "--yes")
    assert {one["verdict"] for one in findings(done).values()} == {"pass"}, not_as_wanted(done)
    assert findings(done)["docker container"]["seen"] == f"starts on each of {GPUS} GPUs and lists it"
    assert findings(done)["podman container"]["seen"] == f"starts on each of {GPUS} GPUs and lists it"
    after = json.loads(ssh(NAME, "cat /etc/docker/daemon.json").stdout)
    assert after.pop("runtimes") == {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}
    assert after == DAEMON
    assert document("provision", *TRAIN, *both, "--yes")["hosts"][NAME]["changes"] == []
    assert "rigwright-smoke" not in ssh(NAME, "sudo docker images; sudo docker ps -a; ls /var/tmp").stdout


def what_stands_in_the_way_is_named_before_the_first_change(tmp_path: Path) -> None:
    def planned(**containers: str) -> str:
        path = inventory(tmp_path, **{NAME: {**WANTED, "containers": {"engine": "podman", **containers}}})
        done = invoke("plan", *TRAIN, "--host", NAME, "--inventory", path, "--tags", "containers")
        return " ".join((done.stdout + done.stderr).split())

    assert "no source has release 1.2.3 of NVIDIA Container Toolkit" in planned(toolkit="1.2.3")
    ssh(NAME, "sudo cp /etc/docker/daemon.json /var/tmp/kept; echo '{,' | sudo tee /etc/docker/daemon.json >/dev/null")
    assert "/etc/docker/daemon.json:1: no JSON" in planned(engine="both")
    ssh(NAME, "sudo mv /var/tmp/kept /etc/docker/daemon.json; sudo cp /var/run/cdi/nvidia.yaml /var/run/cdi/copy.yaml")
    assert "/var/run/cdi/copy.yaml and /var/run/cdi/nvidia.yaml both define nvidia.com/gpu=0" in planned()
    ssh(NAME, "sudo rm /var/run/cdi/copy.yaml")


def remove_takes_away_source_pin_and_holds(words: list[str]) -> None:
    removed = invoke("remove", *words, "--yes")
    assert removed.returncode == 0, removed.stdout + removed.stderr
    left = ssh(NAME, "ls /etc/apt/preferences.d /etc/apt/sources.list.d /usr/share/keyrings; apt-mark showhold")
    assert "container" not in left.stdout
    assert ssh(NAME, "nvidia-ctk --version").returncode == 0
    assert json.loads(ssh(NAME, "cat /etc/docker/daemon.json").stdout) == DAEMON
    assert "nvidia" not in ssh(NAME, "sudo docker info --format '{{json .Runtimes}}'").stdout
