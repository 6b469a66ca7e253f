"""The catalogue: every file loads, has all required keys and sources of its numbers, and agrees with the others."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rigwright import catalogue
from rigwright.catalogue import gpus, loader
from rigwright.catalogue.devices import all_devices, disagreements, unlisted, version
from rigwright.core.command import Result
from rigwright.core.desired import Cuda, Driver
from rigwright.core.errors import HostError
from rigwright.core.numbers import numbers
from rigwright.core.yaml_source import load
from rigwright.facts import FactStore, parsed, pci, system
from rigwright.operations import driver

FOLDER = loader.FOLDER
FILES = sorted((FOLDER / "gpus").glob("*.yml"))
FILE = pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in FILES])
BEFORE_OPEN = {"Kepler", "Maxwell", "Pascal", "Volta"}
WITHOUT_TENSOR_CORES = {"Kepler", "Maxwell", "Pascal"}
NOT_OURS = re.compile(r"/work|\.\./|captures|compat\b|\[[A-Z]\]")
"""A path, or a tag from internal notes."""


def test_every_file_is_a_model() -> None:
    assert list(catalogue.models()) == [path.stem for path in FILES] == gpus.keys()
    for model in catalogue.models().values():
        assert catalogue.model(model.key) == model
        for device_id in model.pci_ids:
            assert catalogue.model_of(device_id) == model
    assert catalogue.model_of("ffff") is None


@FILE
def test_model(path: Path) -> None:
    model = catalogue.models()[path.stem]
    assert model.name.strip()
    assert ("open" in model.module_flavours) == (model.architecture not in BEFORE_OPEN)
    assert ("proprietary" in model.module_flavours) == (model.architecture != "Blackwell")
    assert ("locked_graphics" in model.clock_verbs) == (model.architecture not in BEFORE_OPEN - {"Volta"})
    if "locked_memory" in model.clock_verbs:
        assert model.architecture in {"Ampere", "Ada", "Blackwell"}
    assert (model.tensor_cores == 0) == (model.architecture in WITHOUT_TENSOR_CORES)
    assert (model.p2p.nvlink == "granted") == (model.nvlink is not None)
    if "GeForce" in model.name and model.architecture not in BEFORE_OPEN:
        assert model.p2p.pcie == ("measure" if model.key == "rtx-3090" else "denied")
    if model.fabric != "none":
        assert model.nvlink
        assert "SXM" in model.name or model.key in {"h100-sxm5", "h200", "b200"}
    if model.idle.power_w is not None:
        assert 3 < model.idle.power_w < (model.power_w.default or 0) / 2


@FILE
def test_sources_are_honest(path: Path) -> None:
    document = load(path)
    for key, source in document["sources"].items():
        assert key in document
        assert source.strip()
        assert not NOT_OURS.search(source)
    for key in ("pci_ids", "compute_capability", "p2p", "idle"):
        assert key in document["sources"]
    for key in ("memory_mib", "memory_bandwidth_gb_s", "first_branch", "last_branch", "last_cuda"):
        assert document[key] is not None or document["sources"][key] == "none known"
    for key in ("power_w", "clocks_mhz", "idle"):
        if None in document[key].values():
            assert "none known" in document["sources"][key]


@FILE
def test_clocks_of_a_gpu(path: Path) -> None:
    model = catalogue.models()[path.stem]
    clocks = model.clocks_mhz
    assert (clocks.graphics_min or 0) < (clocks.graphics_max or 10_000)
    assert (clocks.graphics_min is None) == (clocks.graphics_step is None)
    if "locked_graphics" in model.clock_verbs:
        assert clocks.graphics_min
        assert clocks.graphics_max
    if clocks.default_application:
        assert "application" in model.clock_verbs
        assert (clocks.graphics_min or 0) <= clocks.default_application.graphics <= (clocks.graphics_max or 0)


def test_driver_branches_and_toolkits_go_together() -> None:
    branches = catalogue.branches()
    assert list(branches) == sorted(branches)
    for name, branch in branches.items():
        assert all(version.split(".")[0] == name for version in branch.versions)
        assert list(branch.versions) == sorted(set(branch.versions), key=numbers)
        assert not any(NOT_OURS.search(note) for note in branch.notes)
    spoken = [numbers(branch.cuda) for branch in branches.values() if branch.cuda]
    assert spoken == sorted(spoken)
    toolkits = catalogue.toolkits()
    assert list(toolkits) == sorted(toolkits, key=numbers)
    least = [numbers(one.shipped_driver) for one in toolkits.values()]
    assert least == sorted(least)
    for branch in catalogue.branches().values():
        if branch.cuda in toolkits:
            assert int(toolkits[str(branch.cuda)].shipped_driver.split(".")[0]) <= int(branch.name)


def test_what_was_dropped_is_the_last_of_models() -> None:
    toolkits = list(catalogue.toolkits().items())
    last = {name: toolkits[at - 1][0] for at, (_, one) in enumerate(toolkits) for name in one.dropped}
    assert last == {"Kepler": "11.8", "Maxwell": "12.9", "Pascal": "12.9", "Volta": "12.9"}
    for model in catalogue.models().values():
        assert (model.key, model.last_cuda) == (model.key, last.get(model.architecture))
    last = {name: int(branch.name) for branch in catalogue.branches().values() for name in branch.last_for}
    assert last == {"Kepler": 470, "Maxwell": 580, "Pascal": 580, "Volta": 580}
    for model in catalogue.models().values():
        assert (model.key, model.last_branch) == (model.key, last.get(model.architecture))


@pytest.mark.parametrize(
    ("distribution", "file", "end"),
    [
        ("debian13", "8793F200.pub", "8793F200"),  # NVIDIA/cuda-repo-management 39
        ("ubuntu2604", "60DF8A40.pub", "60DF8A40"),  # the repository's own cuda-keyring
        ("debian12", "3bf863cc.pub", "3BF863CC"),
        ("ubuntu2404", "3bf863cc.pub", "3BF863CC"),
        ("ubuntu2204", "3bf863cc.pub", "3BF863CC"),
    ],
)
def test_the_key_of_a_repository(distribution: str, file: str, end: str) -> None:
    key = catalogue.cuda_table().repository.key_of(distribution)
    assert (key.file, key.fingerprint[-8:]) == (file, end)


@pytest.mark.parametrize(
    ("wheel", "wanted", "last"),
    [
        ("cu126", {"Volta"}, "2.14"),  # pytorch RFC 190385
        ("cu128", {"Volta"}, "2.10"),  # pytorch PR 175253
        ("cu128", {"Turing", "Blackwell"}, "2.11"),  # pytorch PR 182849
        ("cu129", {"Volta", "Blackwell"}, "2.8"),
        ("cu130", {"Turing"}, None),
        ("cu132", {"Turing", "Blackwell"}, None),  # pytorch issue 190355
    ],
)
def test_the_last_torch_with_kernels(wheel: str, wanted: set[Any], last: str | None) -> None:
    assert catalogue.torch_wheels().wheels[wheel].last_for(wanted) == last


@pytest.mark.parametrize(("wheel", "wanted"), [("cu130", {"Volta"}), ("cu126", {"Blackwell"}), ("cu128", {"Pascal"})])
def test_wheels_without_kernels(wheel: str, wanted: set[Any]) -> None:
    with pytest.raises(LookupError):
        catalogue.torch_wheels().wheels[wheel].last_for(wanted)


def test_wheels_are_in_order() -> None:
    wheels = list(catalogue.torch_wheels().wheels.values())
    assert [wheel.cuda for wheel in wheels] == sorted((wheel.cuda for wheel in wheels), key=numbers)
    for wheel in wheels:
        assert list(wheel.architectures) == sorted(wheel.architectures, key=numbers)
        assert numbers(wheel.first) <= numbers(next(iter(wheel.architectures)))
        assert wheel.last is None or numbers(wheel.first) <= numbers(wheel.last)


def test_models_agree_with_the_drivers_own_list() -> None:
    assert re.fullmatch(r"580\.\d+\.\d+", version())
    assert len(all_devices()) > 1000
    assert disagreements() == ()
    assert unlisted() == ("v100-sxm2-16gb 1db0", "v100-sxm2-16gb 1df5")
    k80, b200 = all_devices()["102d"], all_devices()["2901"]
    assert (k80.name, k80.legacy_branch, k80.open, k80.proprietary) == ("Tesla K80", "470", False, True)
    assert (b200.name, b200.legacy_branch, b200.open, b200.proprietary) == ("NVIDIA B200", "", True, False)


def _supported(device_id: str, branch: str, toolkit: str = "") -> None:
    """Runs driver.supported on a host with one such GPU."""
    store = FactStore()
    bus = Result(0, f"0000:06:00.0 0x030200 {device_id}\n".encode())
    for fact, answer in ((pci.gpus, bus), (pci.nvswitches, bus), (system.today, Result(0, b"2026-05-04\n"))):
        store.known[fact] = parsed(fact, answer)
    cuda = Cuda(toolkit) if toolkit else None
    assert not [
        note for note in driver.supported(store, driver=Driver(branch), cuda=cuda) if "nothing is checked" in note.text
    ]


@pytest.mark.parametrize(
    ("device_id", "branch", "name", "span"),
    [
        ("102d", "535", "Tesla K80", "to 470"),
        ("1db6", "590", "Tesla V100-PCIE-32GB", "to 580"),
        ("1b81", "590", "NVIDIA GeForce GTX 1070", "to 580"),
        ("2684", "470", "NVIDIA GeForce RTX 4090", "520 to the newest"),
        ("2901", "550", "NVIDIA B200", "570 to the newest"),
    ],
)
def test_a_branch_that_does_not_drive_it_is_refused(device_id: str, branch: str, name: str, span: str) -> None:
    with pytest.raises(HostError) as caught:
        _supported(device_id, branch)
    assert f"branch {branch} does not support the {name} at 0000:06:00.0" in str(caught.value)
    assert span in str(caught.value)


@pytest.mark.parametrize(
    ("device_id", "branch", "toolkit"),
    [("102d", "470", "11.4"), ("1db6", "580", "12.9"), ("2684", "535", "12.2"), ("2901", "580", "13.0")],
)
def test_a_branch_that_drives_it_passes(device_id: str, branch: str, toolkit: str) -> None:
    _supported(device_id, branch, toolkit)


@pytest.mark.parametrize(("device_id", "branch", "toolkit"), [("102d", "470", "12.0"), ("15f9", "580", "13.0")])
def test_a_toolkit_without_code_for_it_is_refused(device_id: str, branch: str, toolkit: str) -> None:
    with pytest.raises(HostError, match=f"CUDA {toolkit} has no code"):
        _supported(device_id, branch, toolkit)


def test_no_function_of_the_catalogue_hides_a_module_of_it() -> None:
    """`from rigwright.catalogue import rigs` is the module: a function of that name would be imported in its place."""
    modules = {info.name for info in pkgutil.iter_modules(catalogue.__path__)}
    hidden = [name for name in modules if not isinstance(vars(catalogue).get(name, catalogue), ModuleType)]
    assert hidden == []
