"""The plan of a host with one GPU of each model, one case each; and the common branches of all GPUs of a host."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from rigwright import catalogue
from rigwright.catalogue import gpus, loader
from rigwright.catalogue.compatibility import Fit, cuda_ceiling, fit, needs_fabric_manager
from rigwright.catalogue.summary import counted
from rigwright.core.command import Result
from rigwright.core.desired import Driver
from rigwright.core.errors import HostError
from rigwright.core.yaml_source import load, only_keys
from rigwright.facts import FactStore, parsed, pci, system
from rigwright.operations import driver
from tests.paths import CASES

FILES = CASES / "gpus"
CASE = pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in sorted(FILES.glob("*.yml"))])


def _said(device_id: str, branch: str) -> list[str]:
    """Returns the plan's lines about a host with one such GPU."""
    lspci = Result(0, f"0000:06:00.0 0x030200 {device_id}\n".encode())
    store = FactStore()
    store.known = {fact: parsed(fact, lspci) for fact in (pci.gpus, pci.nvswitches)}
    store.known[system.today] = parsed(system.today, Result(0, b"2026-11-21\n"))
    return [note.text for note in driver.supported(store, driver=Driver(branch))]


@CASE
def test_gpu(path: Path) -> None:
    case = load(path)
    only_keys(case, ("pci_id", "driver", "explains", "refused"), "key of a GPU's case")
    model = catalogue.model(path.stem)
    device_id = case.get("pci_id", model.pci_ids[0])
    assert catalogue.model_of(device_id) == model
    said = _said(device_id, case["driver"])
    missing = [words for words in case["explains"] if not any(words in line for line in said)]
    assert missing == [], "the plan says: " + "; ".join(said)
    if "refused" in case:
        with pytest.raises(HostError, match=f"branch {case['refused']} does not support the"):
            _said(device_id, case["refused"])


def test_every_gpu_has_a_case() -> None:
    cases = {path.stem for path in FILES.glob("*.yml")}
    assert [f"write tests/cases/gpus/{key}.yml" for key in catalogue.gpu_keys() if key not in cases] == []
    assert cases - set(catalogue.gpu_keys()) == set(), "cases of no GPU"


def _fit(*keys: str) -> Fit:
    return fit({f"PCIE-{at}": catalogue.model(key) for at, key in enumerate(keys, 1)})


# Copied by hand from NVIDIA's release notes and list of supported GPUs: GPUs of a host, the first and last common
# branch of the catalogue, module flavours, the CUDA toolkit under the given branch, fabric manager.
TOGETHER = [
    (["v100-sxm2-16gb"], "470", "580", ["proprietary"], {"535": "12.2", "580": "12.9"}, False),
    (["rtx-3090", "rtx-3090"], "470", "620", ["proprietary", "open"], {"535": "12.2", "580": "13.0"}, False),
    (["k80"], "470", "470", ["proprietary"], {"470": "11.4"}, False),
    (["k80", "v100-pcie-16gb"], "470", "470", ["proprietary"], {"470": "11.4"}, False),
    (["rtx-3060", "gtx-1060-6gb"], "470", "580", ["proprietary"], {"580": "12.9"}, False),
    (["m6000-24gb", "gtx-1070"], "470", "580", ["proprietary"], {"580": "12.9"}, False),
    (["rtx-3070", "rtx-3090"], "470", "620", ["proprietary", "open"], {"580": "13.0", "590": "13.1"}, False),
    (["v100-pcie-16gb", "rtx-4090"], "520", "580", ["proprietary"], {"525": "12.0", "580": "12.9"}, False),
    (["t4", "rtx-5090"], "570", "620", ["open"], {"570": "12.8", "580": "13.0"}, False),
    (["v100-sxm3-32gb"], "470", "580", ["proprietary"], {"580": "12.9"}, True),
    (["b200"], "570", "620", ["open"], {"570": "12.8"}, True),
    (["a100-sxm4-40gb"], "470", "620", ["proprietary", "open"], {"535": "12.2"}, False),
    (["h100-sxm5"], "525", "620", ["proprietary", "open"], {"535": "12.2"}, False),
]


@pytest.mark.parametrize(
    ("keys", "first", "last", "flavours", "cuda", "fabric_manager"),
    TOGETHER,
    ids=["+".join(row[0]) for row in TOGETHER],
)
def test_together(
    keys: list[str], first: str, last: str, flavours: list[str], cuda: dict[str, str], fabric_manager: bool
) -> None:
    found = _fit(*keys)
    assert (found.branches[0], found.branches[-1]) == (first, last)
    assert list(found.flavours) == flavours
    assert {branch: cuda_ceiling(found, branch)[0] for branch in cuda} == cuda
    assert needs_fabric_manager([catalogue.model(key) for key in keys], 0) is fabric_manager


def test_nvswitches_on_the_bus_want_the_fabric_manager() -> None:
    a100 = [catalogue.model("a100-sxm4-40gb")]
    assert [needs_fabric_manager(a100, switches) for switches in (0, 6)] == [False, True]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["k80", "rtx-4090"], ["Tesla K80 (PCIE-1), branches 340 to 470",
                               "RTX 4090 (PCIE-2), branches 520 to the newest"]),
        (["v100-pcie-16gb", "rtx-5090"],
         ["V100-PCIE-16GB (PCIE-1), proprietary module only", "RTX 5090 (PCIE-2), open module only"]),
        (["rtx-3090", "gtx-1080", "b200"],
         ["GTX 1080 (PCIE-2), proprietary module only", "B200 (PCIE-3), open module only"]),
        (["k80", "h100-pcie"], ["Tesla K80 (PCIE-1)", "H100 PCIe (PCIE-2)"]),
    ],
)  # fmt: skip
def test_nothing_in_common_names_both(keys: list[str], words: list[str]) -> None:
    with pytest.raises(HostError) as caught:
        _fit(*keys)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "recommended"), [(["v100-sxm2-16gb"], "580"), (["k80"], "470"), (["rtx-3090"], "620")]
)
def test_recommended_is_a_long_term_branch(keys: list[str], recommended: str) -> None:
    assert _fit(*keys).recommended == recommended


def test_recommended_has_releases_and_is_supported_longest() -> None:
    newest = structs.replace(catalogue.model("rtx-3090"), first_branch=585)
    assert fit({"": newest}).recommended == "620"  # 595 ends sooner, and nobody says when 615 ends
    only = structs.replace(newest, first_branch=700)
    with pytest.raises(
        HostError, match="no driver branch that is known drives the NVIDIA GeForce RTX 3090, branches 700"
    ):
        fit({"": only})


def test_two_models_of_one_name_are_told_apart() -> None:
    assert counted([catalogue.model("rtx-3080"), catalogue.model("rtx-3080-12gb")]) == (
        "1 x NVIDIA GeForce RTX 3080 10 GB, 1 x NVIDIA GeForce RTX 3080 12 GB"
    )


@pytest.mark.parametrize("spelling", ["['1eb8']", '["1eb8"]'])
def test_a_model_is_found_however_its_ids_are_quoted(
    spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpus").mkdir()
    text = (catalogue.FOLDER / "gpus" / "t4.yml").read_text(encoding="utf-8").replace('["1eb8"]', spelling)
    (tmp_path / "gpus" / "t4.yml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(loader, "FOLDER", tmp_path)
    gpus.model_of.cache_clear()
    found = gpus.model_of("1eb8")
    gpus.model_of.cache_clear()
    assert found is not None


def test_every_model_of_compute_capability_8_0_9_0_and_10_0_has_mig_profiles_of_its_memory() -> None:
    for model in catalogue.models().values():
        assert bool(model.mig) == (model.compute_capability in ("8.0", "9.0", "10.0")), model.key
        sizes = [int(profile[3:-2]) for profile in model.mig]
        assert all(size <= (model.memory_mib or 0) / 1024 * 1.05 for size in sizes), model.key
        assert sizes == sorted(sizes), model.key
