"""Findings about the peer-to-peer test: the real program over every rig's simulated GPUs, with and without faults."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pynvml
import pytest
from rich.text import Text

from lab.hardware.rigfile import describe
from lab.simulators.cuda.bare import add_cuda
from lab.simulators.cuda.wheels import make_wheels
from lab.simulators.nvml.bare import CACHE, Bare, bare
from rigwright import catalogue
from rigwright.catalogue import nccl_wheels
from rigwright.catalogue.nccl_wheels import Wheel
from rigwright.checks import Finding, p2p
from rigwright.core.command import Command, Result
from rigwright.core.errors import HostError
from rigwright.engine.p2p import wheels as wheel_copy
from rigwright.facts import FactStore, pci
from rigwright.facts.nccl import p2p_test as facts
from rigwright.facts.nccl.p2p_test import Document
from rigwright.facts.pci import PciGpu
from rigwright.report.tables.nccl import lines
from tests.paths import CASES, ROOT

VERSION = "535.261.03"
ONHOST = ROOT / "onhost"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the path of the program in a folder with the same files as on a host."""
    place = tmp_path_factory.mktemp("program")
    for path in (*ONHOST.glob("nccl_*.py"), Path(pynvml.__file__)):
        shutil.copy(path, place / path.name)
    return place / "nccl_p2p.py"


@pytest.fixture
def tested(program: Path, tmp_path: Path) -> Iterator[Callable[..., Document]]:
    """Yields `tested(rig, keys, *words)`: the document of a run over that rig, with a running fabric manager."""
    held = []

    def run(rig: str, keys: dict[str, Any], *words: str) -> Document:
        driver: Bare = add_cuda(bare(rig, VERSION, tmp_path / rig), VERSION)
        driver.put(**keys)
        held.append((driver.hardware / "volatile/fabric").open("w"))
        fcntl.flock(held[-1], fcntl.LOCK_EX)
        argv = [sys.executable, "-I", str(program), *words]
        done = subprocess.run(argv, env=driver.env(), capture_output=True, text=True, timeout=120, check=False)
        return facts.read(done.stdout)

    yield run
    for one in held:
        one.close()


def judged(rig: str, document: Document, described: bool = True) -> list[Finding]:
    """Returns the findings of all checks for a document of that rig."""
    known, gpus = catalogue.rig(rig, "test"), describe(rig)["gpus"]
    bus = tuple(
        PciGpu(one["bus_id"], catalogue.model(known.gpus[one["position"]]).pci_ids[0], "nvidia") for one in gpus
    )
    slots = {one["bus_id"]: one["position"] for one in gpus}
    store = FactStore({facts.tested: document, facts.settings: (), pci.gpus: bus})
    given = known if described else None
    return [
        *p2p.ran(store, slots=slots),
        *p2p.copies(store, rig=given, slots=slots),
        *p2p.collective(store, rig=given, slots=slots),
        *p2p.scaling(store, rig=given),
        *p2p.settings(store),
    ]


def first(findings: Sequence[Finding]) -> Finding:
    """Returns the finding that a report shows first."""
    order = ("fail", "unknown", "warn", "info", "pass")
    return min(findings, key=lambda one: order.index(one.verdict))


def few(rig: str) -> list[str]:
    """Returns options that limit a machine with many GPUs to a ring of near and far pairs."""
    count = len(catalogue.rig(rig, "test").gpus)
    if count <= 4:
        return []
    ends = sorted({0, 1, 2, count // 2, count - 1})
    return ["--pairs", ",".join(f"{a}-{b}" for a, b in zip(ends, [*ends[1:], ends[0]], strict=True))]


EVERY_RUN = ("servbadge", "rig-3090")
"""Rigs whose tests run each time: NVLinks, and GeForce. The others run nightly."""


@pytest.mark.parametrize(
    "rig", [pytest.param(rig, marks=[] if rig in EVERY_RUN else pytest.mark.nightly) for rig in catalogue.all_rigs()]
)
def test_every_rig_is_well(tested: Callable[..., Document], rig: str) -> None:
    document = tested(rig, {}, "--quick", *few(rig))
    for findings in (judged(rig, document), judged(rig, document, described=False)):
        assert [finding for finding in findings if finding.verdict not in ("pass", "info")] == []


@pytest.mark.parametrize(
    ("rig", "keys", "check", "subject", "seen", "fix"),
    [
        ("servbadge", {"gpu0.link0.state": 0}, "copies", "SXM2-1 SXM2-2", "far too slow; 23", "reseat both GPUs"),
        ("servbadge", {"fault.pair.0-1": "slow:10"}, "copies", "SXM2-1 SXM2-2", "far too slow; 4.", "nvlink -s"),
        ("servbadge", {"fault.pair.0-1": "corrupt"}, "copies", "SXM2-1 SXM2-2", "wrong data", "stop training"),
        ("servbadge", {"p2p.0-1": 1}, "copies", "SXM2-1 SXM2-2", "no peer access (NVML: chipset)", "topo -p2p"),
        ("v100-pcie", {"p2p.0-1": 1}, "copies", "PCIE-1 PCIE-2", "no peer access (NVML: chipset)", "iommu=pt"),
        ("servbadge", {"nccl.irq_hang": 1}, "collective", "all-reduce over 2 GPUs", "hang; the same", "torque"),
        ("servbadge", {"fault.pair.0-1": "hang"}, "copies", "SXM2-1 SXM2-2", "a copy with peer access hangs", "torque"),
        ("v100-pcie", {"fault.pair.0-1": "hang"}, "copies", "PCIE-1 PCIE-2", "a copy with peer", "NCCL_P2P_DISABLE=1"),
        ("rig-3090", {"nccl.irq_hang": 1}, "collective", "all-reduce over 2 GPUs", "hang; the same", "ACS off"),
        ("servbadge", {"gpu1.fault": 15}, "ran", "SXM2-2 0000:07:00.0", "its own memory: error", "dmesg"),
    ],
)
def test_every_fault_comes_first(
    tested: Callable[..., Document], rig: str, keys: dict[str, Any], check: str, subject: str, seen: str, fix: str
) -> None:
    words = ("--quick", "--pairs", "0-1", "--step-timeout-s", "2")
    found = first(judged(rig, tested(rig, keys, *words)))
    assert (found.verdict, found.check, found.subject) == ("fail", f"p2p.{check}", subject)
    assert found.seen.startswith(seen)
    assert fix in found.fix


@pytest.mark.parametrize(
    ("status", "copies", "scaling"),
    [(0, "peer access on", "info"), (1, "no peer access (NVML: chipset)", "warn")],
)
def test_rig_3090_with_peers_as_its_owner_reports_it_and_without(
    tested: Callable[..., Document], status: int, copies: str, scaling: str
) -> None:
    """Without peers the figure of the rig, three GPUs three times as fast, is missed by a quarter."""
    document = tested("rig-3090", {"p2p.default": status})
    assert [row.gpus for row in document.scaling] == [1, 2, 3]
    findings = judged("rig-3090", document)
    assert {finding.seen[: len(copies)] for finding in findings if finding.check == "p2p.copies"} == {copies}
    (last,) = (finding for finding in findings if finding.check == "p2p.scaling")
    assert (last.verdict, last.expected) == (scaling, "3 times, in training")
    if scaling == "warn":
        causes = ["1. no peer access", "2. a PCIe link", "3. lowered clocks", "4. processor threads"]
        assert [cause[: len(start)] for cause, start in zip(last.cause.split("; "), causes, strict=True)] == causes
        steps = last.fix.split("; ")
        assert ("iommu" in steps[0], "LnkSta" in steps[1], "stress" in steps[2], "OMP" in steps[3]) == (True,) * 4


def test_peers_tell_a_slow_pair_where_no_rig_does(tested: Callable[..., Document]) -> None:
    document = tested("servbadge", {"fault.pair.0-1": "slow:10"}, "--quick", "--no-collective")
    found = first(judged("servbadge", document, described=False))
    assert (found.verdict, found.subject, found.source) == ("fail", "SXM2-1 SXM2-2", "peers")


def test_two_gpus_without_peers_are_two_findings(tested: Callable[..., Document]) -> None:
    keys = {f"p2p.{pair}": 1 for pair in ("0-1", "1-2", "1-3", "0-3", "2-3")}
    found = judged("servbadge", tested("servbadge", keys, "--quick", "--no-collective"))
    assert [finding.subject for finding in found if finding.verdict == "fail"] == [
        "SXM2-1 SXM2-2, SXM2-2 SXM2-3, SXM2-2 SXM2-4",
        "SXM2-1 SXM2-4, SXM2-3 SXM2-4",
    ]


def sixteen() -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a document of sixteen GPUs, and the pair of which all its pairs are copies."""
    case = json.loads((CASES / "p2p/pair.json").read_text())
    gpu, pair = case["gpus"][0], case["pairs"][0]
    case["gpus"] = [{**gpu, "index": number} for number in range(16)]
    case["pairs"] = [{**pair, "from": a, "to": b} for a, b in permutations(range(16), 2)]
    return case, pair


def test_sixteen_gpus_in_eighty_columns() -> None:
    case, pair = sixteen()
    hang = {**pair["collective"], "ok": False, "outcome": "hang", "gb_s": None}
    case["pairs"][3]["collective"] = hang
    case["pairs"][4]["bytes"] = {**pair["bytes"], "gb_s": 364.2}
    shown = [Text.from_markup(line).plain for line in lines(facts.read(json.dumps(case)))]
    rows = [line for line in shown if line.startswith("    0 ")]
    assert len(rows) == 2  # copies, and NCCL's messages, which differ
    assert "364" in rows[0]
    assert "HANG" in rows[1]
    assert max(len(line) for line in shown if line.startswith("  ")) <= 80


def test_the_table_names_the_pairs_that_were_measured_alone() -> None:
    case, pair = sixteen()

    def shown(alone: set[tuple[int, int]]) -> list[str]:
        for one in case["pairs"]:
            if (one["from"], one["to"]) not in alone:
                for tier in ("bytes", "collective"):
                    one[tier] = {**pair[tier], "gb_s": None, "latency_us": None, "round_gb_s": 30.6}
        return [Text.from_markup(line).plain for line in lines(facts.read(json.dumps(case)))]

    every = {(one["from"], one["to"]) for one in case["pairs"]}
    assert not any("alone" in line for line in shown(every))
    few = shown({(0, 1), (1, 0)})
    assert "  alone: 0-1, 1-0; 238 others beside other pairs" in few
    assert " 31" in next(line for line in few if line.startswith("    2 "))
    assert any("GB/s or more for 2 alone, 30.6 or more in rounds; " in line for line in few)
    assert "  alone: none; 240 others beside other pairs" in shown(set())
    case["pairs"] = sixteen()[0]["pairs"]
    many = next(line for line in shown({(a, b) for a in range(10, 13) for b in range(16)}) if "alone" in line)
    assert many == "  alone: 10-0, 10-1, 10-2, 10-3, 41 more; 195 others beside other pairs"


def wheel(
    folder: Path, name: str, version: str, content: bytes = b"ELF", inner: str = "nvidia/x/lib/libx.so.1"
) -> Path:
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-manylinux2014_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(inner, content)
        about = f"{name.replace('-', '_')}-{version}.dist-info"
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    return path


def wanted(path: Path, version: str = "1.2.3") -> Wheel:
    return Wheel(version, 1, hashlib.sha256(path.read_bytes()).hexdigest())


def test_which_libraries() -> None:
    def key(driver: int, *capabilities: str) -> str | None:
        found = nccl_wheels.libraries_for(driver, capabilities)
        return next((name for name, one in nccl_wheels.sets().items() if one is found), None)

    assert key(535, "7.0") == "cuda12.4"
    assert key(580, "8.6", "12.0") == "cuda12.8"
    assert key(470, "3.7") == "cuda11.8"
    assert key(470, "8.6") == "cuda11.8"
    assert key(390, "6.1") is None
    assert key(580, "3.7", "12.0") is None
    assert key(535, "12.0") is None
    quick = nccl_wheels.sets()["cuda12.4"].needed(quick=True)
    assert list(quick) == ["nvidia-nccl-cu12", "nvidia-cuda-runtime-cu12"]


def test_wheels_of_a_folder(tmp_path: Path) -> None:
    said: list[str] = []
    path = wheel(tmp_path, "nvidia-x", "1.2.3")
    found = wheel_copy.find(tmp_path, {"nvidia-x": wanted(path)}, said.append)
    assert (found[0].path, found[0].unpacked_bytes, said) == (path, 3, [])
    wheel_copy.find(tmp_path, {"nvidia-x": Wheel("1.2.3", 1, "0" * 64)}, said.append)
    assert said == [f"{path.name} is not the pinned nvidia-x 1.2.3"]
    newer = [wheel(tmp_path, "nvidia-x", version) for version in ("1.9.0", "1.10.0")]
    (other,) = wheel_copy.find(tmp_path, {"nvidia-x": Wheel("1.1.0", 1, "0" * 64)}, said.append)
    assert (other.version, other.path) == ("1.10.0", newer[1])
    with pytest.raises(wheel_copy.NoWheels, match="is no directory") as caught:
        wheel_copy.find(tmp_path / "absent", {"nvidia-y": Wheel("2.0", 1, "0" * 64)}, said.append)
    assert caught.value.fix == "p2p_wheels in the inventory, or --wheels: fetch, or a directory with nvidia-y 2.0"
    with pytest.raises(wheel_copy.NoWheels, match=r"has no nvidia_y-\*\.whl") as caught:
        wheel_copy.find(tmp_path, {"nvidia-y": Wheel("2.0", 1, "0" * 64)}, said.append)
    assert "nvidia-y==2.0" in caught.value.fix
    path.write_bytes(b"PK, cut off")
    with pytest.raises(wheel_copy.NoWheels, match="is no wheel"):
        wheel_copy.find(tmp_path, {"nvidia-x": Wheel("1.2.3", 1, "0" * 64)}, said.append)
    wheel(tmp_path, "nvidia-x", "1.2.3", inner="nvidia/x/README")
    with pytest.raises(wheel_copy.NoWheels, match="holds no library"):
        wheel_copy.find(tmp_path, {"nvidia-x": Wheel("1.2.3", 1, "0" * 64)}, said.append)


def test_wheels_of_the_lab(tmp_path: Path) -> None:
    stale = tmp_path / "nvidia_cublas_cu12-12.4.5.8-py3-none-manylinux2014_x86_64.whl"
    with zipfile.ZipFile(stale, "w") as archive:
        archive.writestr("nvidia/cublas/lib/libcublas.so.MAJOR", b"of an older lab")
    found = {path.name.partition("-py3")[0]: path for path in make_wheels(tmp_path, CACHE).glob("*.whl")}
    assert {
        f"{package.replace('-', '_')}-{wheel.version}"
        for one in nccl_wheels.sets().values()
        for package, wheel in one.wheels.items()
    } == found.keys()
    libraries = {name: zipfile.ZipFile(path).namelist() for name, path in found.items()}
    assert libraries["nvidia_cublas_cu12-12.4.5.8"] == ["nvidia/cublas/lib/libcublas.so.12"]
    assert libraries["nvidia_cuda_runtime_cu12-12.8.90"] == ["nvidia/cudart/lib/libcudart.so.12"]
    assert libraries["nvidia_cuda_runtime_cu11-11.8.89"] == ["nvidia/cudart/lib/libcudart.so.11.0"]
    assert libraries["nvidia_nccl_cu11-2.14.3"] == ["nvidia/nccl/lib/libnccl.so.2"]


def test_wheels_by_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip's index is a folder here, set in its configuration by --no-index and --find-links."""
    index, cache = tmp_path / "index", tmp_path / "cache"
    index.mkdir()
    path = wheel(index, "nvidia-x", "1.2.3")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    said: list[str] = []
    found = wheel_copy.fetch({"nvidia-x": wanted(path)}, said.append, cache)
    assert found[0].path == cache / path.name
    assert said == [f"fetching nvidia-x 1.2.3, 1 MB, into {cache}"]
    path.unlink()
    assert wheel_copy.fetch({"nvidia-x": Wheel("1.2.3", 1, found[0].sha256)}, said.append, cache) == found
    assert len(said) == 1
    wheel(index, "nvidia-x", "1.2.3", b"another")
    with pytest.raises(wheel_copy.NoWheels, match=r"cannot be fetched: .*(HASHES|hash)") as caught:
        wheel_copy.fetch({"nvidia-x": Wheel("1.2.3", 1, "0" * 64)}, said.append, cache)
    assert "--wheels DIR" in caught.value.fix
    with pytest.raises(wheel_copy.NoWheels, match="cannot be fetched"):
        wheel_copy.fetch({"nvidia-z": Wheel("1.0", 1, "0" * 64)}, said.append, cache)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("Retrying after connection broken by 'NewConnectionError(...: [Errno 111] Connection refused')': /x/\n"
         "ERROR: none found",
         "[Errno 111] Connection refused"),
        ("Could not fetch URL https://x/: connection error: [Errno -2] Name or service not known",
         "[Errno -2] Name or service not known"),
        ("Retrying after connection broken by 'ReadTimeoutError(\"read timed out. (15)\")'", "timed out"),
        ("connection broken by 'something new'", "connection broken by 'something new'"),
        ("ERROR: No matching distribution found for nvidia-x==1.2.3", ""),
    ],
)  # fmt: skip
def test_no_way_to_the_index(said: str, why: str) -> None:
    assert wheel_copy.unreached(said) == (why and f"the package index cannot be reached ({why})")


def test_nowhere_to_keep_wheels(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(wheel_copy.NoWheels, match="wheels cannot be kept here") as caught:
        wheel_copy.fetch({"nvidia-x": Wheel("1.2.3", 1, "0" * 64)}, print, tmp_path / "file" / "below")
    assert "XDG_CACHE_HOME" in caught.value.fix


class Host:
    """A transport that runs its commands on this machine, with a temporary folder for /var/lib/rigwright."""

    round_trips = 0

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commands: list[Command] = []

    def run(self, commands: Sequence[Command], *, together: bool = False) -> list[Result]:  # noqa: ARG002
        results = []
        for cmd in commands:
            self.commands.append(cmd)
            argv = [word.replace("/var/lib/rigwright", str(self.root)) for word in cmd.argv]
            done = subprocess.run(argv, input=cmd.stdin, capture_output=True, timeout=30, check=False)
            results.append(Result(done.returncode, done.stdout, done.stderr))
        return results


def test_libraries_are_copied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, said, content = Host(tmp_path / "host"), [], bytes(range(256)) * 100
    path = wheel(tmp_path, "nvidia-x", "1.2.3", content)
    monkeypatch.setattr(wheel_copy, "CHUNK_BYTES", 7000)
    local = wheel_copy.find(tmp_path, {"nvidia-x": wanted(path)}, said.append)
    (folder,) = wheel_copy.copy_missing(host, local, said.append)  # type: ignore[arg-type]
    kept = tmp_path / "host/libraries" / local[0].sha256
    assert folder == f"{wheel_copy.KEPT}/{local[0].sha256}"
    assert sorted(one.name for one in kept.iterdir()) == [".whole", "libx.so.1"]
    assert (kept / "libx.so.1").read_bytes() == content
    assert (kept.parent / "nvidia-x-1.2.3").resolve() == kept
    assert not list(kept.parent.glob("*.whl"))
    before = len(host.commands)
    assert wheel_copy.copy_missing(host, local, said.append) == [folder]  # type: ignore[arg-type]
    assert len(host.commands) == before + 1


def test_another_version_is_kept_as_what_it_is(tmp_path: Path) -> None:
    """Otherwise the next test would use it as the pinned version without a warning."""
    host, path = Host(tmp_path / "host"), wheel(tmp_path, "nvidia-x", "9.9.9")
    local = wheel_copy.find(tmp_path, {"nvidia-x": Wheel("1.2.3", 1, "0" * 64)}, lambda _: None)
    wheel_copy.copy_missing(host, local, lambda _: None)  # type: ignore[arg-type]
    names = ["nvidia-x-1.2.3", "nvidia-x-9.9.9", wanted(path).sha256]
    assert wheel_copy.kept_on_host(host, names)[0] == set(names[1:])  # type: ignore[arg-type]


def test_a_wheel_is_read_once_for_all_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest, read = hashlib.sha256, 0

    def counted() -> Any:
        nonlocal read
        read += 1
        return digest()

    path = wheel(tmp_path, "nvidia-x", "1.2.3")
    pinned = {"nvidia-x": wanted(path)}
    monkeypatch.setattr(hashlib, "sha256", counted)
    for _ in range(3):
        assert wheel_copy.find(tmp_path, pinned, print) == wheel_copy.fetch(pinned, print, tmp_path)
    assert read == 1
    wheel(tmp_path, "nvidia-x", "1.2.3", b"another one")
    assert wheel_copy.find(tmp_path, pinned, lambda _: None)[0].sha256 != pinned["nvidia-x"].sha256


def test_no_room_and_a_broken_copy(tmp_path: Path) -> None:
    path = wheel(tmp_path, "nvidia-x", "1.2.3")
    local = wheel_copy.find(tmp_path, {"nvidia-x": wanted(path)}, print)

    class Full(Host):
        def run(self, commands: Sequence[Command], *, together: bool = False) -> list[Result]:  # noqa: ARG002
            return [Result(0, b"free 1024\n")]

    with pytest.raises(wheel_copy.NoWheels, match="/var/lib has 1 MiB free"):
        wheel_copy.copy_missing(Full(tmp_path), local, print)  # type: ignore[arg-type]

    class Broken(Host):
        def run(self, commands: Sequence[Command], *, together: bool = False) -> list[Result]:
            cut = [Command(cmd.argv, cmd.stdin[:-1]) if "cat >" in str(cmd) else cmd for cmd in commands]
            return super().run(cut, together=together)

    with pytest.raises(Exception, match="what came is not what was sent"):
        wheel_copy.copy_missing(Broken(tmp_path / "host"), local, print)  # type: ignore[arg-type]
    assert not list((tmp_path / "host/libraries").glob("*.whl"))

    class Filling(Host):
        def run(self, commands: Sequence[Command], *, together: bool = False) -> list[Result]:
            done = super().run(commands, together=together)
            full = any("cat >" in word for cmd in commands for word in cmd.argv)
            return [Result(1, b"", b"cat: write error: No space left on device")] if full else done

    with pytest.raises(HostError, match="No space left on device"):
        wheel_copy.copy_missing(Filling(tmp_path / "full"), local, print)  # type: ignore[arg-type]
    assert not list((tmp_path / "full/libraries").iterdir())
