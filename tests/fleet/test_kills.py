"""The scheduler, a worker and the controller are killed while slices of hosts are changed: every host is changed once,
by its own logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rigwright.fleet import journal
from tests.fleet import disk_hosts, fake_fleet
from tests.fleet.dask_site import Site

pytestmark = pytest.mark.timeout(240)
HOSTS = tuple(f"gpu{number:02}" for number in range(1, 25))


class Folders(Site):
    """A site whose hosts are folders."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 6, **{disk_hosts.PLACE: str(folder / "hosts")})
        (folder / "hosts.yml").write_text("gpu:\n  hosts:\n" + "".join(f"    {name}:\n" for name in HOSTS))
        (folder / "play.yml").write_text(fake_fleet.PLAY)
        for name in HOSTS:
            disk_hosts.DiskHost(folder / "hosts" / name, {})

    def made(self, name: str) -> list[str]:
        """Returns the runs whose command made the host's folder, as the host wrote them down."""
        file = self.folder / "hosts" / name / "state" / "made"
        return file.read_text().split() if file.exists() else []

    def said(self, name: str) -> list[str]:
        """Returns the system log of a host."""
        file = self.folder / "hosts" / name / "state" / "log"
        return file.read_text().splitlines() if file.exists() else []

    def until_made(self, count: int) -> None:
        """Waits until so many hosts have their folder."""
        self.until(lambda: sum(bool(self.made(name)) for name in HOSTS) >= count)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folders]:
    """Yields a scheduler with two workers; the clock of one of them is ten years late."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Folders(tmp_path)
    try:
        made.scheduler()
        made.worker()
        made.worker(-10 * 365 * 86_400)
        made.ready(2)
        yield made
    finally:
        made.close()


def require_once(site: Folders) -> None:
    """Every host was changed once and released, by its own log; the lease's tokens rise."""
    assert {name: len(site.made(name)) for name in HOSTS} == dict.fromkeys(HOSTS, 1)
    for name in HOSTS:
        said = site.said(name)
        assert any("begins the step 'Room'" in line for line in said), said
        tokens = [int(line.rpartition("lease ")[2].rstrip(")")) for line in said if "(lease " in line]
        assert tokens == sorted(set(tokens)), said
        assert sum("all its steps are done" in line for line in said) >= 1, said
        assert not (site.folder / "hosts" / name / "var" / "lease").exists()


@pytest.mark.parametrize(
    "killed", [1, pytest.param(2, marks=pytest.mark.nightly)], ids=["the one with the right clock", "the other one"]
)
def test_a_worker_is_killed(site: Folders, killed: int) -> None:
    controller = site.begin()
    site.until_made(3)
    site.processes[killed].kill()
    code, hosts = site.end_of(controller)
    assert code == 0, site.log
    assert {host["status"] for host in hosts.values()} <= {"changed", "ok"}
    assert sorted(hosts) == list(HOSTS)
    require_once(site)


def test_the_scheduler_is_killed(site: Folders) -> None:
    controller = site.begin()
    site.until_made(3)
    site.processes[0].kill()
    code, hosts = site.end_of(controller)
    assert code == 1
    assert {host["status"] for host in hosts.values()} <= {"changed", "ok", "failed", "not_attempted"}
    assert any("gave no answer" in (host["error"] or {}).get("found", "") for host in hosts.values())
    assert set(journal.last_stopped().pending) >= {name for name, host in hosts.items() if host["status"] == "failed"}
    site.scheduler()
    site.worker()
    site.worker()
    site.ready(2)
    code, hosts = site.end_of(site.provision("--resume"))
    assert code == 0, site.log
    require_once(site)


def test_the_controller_is_killed(site: Folders) -> None:
    controller = site.begin()
    site.until_made(3)
    controller.kill()
    controller.wait(10)
    stopped = journal.last_stopped()
    assert stopped.pending
    assert stopped.begun
    code, hosts = site.end_of(site.provision("--resume"))
    assert code == 0, site.log
    assert set(hosts) == set(stopped.pending)
    require_once(site)


def test_half_of_the_hosts_are_away(site: Folders) -> None:
    away = HOSTS[::2]
    for name in away:
        (site.folder / "hosts" / name / "away").touch()
    code, hosts = site.end_of(site.begin("--max-fail", "12"))
    assert code == 3
    assert {name for name, host in hosts.items() if host["status"] == "unreachable"} == set(away)
    assert {hosts[name]["status"] for name in HOSTS if name not in away} == {"changed"}
    for name in away:
        (site.folder / "hosts" / name / "away").unlink()
    code, hosts = site.end_of(site.provision("--resume"))
    assert (code, sorted(hosts)) == (0, sorted(away))
    require_once(site)
