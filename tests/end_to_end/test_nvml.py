"""The real nvidia-smi of two driver series over the simulated library: its output for people and for scripts."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import pytest

from lab.hardware.rigfile import describe
from lab.simulators.nvml.bare import CACHE, Bare, bare
from lab.simulators.nvml.real_smi import SUITES, nvidia_smi
from lab.simulators.nvml.smi_forms import wrapper
from rigwright.checks import Finding, card, health
from rigwright.core.command import Command, Result
from rigwright.core.schema import bus_id
from rigwright.facts import Fact, FactStore, Unavailable, Unreadable, parsed, pcie
from rigwright.facts.gpu import gpus as gpu, health as gpu_health, mig, nvidia_smi as smi, topology
from rigwright.operations.limits import pynvml
from tests.paths import ROOT

Value = TypeVar("Value")
pytestmark = pytest.mark.lab
SERIES = ("535.261.03", "550.163.01")
NOUNITS = "--format=csv,noheader,nounits"


class Smi:
    """An nvidia-smi and the simulated hardware that it reads."""

    def __init__(self, version: str, rig: str, folder: Path) -> None:
        self.version, self.rig = version, rig
        self.driver: Bare = bare(rig, version, folder / rig)
        self._binary = nvidia_smi(version, CACHE) if version in SUITES else _reworded(version, folder)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [str(self._binary), *words]
        return subprocess.run(argv, env=self.driver.env(), capture_output=True, text=True, timeout=60, check=False)

    def __call__(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def asked(self, fact: Fact[Value], folder: Path) -> Value:
        """Reads a fact of a host with these GPUs; the folder has the host's buses and programs."""
        value: Value = parsed(fact, self.answer(fact.command, folder))
        return value

    def answer(self, command: Command, folder: Path, program: bool = True) -> Result:
        """The result of a command on such a host, with or without the GPU limits program."""
        for one in describe(self.rig)["gpus"]:
            (folder / "nvidia" / one["bus_id"]).mkdir(parents=True, exist_ok=True)
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / "nvidia-smi").unlink(missing_ok=True)
        (folder / "bin" / "nvidia-smi").symlink_to(self._binary)
        (folder / "bin" / "gpu_limits.py").unlink(missing_ok=True)
        if program:
            shutil.copy(ROOT / "onhost" / "gpu_limits.py", folder / "bin")
        (folder / "bin" / "pynvml.py").write_bytes(pynvml())
        env = {**self.driver.env(), "PATH": f"{folder}/bin:{os.environ['PATH']}", "RIGWRIGHT_ROOT": str(folder)}
        places = {"/sys/bus/pci/drivers": str(folder), gpu.LIMITS_PROGRAM: f"{folder}/bin/gpu_limits.py"}
        argv = [reduce(lambda text, place: text.replace(*place), places.items(), word) for word in command.argv]
        done = subprocess.run(argv, env=env, capture_output=True, timeout=60, check=False)
        return Result(done.returncode, done.stdout, done.stderr)

    def judged(self, check: Callable[[FactStore], Iterator[Finding]], folder: Path) -> list[tuple[str, str, str]]:
        """Returns subject, verdict and text of each finding of a check that asks these GPUs."""
        cards, links = self.asked(gpu_health.cards, folder), self.asked(topology.nvlinks, folder)
        known: dict[Fact[Any], Any] = {gpu_health.cards: cards, topology.nvlinks: links}
        return [(finding.subject, finding.verdict, finding.seen) for finding in check(FactStore(known))]

    def query(self, fields: str) -> list[list[str]]:
        return [line.split(", ") for line in self(f"--query-gpu={fields}", NOUNITS).splitlines()]


def _reworded(version: str, folder: Path) -> Path:
    """Returns nvidia-smi of a newer branch, as the packages of the lab have it."""
    script = wrapper(version, str(nvidia_smi(SERIES[-1], CACHE)))
    assert script is not None
    path = folder / f"nvidia-smi-{version}"
    path.write_text(script)
    path.chmod(0o755)
    return path


@pytest.fixture(params=SERIES)
def servbadge(request: pytest.FixtureRequest, tmp_path: Path, lab_root: None) -> Smi:  # noqa: ARG001
    return Smi(request.param, "servbadge", tmp_path)


@pytest.fixture(params=SERIES)
def rig_3090(request: pytest.FixtureRequest, tmp_path: Path, lab_root: None) -> Smi:  # noqa: ARG001
    return Smi(request.param, "rig-3090", tmp_path)


def test_limits_are_set_in_nvidias_words_and_read_back(servbadge: Smi) -> None:
    assert servbadge("-pm", "1").splitlines()[0] == "Enabled persistence mode for GPU 00000000:06:00.0."
    assert "already Enabled" in servbadge("-pm", "1")
    assert "Power limit for GPU 00000000:07:00.0 was set to 180.00 W from 300.00 W." in servbadge(
        "-i", "1", "-pl", "180"
    )
    assert 'Applications clocks set to "(MEM 877, SM 1005)" for GPU 00000000:0A:00.0' in servbadge(
        "-i", "0000:0a:00.0", "-ac", "877,1005"
    )
    assert 'GPU clocks set to "(gpuClkMin 210, gpuClkMax 900)"' in servbadge("-i", "3", "-lgc", "210,900")
    seen = servbadge.query("persistence_mode,power.limit,clocks.applications.graphics")
    assert seen == [
        ["Enabled", "300.00", "1312"],
        ["Enabled", "180.00", "1312"],
        ["Enabled", "300.00", "1005"],
        ["Enabled", "300.00", "1312"],
    ]
    servbadge("-rac")
    assert servbadge.query("clocks.applications.graphics") == [["1312"]] * 4


def test_without_persistence_a_limit_ends_with_the_command(servbadge: Smi) -> None:
    said = servbadge("-pl", "200")
    assert "was set to 200.00 W from 300.00 W" in said
    assert "Warning: persistence mode is disabled on device 00000000:06:00.0" in said
    assert servbadge.query("power.limit") == [["300.00"]] * 4


def test_refusals_read_and_exit_as_on_a_real_machine(servbadge: Smi) -> None:
    low = servbadge.run("-i", "0", "-pl", "20")
    assert low.returncode == 2
    assert "should be between 150.00 W and 300.00 W for GPU 00000000:06:00.0" in low.stdout
    pair = servbadge.run("-i", "0", "-ac", "877,1001")
    assert pair.returncode == 0
    assert 'Specified clock combination "(MEM 877, SM 1001)" is not supported' in pair.stdout
    memory = servbadge.run("-i", "0", "-lmc", "877")
    assert memory.returncode == 0
    assert "Setting locked Memory clocks is not supported" in memory.stdout


def test_the_long_query_and_its_xml(servbadge: Smi) -> None:
    tree = ElementTree.fromstring(servbadge("-q", "-x").split("\n", 2)[2])
    gpus = tree.findall("gpu")
    assert [gpu.get("id") for gpu in gpus] == [f"00000000:{bus}:00.0" for bus in ("06", "07", "0A", "0B")]
    assert len(gpus[0].findall(".//supported_graphics_clock")) == 187
    assert gpus[0].findtext(".//ecc_mode/current_ecc") == "Enabled"
    assert "Function Not Found" not in servbadge("-q")
    pairs = servbadge("--query-supported-clocks=memory,graphics", NOUNITS, "-i", "0").splitlines()
    assert pairs[:3] == ["877, 1530", "877, 1522", "877, 1515"]
    assert "1005 MHz" in servbadge("-q", "-d", "SUPPORTED_CLOCKS,POWER,CLOCK,PERFORMANCE,ECC")


def test_processes_monitor_and_reset(servbadge: Smi) -> None:
    servbadge.driver.put(gpu1__procs="4242:1024:python3")
    assert "4242, python3, 1024" in servbadge("--query-compute-apps=pid,process_name,used_memory", NOUNITS)
    assert "python3" in servbadge()
    servbadge.driver.put(gpu1__procs="", gpu0__load=90)
    assert servbadge("dmon", "-c", "1").count("\n") == 6
    servbadge("-pm", "1")
    servbadge("-i", "2", "-pl", "200")
    assert "successfully reset" in servbadge("--gpu-reset", "-i", "2")
    assert servbadge.query("power.limit") == [["300.00"]] * 4


def test_ecc_waits_for_the_next_boot(servbadge: Smi) -> None:
    servbadge("-i", "0", "-e", "0")
    assert servbadge.query("ecc.mode.current,ecc.mode.pending")[0] == ["Enabled", "Disabled"]
    servbadge.driver.cut_power()
    servbadge.driver.load_driver(servbadge.version)
    assert servbadge.query("ecc.mode.current,ecc.mode.pending")[0] == ["Disabled", "Disabled"]


@pytest.mark.parametrize("key", ["gpu2.fault.open", "gpu2.fault"])
def test_the_facts_of_the_others_when_one_is_lost(servbadge: Smi, key: str, tmp_path: Path) -> None:
    """The GPU cannot be opened, so nvidia-smi lists no GPU; or nvidia-smi prints an error text for it."""
    servbadge.driver.put(**{key: 15})
    left = ["0000:06:00.0", "0000:07:00.0", "0000:0b:00.0"]
    gpus, cards = servbadge.asked(gpu.gpus, tmp_path), servbadge.asked(gpu_health.cards, tmp_path)
    assert {one.bus_id: one.lost for one in gpus} == {one.bus_id: one.lost for one in cards}
    assert [one.bus_id for one in cards if not one.lost] == left
    assert {one.lost for one in cards} == {"", "GPU is lost"}
    uuids = {one.uuid for one in cards if not one.lost}
    assert {one.temperature_c for one in cards if not one.lost} == {33}
    assert {link.uuid for link in servbadge.asked(topology.nvlinks, tmp_path)} == uuids
    assert servbadge.asked(gpu.supported_clocks, tmp_path).keys() == uuids
    assert sorted(servbadge.asked(pcie.states, tmp_path)) == left


def test_a_3090_refuses_application_clocks_and_exits_0(rig_3090: Smi) -> None:
    done = rig_3090.run("-i", "0", "-ac", "9751,1500")
    assert done.returncode == 0
    assert "Setting applications clocks is not supported for GPU 00000000:08:00.0." in done.stdout
    assert rig_3090.query("clocks.applications.graphics,ecc.mode.current,serial")[0] == ["[N/A]"] * 3
    assert "Memory clocks set to" in rig_3090("-lmc", "405,5001")
    assert "GPU clocks set to" in rig_3090("-lgc", "210,1400")


def test_3090s_of_three_makers(rig_3090: Smi) -> None:
    assert rig_3090.query("power.limit,power.max_limit") == [
        ["350.00", "350.00"],
        ["350.00", "375.00"],
        ["390.00", "480.00"],
    ]
    assert "was set to 480.00 W from 390.00 W" in rig_3090("-i", "2", "-pl", "480")
    assert rig_3090.run("-i", "1", "-pl", "480").returncode == 2
    assert rig_3090("topo", "-p2p", "r").count("OK") == 7  # six pairs and the legend
    rig_3090.driver.put(p2p__default=1)
    assert rig_3090("topo", "-p2p", "r").count("CNS") == 7
    rows = [line.split("\t") for line in rig_3090("topo", "-m").splitlines() if line.startswith("GPU")]
    assert [row[1:4] for row in rows] == [[" X ", "PHB", "NODE"], ["PHB", " X ", "NODE"], ["NODE", "NODE", " X "]]
    assert "all links are inActive" in rig_3090("nvlink", "-s")


def test_a_k80_under_its_last_branch(tmp_path: Path, lab_root: None) -> None:  # noqa: ARG001
    k80 = Smi("470.256.02", "kaggle-box", tmp_path)
    assert "NVIDIA-SMI 470.256.02" in k80()
    assert k80("-L").count("GPU-") == 2
    rows = [line.split("\t") for line in k80("topo", "-m").splitlines() if line.startswith("GPU")]
    assert [row[1:3] for row in rows] == [[" X ", "PIX"], ["PIX", " X "]]
    clocks = k80("--query-supported-clocks=memory,graphics", NOUNITS, "-i", "0").splitlines()
    assert (clocks[0], clocks[1], clocks[24]) == ("2505, 875", "2505, 862", "2505, 562")
    assert 'Applications clocks set to "(MEM 2505, SM 705)"' in k80("-ac", "2505,705")
    assert "locked GPU clocks is not supported" in k80("-lgc", "500")
    k80.driver.put(gpu1__procs="4242:1024:python3")
    assert "4242, python3, 1024" in k80("--query-compute-apps=pid,process_name,used_memory", NOUNITS)


def test_nvswitches_carry_nothing_before_the_fabric_manager_runs(tmp_path: Path, lab_root: None) -> None:  # noqa: ARG001
    h100 = Smi("550.163.01", "h100-sxm", tmp_path)
    assert "NS" in h100("topo", "-p2p", "r").splitlines()[1]
    assert "NV" not in h100("topo", "-m").splitlines()[1]
    assert re.search(r"Fabric\s+State +: In Progress", h100("-q", "-i", "0"))
    with (h100.driver.hardware / "volatile/fabric").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "NV18" in h100("topo", "-m").splitlines()[1]
        assert h100("nvlink", "-s", "-i", "0").count("26.562 GB/s") == 18
        assert re.search(r"Fabric\s+State +: Completed", h100("-q", "-i", "0"))
        assert "GPU Shutdown T.Limit Temp" in h100("-q", "-d", "TEMPERATURE", "-i", "0")


@pytest.fixture(params=("565.57.01", "580.178.04", "595.71.05"))
def newer_h100(request: pytest.FixtureRequest, tmp_path: Path, lab_root: None) -> Smi:  # noqa: ARG001
    return Smi(request.param, "h100-sxm", tmp_path)


def test_newer_branches_have_a_recovery_action(newer_h100: Smi, tmp_path: Path) -> None:
    query = newer_h100("-q", "-i", "0")
    assert re.search(r"^    GPU Recovery Action +: None$", query, re.MULTILINE)
    assert ("GPU Reset Status" in query) == (newer_h100.version < "580")
    assert ("Channel Repair Pending" in query) == (newer_h100.version > "580")
    assert newer_h100.judged(health.recovered, tmp_path) == [("recovery", "pass", "8 GPUs need no reset")]
    newer_h100.driver.put(
        gpu1__recovery_action="Reset", gpu2__recovery_action="Drain P2P", gpu3__recovery_action="Reboot"
    )
    newer_h100.driver.put(gpu4__recovery_action="Drain and Reset", gpu5__repair__channel=1)
    places = [one["bus_id"] for one in describe("h100-sxm")["gpus"]]
    repair = (places[5], "warn", "the repair of a memory channel waits for a reset")
    assert newer_h100.judged(health.recovered, tmp_path) == [
        (places[1], "fail", "needs a reset"),
        (places[2], "fail", "the driver asks for: Drain P2P"),
        (places[3], "fail", "the driver asks for: Reboot"),
        (places[4], "warn", "the driver asks for: Drain and Reset"),
        *([repair] if newer_h100.version > "580" else []),
    ]
    newer_h100("-r", "-i", "1")
    assert newer_h100.judged(health.recovered, tmp_path)[0][0] == places[2]


def test_older_branches_say_that_a_reset_is_required(servbadge: Smi, tmp_path: Path) -> None:
    servbadge.driver.put(gpu2__recovery_action="Reset")
    assert re.search(r"Reset Required +: Yes", servbadge("-q", "-i", "2"))
    assert servbadge.judged(health.recovered, tmp_path) == [("0000:0a:00.0", "fail", "needs a reset")]


def test_one_gpu_without_links_is_read_and_named_without_a_rig(newer_h100: Smi, tmp_path: Path) -> None:
    places = [one["bus_id"] for one in describe("h100-sxm")["gpus"]]
    with (newer_h100.driver.hardware / "volatile/fabric").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        newer_h100.driver.put(**{f"gpu2__link{number}__state": 0 for number in range(18)})
        word = "Nvlink" if newer_h100.version > "595" else "NVLink"
        assert f"Unable to retrieve {word} information as all links are inActive" in newer_h100("nvlink", "-s")
        assert newer_h100.judged(card.equal, tmp_path) == [(places[2], "warn", "no active NVLinks")]


def test_degrees_to_the_limit_in_place_of_a_slowdown_temperature(newer_h100: Smi, tmp_path: Path) -> None:
    cool = newer_h100.asked(gpu_health.cards, tmp_path)[0]
    assert (cool.slowdown_c, cool.slowdown_tlimit_c) == (None, -2)
    assert cool.tlimit_c == 87 - (cool.temperature_c or 0)
    newer_h100.driver.put(gpu0__temp__idle=89)
    newer_h100.driver.pass_time(1200)
    (finding,) = newer_h100.judged(health.not_throttled, tmp_path)
    assert finding[1:] == ("fail", "hot enough to be slowed down at 89 C (T.Limit -2 C, slowdown at -2)")


STATES: dict[str, dict[str, object]] = {
    "fresh": {},
    "limits": {"gpu0__persistence": 1, "gpu0__power_limit_mw": 111000, "gpu0__ecc__pending": 0},
    "links": {"gpu0__link0__state": 0, "gpu0__link1__crc": 4, "gpu0__link2__replay": 3, "gpu0__link2__recovery": 2},
    "mig": {"gpu0__mig__mode": 1},
    "cannot be opened": {"gpu1__fault__open": 15},
    "lost": {"gpu1__fault": 15},
    "fields": {"gpu0__fault__call__nvmlDeviceGetFieldValues": 999},
    "one field": {"gpu1__fault__call__nvmlDeviceGetEccMode": 999},
}
"""By name: values of the hardware."""


def cells(row: str) -> list[str | None]:
    """The cells of a row of nvidia-smi; None for one without a value."""
    return [smi.value(cell)[0] for cell in row.split(", ")]


def words(*values: object) -> list[str | None]:
    """The values as nvidia-smi writes them."""
    return [
        {True: "Enabled", False: "Disabled"}[value] if isinstance(value, bool)
        else f"{value:.2f}" if isinstance(value, float)
        else None if value in (None, "") else str(value)
        for value in values
    ]  # fmt: skip


def clocks(pair: gpu.ClockPair | None) -> tuple[int | None, int | None]:
    return (pair.memory_mhz, pair.graphics_mhz) if pair else (None, None)


def rows(fact_value: Any) -> dict[str, list[str | None]]:
    """What a fact of the GPUs that are not lost has, as rows of nvidia-smi by bus id."""
    if isinstance(fact_value, dict):
        return {at: [f"P{state}"] for at, state in fact_value.items()}
    return {
        one.bus_id: words(
            one.index, one.uuid, one.name, one.persistence,
            one.power_limit_w, one.power_min_w, one.power_max_w, one.power_default_w,
            *clocks(one.application_clocks), *clocks(one.default_application_clocks),
        )
        if isinstance(one, gpu.Gpu) else words(one.uuid, one.name, one.current, one.pending)
        for one in fact_value if not one.lost
    }  # fmt: skip


GPU_FIELDS = (
    "index,uuid,name,persistence_mode,power.limit,power.min_limit,power.max_limit,power.default_limit,"
    "clocks.applications.memory,clocks.applications.graphics,"
    "clocks.default_applications.memory,clocks.default_applications.graphics"
)
ROWS: dict[Fact[Any], str] = {
    gpu.gpus: GPU_FIELDS,
    gpu.ecc_modes: "uuid,name,ecc.mode.current,ecc.mode.pending",
    mig.modes: "uuid,name,mig.mode.current,mig.mode.pending",
    pcie.states: "pstate",
}
"""Facts that read the XML, and the fields of nvidia-smi that have the same."""


@pytest.mark.parametrize("version", ["470.256.02", *SERIES, "595.80"])
@pytest.mark.parametrize("rig", ["servbadge", "rig-3090", "second-hand", "h100-sxm", "a100"])
def test_the_xml_has_what_nvidia_smi_says_in_rows(
    rig: str,
    version: str,
    tmp_path: Path,
    lab_root: None,  # noqa: ARG001
) -> None:
    """One nvidia-smi answers several facts; and NVML has the links that nvidia-smi lists."""
    asked = Smi(version, rig, tmp_path)
    for state, values in STATES.items():
        asked.driver.put(**values)
        for fact, fields in ROWS.items():
            answer = asked.answer(smi.query(f"--query-gpu=pci.bus_id,{fields}"), tmp_path)
            lines = [line.partition(", ") for line in answer.lines if line.strip() and not smi.is_lost(line)]
            expected = {
                bus_id(at): cells(row) for at, _, row in lines if "[GPU is lost]" not in row and "Error]" not in row
            }
            found = asked.asked(fact, tmp_path)
            if (state, fact) == (
                "fields",
                gpu.gpus,
            ) and version > "500":  # of these power limits the XML has what was in the memory
                assert isinstance(found, Unreadable), version
            else:
                assert rows(found) == expected, f"{state}: {fact.name}"
        links = asked.asked(topology.nvlinks, tmp_path)
        listed = parsed(topology.nvlinks, asked.answer(gpu.NVML, tmp_path, program=False))
        if not isinstance(listed, Unavailable):
            assert repr(links) == repr(listed), state
        else:  # nvidia-smi has no word for a GPU without links beside one that cannot be opened; NVML has
            assert (rig, state, links) == ("second-hand", "cannot be opened", ())
        asked.driver.put(**dict.fromkeys(values, ""))


def test_the_counters_of_a_link_under_470(tmp_path: Path, lab_root: None) -> None:  # noqa: ARG001
    smi = Smi("470.256.02", "servbadge", tmp_path)
    smi.driver.put(gpu0__link1__crc=4, gpu0__link1__replay=3, gpu0__link1__recovery=2)
    assert "Link 1: 4 flit CRC errors" in smi("nvlink", "-e", "-i", "0")
    assert [link.errors for link in smi.asked(topology.nvlinks, tmp_path)][:3] == [0, 9, 0]
