"""The comparison of a report with earlier ones: changes, new and resolved findings, temperatures; without a host."""

from __future__ import annotations

import datetime
import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rigwright.checks import Finding
from rigwright.cli import fleet_check
from rigwright.cli.fleet_check import RecordedIds
from rigwright.core.errors import Unreachable
from rigwright.engine.host_run import HostRun
from rigwright.engine.machine import MachineResult
from rigwright.features.fleet_report import changes as table, command as fleet_report
from rigwright.features.fleet_report.changes import ComparisonResult
from rigwright.history import History
from rigwright.inventory.model import Host
from rigwright.report import json_document
from rigwright.report.terminal import Text
from tests import reports
from tests.cli.run_command import run_command
from tests.history.test_history import closed, play  # noqa: F401 (a fixture)
from tests.host_runs import host_run

UUID = "GPU-531aad71-f770-5c03-820a-409c03f38c12"
THIRD = "GPU-12345678-f770-5c03-820a-409c03f38c12"
OTHER = "GPU-0badcafe-f770-5c03-820a-409c03f38c12"
WARN = Finding("Xids", "warn", "3 x Xid 79 since boot", check="health.xids")
FAIL = Finding("Driver held: hold", "fail", "free to move", "held", check="plan")
MOVED = Finding(UUID[:12], "fail", "missing", check="fleet.gpus")


def a_host(name: str, kernel: str = "5.15", uuid: str = UUID, *findings: Finding, **more: Any) -> HostRun:
    """Returns the finished run of a host."""
    host = Host(name, ("gpu",), {"ansible_host": f"192.0.2.{len(name)}"})
    gpu = {"uuid": uuid, "bus_id": "0000:06:00.0", "name": "Tesla V100", "power_limit_w": 200.0}
    release = {"id": "ubuntu", "version_id": "22.04"}
    kept = {"system.running_kernel": kernel, "gpu.gpus": [gpu], "system.os_release": release}
    machine = MachineResult({"gpus": [{"uuid": uuid, "temperature_c": 61, "power_w": 180.0}]})
    report = reports.report(host, machine, **{"status": "ok", "kept": kept, "findings": findings, **more})
    return host_run({}, host=host, report=report)


def remembered(run: str, *work: HostRun, hours: int = 1) -> None:
    """Records a report of these hosts in the history, `hours` ago."""
    at = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=hours)
    hosts, metadata = [one.report for one in work], json_document.RunMetadata(at)
    made = json_document.document("fleet.report", run, 0, None, hosts, metadata)
    made["ended"] = made["started"]
    with History.open() as past:
        past.record(json.loads(json.dumps(made)))


@pytest.fixture(autouse=True)
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the path of a history for this test only."""
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(tmp_path / "history.sqlite"))
    return tmp_path / "history.sqlite"


def over_time(*work: HostRun) -> list[dict[str, Any]]:
    """Returns the part of each report that compares it with earlier ones."""
    fleet_report._over_time(work, SimpleNamespace(), RecordedIds(work))
    return [one.report.last(ComparisonResult).fleet or {} for one in work]


def test_the_first_report() -> None:
    (found,) = over_time(a_host("a", "5.15", UUID, WARN))
    assert (found["answered"], found["since"], found["run"], found["was"]) == (None, None, "", "")
    assert (found["became"], found["new"], found["gone"], found["groups"]) == ([], [], [], ["gpu"])
    assert [row[1:] for row in found["readings"][UUID]] == [[61, 180.0]]
    assert [end["name"] for end in found["ends"]] == ["Ubuntu 22.04 LTS"]
    assert json.dumps(found)


def test_what_became_different_since_the_report_before() -> None:
    remembered("r1", a_host("a", "5.15", UUID, WARN, MOVED), hours=5)
    remembered("r2", a_host("a", "5.15", UUID, WARN, MOVED), a_host("bb", uuid=THIRD), hours=2)
    same, other = over_time(a_host("a", "6.8", OTHER, FAIL), a_host("bb", uuid=THIRD))
    assert same["run"] == "r2"
    assert same["answered"] == same["since"]
    assert [(one["subject"], one["before"], one["after"]) for one in same["became"]] == [
        ("kernel", "5.15", "6.8"),
        ("0000:06:00.0 GPU-0badcafe", "GPU-531aad71", "replaces another"),
        ("0000:06:00.0 GPU-531aad71", "here", "replaced by GPU-0badcafe"),
    ]
    assert [one["subject"] for one in same["new"]] == [FAIL.subject]
    assert [one["subject"] for one in same["gone"]] == [WARN.subject]
    assert other["became"] == other["new"] == other["gone"] == []


def test_a_figure_that_moves_is_no_new_finding() -> None:
    later = Finding("Xids", "warn", "5 x Xid 79 since boot", check="health.xids")
    before = {"check": WARN.check, "subject": WARN.subject, "verdict": "warn", "seen": WARN.seen}
    assert fleet_report.finding_changes([before], [later]) == {"new": [], "gone": []}


def test_what_rigwright_changed_between() -> None:
    remembered("r1", a_host("a"), hours=3)
    made = json_document.document("provision", "r2", 0, None, [a_host("a").report])
    made["hosts"]["a"]["changes"] = [
        {"step": "s", "action": "change", "subject": "hold", "before": "free", "after": "held", "disruptive": False, "leads_to": "", "done": True}
    ]  # fmt: skip
    with History.open() as past:
        past.record(json.loads(json.dumps(made)))
    (found,) = over_time(a_host("a"))
    assert found["became"] == [{"subject": "hold", "before": "free", "after": "held", "run": "r2"}]


def test_a_report_that_was_interrupted_is_none() -> None:
    remembered("r1", a_host("a", "5.15", UUID, WARN), hours=3)
    cut = json_document.document("fleet.report", "r2", 130, None, [a_host("a").report])
    with History.open() as past:
        past.record(json.loads(json.dumps(cut)))
    (found,) = over_time(a_host("a"))
    assert (found["run"], [one["subject"] for one in found["gone"]]) == ("r1", ["Xids"])


def test_readings_of_the_last_days_end_in_those_of_now() -> None:
    for hours in (200, 30, 20):
        remembered(f"r{hours}", a_host("a"), hours=hours)
    (found,) = over_time(a_host("a"))
    times = [row[0] for row in found["readings"][UUID]]
    assert len(times) == 3
    assert times == sorted(times)


def test_a_history_that_is_damaged_leaves_the_rest(history: Path) -> None:
    history.write_bytes(b"no database " * 100)
    warnings: list[str] = []
    work = a_host("a")
    fleet_report._over_time([work], SimpleNamespace(warn=warnings.append), RecordedIds([work]))
    assert "is damaged" in warnings[0]
    found = work.report.last(ComparisonResult).fleet or {}
    assert (found["since"], len(found["readings"]), len(found["ends"])) == (None, 1, 1)


def test_all_machines_of_the_history_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = a_host("gone", uuid=OTHER)
    remembered("r1", a_host("a", "5.14"), gone)
    reads: list[object] = []
    real = History.machines
    monkeypatch.setattr(History, "machines", lambda *words: reads.append(words) or real(*words))
    away = a_host("gone", uuid=OTHER, error=Unreachable("gone", "no answer"))
    moved = a_host("b", uuid=OTHER)
    work = [a_host("a"), moved, away]
    monkeypatch.setattr(fleet_report.fleet_speed, "show", lambda *_: None)  # needs more of a GPU than these have
    fleet_report.compare_and_show(work, Text(sys.stdout, "", True))
    assert len(reads) == 1
    assert [(one.subject, one.seen) for one in work[0].report.findings] == [("kernel", "5.15")]
    (known,) = moved.report.findings
    assert (known.check, known.seen) == ("fleet.gpus", "moved here from gone 0000:06:00.0")


def test_a_history_in_a_folder_with_an_odd_name_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "[" / "red]" / "history.sqlite"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no database " * 100)
    monkeypatch.setenv("RIGWRIGHT_HISTORY", str(path))
    text = Text(sys.stdout, "", True)
    fleet_report._over_time([a_host("a")], text, RecordedIds([a_host("a")]))
    fleet_check.compare([a_host("a")], None, text)
    run_command("history.set-aside")
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"warn nothing is known of the reports before: {path}: is damaged")
    assert said[3].startswith(f"warn nothing is compared with its past: {path}: is damaged")
    assert said[6].startswith(f"It is now {path}.aside-")


report = partial(run_command, "fleet.report")

# The command, with hosts that do not answer


def test_the_files_of_hosts_that_do_not_answer(
    closed: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page, metrics, data = (tmp_path / name for name in ("f.html", "f.prom", "f.json"))
    files = {"html": str(page), "prometheus": str(metrics), "json": str(data)}
    words = {"inventory": str(closed), "playbook": str(play(closed)), **files, "reload": "60"}
    assert report(**words) == report(**words) == 3
    assert "2 machines: 2 unreachable" in page.read_text()
    assert 'rigwright_host_up{host="one"} 0\n' in metrics.read_text()
    made = json.loads(data.read_text())
    assert (made["command"], made["exit_code"]) == ("fleet.report", 3)
    assert made["hosts"]["one"]["fleet"]["was"] == "unreachable"
    assert not list(tmp_path.glob(".*"))
    out = capsys.readouterr().out
    assert "2 unreachable" in out
    assert f"written: {page}, {metrics}, {data}" in out
    assert all("hunter2" not in one.read_text() for one in (page, metrics, data))


def test_a_host_that_was_never_provisioned_is_read_too(closed: Path, tmp_path: Path) -> None:  # noqa: F811
    data = tmp_path / "f.json"
    assert report(inventory=str(closed), json=str(data)) == 3
    hosts = json.loads(data.read_text())["hosts"].values()
    states = {(host["status"], host["error"]["found"]) for host in hosts}
    assert states == {("unreachable", "the connection was refused")}


def test_the_page_is_fleet_html_unless_an_option_names_a_file(
    closed: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    given = {"inventory": str(closed), "playbook": str(play(closed))}
    assert report(**given, prometheus="a.prom") == 3
    assert [one.name for one in Path().iterdir()] == ["a.prom"]
    assert report(**given) == 3
    assert sorted(one.name for one in Path().iterdir()) == ["a.prom", "fleet.html"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"prometheus": "fleet.txt"}, "expected: a file that ends in .prom"),
        ({"prometheus": "/not/there/fleet.prom"}, "the directory /not/there does not exist"),
        ({"html": "/not/there/fleet.html"}, "the directory /not/there does not exist"),
        ({"reload": "soon"}, "--reload 300"),
        ({"reload": "3"}, "a whole number from 10 to 86400"),
        ({"reload": "²"}, "--reload: '²' is no number of seconds"),
        ({"since": "999999d"}, "--since: '999999d' is no time"),
        ({"host": "nobody"}, "nobody"),
    ],
)
def test_a_mistake_costs_no_file(
    closed: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: dict[str, str],
    said: str,
) -> None:
    """The error comes before any connection, and the page and the metrics of the last report stay."""
    monkeypatch.chdir(tmp_path)
    for name in ("fleet.html", "fleet.prom"):
        (tmp_path / name).write_text("the last report")
    given = {"inventory": str(closed), "playbook": str(play(closed)), "html": "fleet.html", "prometheus": "fleet.prom"}
    assert report(**{**given, **words}) == 1
    assert said in "".join(capsys.readouterr())
    assert {(tmp_path / name).read_text() for name in ("fleet.html", "fleet.prom")} == {"the last report"}


def test_it_tells_in_a_line_what_became_different_and_what_ended(capsys: pytest.CaptureFixture[str]) -> None:
    remembered("r1", a_host("a", "5.15", UUID, WARN), hours=3)
    work = [a_host("a", "6.8"), a_host("bb", "6.8")]
    for one in work:
        one.report.kept["driver.loaded_version"] = "470.256.02"
    over_time(*work)
    table.over_time(Text(sys.stdout, "", True).console, [one.report for one in work])
    out = capsys.readouterr().out
    assert "1 change, 0 new findings, 1 gone" in out
    assert "driver 470 ended on 2024-07-20 (2 hosts)" in out
