"""`remove --driver` on a bare host that rigwright gave a driver and a CUDA toolkit, while a person's package needs a
part of them."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

import pytest

from lab.cli import commands
from lab.host import login
from lab.power import switch
from tests.end_to_end.conftest import Ssh
from tests.end_to_end.rw import document, inventory, invoke, not_as_wanted, start, until
from tests.paths import ROOT

pytestmark = pytest.mark.lab
NAME = "t-remove-driver"
PACKAGES = r"""sudo sh -c '
dpkg-query -W -f "\${Package}:\${Architecture} \${Version} \${db:Status-Abbrev}\n" | sort; apt-mark showauto | sort
apt-mark showhold'"""
"""Every package with its version and state, also those that left configuration; the marks and the holds."""
APP = r"""set -e
d=$(mktemp -d); chmod 755 $d; mkdir $d/DEBIAN
printf 'Package: my-app\nVersion: 1\nArchitecture: all\nMaintainer: me <me@example.invalid>\n'\
'Depends: libcublas-12-2 (>= 12), absent | make\nDescription: mine\n' >$d/DEBIAN/control
dpkg-deb -b $d /tmp/my-app.deb; dpkg -i /tmp/my-app.deb; apt-mark manual cuda-nvml-dev-12-2
"""
STAYS = {"my-app", "libcublas-12-2", "cuda-toolkit-12-2-config-common", "make", "cuda-nvml-dev-12-2"}


@pytest.fixture
def bare(lab_root: None, request: pytest.FixtureRequest) -> Iterator[None]:  # noqa: ARG001
    """A servbadge without a driver, of the distribution that is asked for."""
    commands.down(name=NAME, say=print)
    commands.up(name=NAME, rig="servbadge", distro=request.param, say=print)
    yield
    commands.down(name=NAME, say=print)


def _cut_while_packages_go(*words: str) -> str:
    """Runs a command and cuts the host's power when dpkg has removed the first packages; returns what it printed."""
    log = switch.get(NAME).root / "var/log/dpkg.log"
    before = log.read_text().count(" remove ")
    done = start(*words)
    until(lambda: log.read_text().count(" remove ") >= before + 3, "three removed packages", 300)
    commands.power_cut(NAME)
    commands.power_on(NAME)
    login.wait(switch.get(NAME))
    return str(done.communicate(timeout=300)[0])


def _names(text: str) -> set[str]:
    return {line.split(":")[0] for line in text.splitlines() if line.endswith((" ii ", " hi "))}


@pytest.mark.nightly
@pytest.mark.parametrize("bare", ["ubuntu2204"], indirect=True)
def test_all_that_came_goes_but_what_a_person_needs_and_a_power_cut_changes_nothing(bare: None, ssh: Ssh) -> None:  # noqa: ARG001
    given = ("--host", NAME, "--inventory", str(ROOT / ".lab/inventory"))
    before = ssh(NAME, PACKAGES).stdout
    whole = document("provision", *given, "--yes")
    assert whole["exit_code"] == 0, not_as_wanted(whole)
    assert "libcublas-12-2" in _names(ssh(NAME, PACKAGES).stdout)
    assert ssh(NAME, f"sudo sh -s <<'END'\n{APP}END").returncode == 0

    provisioned = ssh(NAME, PACKAGES).stdout
    planned = invoke("remove", *given, "--driver")
    assert planned.returncode == 2, planned.stderr
    text = " ".join(planned.stdout.split())
    assert "cuda-toolkit-12-2-config-common, libcublas-12-2, make: stay, my-app needs them" in text
    assert "cuda-nvml-dev-12-2: stays, somebody marked it as manually installed" in text
    assert all(f"! {name} " in text for name in _names(provisioned) - _names(before) - STAYS)
    assert ssh(NAME, PACKAGES).stdout == provisioned

    said = _cut_while_packages_go("remove", *given, "--driver", "--yes")
    assert ssh(NAME, "dpkg-query -W nvidia-utils-535 cuda-toolkit-12-2 dkms").stdout, f"the cut came too late: {said}"
    gone = invoke("remove", *given, "--driver", "--yes")
    assert gone.returncode == 0, gone.stdout + gone.stderr
    assert _names(ssh(NAME, PACKAGES).stdout) - _names(before) == STAYS
    again = invoke("remove", *given, "--driver", "--yes")
    assert ("nothing to remove" in again.stdout, "my-app needs them" in again.stdout) == (True, True), again.stdout

    assert ssh(NAME, "sudo dpkg -P my-app && sudo apt-mark auto cuda-nvml-dev-12-2").returncode == 0
    gone = invoke("remove", *given, "--driver", "--yes")
    assert gone.returncode == 0, gone.stdout + gone.stderr
    assert list(unified_diff(before.splitlines(), ssh(NAME, PACKAGES).stdout.splitlines(), n=0)) == []
    assert ssh(NAME, "ls -A /var/lib/rigwright").stdout.split() == ["lease.lock", "lease.token", "runs"]


@pytest.mark.nightly
@pytest.mark.parametrize("bare", ["debian12"], indirect=True)
def test_an_engine_goes_too_and_an_older_host_loses_only_what_is_nvidias(bare: None, ssh: Ssh, tmp_path: Path) -> None:  # noqa: ARG001
    wanted = {"cuda": None, "p2p_wheels": "none", "containers": {"engine": "podman"}}
    given = ("--host", NAME, "--inventory", inventory(tmp_path, **{NAME: wanted}))
    before = ssh(NAME, PACKAGES).stdout
    whole = document("provision", "--playbook", "train", *given, "--yes")
    assert _names(ssh(NAME, PACKAGES).stdout) > {"podman", "nvidia-container-toolkit", "dkms"}, not_as_wanted(whole)

    record = "/var/lib/rigwright/packages"
    assert ssh(NAME, f"sudo mv {record} /root/").returncode == 0
    older = " ".join(invoke("remove", *given, "--driver").stdout.split())
    assert "an earlier version of rigwright installed packages and did not record them" in older
    assert [f"! {name} " in older for name in ("nvidia-kernel-dkms", "libcuda1", "podman", "dkms")] == [
        True,
        True,
        False,
        False,
    ]
    assert ssh(NAME, f"sudo mv /root/packages {record}").returncode == 0

    gone = invoke("remove", *given, "--driver", "--yes")
    assert gone.returncode == 0, gone.stdout + gone.stderr
    assert list(unified_diff(before.splitlines(), ssh(NAME, PACKAGES).stdout.splitlines(), n=0)) == []
