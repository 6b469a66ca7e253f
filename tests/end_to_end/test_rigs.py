"""Compares the output of the real programs on a host of each rig with the lab's rig file and with the catalogue."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pynvml
import pytest

from lab.cli import commands
from lab.hardware.rigfile import describe
from lab.power import switch
from rigwright import catalogue
from tests.end_to_end.conftest import ssh

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

EVERY_RUN = ("servbadge", "rig-3090", "h100-sxm")
"""Rigs whose tests run each time: application clocks and NVLinks, a GeForce, NVSwitches. The others run nightly."""
OTHERS = [name for name in catalogue.all_rigs() if name not in EVERY_RUN]
GROUPS = [EVERY_RUN, *(tuple(OTHERS[i : i + 6]) for i in range(0, len(OTHERS), 6))]
CASES = [
    pytest.param(group, name, marks=[pytest.mark.nightly] if group else [])
    for group in range(len(GROUPS))
    for name in GROUPS[group]
]

DRIVER = {
    "470": ("ubuntu2204", "470-server", "470.256.02", "fabric manager is for others"),
    "535": ("ubuntu2404", "535-server", "535.161.08", "nvidia-fabricmanager-535"),
    "580": ("ubuntu2204", "580-server", "580.178.04", "nvidia-fabricmanager-580"),
}
QUERY = (
    "index,uuid,pci.bus_id,name,serial,memory.total,power.default_limit,power.min_limit,power.max_limit,"
    "pcie.link.width.current,ecc.mode.current,mig.mode.current,driver_version,clocks.applications.graphics"
)
SHOWN = {
    "lspci": "lspci -Dnn -d 10de:",
    "lspci -vvv": "sudo lspci -Dvvv -d 10de:",
    "tree": "lspci -t",
    "lshw": "sudo lshw -json -C display",
    "dmi": "cat /sys/class/dmi/id/product_name /sys/class/dmi/id/board_name; sudo lshw -json -C system 2>/dev/null",
    "-L": "nvidia-smi -L",
    "query": f"nvidia-smi --query-gpu={QUERY} --format=csv,noheader,nounits",
    "xml": "nvidia-smi -q -x",
    "topo -m": "nvidia-smi topo -m",
    "topo -p2p r": "nvidia-smi topo -p2p r",
    "nvlink -s": "nvidia-smi nvlink -s",
    "clocks": "nvidia-smi --query-supported-clocks=gpu_uuid,memory,graphics --format=csv,noheader,nounits",
    "-ac": 'for n in $(seq 0 $(($(nvidia-smi -L | wc -l) - 1))); do echo "$n $(sudo nvidia-smi -i $n -ac 1,1 2>&1 | '
    "tr '\\n' ' ')\"; done",
    "-lgc": "sudo nvidia-smi -lgc 300,600; sudo nvidia-smi -rgc >/dev/null",
    "pynvml": "python3 -",
}
PYNVML = """
import json, pynvml as n
n.nvmlInit()
gpus = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
print(json.dumps([[n.nvmlDeviceGetUUID(g), n.nvmlDeviceGetName(g), n.nvmlDeviceGetPciInfo(g).busId] for g in gpus]))
"""


def script() -> str:
    """Returns one script that runs all commands and prints the name of each before its output."""
    lines = ["cd /home/ubuntu"]
    for name, command in SHOWN.items():
        lines.append(f"echo; echo '=== {name}'")
        lines.append(f"{command} <<'END'\n{PYNVML}END" if name == "pynvml" else f'{command} || echo "exit $?"')
    return "\n".join(lines)


class Server:
    """A host of a rig, with the output of all commands."""

    def __init__(self, rig: str, name: str = "") -> None:
        self.rig, self.host = rig, name or f"t-{rig}"
        self.known = catalogue.rig(rig, "test")
        self.described = describe(rig, self.host)
        self.gpus: list[dict[str, Any]] = self.described["gpus"]
        self.models = [catalogue.model(gpu["model"]) for gpu in self.gpus]
        self.distro, self.packages, self.version, self.fabric = DRIVER[str(self.known.driver)]

    def boots(self, snapshots: Path) -> None:
        """Boots the host with the driver installed on its disk and pynvml in the user's home folder."""
        commands.down(name=self.host, say=print)
        snapshot = self.with_driver(snapshots)
        commands.up(name=self.host, rig=self.rig, distro=self.distro, snapshot=snapshot, say=print)
        shutil.copy(pynvml.__file__, switch.get(self.host).root / "home/ubuntu/pynvml.py")

    def with_driver(self, snapshots: Path) -> Path:
        """Returns a disk snapshot with the driver installed by apt, made once for all rigs, test files and workers."""
        made = snapshots / f"{self.distro}-{self.packages}"
        snapshots.mkdir(mode=0o700, exist_ok=True)
        with made.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.is_dir():
                builder = f"t-driver{self.packages.partition('-')[0]}"
                commands.down(name=builder, say=print)
                try:
                    commands.up(name=builder, rig=self.rig, distro=self.distro, say=print)
                    self.installs(builder)
                    commands.take_snapshot(builder, made)
                finally:
                    commands.down(name=builder, say=print)
        return made

    def installs(self, host: str) -> None:
        """Installs the pinned driver and its prebuilt modules on the host with apt."""
        names = [f"nvidia-headless-no-dkms-{self.packages}", f"nvidia-utils-{self.packages}"]
        names += [f"linux-modules-nvidia-{self.packages}-$(uname -r)"]
        install = f"sudo DEBIAN_FRONTEND=noninteractive apt-get -qq -y install {' '.join(names)} >/dev/null"
        pin = f"Package: *nvidia*{self.packages}*\\nPin: version {self.version}*\\nPin-Priority: 1001\\n"
        keep = f"printf '{pin}' | sudo tee /etc/apt/preferences.d/nvidia >/dev/null"
        self.does(f"{keep} && sudo apt-get -qq update && {install}", host)

    def has_the_driver(self) -> None:
        """Loads the modules; if the rig has NVSwitches, installs and starts the fabric manager."""
        load = "{ ! grep -q ^nouveau /proc/modules || sudo rmmod nouveau; } && sudo modprobe nvidia"
        install = f"sudo DEBIAN_FRONTEND=noninteractive apt-get -qq -y install {self.fabric} >/dev/null"
        start = f"{install} && sudo systemctl start nvidia-fabricmanager" if self.described["nvswitches"] else ":"
        self.does(f"{load} && {start}")

    def does(self, command: str, host: str = "") -> str:
        """Runs a command on the host (default: the rig's host), which must succeed, and returns its output."""
        name = host or self.host
        done = ssh(name, f"PATH=$PATH:/usr/sbin:/sbin\n{command}", 180)
        assert done.returncode == 0, f"{name}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        return str(done.stdout)

    @cached_property
    def shown(self) -> dict[str, str]:
        """The output of every command, by name."""
        parts = re.split(r"^=== (.+)\n", self.does(script()), flags=re.M)
        return dict(zip(parts[1::2], (part.strip("\n") for part in parts[2::2]), strict=True))

    def matrix(self, name: str) -> list[list[str]]:
        """Returns the cells of a table of GPU pairs, without headers."""
        rows = [line.split("\t") for line in self.shown[name].splitlines() if re.match(r" ?GPU\d", line)]
        return [[cell.strip() for cell in row[1 : 1 + len(self.gpus)]] for row in rows]


@contextmanager
def server_with_driver(name: str, rig: str, snapshots: Path) -> Iterator[Server]:
    """Boots a host of a rig with the driver on its disk; removes it at the end."""
    server = Server(rig, name)
    try:
        server.boots(snapshots)
        yield server
    finally:
        commands.down(name=name, say=print)


@pytest.fixture(scope="module")
def group(request: pytest.FixtureRequest, snapshots: Path) -> Iterator[dict[str, Server]]:
    """Starts the servers of several rigs in parallel."""
    servers = {name: Server(name) for name in GROUPS[request.param]}
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda server: server.boots(snapshots), servers.values()))
        list(pool.map(Server.has_the_driver, servers.values()))
    yield servers
    for server in servers.values():
        commands.down(name=server.host, say=print)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("group", "name"), CASES, indirect=["group"], ids=[name for group in GROUPS for name in group], scope="module"
)
def test_a_rig(group: dict[str, Server], name: str) -> None:
    server = group[name]
    on_the_bus(server)
    by_nvidia_smi(server)
    pairs(server)
    refusals(server)


def on_the_bus(server: Server) -> None:
    """Checks the output of lspci and lshw, and the DMI data."""
    shown, gpus = server.shown, server.gpus
    rows = re.findall(r"^(\S+) .*\[(03\d\d|0680)\]: .*\[10de:(\w{4})\]", shown["lspci"], re.M)
    displays = [(address, device) for address, kind, device in rows if kind != "0680"]
    assert [address for address, _ in displays] == [gpu["bus_id"] for gpu in gpus]
    assert all(device in model.pci_ids for (_, device), model in zip(displays, server.models, strict=True))
    switches = server.described["nvswitches"] or {"bus_ids": [], "pci_id": ""}
    assert [(address, device) for address, kind, device in rows if kind == "0680"] == [
        (address, switches["pci_id"]) for address in switches["bus_ids"]
    ]
    assert len(switches["bus_ids"]) == server.known.nvswitches
    long = shown["lspci -vvv"]
    assert len(re.findall("Kernel driver in use: nvidia$", long, re.M)) == len(gpus)
    assert len(re.findall("Kernel driver in use: nvidia-nvswitch$", long, re.M)) == server.known.nvswitches
    widths = [match[1] for match in re.finditer(r"controller.*?LnkSta:.*?Width x(\d+)", long, re.S)]
    assert [int(width) for width in widths] == [gpu["values"].get("slot.width", 16) for gpu in gpus]
    assert all(f"[{gpu['bus_id'][5:7]}]" in shown["tree"] for gpu in gpus)
    shows = [one for one in json.loads(shown["lshw"]) if one["vendor"] == "NVIDIA Corporation"]
    assert [one["businfo"] for one in shows] == [f"pci@{gpu['bus_id']}" for gpu in gpus]
    assert {one["configuration"]["driver"] for one in shows} == {"nvidia"}
    product, board, rest = shown["dmi"].split("\n", 2)
    names = server.described["dmi"]
    assert (product, board) == (names["product_name"], names["board_name"])
    assert json.loads(rest)[0]["vendor"] == names["sys_vendor"]


def by_nvidia_smi(server: Server) -> None:
    """Checks the list, the query, the XML and pynvml."""
    shown, gpus, models = server.shown, server.gpus, server.models
    assert shown["-L"].splitlines() == [
        f"GPU {n}: {model.name} (UUID: {gpu['uuid']})" for n, (gpu, model) in enumerate(zip(gpus, models, strict=True))
    ]
    assert Counter(model.key for model in models) == Counter(server.known.models)
    rows = list(csv.reader(io.StringIO(shown["query"]), skipinitialspace=True))
    for n, (row, gpu, model) in enumerate(zip(rows, gpus, models, strict=True)):
        index, uuid, bus_id, name, serial, memory, default, low, high, width, ecc, mig, version, application = row
        assert (index, uuid, bus_id[4:].lower(), name) == (str(n), gpu["uuid"], gpu["bus_id"], model.name)
        assert serial == (gpu["serial"] if "GeForce" not in name else "[N/A]")
        assert int(memory) == model.memory_mib
        watts = {"default": default, "min": low, "max": high}
        for key, seen in watts.items():
            expected = gpu["power_w"].get(key, getattr(model.power_w, key))
            assert expected is None or float(seen) == expected, (gpu["position"], key)
        assert int(width) == gpu["values"].get("slot.width", 16)
        assert ecc == ("[N/A]" if "GeForce" in name else "Disabled" if "Quadro" in name else "Enabled")
        assert mig == ("Disabled" if re.search("[AH]100", name) else "[N/A]")
        assert version == server.version
        assert (application != "[N/A]") == ("application" in model.clock_verbs)
    tree = ElementTree.fromstring(shown["xml"][shown["xml"].index("<nvidia_smi_log>") :])
    assert [one.findtext("uuid") for one in tree.findall("gpu")] == [gpu["uuid"] for gpu in gpus]
    assert json.loads(shown["pynvml"]) == [
        [gpu["uuid"], model.name, f"0000{gpu['bus_id']}".upper()] for gpu, model in zip(gpus, models, strict=True)
    ]


def level(server: Server, a: int, b: int) -> str:
    """Returns nvidia-smi's name for the connection between two GPUs."""
    pair = f"{min(a, b)}-{max(a, b)}"
    links = server.described["nvlinks"].get(pair, 0)
    if server.described["nvswitches"] and server.models[a].nvlink:
        links = server.models[a].nvlink.links
    return f"NV{links}" if links else str(server.described["pcie_levels"].get(pair, "SYS"))


def pairs(server: Server) -> None:
    """Checks topology, peer access and links."""
    numbers = range(len(server.gpus))
    assert server.matrix("topo -m") == [["X" if a == b else level(server, a, b) for b in numbers] for a in numbers]
    cpus = [
        line.split("\t")[len(numbers) + 1] for line in server.shown["topo -m"].splitlines() if line.startswith("GPU")
    ]
    assert cpus == [gpu["cpus"] for gpu in server.gpus]
    peers = server.matrix("topo -p2p r")
    linked = [[level(server, a, b).startswith("NV") for b in numbers] for a in numbers]
    path = server.known.p2p.path
    for a in numbers:
        for b in numbers:
            if a != b and path in ("nvlink", "nvswitch"):
                assert peers[a][b] == "OK" or not linked[a][b]
            elif a != b and path in ("pcie", "none"):
                assert (peers[a][b] == "OK") == (path == "pcie")
    up = Counter(re.findall(r"Link \d+: ([\d.]+) GB/s", server.shown["nvlink -s"]))
    ends = Counter[float]()
    for a, model in enumerate(server.models):
        if model.nvlink and server.described["nvswitches"]:
            ends[model.nvlink.gb_s_per_link] += model.nvlink.links
        elif model.nvlink:
            own = [links for pair, links in server.described["nvlinks"].items() if str(a) in pair.split("-")]
            ends[model.nvlink.gb_s_per_link] += sum(own)
    assert {float(speed): count for speed, count in up.items()} == {
        speed: count for speed, count in ends.items() if count
    }


def refusals(server: Server) -> None:
    """Checks the listed clocks and the settings that each GPU generation rejects."""
    listed = Counter(line.split(",")[0] for line in server.shown["clocks"].splitlines())
    application = dict(line.split(" ", 1) for line in server.shown["-ac"].splitlines())
    for n, (gpu, model) in enumerate(zip(server.gpus, server.models, strict=True)):
        known = model.clocks_mhz.graphics_min is not None or "application" in model.clock_verbs
        assert (listed[gpu["uuid"]] > 1) == known
        refused = "Setting applications clocks is not supported" in application[str(n)]
        assert refused == ("application" not in model.clock_verbs)
        bus_id = f"0000{gpu['bus_id']}".upper()
        no_lock = f"Setting locked GPU clocks is not supported for GPU {bus_id}" in server.shown["-lgc"]
        assert no_lock == ("locked_graphics" not in model.clock_verbs)


def test_two_hosts_of_one_rig_have_nothing_in_common(lab_root: None) -> None:  # noqa: ARG001
    commands.up(name="t-twin", rig="servbadge", count=2, say=print)
    try:
        found = [switch.get(name).hw.joinpath("board.conf").read_text() for name in ("t-twin1", "t-twin2")]
        uuids = [set(re.findall("uuid=(.+)", text)) | set(re.findall("serial=(.+)", text)) for text in found]
        assert len(uuids[0]) == len(uuids[1]) == 8
        assert not uuids[0] & uuids[1]
        assert [ssh(name, "hostname").stdout.strip() for name in ("t-twin1", "t-twin2")] == ["t-twin1", "t-twin2"]
    finally:
        for name in ("t-twin1", "t-twin2"):
            commands.down(name=name, say=print)
