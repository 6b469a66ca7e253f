"""The catalogue's GPUs: every file loads, holds what it must, and says where its numbers come from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rigwright import catalogue
from rigwright.errors import HostError, InputError
from rigwright.facts import FactStore, parsed, pci
from rigwright.operations import driver
from rigwright.shell import Result
from rigwright.wanted import Cuda, Driver
from rigwright.yamlfile import load

FILES = sorted((catalogue.FOLDER / "gpus").glob("*.yml"))
FILE = pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in FILES])
VERBS = {"application", "locked_graphics", "locked_memory"}
FLAVOURS = {"proprietary", "open"}
BEFORE_OPEN = {"Kepler", "Maxwell", "Pascal", "Volta"}
ARCHITECTURES = {*BEFORE_OPEN, "Turing", "Ampere", "Ada", "Hopper", "Blackwell"}


def _numbers(value: Any) -> list[int | float]:
    """Every number in a value, however deep."""
    if isinstance(value, dict):
        return [number for item in value.values() for number in _numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    return [value] if isinstance(value, int | float) else []


def test_every_file_is_a_model_and_no_pci_id_stands_twice() -> None:
    assert list(catalogue.models()) == [path.stem for path in FILES]
    ids = [device_id for model in catalogue.models().values() for device_id in model.pci_ids]
    assert sorted(ids) == sorted(set(ids))


@FILE
def test_model(path: Path) -> None:
    model = catalogue.models()[path.stem]
    assert model.name.strip()
    assert model.architecture in ARCHITECTURES
    assert model.pci_ids
    for device_id in model.pci_ids:
        assert re.fullmatch(r"[0-9a-f]{4}", device_id)
        assert catalogue.model_of(device_id) == model
    assert set(model.clock_verbs) <= VERBS
    assert model.module_flavours
    assert set(model.module_flavours) <= FLAVOURS
    if model.last_branch is not None:
        assert model.first_branch <= model.last_branch
    assert ("open" in model.module_flavours) == (model.architecture not in BEFORE_OPEN)
    assert ("proprietary" in model.module_flavours) == (model.architecture != "Blackwell")
    assert ("locked_graphics" in model.clock_verbs) == (model.architecture not in BEFORE_OPEN - {"Volta"})
    if "locked_memory" in model.clock_verbs:
        assert model.architecture in {"Ampere", "Ada", "Blackwell"}
    last = {"Kepler": (470, "11.8"), "Maxwell": (580, "12.9"), "Pascal": (580, "12.9"), "Volta": (580, "12.9")}
    assert (model.last_branch, model.last_cuda) == last.get(model.architecture, (None, None))


@FILE
def test_every_number_has_a_source(path: Path) -> None:
    document = load(path)
    without = [
        key for key in document if key != "sources" and _numbers(document[key]) and key not in document["sources"]
    ]
    assert without == []
    for key, source in document["sources"].items():
        assert key in document
        assert source.strip()
        assert not re.search(r"/work|\.\./|captures|compat|\[[A-Z]\]", source), "a path or a tag of our own notes"
    for key in ("memory_mib", "memory_bandwidth_gb_s", "first_branch", "last_branch", "last_cuda"):
        assert document[key] is not None or document["sources"][key] == "none known"
    for key in ("power_w", "clocks_mhz"):
        if None in document[key].values():
            assert "none known" in document["sources"][key]


@FILE
def test_figures_are_of_a_gpu(path: Path) -> None:
    document = load(path)
    assert 1024 <= document["memory_mib"] < 1024 * 1024
    assert 100 <= document["memory_bandwidth_gb_s"] < 20_000
    power, clocks, link = document["power_w"], document["clocks_mhz"], document["nvlink"]
    assert set(power) == {"default", "min", "max"}
    watts = [power[key] for key in ("min", "default", "max") if power[key] is not None]
    assert watts == sorted(watts)
    assert {"memory", "graphics_max", "graphics_min", "graphics_step"} <= set(clocks)
    assert clocks["memory"] == sorted(clocks["memory"], reverse=True)
    assert (clocks["graphics_min"] or 0) < (clocks["graphics_max"] or 10_000)
    if "default_application" in clocks:
        assert "application" in document["clock_verbs"]
        assert clocks["default_application"]["memory"] in clocks["memory"]
        assert clocks["graphics_min"] <= clocks["default_application"]["graphics"] <= clocks["graphics_max"]
    assert link is None or set(link) == {"generation", "links", "gb_s_per_link"}


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A catalogue of one good GPU, read instead of ours; the test spoils it."""
    path = tmp_path / "gpus" / "t4.yml"
    path.parent.mkdir()
    path.write_text((catalogue.FOLDER / "gpus" / "t4.yml").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(catalogue, "FOLDER", tmp_path)
    catalogue.models.cache_clear()
    yield path
    catalogue.models.cache_clear()


def _line(text: str, start: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.startswith(start))


def test_the_folder_is_read(broken: Path) -> None:
    assert list(catalogue.models()) == [broken.stem]


def test_an_unknown_key_is_named_by_line(broken: Path) -> None:
    text = broken.read_text(encoding="utf-8").replace("memory_mib:", "memory_mb:", 1)
    broken.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        catalogue.models()
    assert caught.value.where == f"catalogue/gpus/t4.yml:{_line(text, 'memory_mb:')}"
    assert "did you mean 'memory_mib'" in str(caught.value)


@pytest.mark.parametrize("key", ["pci_ids", "power_w", "clocks_mhz", "first_branch", "last_branch"])
def test_a_missing_source_is_named_by_line(broken: Path, key: str) -> None:
    text = re.sub(rf"(?m)^  {key}: .*\n", "", broken.read_text(encoding="utf-8"))
    broken.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        catalogue.models()
    assert caught.value.where == f"catalogue/gpus/t4.yml:{_line(text, f'{key}:')}"
    assert f"'{key}' has no source" in str(caught.value)


def _supported(device_id: str, branch: str, toolkit: str = "") -> None:
    """Asks driver.supported on a host with one such GPU."""
    store = FactStore()
    store.known[pci.gpus] = parsed(pci.gpus, Result(0, f"0000:06:00.0 0x030200 {device_id}\n".encode()))
    cuda = Cuda(toolkit) if toolkit else None
    assert list(driver.supported(store, driver=Driver(branch), cuda=cuda)) == []


@pytest.mark.parametrize(
    ("device_id", "branch", "name", "span"),
    [
        ("102d", "535", "Tesla K80", "to 470"),
        ("1db6", "590", "Tesla V100-PCIE-32GB", "to 580"),
        ("1b81", "590", "NVIDIA GeForce GTX 1070", "to 580"),
        ("2684", "470", "NVIDIA GeForce RTX 4090", "from 520 to the newest"),
        ("2901", "550", "NVIDIA B200", "from 570 to the newest"),
    ],
)
def test_a_branch_that_does_not_drive_it_is_refused(device_id: str, branch: str, name: str, span: str) -> None:
    with pytest.raises(HostError) as caught:
        _supported(device_id, branch)
    assert f"branch {branch} does not drive the {name} at 0000:06:00.0" in str(caught.value)
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
