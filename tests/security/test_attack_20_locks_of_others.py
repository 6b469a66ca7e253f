"""Attack 20: a user of the host without any rights opened a lock of rigwright, held it, and so kept every run from the
host."""

from __future__ import annotations

from pathlib import Path

from rigwright.core.change import Change
from rigwright.engine import lease
from rigwright.engine.p2p import required
from rigwright.facts.apt import archive as apt_archive
from tests.driver.apt_machine import Machine
from tests.engine.shell_host import Host


def test_no_other_user_can_open_a_lock(tmp_path: Path) -> None:
    for name in ("host", "machine"):
        (tmp_path / name).mkdir()
    host, machine = Host(tmp_path / "host"), Machine(tmp_path / "machine", "ID=debian\nVERSION_ID=12\n", [])
    lease.take(host, "host", "1")
    assert host.run([required.record_changes("1", (Change("run", "it", "", ""),))])[0].code == 0
    machine.answer(apt_archive.offered(("a",)))
    locks = [*host.lease.parent.glob("*.lock"), *tmp_path.glob("machine/scratch/apt-*/lock")]
    assert sorted(path.name for path in locks) == ["lease.lock", "lock", "p2p-test.lock"]
    assert [path.stat().st_mode & 0o777 for path in locks] == [0o600] * 3
    assert [path.stat().st_mode & 0o777 for path in host.lease.parent.glob("*owed")] == [0o644]
