"""The catalogue: every file loads, has all required keys and sources of its numbers, and agrees with the others."""

from __future__ import annotations

import pkgutil
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rigwright import catalogue
from rigwright.catalogue import cards, drivers, gpus, loader, releases
from rigwright.catalogue.devices import _table, all_devices, disagreements, unlisted, version
from rigwright.core.command import Result
from rigwright.core.desired import Cuda, Driver
from rigwright.core.errors import HostError, InputError
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


def test_driver_branches() -> None:
    branches = catalogue.branches()
    assert list(branches) == sorted(branches)
    for name, branch in branches.items():
        assert all(version.split(".")[0] == name for version in branch.versions)
        assert list(branch.versions) == sorted(set(branch.versions), key=numbers)
        assert not any(NOT_OURS.search(note) for note in branch.notes)
    spoken = [numbers(branch.cuda) for branch in branches.values() if branch.cuda]
    assert spoken == sorted(spoken)


def test_toolkits_go_with_branches() -> None:
    toolkits = catalogue.toolkits()
    assert list(toolkits) == sorted(toolkits, key=numbers)
    least = [numbers(one.shipped_driver) for one in toolkits.values()]
    assert least == sorted(least)
    for branch in catalogue.branches().values():
        if branch.cuda in toolkits:
            assert int(toolkits[str(branch.cuda)].shipped_driver.split(".")[0]) <= int(branch.name)


def test_dropped_architectures_are_the_last_cuda_of_models() -> None:
    toolkits = list(catalogue.toolkits().items())
    last = {name: toolkits[at - 1][0] for at, (_, one) in enumerate(toolkits) for name in one.dropped}
    assert last == {"Kepler": "11.8", "Maxwell": "12.9", "Pascal": "12.9", "Volta": "12.9"}
    for model in catalogue.models().values():
        assert (model.key, model.last_cuda) == (model.key, last.get(model.architecture))


def test_last_branches_are_those_of_models() -> None:
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
    ("branch", "eol", "kind"),
    [  # NVIDIA's pages of supported drivers, editions 615 and 620
        ("535", "2026-06-30", "long-term support"),
        ("580", "2028-06-30", "long-term support"),
        ("595", "2027-03-31", "production"),
        ("610", "2026-08-31", "new feature"),
        ("590", "2026-03-30", "new feature"),  # open-gpu-kernel-modules 1021
        ("570", "2026-02-28", "production"),  # NVIDIA/gpu-operator 2207
        ("615", "None", "new feature"),
        ("620", "2029-09-30", "long-term support"),
    ],
)
def test_the_end_of_a_branch(branch: str, eol: str, kind: str) -> None:
    known = catalogue.branches()[branch]
    assert (str(known.eol), known.kind) == (eol, kind)


@pytest.mark.parametrize(
    ("toolkit", "driver"), [("13.2", "595.45.04"), ("13.3", "610.43.02"), ("13.4", "615.71.09"), ("13.5", "620.70.06")]
)
def test_the_driver_of_a_toolkit(toolkit: str, driver: str) -> None:
    known = catalogue.toolkits()[toolkit]
    assert (known.shipped_driver, known.dropped, catalogue.family_minimum(toolkit)) == (driver, (), "580.65.06")


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


def _forget() -> None:
    for cached in (
        gpus.models,
        gpus.model,
        gpus.model_of,
        cards.model_of,
        cards.chip_table,
        _table,
        releases.release_table,
        releases.published_drivers,
        releases.published_toolkits,
        drivers.branches,
        drivers.driver_table,
        drivers.cuda_table,
    ):
        cached.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields a copy of the catalogue that replaces ours; the test changes it."""
    copy = tmp_path / "catalogue"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    monkeypatch.setattr(loader, "FOLDER", copy)
    _forget()
    yield copy
    _forget()


def _spoil(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def _line(path: Path, start: str) -> int:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.startswith(start))


def test_the_folder_is_read(folder: Path) -> None:
    for path in FILES:
        if path.stem != "t4":
            (folder / "gpus" / path.name).unlink()
    assert list(catalogue.models()) == ["t4"]


@pytest.mark.parametrize("read", [catalogue.models, lambda: catalogue.model("t4"), lambda: catalogue.model_of("1eb8")])
@pytest.mark.parametrize(
    ("old", "new", "start", "words"),
    [
        (
            "\narchitecture: ",
            "\narchitekture: ",
            "architekture:",
            "unknown key 'architekture'; did you mean 'architecture'",
        ),
        ("\nmemory_mib: 15360", "\nmemory_mb: 15360", "memory_mb:", "did you mean 'memory_mib'"),
        ("max: 70}", "maximum: 70}", "power_w:", "unknown key of 'power_w' 'maximum'; did you mean 'max'"),
        ("\nmemory_mib: 15360", "\nmemory_mib: 15360 MiB", "memory_mib:", "'15360 MiB'"),
        ("\nmemory_mib: 15360", "\nmemory_mib: 16", "# Tesla T4", "memory_mib 16"),
        ("\nmemory_bandwidth_gb_s: 320", "\nmemory_bandwidth_gb_s: 0.32", "# Tesla T4", "memory_bandwidth_gb_s 0.32"),
        ("default: 70,", "default: 350 W,", "power_w:", "'power_w.default' is '350 W'"),
        ("min: 60,", "min: 75,", "power_w:", "75.0, 70.0, 70.0"),
        ("pcie: granted", "pcie: allowed", "p2p:", "'p2p.pcie' is 'allowed'"),
        ("state: P8", "state: P9", "idle:", "'idle.state' is 'P9'"),
        ("\nfirst_branch: 410", "\nfirst_branch: '410'", "first_branch:", "'first_branch' is '410'"),
        ('["1eb8"]', '["1EB8", "1eb8"]', "pci_ids:", "'1EB8' is no PCI device id"),
        ("memory: [5001, 405]", "memory: [405, 5001]", "  memory:", "highest first"),
        ("\nsources:", "\nkey: t4\nsources:", "key:", "unknown key 'key'"),
        ("\n  p2p: ", "\n  peers: ", "  peers:", "a source of 'peers', which is no key here"),
    ],
)
def test_a_mistake_is_named_by_line(
    folder: Path, read: Callable[[], object], old: str, new: str, start: str, words: str
) -> None:
    path = folder / "gpus" / "t4.yml"
    _spoil(path, old, new)
    with pytest.raises(InputError) as caught:
        read()
    line = _line(path, start) + start.startswith("#")  # an error about the whole file has the line of its first key
    assert caught.value.where == f"catalogue/gpus/t4.yml:{line}"
    assert words in str(caught.value)


NEEDS_SOURCE = ["memory_mib", "tensor_cores", "power_w", "clocks_mhz", "idle", "first_branch"]


@pytest.mark.parametrize("key", NEEDS_SOURCE)
def test_a_missing_source_is_named_by_line(folder: Path, key: str) -> None:
    path = folder / "gpus" / "t4.yml"
    path.write_text(re.sub(rf"(?m)^  {key}: .*\n", "", path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        catalogue.models()
    assert caught.value.where == f"catalogue/gpus/t4.yml:{_line(path, f'{key}:')}"
    assert f"'{key}' has no source" in str(caught.value)


def test_a_missing_key_is_named(folder: Path) -> None:
    path = folder / "gpus" / "t4.yml"
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"(?m)^ *tensor_cores: .*\n", "", text), encoding="utf-8")
    with pytest.raises(InputError, match="lacks tensor_cores"):
        catalogue.models()


def test_a_pci_id_in_two_files(folder: Path) -> None:
    path = folder / "gpus" / "t4.yml"
    _spoil(path, '["1eb8"]', '["1eb8", "2684"]')
    with pytest.raises(InputError) as caught:
        catalogue.models()
    assert caught.value.where == f"catalogue/gpus/t4.yml:{_line(path, 'pci_ids:')}"
    assert "PCI id 2684 is also in catalogue/gpus/rtx-4090.yml" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "old", "new", "start", "words"),
    [
        ("drivers.yml", '  "530": {kind: new feature,', '  "530": {kind: newer,', '  "530"', "'newer'"),
        ("drivers.yml", "eol: 2023-06-24", "eol: 2023-06", '  "530"', "'2023-06'"),
        ("drivers.yml", "last_for: [Kepler]", "last_for: [Keppler]", "    last_for:", "did you mean 'Kepler'"),
        ("drivers.yml", '  "530":', '  "r530":', '  "r530"', "no driver branch"),
        ("cuda.yml", "8793F200}", "8793F20}", "    debian13:", "'02182E60104FCDC26EAE1B8597A5D4CB8793F20'"),
        (
            "drivers.yml",
            '{"530.30.02": "6.2",',
            '{"530.30.02": 6.2,',
            '    builds_to_kernel: {"530',
            "builds_to_kernel.530.30.02' is 6.2",
        ),
        ("cuda.yml", '  "12.1":', '  "12-1":', '  "12-1"', "no version"),
        ("cuda.yml", "  dropped: NVIDIA", "  droped: NVIDIA", '  "12.0"', "'dropped' has no source"),
    ],
)
def test_a_mistake_in_the_tables_is_named_by_line(
    folder: Path, name: str, old: str, new: str, start: str, words: str
) -> None:
    _spoil(folder / name, old, new)
    with pytest.raises(InputError) as caught:
        (catalogue.branches if name == "drivers.yml" else catalogue.toolkits)()
    assert caught.value.where == f"catalogue/{name}:{_line(folder / name, start)}"
    assert words in str(caught.value)


def test_models_agree_with_the_drivers_own_list() -> None:
    assert re.fullmatch(r"580\.\d+\.\d+", version())
    assert len(all_devices()) > 1000
    assert disagreements() == ()
    assert unlisted() == ("v100-sxm2-16gb 1db0", "v100-sxm2-16gb 1df5")
    k80, b200 = all_devices()["102d"], all_devices()["2901"]
    assert (k80.name, k80.legacy_branch, k80.open, k80.proprietary) == ("Tesla K80", "470", False, True)
    assert (b200.name, b200.legacy_branch, b200.open, b200.proprietary) == ("NVIDIA B200", "", True, False)


@pytest.mark.parametrize(
    ("key", "old", "new", "words"),
    [
        ("k80", "last_branch: 470", "last_branch: 580", "last_branch 580 of 102d"),
        ("k80", "last_branch: 470", "last_branch: null", "last_branch none of 102d"),
        ("gtx-1070", "last_branch: 580", "last_branch: 470", "that 580 still drives it"),
        ("b200", "[open]", "[open, proprietary]", "module_flavours open, proprietary of 2901"),
        ("gtx-1070", "[proprietary]", "[proprietary, open]", "module_flavours open, proprietary of 1b81"),
        ("rtx-3070", '"2484", "2488"', '"2484", "2482"', "says NVIDIA GeForce RTX 3070 Ti"),
        ("rtx-4090", "name: NVIDIA GeForce RTX 4090", "name: NVIDIA GeForce RTX 4080", "name NVIDIA GeForce RTX 4080"),
    ],
)
def test_a_disagreement_with_the_list_is_told(folder: Path, key: str, old: str, new: str, words: str) -> None:
    path = folder / "gpus" / f"{key}.yml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    (told,) = disagreements()
    assert told.startswith(f"gpus/{key}.yml says ")
    assert words in told


def test_prefixes_of_a_name_may_differ(folder: Path) -> None:
    _spoil(folder / "gpus" / "t4.yml", "name: Tesla T4", "name: NVIDIA T4")
    assert disagreements() == ()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("# driver 580.178.04", "# driver", ":1: no driver version"),
        ("1eb8,Tesla T4,,yes,yes", "1eb8,Tesla T4,,yes", "the row '1eb8,Tesla T4,,yes'"),
        ("1eb8,Tesla T4,", "2684,Tesla T4,", "the row '2684,"),
    ],
)
def test_a_mistake_in_the_list_is_told(folder: Path, old: str, new: str, words: str) -> None:
    _spoil(folder / "devices.csv", old, new)
    with pytest.raises(InputError) as caught:
        all_devices()
    assert "catalogue/devices.csv:" in str(caught.value)
    assert words in str(caught.value)


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
