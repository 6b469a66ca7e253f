"""The driver on machines of every kind, with mixed installations and with broken archives; plain ssh reads the results.

Each host goes through its own scenario, and the tests check the results. They run nightly; Ubuntu 22.04 with 535 is
provisioned in every run (tests/end_to_end/test_provision.py). RIGWRIGHT_TEST_RIGS=all adds every rig.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lab.cli import commands
from lab.faults import inject
from lab.host import login
from lab.power import switch
from rigwright import catalogue
from rigwright.catalogue.compatibility import flavour_of
from rigwright.core.desired import Driver
from rigwright.driver.package_sets import BESIDE
from tests.end_to_end.rw import document, inventory

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
DEADLINE_S = 800


Document = dict[str, Any]


@dataclass(frozen=True)
class Box:
    """A host: its rig, its distribution, variables that override the rig's, and the expected driver."""

    rig: str
    distro: str = "ubuntu2204"
    variables: dict[str, Any] = field(default_factory=dict)
    version: str = ""
    package: str = ""
    licence: str = "NVIDIA"


LICENCES = {"proprietary": "NVIDIA", "open": "Dual MIT/GPL"}


def licence(name: str) -> str:
    """Returns the licence of the module that a rig's GPUs get by themselves."""
    rig = catalogue.rig(name, "test")
    return LICENCES[flavour_of([catalogue.model(key) for key in rig.models], Driver(rig.driver))]


NO_CUDA = {"cuda": None}
UPGRADED = "t-noble"
FLEET = {
    "t-debian": Box("rig-3090", "debian12", NO_CUDA, "535.261.03", "nvidia-kernel-dkms"),
    UPGRADED: Box("servbadge", "ubuntu2404", NO_CUDA | {"p2p_wheels": "none"}, "535.161.08",
                  "nvidia-headless-535-server"),
    "t-kepler": Box("kaggle-box", variables={"cuda": {"toolkit": "11.7"}}, version="470.256.02",
                    package="nvidia-headless-470-server"),
    "t-switch": Box(
        "h100-sxm", "ubuntu2404", {"driver": {"branch": "580", "flavour": "open"}, "p2p_wheels": "none"},
        "580.178.04", "nvidia-headless-580-server-open", "Dual MIT/GPL",
    ),
}  # fmt: skip
"""The hosts that are provisioned at once."""
if os.environ.get("RIGWRIGHT_TEST_RIGS") == "all":
    FLEET |= {
        f"t-{rig}": Box(rig, variables={"p2p_wheels": "none"}, licence=licence(rig)) for rig in catalogue.all_rigs()
    }
MIXED, TROUBLED = "t-mixed", "t-troubled"
BARE = {"cuda": None, "kernel_cmdline": None, "limits": None, "p2p_wheels": "none"}
"""Variables that leave only the driver to provision."""
BOXES = {**FLEET, MIXED: Box("servbadge"), TROUBLED: Box("v100-pcie")}


def root(name: str, script: str) -> str:
    """Runs a script as root on the host by plain ssh, and returns its output."""
    word = base64.b64encode(f"export DEBIAN_FRONTEND=noninteractive\n{script}".encode()).decode()
    done = login.ssh(switch.get(name), f"echo {word} | base64 -d | sudo sh -e", 180)
    assert done.returncode == 0, f"{name}: {script}: {done.stdout[-1500:]}{done.stderr[-1500:]}"
    return done.stdout


class Teller:
    """Runs rigwright on one host that wants nothing but a driver."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder

    def __call__(self, task: str, driver: dict[str, str]) -> Document:
        """Returns the host's part of the document of `plan`, `verify` or `provision --yes`."""
        where = inventory(self.folder / "-".join(driver.values()), **{self.name: {**BARE, "driver": driver}})
        words = ["--yes"] if task == "provision" else []
        found = document(task, "--inventory", where, "--host", self.name, *words, deadline=DEADLINE_S)
        host: Document = found["hosts"][self.name]
        return {**host, "exit_code": found["exit_code"]}


def driver_packages(name: str) -> dict[str, str]:
    """Returns the installed packages of the driver with their versions."""
    asked = "dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\\n' '*nvidia*' 2>/dev/null || :"
    rows = [line.split() for line in root(name, asked).splitlines()]
    return {row[1]: row[2] for row in rows if row[0][1] == "i" and re.match(r"\d{3}\.", row[2])}


def state(name: str) -> dict[str, Any]:
    """Returns the host's state: packages, holds, the loaded module, the library, the boot id, broken packages."""
    return {
        "packages": driver_packages(name),
        "held": set(root(name, "apt-mark showhold").split()),
        "loaded": root(name, "sed -n 's/.*Kernel Module[a-z A-Z_0-9]* \\([0-9.]*[0-9]\\) .*/\\1/p' "
                             "/proc/driver/nvidia/version || :").strip(),
        "smi": root(name, "nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>&1 | sort -u || :").strip(),
        "boot": root(name, "cat /proc/sys/kernel/random/boot_id").strip(),
        "ill": root(name, "dpkg --audit; apt-get check >/dev/null 2>&1 || apt-get check 2>&1 || :"),
    }  # fmt: skip


# --- scenarios

RUNFILE = """
cat >/usr/bin/nvidia-uninstall <<'END'
#!/bin/sh
[ "$1" = --version ] && { printf '\\nnvidia-installer:  version 535.161.08\\n'; exit; }
[ "$1" = --silent ] && rm -f /usr/bin/nvidia-uninstall
END
chmod 755 /usr/bin/nvidia-uninstall
"""
HALF_REMOVED = """
apt-get -qq update
apt-get -qq -y install linux-headers-generic nvidia-driver-470 >/dev/null 2>&1
dpkg --remove --force-depends libnvidia-compute-470 nvidia-kernel-common-470 >/dev/null 2>&1
apt-mark hold nvidia-dkms-470 nvidia-driver-470 >/dev/null
cd /tmp && apt-get -qq download libnvidia-cfg1-470 && dpkg --unpack libnvidia-cfg1-470_*.deb >/dev/null
"""
UNPIN = """
rm -f /etc/apt/preferences.d/rigwright-nvidia /etc/apt/apt.conf.d/51rigwright-unattended
apt-mark unhold $(apt-mark showhold) >/dev/null
"""
FOREIGN = """
url=$(cat /run/lab/hw/archive-url)/cuda/ubuntu2204/x86_64
curl -fsS "$url/3bf863cc.pub" >/usr/share/keyrings/cuda.asc
echo "deb [signed-by=/usr/share/keyrings/cuda.asc] $url /" >/etc/apt/sources.list.d/cuda.list
apt-get -qq update
apt-get -qq -y install nvidia-driver-545 >/dev/null 2>&1
apt-mark hold nvidia-driver-545 libnvidia-compute-545 >/dev/null
"""


def mixed(tell: Teller) -> dict[str, Any]:
    """Installs on one host, in turn: NVIDIA's installer, a half-removed 470, a 545, a mix of two sources.

    Runs rigwright on each; returns its documents and the host's states.
    """
    name, told = tell.name, {}
    root(name, RUNFILE)
    told["runfile"] = tell("plan", {"branch": "580"})
    root(name, told["runfile"]["error"]["fix"].removeprefix("sudo ").partition(",")[0])
    root(name, HALF_REMOVED)
    told["ill"] = state(name)
    told["from 470"] = tell("provision", {"branch": "580"})
    told["580"] = state(name)
    root(name, UNPIN + FOREIGN)
    told["moved"] = tell("verify", {"branch": "580"})
    told["from 545"] = tell("provision", {"branch": "535"})
    told["535"] = state(name)
    root(name, f"{UNPIN}\napt-get -qq -y dist-upgrade >/dev/null 2>&1")
    told["two sources"] = state(name)
    told["plan"] = tell("plan", {"branch": "535"})
    told["from two sources"] = tell("provision", {"branch": "535"})
    told["535 again"] = state(name)
    told["second"] = tell("provision", {"branch": "535"})
    return told


def troubled(tell: Teller) -> dict[str, Any]:
    """Breaks the archive of a fresh machine in several ways, one after the other, and then repairs it.

    Runs `provision` each time; returns its documents and the host's states.
    """
    told: dict[str, Any] = {}
    for kind in ("package-corrupt", "mirror-behind", "archive-half"):
        inject.fault(tell.name, kind, "", print)
        told[kind] = (tell("provision", {"branch": "580"}), state(tell.name))
        inject.heal(tell.name, kind, print)
    told["well"] = (tell("provision", {"branch": "580"}), state(tell.name))
    inject.fault(tell.name, "archive-gone", "", print)
    told["gone"] = (tell("provision", {"branch": "580"}), state(tell.name))
    inject.heal(tell.name, "archive-gone", print)
    return told


def fleet(folder: Path, boxes: dict[str, Box]) -> dict[str, Any]:
    """Provisions these hosts at once, twice; returns both documents and the state of each host."""
    where = inventory(folder, **{name: box.variables for name, box in boxes.items()})
    words = ("--inventory", where, "--host", "all", "--yes")
    first, second = (document("provision", *words, deadline=DEADLINE_S) for _ in range(2))
    failed = {
        name: host["error"] or host["findings"] for name, host in first["hosts"].items() if host["status"] == "failed"
    }
    assert not failed, failed
    more = {
        "licence": "modinfo -F license nvidia 2>/dev/null || modinfo -F license nvidia-current",
        "manager": "systemctl is-active nvidia-fabricmanager || :",
    }
    became = {name: state(name) | {key: root(name, ask).strip() for key, ask in more.items()} for name in boxes}
    return {"first": first["hosts"], "second": second["hosts"], "became": became}


NVIDIA_MOVES = "apt-get -s dist-upgrade | grep -E '^(Inst|Remv)' | grep -E 'nvidia|cuda' || :"
NIGHT = "unattended-upgrade -v 2>&1"
BLOCK_FILE = "/etc/apt/apt.conf.d/51rigwright-unattended"
PIN_FILE = "/etc/apt/preferences.d/rigwright-nvidia"


def upgraded(tell: Teller) -> dict[str, Any]:
    """Upgrades a provisioned Ubuntu 24.04 whose archive offers 580 under another name.

    Tries all guards, each one alone, and none. The result without guards shows what the guards prevent.
    """
    name, wanted = tell.name, {"branch": "535"}
    told: dict[str, Any] = {"before": state(name)}
    told["dist-upgrade"] = root(name, "apt-get -qq update; apt-get -y dist-upgrade")
    told["night"] = root(name, NIGHT)
    told["after"] = state(name)
    held = " ".join(sorted(told["before"]["held"]))
    root(name, f"apt-mark unhold {held} >/dev/null; mv {BLOCK_FILE} /root/block")
    told["pin alone"] = root(name, NVIDIA_MOVES) + root(name, f"{NIGHT} --dry-run")
    root(name, f"mv {PIN_FILE} /root/; mv /root/block {BLOCK_FILE}")
    told["block alone"] = root(name, f"{NIGHT} --dry-run")
    root(name, f"mv {BLOCK_FILE} /root/block; apt-mark hold {held} >/dev/null")
    told["hold alone"] = root(name, NVIDIA_MOVES) + root(name, f"{NIGHT} --dry-run")
    root(name, f"apt-mark unhold {held} >/dev/null")
    told["no guard"] = root(name, NVIDIA_MOVES)
    root(name, NIGHT)
    told["moved"] = state(name)
    told["verify"] = tell("verify", wanted)
    told["provision"] = tell("provision", wanted)
    told["right"] = state(name)
    return told


KERNELS = r"""
release=$(uname -r); series=$(echo "$release" | cut -d. -f1,2)
above="${series%.*}.$((${series#*.} + 1))"
mkdir -p /srv/kernels && cd /srv/kernels
deb() {  # NAME VERSION DEPENDS
  mkdir -p "$1/DEBIAN"
  { printf 'Package: %s\nVersion: %s\nDepends: %s\nArchitecture: amd64\n' "$@"
    printf 'Maintainer: nobody <nobody@example.org>\nDescription: a kernel without content\n'; } >"$1/DEBIAN/control"
  dpkg-deb -b "$1" "$1_$2.deb" >/dev/null
  { cat "$1/DEBIAN/control"; echo "Filename: ./$1_$2.deb"; echo "Size: $(stat -c %s "$1_$2.deb")"
    echo "SHA256: $(sha256sum "$1_$2.deb" | cut -d' ' -f1)"; echo; } >>Packages
}
for new in "$series.999" "$above.0"; do
  deb "linux-image-$new-$META" "$new-1" kmod
  deb "linux-image-$META" "$new-1" "linux-image-$new-$META (= $new-1)"
done
{ printf 'Origin: Kernels\nSuite: stable\nSHA256:\n'
  echo " $(sha256sum Packages | cut -d' ' -f1) $(stat -c %s Packages) Packages"; } >Release
echo 'Unattended-Upgrade::Origins-Pattern:: "origin=Kernels";' >/etc/apt/apt.conf.d/99kernels
apt-get -qq update
apt-get -qq -y install "linux-image-$META" >/dev/null 2>&1
echo "deb [trusted=yes] file:/srv/kernels ./" >/etc/apt/sources.list.d/kernels.list
apt-get -qq update
echo "$series.999-$META $above.0-$META"
"""
CEILING_FILE = "/etc/apt/preferences.d/rigwright-kernel"
INSTALLED = (
    "dpkg-query -W -f '${db:Status-Status} ${Package}\\n' 'linux-image-*' | sed -n 's/^installed linux-image-//p'"
)
FULL = f"apt-get -q -y dist-upgrade >/dev/null 2>&1; {INSTALLED}"
AT_NIGHT = f"unattended-upgrade >/dev/null 2>&1; {INSTALLED}"


def kernels(tell: Teller, branch: str) -> dict[str, Any]:
    """Adds an archive with an update of the running kernel and a kernel of the next series, and follows it with the
    distribution's metapackage. Upgrades with the ceiling, and then without; on Ubuntu by unattended-upgrades too.
    """
    name = tell.name
    meta = "amd64" if "debian" in BOXES[name].distro else "generic"
    told: dict[str, Any] = {
        "names": root(name, f"META={meta}\n{KERNELS}").split(),
        "ceiling": root(name, f"cat {CEILING_FILE}"),
    }
    told["plan"], told["verify"] = tell("plan", {"branch": branch}), tell("verify", {"branch": branch})
    night = AT_NIGHT if name == UPGRADED else FULL
    told["at night"], told["with it"] = root(name, night).split(), root(name, FULL).split()
    told["second plan"] = tell("plan", {"branch": branch})
    root(name, f"mv {CEILING_FILE} /root/")
    told["free"] = tell("verify", {"branch": branch})
    told["without"] = root(name, night).split()
    added = "/srv/kernels /etc/apt/sources.list.d/kernels.list /etc/apt/apt.conf.d/99kernels"
    root(name, f"rm -r {added}; mv /root/rigwright-kernel {CEILING_FILE}")
    return told


@contextmanager
def booted(*names: str) -> Iterator[None]:
    """Boots these hosts of BOXES; removes them at the end."""

    def boot(name: str) -> None:
        commands.down(name=name, say=print)
        commands.up(name=name, rig=BOXES[name].rig, distro=BOXES[name].distro, say=print)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(boot, names))
    yield
    for name in names:
        commands.down(name=name, say=print)


@pytest.fixture(scope="module")
def all_hosts(lab_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:  # noqa: ARG001
    """Yields the result of FLEET."""
    with booted(*FLEET):
        yield fleet(tmp_path_factory.mktemp("driver"), FLEET)


@pytest.fixture(scope="module")
def upgraded_story(all_hosts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:  # noqa: ARG001
    """Returns the result of the upgrades of a provisioned host."""
    return upgraded(Teller(UPGRADED, tmp_path_factory.mktemp("driver")))


@pytest.fixture(scope="module", params=["t-debian", UPGRADED])
def kernels_story(
    request: pytest.FixtureRequest,
    all_hosts: dict[str, Any],  # noqa: ARG001
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """Returns the result of upgrades of the kernel, on Debian and on Ubuntu."""
    return kernels(Teller(request.param, tmp_path_factory.mktemp("driver")), "535")


@pytest.fixture(scope="module")
def mixed_story(lab_root: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:  # noqa: ARG001
    """Returns the result of the mixed installations."""
    with booted(MIXED):
        return mixed(Teller(MIXED, tmp_path_factory.mktemp("driver")))


@pytest.fixture(scope="module")
def troubled_story(lab_root: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:  # noqa: ARG001
    """Returns the result of the archive in trouble."""
    with booted(TROUBLED):
        return troubled(Teller(TROUBLED, tmp_path_factory.mktemp("driver")))


# --- results


def whole(now: dict[str, Any], branch: str) -> bool:
    """Returns whether a host has exactly one driver, of that branch, complete, held and loaded."""
    versions = {version.split("-")[0] for name, version in now["packages"].items() if name not in BESIDE}
    own = now["packages"].keys() - set(BESIDE)
    return (
        {now["loaded"]} == {now["smi"]} == versions
        and now["smi"].startswith(f"{branch}.")
        and own <= now["held"]
        and now["ill"] == ""
    )


def error(found: Document) -> str:
    """Returns the full text of the host's error."""
    return " ".join(found["error"].values())


@pytest.mark.nightly
@pytest.mark.parametrize("name", FLEET)
def test_the_fleet(all_hosts: dict[str, Any], name: str) -> None:
    has_its_driver(all_hosts, name)


def has_its_driver(told: dict[str, Any], name: str) -> None:
    """Checks that a host of a fleet has the expected driver, and that the second run made no change."""
    first, second, now, box = told["first"][name], told["second"][name], told["became"][name], BOXES[name]
    assert first["error"] is None, first["error"]
    assert [one for one in first["findings"] if one["verdict"] not in ("pass", "info", "warn")] == []
    assert (first["status"], first["rebooted"]) == ("changed", True)
    assert (second["status"], second["changes"], second["rebooted"]) == ("ok", [], False)
    assert whole(now, str(box.variables.get("driver", {}).get("branch", catalogue.rig(box.rig, "test").driver))), now
    assert now["smi"] == (box.version or now["smi"])
    assert box.package in {"", *now["held"]}
    assert now["licence"] == box.licence
    if catalogue.rig(box.rig, "test").nvswitches:
        assert now["manager"] == "active"
        manager = next(version for package, version in now["packages"].items() if "fabricmanager" in package)
        assert manager.startswith(f"{now['smi']}-")


@pytest.mark.nightly
def test_real_upgrades_leave_the_driver_alone(upgraded_story: dict[str, Any]) -> None:
    """Runs apt-get dist-upgrade and unattended-upgrades: with all guards, with each guard alone, and with none, where
    535 becomes 580.
    """
    told = upgraded_story
    assert "0 upgraded, 0 newly installed, 0 to remove" in told["dist-upgrade"]
    assert "No packages found that can be upgraded unattended" in told["night"]
    assert told["after"] == told["before"]
    for guard in ("pin alone", "block alone", "hold alone"):
        assert "No packages found that can be upgraded unattended" in told[guard], guard
        assert "Inst " not in told[guard], guard
    assert "Inst libnvidia-compute-580-server" in told["no guard"]
    assert told["moved"]["packages"]["libnvidia-compute-580-server"].startswith("580.178.04")
    assert (told["moved"]["loaded"], "version mismatch" in told["moved"]["smi"]) == ("535.161.08", True)


@pytest.mark.nightly
def test_a_kernel_above_the_ceiling_is_withheld(kernels_story: dict[str, Any]) -> None:
    """The module that is built for the running kernel sets the ceiling to its series. Its update comes by
    unattended-upgrades and dist-upgrade, the kernel of the next series only without the ceiling.
    """
    told, (update, too_new) = kernels_story, kernels_story["names"]
    for when in ("plan", "second plan"):
        (step,) = (one for one in told[when]["steps"] if one["name"] == "Kernels that the driver builds for")
        assert f"withheld from upgrades: linux-image-{too_new}" in str(step["notes"])
        assert step["status"] == "ok"
    for how in ("at night", "with it"):
        assert (update in told[how], too_new in told[how]) == (True, False), how
    found = {
        when: [one for one in told[when]["findings"] if one["subject"] == "kernel ceiling"]
        for when in ("verify", "free")
    }
    assert [one["seen"].startswith(f"withheld: linux-image-{too_new}") for one in found["verify"]] == [True]
    assert [one["verdict"] for one in found["free"]] == ["fail"]
    assert too_new in told["without"]


@pytest.mark.nightly
def test_what_moved_at_night_is_named_and_brought_back(upgraded_story: dict[str, Any]) -> None:
    """Verify names the package, the time and the program; the GPUs are idle, so provision does not reboot."""
    told = upgraded_story
    cause = next(one["cause"] for one in told["verify"]["findings"] if one["check"] == "driver.versions_equal")
    assert re.search(
        r"libnvidia-compute-580-server new -> 580\S+ on \d{4}-\d\d-\d\d \d\d:\d\d:\d\d by /usr/bin/unattended-upgrade",
        cause,
    )
    assert told["verify"]["exit_code"] == 2
    assert (told["provision"]["exit_code"], told["provision"]["rebooted"]) == (0, False)
    assert whole(told["right"], "535")
    assert told["right"]["packages"] == told["before"]["packages"]


@pytest.mark.nightly
def test_nvidias_installer_was_here(mixed_story: dict[str, Any]) -> None:
    """The run fails before any change and names the command that removes the installer; then it succeeds."""
    told = mixed_story
    assert "a driver 535.161.08 of NVIDIA's .run installer" in error(told["runfile"])
    assert "sudo nvidia-uninstall --silent" in told["runfile"]["error"]["fix"]
    assert told["from 470"]["error"] is None


@pytest.mark.nightly
def test_from_a_torn_out_470_to_580(mixed_story: dict[str, Any]) -> None:
    """The host has unmet dependencies, a package that is not configured, and holds on the remaining packages."""
    told = mixed_story
    assert "nvidia-driver-470" in told["ill"]["held"]
    assert "libnvidia-cfg1-470" in told["ill"]["ill"], "unpacked, not configured"
    assert "unmet dependencies" in told["ill"]["ill"]
    assert (told["from 470"]["exit_code"], told["from 470"]["rebooted"]) == (0, True)
    assert whole(told["580"], "580"), told["580"]


@pytest.mark.nightly
def test_from_545_to_535(mixed_story: dict[str, Any]) -> None:
    """545 was installed and held over a running 580: verify names the change and its author, and provision installs 535
    without a reboot.
    """
    told = mixed_story
    cause = next(one["cause"] for one in told["moved"]["findings"] if one["check"] == "driver.versions_equal")
    assert re.search(r"libnvidia-compute-545 new -> 545.23.08\S+ on .* by apt-get .*, asked by ubuntu", cause)
    assert (told["from 545"]["exit_code"], told["from 545"]["rebooted"]) == (0, False)
    assert whole(told["535"], "535"), told["535"]
    assert told["535"]["boot"] == told["580"]["boot"]


@pytest.mark.nightly
def test_two_sources_mixed(mixed_story: dict[str, Any]) -> None:
    """NVIDIA's repository and Ubuntu's archive without a pin: empty 535 packages over a 580 become 535 and stay so."""
    told = mixed_story
    now = told["two sources"]["packages"]
    assert now["libnvidia-compute-535"].startswith("535.309.01-0ubuntu0.22.04"), "Ubuntu's empty one"
    assert now["libnvidia-compute-580"].endswith("-0ubuntu1"), "NVIDIA's"
    (step,) = (one for one in told["plan"]["steps"] if one["name"] == "Driver reloaded")
    assert "535.261.03 is loaded, the packages are at 580.178.04; libnvidia-compute-580 new" in str(step["notes"])
    assert (told["from two sources"]["exit_code"], told["from two sources"]["rebooted"]) == (0, False)
    assert whole(told["535 again"], "535"), told["535 again"]
    assert (told["second"]["exit_code"], told["second"]["changes"]) == (0, [])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("package-corrupt", "Hash Sum mismatch"),
        ("mirror-behind", "404  Not Found"),
        ("archive-half", "could not be fetched"),
    ],
)
def test_an_archive_in_trouble(troubled_story: dict[str, Any], kind: str, words: str) -> None:
    """The run stops with the file and the reason; no driver package is installed or half configured."""
    found, now = troubled_story[kind]
    assert (found["exit_code"], found["rebooted"]) == (1, False)
    assert words in error(found)
    assert "nothing was installed" in error(found)
    assert "nvidia" in found["error"]["found"]
    assert now["packages"] == {}
    assert now["ill"] == ""


@pytest.mark.nightly
def test_the_next_run_finishes(troubled_story: dict[str, Any]) -> None:
    """The next run succeeds with the repaired archive; after that, a machine without any archive passes."""
    (found, now), (offline, _) = troubled_story["well"], troubled_story["gone"]
    assert (found["exit_code"], found["rebooted"]) == (0, True)
    assert whole(now, "580"), now
    assert (offline["exit_code"], offline["changes"]) == (0, [])
