"""Attack 20: a user of the host without any rights opened a lock of rigwright, held it, and so kept every run from the
host; or read the owner in the lease, and started a process that looks like a command of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rigwright.core.change import Change
from rigwright.engine import lease, run_owner
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
    assert [path.stat().st_mode & 0o777 for path in (*locks, host.lease)] == [0o600] * 4
    assert [path.stat().st_mode & 0o777 for path in host.lease.parent.glob("*owed")] == [0o644]


@pytest.mark.usefixtures("as_root")
def test_a_process_of_another_user_is_no_command_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(run_owner, "_machine", lambda: "elsewhere-2f.402")
        lease.take(host, "gpu01", "1")
        variables = run_owner.environment("1")
    (tmp_path / "bin" / "sleep").unlink()
    monkeypatch.setattr(lease, "_AWAIT_QUIET", lease._AWAIT_QUIET.replace("-lt 600", "-lt 20"))
    with subprocess.Popen(["/bin/sleep", "60"], env=variables, user="nobody", cwd="/") as process:
        try:
            lease.take(host, "gpu01", "2", ("1",))
        finally:
            process.kill()
