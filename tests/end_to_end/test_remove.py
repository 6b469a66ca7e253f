"""`remove` and `rollback` on a provisioned host: nothing of rigwright's acts on it any more, and then it is what it was
before both."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Ssh
from tests.end_to_end.rw import document, inventory, invoke, not_as_wanted
from tests.end_to_end.test_rigs import server_with_driver

pytestmark = pytest.mark.lab
NAME, RIG = "t-remove", "rig-3090"
OURS = (
    "sudo find /etc /usr/local /usr/share/keyrings -path '*rigwright/*' -o -name 'rigwright-*' -not "
    "-name rigwright-lab -o -name 'gpu-limits*' | sort"
)

STATE = r"""sudo sh -c '
dpkg-query -W -f "\${Package}:\${Architecture} \${Version} \${db:Status-Abbrev}\n" | sort; apt-mark showauto | sort
find /etc /usr/local /usr/share/keyrings ! -type d ! -name ld.so.cache ! -name mtab ! -name "*-" ! -name passwd \
  ! -name group ! -name "*shadow" ! -name "*.pyc" >/tmp/paths
sort /tmp/paths | xargs -d "\n" stat -c "%N %a %u:%g"; sort /tmp/paths | xargs -d "\n" sha256sum 2>/dev/null
cat /boot/grub/grub.cfg; systemctl list-unit-files --plain --no-legend | grep -v transient | sort
cat /proc/driver/nvidia/version; sed "s/ panic=60 rigwright.*//" /proc/cmdline;
  nvidia-smi --query-gpu=uuid,persistence_mode,power.limit --format=csv,noheader'
"""
"""Packages with holds and marks, files with modes, grub.cfg, units, the loaded driver, the command line and the
limits."""


PACKAGES = r"""sudo sh -c 'dpkg-query -W -f "\${Package} \${Version} \${db:Status-Abbrev}\n" | sort
apt-mark showauto | sort'"""


def _without_version(line: str) -> str:
    """Returns name and state of a package's line; a line of a mark is its name only."""
    name, *more = line.split()
    return " ".join((name, *more[-1:]))


def _packages_that_stay(ssh: Ssh) -> list[str]:
    """Returns packages and marks but for the prebuilt module, which provision replaces and only a rollback brings
    back."""
    lines = ssh(NAME, PACKAGES).stdout.splitlines()
    return [_without_version(line) for line in lines if not line.startswith("linux-modules-nvidia-")]


@pytest.fixture
def given(snapshots: Path, tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """Yields --host and --inventory of a host with an older release of its driver, without CUDA."""
    with server_with_driver(NAME, RIG, snapshots):
        yield "--host", NAME, "--inventory", inventory(tmp_path / "remove", **{NAME: {"cuda": None}})


@pytest.mark.nightly
def test_everything_goes_with_what_was_installed_when_asked_and_all_comes_back(
    given: tuple[str, ...], ssh: Ssh
) -> None:
    ssh(NAME, "sudo LC_ALL=C update-grub")  # the image's grub.cfg was made without a locale
    before = ssh(NAME, STATE).stdout.splitlines()
    assert len(before) > 500
    names = _packages_that_stay(ssh)
    whole = document("provision", *given, "--yes", "--wheels", ".lab/cache/wheels")
    assert whole["exit_code"] == 0, not_as_wanted(whole)
    assert "/etc/apt/preferences.d/rigwright" in ssh(NAME, OURS).stdout
    listed = document("facts", *given)["hosts"][NAME]["facts"]["footprint.footprint"]
    paths = [file["path"] for file in listed["files"]]
    for part in ("/preferences.d/", "/default/grub.d/", "/modprobe.d/", "/gpu-limits.timer", "/limits.json"):
        assert any(part in path for path in paths), (part, paths)
    assert len(listed["held"]) > 2

    refused = invoke("remove", *given)
    assert (refused.returncode, "/etc/apt/preferences.d/rigwright" in refused.stdout) == (2, True), refused.stderr
    gone = invoke("remove", *given, "--driver", "--yes")
    assert gone.returncode == 0, gone.stdout + gone.stderr
    assert "of the driver and of CUDA were there before rigwright and stay" in " ".join(gone.stdout.split())
    assert ssh(NAME, "apt-mark showhold").stdout == ""
    assert _packages_that_stay(ssh) == names
    assert "iommu=pt" not in ssh(NAME, "cat /boot/grub/grub.cfg").stdout
    assert ssh(NAME, OURS).stdout == ""
    assert "nothing to remove" in invoke("remove", *given, "--yes").stdout

    back = document("rollback", *given, "--to", whole["run"], "--yes")
    assert back["exit_code"] == 0, not_as_wanted(back)
    assert list(unified_diff(before, ssh(NAME, STATE).stdout.splitlines(), n=0)) == []
    listed = document("rollback", *given, "--list")["hosts"][NAME]["facts"]["run_record.runs"]
    assert [(run["done"], run["to"]) for run in listed] == [(True, ""), (True, ""), (True, whole["run"])]
