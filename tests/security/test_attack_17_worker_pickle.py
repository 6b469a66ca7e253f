"""Attack 17: a worker's answer runs code in the controller. Answers are JSON texts that are checked; workers are
reached over TLS."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rigwright.checks import Finding
from rigwright.cli import on_workers
from rigwright.core import errors
from rigwright.core.errors import RigwrightError, UsageError
from rigwright.engine.report import HostReport
from rigwright.fleet import dask_workers
from rigwright.inventory.model import Host
from tests.cli import workers_here
from tests.cli.run_command import run_command
from tests.fleet import fake_fleet
from tests.paths import ROOT

HOST = Host("one", ("all",), {"ansible_user": "ada", "ansible_port": 22}, "hosts.yml:2")


class Bomb:
    """A pickle that makes a file when it is read."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Path]]:
        return Path.touch, (self.file,)


def of_host(**changed: Any) -> Callable[[str], str]:
    """Returns a worker whose document has these values of the host `two`."""
    return with_host(lambda host: host.update(changed))


def with_host(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    """Returns a worker whose part of a document about the host `two` is changed by a function."""

    def answer(text: str) -> str:
        document = json.loads(text)
        change(document["hosts"]["two"])
        return json.dumps(document)

    return answer


CHANGE = {
    **dict.fromkeys(("step", "action", "subject", "before", "after", "leads_to"), ""), "disruptive": False, "done": True
}  # fmt: skip
OF_ONE_HOST: Mapping[str, Callable[[str], str]] = {
    "no status": of_host(status="fine"),
    "another key": of_host(more=1),
    "a missing key": with_host(lambda host: host.pop("seconds")),
    "no error": of_host(error={"where": "", "found": "", "expected": ""}),
    "an error that is none": of_host(error=["x"]),
    "an error without its exit code": of_host(error=dict.fromkeys(("where", "found", "expected", "fix"), "")),
    "a finding of another type": of_host(findings=[{"check": 7}]),
    "a finding with another verdict": of_host(findings=[dict.fromkeys(Finding.__struct_fields__, "x")]),
    "a change without a step": of_host(changes=[{**CHANGE, "step": None}]),
    "a step that is none": of_host(steps=["x"]),
    "no list": of_host(changes={}),
    "no machine": of_host(machine="x"),
    "an output that is none": of_host(ran={"code": 0}),
}


@pytest.mark.parametrize("answer", OF_ONE_HOST.values(), ids=OF_ONE_HOST)
def test_an_answer_that_is_no_report_is_the_error_of_its_host(
    answer: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = planned(answer, tmp_path, monkeypatch)
    assert [host["status"] for host in hosts.values()] == ["pending", "failed", "pending"]
    found = hosts["two"]["error"]["found"]
    assert found.startswith("the worker's answer is no report of this host: ")
    assert len(found) < 300


OF_A_SLICE: Mapping[str, Callable[[str], object]] = {
    "an object": lambda _text: HostReport(HOST, "ok"),
    "bytes": lambda text: text.encode(),
    "nothing": lambda _text: None,
    "empty": lambda _text: "",
    "no JSON": lambda text: f"x{text}",
    "another document": lambda _text: '{"hosts": {}}',
    "no hosts": lambda text: json.dumps({**json.loads(text), "hosts": []}),
    "no result": lambda text: json.dumps({**json.loads(text), "slice": {"text": 7}}),
    "too deep": lambda _text: "[" * 100_000 + "]" * 100_000,
    "no number": lambda text: re.sub(r'"round_trips": \d+', '"round_trips": NaN', text, count=1),
    "half a character": lambda text: text.replace('"simulated": ""', r'"simulated": "\\\ud800"', 1),
    "a failure": lambda _text: json.dumps({"failed": "no memory\x1b[2J" * 99}),
}


@pytest.mark.parametrize("answer", OF_A_SLICE.values(), ids=OF_A_SLICE)
def test_an_answer_that_is_none_about_the_slice_is_the_error_of_all_its_hosts(
    answer: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = planned(answer, tmp_path, monkeypatch)
    assert {host["status"] for host in hosts.values()} == {"failed"}
    for host in hosts.values():
        assert host["error"]["found"].startswith("the worker that had it gave no answer that can be used (")
        assert len(host["error"]["found"]) < 700


def test_an_answer_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_workers, "LONGEST_ANSWER", 1 << 20)
    hosts = planned(lambda text: text + " " * (2 << 20), tmp_path, monkeypatch)
    assert "2 MiB of text, more than 1 MiB" in hosts["one"]["error"]["found"]


def planned(answer: Callable[[str], object], folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Plans three hosts with a worker whose answer is changed; returns the hosts of the document."""
    fleet = fake_fleet.fleet(folder, patch, "one", "two", "three")
    workers_here.use(folder / "worker", patch).answer = answer
    words = {"inventory": fleet.inventory, "playbook": fleet.playbook, "executor": workers_here.ADDRESS}
    run_command("plan", host="all", json=str(folder / "out.json"), **words)
    hosts: dict[str, Any] = json.loads((folder / "out.json").read_text())["hosts"]
    return hosts


@pytest.mark.parametrize(
    ("options", "found", "fix"),
    [
        ({"executor": "tcp://10.0.0.5:8786"}, "tcp://10.0.0.5:8786 has no TLS", "or add --insecure"),
        ({"executor": "tls://10.0.0.5:8786", "insecure": True}, "--insecure: is for tcp://", "leave --insecure out"),
        ({"insecure": True}, "--insecure: is for --executor, which is not given", ""),
    ],
)
def test_workers_without_tls_need_a_word(
    options: dict[str, Any], found: str, fix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hosts.yml").write_text("all:\n  hosts: {one: }\n")
    assert run_command("facts", inventory=str(tmp_path / "hosts.yml"), **options) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert found in shown
    assert fix in shown


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((), "needs certificates; not set: DASK_DISTRIBUTED__COMM__TLS__CA_FILE, "
             "DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT"),
        (("ca-file",), "needs certificates; not set: DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT"),
        (("ca-file", "client.cert", "client.key"),
         "none.pem, which DASK_DISTRIBUTED__COMM__TLS__CA_FILE names, cannot be read"),
        (("ca-file=x", "client.cert=x", "client.key=x"), "the certificates of tls:// cannot be used (SSLError"),
    ],
)  # fmt: skip
def test_tls_without_certificates_says_what_is_missing(given: tuple[str, ...], found: str, tmp_path: Path) -> None:
    import dask

    (tmp_path / "x").write_text("no certificate")
    settings = {
        f"distributed.comm.tls.{name}": str(tmp_path / (file or "none.pem"))
        for name, _, file in (word.partition("=") for word in given)
    }
    with (
        dask.config.set(settings),
        pytest.raises(UsageError) as caught,
        dask_workers.connect("tls://127.0.0.1:1"),
    ):
        pass
    assert found in caught.value.found
    assert "docs/guide/rollouts.md" in caught.value.fix


PAGE = (ROOT / "docs" / "guide" / "rollouts.md").read_text(encoding="utf-8")


@contextmanager
def tls_cluster(folder: Path) -> Iterator[str]:
    """Yields the address of a scheduler with one worker, with the certificates and settings that docs/guide/rollouts.md
    makes."""
    block = re.search(r"( +umask 077\n(?: +.*\n)+)", PAGE)
    assert block
    subprocess.run(["sh", "-ec", block[1]], cwd=folder, check=True, capture_output=True)
    settings = "\n".join(re.findall(r"^ +(export .*)$", PAGE, re.MULTILINE))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tls://127.0.0.1:{free.getsockname()[1]}"
    dask, port = f"exec {sys.executable} -m dask", address.rpartition(":")[2]
    commands = (
        f"{dask} scheduler --protocol tls --no-dashboard --host 127.0.0.1 --port {port}",
        f"{dask} worker {address} --nthreads 2 --no-nanny --no-dashboard --host 127.0.0.1",
    )
    with (folder / "log").open("wb") as log:
        environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
        processes = [
            subprocess.Popen(
                ["sh", "-c", f"{settings}\n{command}"], cwd=folder, env=environment, stdout=log, stderr=log
            )
            for command in commands
        ]
        try:
            yield address
        finally:
            for process in processes:
                process.kill()
                process.wait(10)


def client_settings(folder: Path) -> dict[str, str]:
    """Returns the settings of a client with the certificates in a folder."""
    names = {"ca-file": "ca.pem", "client.cert": "client.pem", "client.key": "client.key"}
    return {f"distributed.comm.tls.{name}": str(folder / file) for name, file in names.items()}


def bomb(file: str) -> Any:
    """A hostile worker's answer."""
    return Bomb(Path(file))


def test_tls_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work goes to a worker over TLS and its answer comes back; a result that is a pickle is not read; others get no
    connection."""
    import dask

    ours, others = tmp_path / "ours", tmp_path / "others"
    ours.mkdir()
    others.mkdir()
    exploded = tmp_path / "exploded"
    with tls_cluster(ours) as address, dask.config.set(client_settings(ours)):
        until = time.monotonic() + 60
        while True:
            try:
                with dask_workers.connect(address) as workers:
                    assert workers.submit(dask_workers.sources).result(timeout=60) == dask_workers.sources()
                    refused = workers.submit(bomb, str(exploded))
                    with pytest.raises(Exception, match="only able to deserialize"):
                        refused.result(timeout=30)
                break
            except RigwrightError:
                assert time.monotonic() < until, (ours / "log").read_text()
                time.sleep(0.2)
        assert not exploded.exists()

        monkeypatch.setattr(dask_workers, "CONNECT_S", 2)
        block = re.search(r"( +umask 077\n(?: +.*\n)+)", PAGE)
        assert block
        subprocess.run(["sh", "-ec", block[1]], cwd=others, check=True, capture_output=True)
        for settings in (
            client_settings(others),
            client_settings(ours) | {"distributed.comm.tls.ca-file": str(others / "ca.pem")},
        ):
            with (
                dask.config.set(settings),
                pytest.raises(errors.Unreachable, match="no Dask scheduler answers"),
                dask_workers.connect(address),
            ):
                pass
