"""The training environment on a servbadge, from an index on the host with a stand-in for torch: made once, proved,
refused, removed; and `train.smoke`."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.power import switch
from tests.end_to_end.conftest import training
from tests.end_to_end.rw import document, inventory, invoke
from tests.end_to_end.test_rigs import Server, server_with_driver
from tests.paths import ROOT

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(900)]

NAME, RIG = "t-training", "servbadge"
ONLY = ["--playbook", "train", "--tags", "training"]
"""The host has a driver, but not what else provision.yml makes."""
VERSION = "2.7.1"
STAND_IN = ROOT / "tests" / "stand_ins" / "torch"
TORCHRUN = '''"""Of the stand-in: ranks that trained well."""
import json, os, sys

words = dict(word.split("=", 1) for word in sys.argv[1:] if word.startswith("--") and "=" in word)
nodes, own = int(words.get("--nnodes", 1)), int(words["--nproc_per_node"])
folder, number = sys.argv[sys.argv.index("--write") + 1], 0
if nodes > 1:
    assert os.environ["NCCL_SOCKET_IFNAME"] == "=eth0" and words["--rdzv_backend"] == "c10d"
    number = json.load(open(os.path.join(os.path.dirname(__file__), "addresses.json"))).index(words["--local_addr"])
world = nodes * own
for rank in range(number * own, (number + 1) * own):
    found = dict(rank=rank, world=world, stage="done", device="Tesla V100-SXM2-16GB", capability="7.0",
                 precision="fp16", backend="nccl")
    found.update(torch="2.7.1", steps=100, batch=1024, seconds=5.0, samples_s=world * (810.0 if nodes > 1 else 900.0),
                 loss_first=1.0, loss_last=0.2, weights="ab" * 32)
    with open(os.path.join(folder, "rank.%d" % rank), "w") as file:
        json.dump(dict(found, error=None), file)
'''


def wheel(folder: Path, gpus: int, torchrun: str = TORCHRUN) -> str:
    """Writes a wheel of the stand-in for so many V100, and returns its line of a requirements file."""
    said = json.dumps({"version": VERSION, "gpus": [["Tesla V100-SXM2-16GB", 7, 0]] * gpus, "flags": "sm_60 sm_70"})
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"torch-{VERSION}-py3-none-any.whl"
    files = {f"torch/{file.relative_to(STAND_IN)}": file.read_text() for file in sorted(STAND_IN.rglob("*.py"))}
    files["torch/__init__.py"] = files["torch/__init__.py"].replace(
        'os.environ.get("TORCH_STAND_IN", "{}")', repr(said)
    )
    files["torch/distributed/run.py"] = torchrun
    about = f"torch-{VERSION}.dist-info"
    files[f"{about}/METADATA"] = f"Metadata-Version: 2.1\nName: torch\nVersion: {VERSION}\n"
    files[f"{about}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in files) + f"{about}/RECORD,,\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), text)
    return f"torch=={VERSION} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture(scope="module")
def host(snapshots: Path, lab_root: None) -> Iterator[Server]:  # noqa: ARG001
    """Yields a host with the driver loaded, and on it an index with the stand-in, and a lock."""
    with server_with_driver(NAME, RIG, snapshots) as server:
        server.has_the_driver()
        root = switch.get(NAME).root
        line = wheel(root / "srv/index/simple/torch", len(server.described["gpus"]))
        (root / "srv/lock.txt").write_text(line)
        server.does(
            "sudo systemd-run -q --unit=index python3 -m http.server --bind 127.0.0.1 --directory /srv/index 8099; "
            "sleep 2"
        )
        yield server


def words(folder: Path, **keys: Any) -> list[str]:
    """The words for a run with this training environment in the inventory."""
    wanted = {"owner": "ubuntu", "lock": "/srv/lock.txt", "index": "http://127.0.0.1:8099/simple", **keys}
    variables = {"training": {key: value for key, value in wanted.items() if value is not None}}
    return ["--host", NAME, "--inventory", inventory(folder, **{NAME: variables})]


def changes(found: dict[str, Any]) -> list[str]:
    """The subjects of the changes of the host's steps."""
    return [change["subject"] for change in found["hosts"][NAME]["changes"]]


def test_from_the_first_plan_to_the_removal(host: Server, tmp_path: Path) -> None:
    given = [*words(tmp_path / "good"), *ONLY]
    for key, value, said in (
        ("index", "http://127.0.0.1:9/simple", "pip gets nothing from the index http://127.0.0.1:9/simple"),
        ("owner", "nobody-here", "the host has no user nobody-here"),
        ("path", "/srv/index", "rigwright did not make it"),
        ("lock", "/srv/none", "the host has no file /srv/none"),
    ):
        refused = invoke("plan", *words(tmp_path / key, **{key: value}), *ONLY)
        assert refused.returncode != 0
        assert said in " ".join((refused.stdout + refused.stderr).split()), refused.stdout + refused.stderr
    assert host.does("ls /opt /var/lib/rigwright/training 2>&1 || :").count("train") <= 1

    host.does("sudo apt-get -qq -y purge 'python3*-venv' >/dev/null")
    first = document("provision", *given, "--yes", deadline=400)
    assert changes(first) == ["python3-venv", "/opt/train"], first["hosts"][NAME]
    assert first["exit_code"] == 0, first["hosts"][NAME]["findings"]
    proved = [one for one in first["hosts"][NAME]["findings"] if one["check"] == "training.works"]
    assert [one["verdict"] for one in proved] == ["pass"]
    assert f"torch {VERSION}" in proved[0]["seen"]
    assert host.does("find /opt/train ! -user ubuntu").strip() == ""
    assert host.does("/opt/train/bin/python -c 'import torch; print(torch.__version__)'").strip() == VERSION

    assert changes(document("provision", *given, "--yes")) == []
    host.does("sudo rm /opt/train/.rigwright")
    assert changes(document("plan", *given)) == ["/opt/train"]
    assert changes(document("provision", *given, "--yes", deadline=400)) == ["/opt/train"]

    with training(NAME):
        busy = invoke("train.smoke", *words(tmp_path / "good"), "--seconds", "6", "--yes")
        assert busy.returncode != 0
        assert "the training takes all GPUs" in " ".join((busy.stdout + busy.stderr).split())
    for earlier in (False, True):
        smoke = document("train.smoke", *words(tmp_path / "good"), "--seconds", "6", "--yes", deadline=400)
        assert smoke["exit_code"] == 0, smoke["hosts"][NAME]["findings"]
        shown = [one["seen"] for one in smoke["hosts"][NAME]["findings"] if one["check"] == "training_smoke.speed"]
        assert all(("samples/s in fp16" in one) and ((" on 20" in one) == earlier) for one in shown), shown
        assert smoke["hosts"][NAME]["smoke"]["user"] == "ubuntu"
    assert host.does("ls -d /run/rigwright-p2p /var/lib/rigwright/recordings/* 2>/dev/null || :").strip() == ""

    removed = invoke("remove", "--host", NAME, "--inventory", given[3], "--yes")
    assert removed.returncode == 0, removed.stdout + removed.stderr
    assert host.does("ls -d /opt/train /var/lib/rigwright/training 2>/dev/null || :").strip() == ""


def test_a_folder_of_wheels_needs_no_network(host: Server, tmp_path: Path) -> None:
    given = words(tmp_path, index=None, wheels="/srv/index/simple/torch", path="/opt/offline", owner="root")
    first = document("provision", *given, *ONLY, "--yes", deadline=400)
    assert changes(first)[-1] == "/opt/offline", first
    assert host.does("sudo /opt/offline/bin/python -c 'import torch; print(torch.__version__)'").strip() == VERSION
    assert changes(document("provision", *given, *ONLY, "--yes")) == []
