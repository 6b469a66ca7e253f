"""The driver on machines of every kind, on mixed-up ones, and from archives in trouble; plain ssh says what each became.

Every host lives through a story of its own, side by side with the others, and the tests judge the stories. The fleet has one
host for each driver branch, kind of module, NVSwitch and distribution; RIGWRIGHT_TEST_RIGS=all makes it every rig there is.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab import commands, fault, login, power
from rigwright import catalogue
from tests.lab.rw import CHECKOUT, INVENTORY, document

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
DEADLINE_S = 800

Document = dict[str, Any]


@dataclass(frozen=True)
class Box:
    """A host: its rig, its distribution, what its inventory says in place of the rig's own words, and what it must become."""

    rig: str
    distro: str = "ubuntu2204"
    variables: dict[str, Any] = field(default_factory=dict)
    version: str = ""
    package: str = ""
    licence: str = "NVIDIA"


NO_CUDA = {"cuda": None}
FLEET = {
    "t-kepler": Box("kaggle-box", version="470.256.02", package="nvidia-headless-470-server"),
    "t-switch": Box(
        "h100-sxm", "ubuntu2404", {"driver": {"branch": "580", "flavour": "open"}},
        "580.178.04", "nvidia-headless-580-server-open", "Dual MIT/GPL",
    ),
    "t-noble": Box("servbadge", "ubuntu2404", NO_CUDA, "535.161.08", "nvidia-headless-535-server"),
    "t-debian": Box("rig-3090", "debian12", NO_CUDA, "535.261.03", "nvidia-kernel-dkms"),
}  # fmt: skip
if os.environ.get("RIGWRIGHT_TEST_RIGS") == "all":
    FLEET |= {f"t-{rig}": Box(rig) for rig in catalogue.rigs() if f"t-{rig}" not in FLEET}
MIXED, TROUBLED = "t-mixed", "t-troubled"
BARE = {"cuda": None, "kernel_cmdline": None, "limits": None}
"""Nothing but the driver is wanted."""
BOXES = {**FLEET, MIXED: Box("servbadge"), TROUBLED: Box("v100-pcie")}


def root(name: str, script: str) -> str:
    """What a script prints that runs as root on the host, by plain ssh."""
    word = base64.b64encode(f"export DEBIAN_FRONTEND=noninteractive\n{script}".encode()).decode()
    done = login.ssh(power.the(name), f"echo {word} | base64 -d | sudo sh -e", 180)
    assert done.returncode == 0, f"{name}: {script}: {done.stdout[-1500:]}{done.stderr[-1500:]}"
    return done.stdout


def inventory(folder: Path, **hosts: dict[str, Any]) -> str:
    """An inventory of these hosts, each as the lab describes it but for what is given."""
    groups = yaml.safe_load((INVENTORY / "hosts.yml").read_text())["all"]["children"]
    written = {}
    for name, changed in hosts.items():
        given = groups["gpu"]["hosts"][name] | yaml.safe_load((INVENTORY / "host_vars" / f"{name}.yml").read_text())
        given |= {"ssh_known_hosts": str(CHECKOUT / ".lab" / "known_hosts"), **changed}
        written[name] = {key: value for key, value in given.items() if value is not None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hosts.yml").write_text(yaml.safe_dump({"gpu": {"hosts": written}}))
    return str(folder)


class Teller:
    """Runs rigwright on one host that wants nothing but a driver."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder

    def __call__(self, task: str, driver: dict[str, str]) -> Document:
        """What `plan`, `verify` or `provision --yes` says of the host."""
        where = inventory(self.folder / "-".join(driver.values()), **{self.name: {**BARE, "driver": driver}})
        words = ["--yes"] if task == "provision" else []
        found = document(task, "--inventory", where, "--host", self.name, *words, deadline=DEADLINE_S)
        host: Document = found["hosts"][self.name]
        return {**host, "exit_code": found["exit_code"]}


def driver_packages(name: str) -> dict[str, str]:
    """The driver's packages that are installed, with their versions."""
    asked = "dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\\n' '*nvidia*'"
    rows = [line.split() for line in root(name, asked).splitlines()]
    return {row[1]: row[2] for row in rows if row[0][1] == "i" and row[2][:3].isdigit()}


def state(name: str) -> dict[str, Any]:
    """What the host is, in its own words: packages, holds, the module that runs, the library, the boot."""
    return {
        "packages": driver_packages(name),
        "held": set(root(name, "apt-mark showhold").split()),
        "loaded": root(name, "sed -n 's/.*Kernel Module[a-z A-Z_0-9]* \\([0-9.]*[0-9]\\) .*/\\1/p' /proc/driver/nvidia/version || :").strip(),
        "smi": root(name, "nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>&1 | sort -u || :").strip(),
        "boot": root(name, "cat /proc/sys/kernel/random/boot_id").strip(),
        "ill": root(name, "dpkg --audit; apt-get check >/dev/null 2>&1 || apt-get check 2>&1 || :"),
    }  # fmt: skip


# --- the stories

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
    """A machine that has seen much: NVIDIA's installer, a 470 that was torn out, a 545, and an upgrade that mixed two sources."""
    name, told = tell.name, {}
    root(name, RUNFILE)
    told["runfile"] = tell("plan", {"branch": "580"})
    root(name, told["runfile"]["error"]["todo"].removeprefix("sudo ").partition(",")[0])
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
    """A fresh machine whose archive is in trouble, in one way after the other, and then well."""
    told: dict[str, Any] = {}
    for kind in ("package-corrupt", "mirror-behind", "archive-half"):
        fault.fault(tell.name, kind, "", print)
        told[kind] = (tell("provision", {"branch": "580"}), state(tell.name))
        fault.heal(tell.name, kind, print)
    told["well"] = (tell("provision", {"branch": "580"}), state(tell.name))
    fault.fault(tell.name, "archive-gone", "", print)
    told["gone"] = (tell("provision", {"branch": "580"}), state(tell.name))
    fault.heal(tell.name, "archive-gone", print)
    return told


def fleet(folder: Path) -> tuple[Document, Document]:
    """All hosts at once, twice."""
    where = inventory(folder, **{name: box.variables for name, box in FLEET.items()})
    words = ("--inventory", where, "--host", "all", "--yes")
    first, second = (document("provision", *words, deadline=DEADLINE_S) for _ in range(2))
    return first, second


Stories = dict[str, Future[Any]]


@pytest.fixture(scope="module")
def stories(lab_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stories]:  # noqa: ARG001
    """What was lived through, as it ends."""
    folder = tmp_path_factory.mktemp("driver")

    def boot(name: str) -> None:
        commands.down(name=name, say=print)
        commands.up(name=name, rig=BOXES[name].rig, distro=BOXES[name].distro, say=print)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(boot, BOXES))
        yield {
            "mixed": pool.submit(mixed, Teller(MIXED, folder / MIXED)),
            "fleet": pool.submit(fleet, folder / "fleet"),
            "troubled": pool.submit(troubled, Teller(TROUBLED, folder / TROUBLED)),
        }
    for name in BOXES:
        commands.down(name=name, say=print)


# --- and what they came to


@pytest.mark.parametrize("name", FLEET)
def test_the_fleet(stories: Stories, name: str) -> None:
    """Every machine has the driver that it can have, proved; and the second run has nothing to do."""
    first, second = (found["hosts"][name] for found in stories["fleet"].result())
    assert first["error"] is None, first["error"]
    assert (first["status"], first["rebooted"]) == ("changed", True)
    assert {finding["verdict"] for finding in first["findings"]} <= {"pass", "info", "warn"}
    assert (second["status"], second["changes"], second["rebooted"]) == ("ok", [], False)
    box, now = BOXES[name], state(name)
    assert now["loaded"] == now["smi"]
    assert now["packages"].keys() & now["held"]
    assert now["ill"] == ""
    if box.version:
        assert now["smi"] == box.version
        assert box.package in now["held"]
        assert root(name, "modinfo -F license nvidia").strip() == box.licence
    if catalogue.rig(box.rig, "test").nvswitches:
        assert root(name, "systemctl is-active nvidia-fabricmanager").strip() == "active"
        manager = next(version for package, version in now["packages"].items() if "fabricmanager" in package)
        assert manager.startswith(f"{now['smi']}-")
