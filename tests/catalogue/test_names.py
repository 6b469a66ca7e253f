"""Words that name several entries, or none exactly: the list of entries, and GPUs that only NVIDIA's list knows."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from rigwright import catalogue
from rigwright.catalogue.compatibility import runs
from rigwright.catalogue.names import Match, architectures, devices_named, machines, others
from rigwright.features.explain.answer import explain
from rigwright.features.explain.topics import MOST_LISTED

TODAY = datetime.date(2026, 11, 22)


def matches(typed: str, rigs: Path | None = None) -> tuple[Match, ...]:
    """What `explain` lists for a text that is no error."""
    return machines(typed, rigs) or others(typed)


@pytest.mark.parametrize(
    ("typed", "words", "missing"),
    [
        ("V100", ["v100-pcie-16gb", "v100-sxm2-32gb", "servbadge", "dgx-1v", "10de:1db3"],
         ["rig-3090", "a100-sxm4-40gb"]),
        ("3090", ["rtx-3090", "rig-3090", "mixed-30", "10de:2203"], ["rtx-3080"]),
        ("RTX 6000", ["quadro-rtx-6000", "rtx-6000", "10de:26b1", "10de:2bb1"], ["10de:1e30"]),
        ("rtx6000", ["quadro-rtx-6000", "10de:26b1"], ["titan-rtx"]),
        ("GTX 1060", ["gtx-1060-3gb", "gtx-1060-6gb", "desktop", "10de:1c20"], ["10de:1c02", "10de:1c03"]),
        ("2080ti", ["rtx-2080-ti", "rtx-2080ti"], []),
        ("A100", ["a100-sxm4-40gb", "a100-pcie-80gb", "a100"], ["v100-sxm2-16gb", "gtx-1080"]),
        ("T180", ["servbadge", "servbadge-32gb"], ["t181"]),
        ("CUDA 12", ["12.0", "12.9"], ["11.8", "13.0"]),
        ("power", ["power-limit", "idle-power", "power.brake"], ["rtx-3090"]),
        ("row", ["ecc.remap_pending"], ["power.brake"]),
    ],
)  # fmt: skip
def test_what_a_word_lists(typed: str, words: list[str], missing: list[str]) -> None:
    listed = {match.word for match in matches(typed)}
    assert set(words) <= listed
    assert not set(missing) & listed


@pytest.mark.parametrize("typed", ["V100", "3090", "RTX 6000", "GTX 1060", "CUDA 12", "power"])
def test_every_listed_word_is_an_exact_name(typed: str) -> None:
    (listing,) = explain(typed, TODAY)
    assert listing.title == f"{len(matches(typed))} entries fit '{typed}'"
    for line in listing.lines:
        (first, *_) = explain(line.label.removeprefix("invoke explain "), TODAY)
        assert first.title != listing.title
        assert len(line.text) < 90


@pytest.mark.parametrize(
    ("typed", "title"),
    [
        ("DGX-2", "dgx-2: NVIDIA DGX-2, sixteen Tesla V100 SXM3 32 GB"),
        ("rtx 4090", "NVIDIA GeForce RTX 4090"),
        ("rig-3090", "rig-3090: Threadripper 1920X, three GeForce RTX 3090"),
        ("530", "driver 530"),
        ("GTX 1070 Ti", "NVIDIA GeForce GTX 1070 Ti"),
        ("NVIDIA GeForce GTX 1650 SUPER", "NVIDIA GeForce GTX 1650 SUPER"),
        ("rtx 4080", "NVIDIA GeForce RTX 4080"),
        ("10de:1c20", "NVIDIA GeForce GTX 1060"),
    ],
)
def test_an_exact_name_or_a_single_entry_is_shown_in_full(typed: str, title: str) -> None:
    assert explain(typed, TODAY)[0].title == title


def test_a_gpu_of_the_list_and_one_that_a_file_describes() -> None:
    (shown,) = explain("GTX 1070 Ti", TODAY)
    lines = {line.label: line.text for line in shown.lines}
    assert lines["PCI ids"] == "10de:1b82"
    assert lines["driver"] == "branches 361 at the earliest to 580, proprietary module"
    assert "memory" in lines["unknown"]
    assert "power range" in lines["unknown"]
    kepler = {line.label: line.text for line in explain("Tesla K40c", TODAY)[0].lines}
    assert kepler["driver"] == "branches 340 at the earliest to 470, proprietary module"
    assert kepler["chip"] == "Kepler, compute capability 3.5"
    assert devices_named("GTX 1060") == ()
    assert devices_named("Tesla V100-SXM2-16GB") == ()
    described = {device_id for model in catalogue.models().values() for device_id in model.pci_ids}
    listed = {match.word.removeprefix("10de:") for name in ("V100", "RTX", "GTX", "A100") for match in matches(name)}
    assert not described & listed


def test_a_long_list_is_cut_and_says_so() -> None:
    (listing,) = explain("geforce rtx", TODAY)
    assert len(listing.lines) == MOST_LISTED + 1
    assert listing.lines[-1].text.endswith("more; type more of the name")


@pytest.mark.parametrize("typed", ["", "nvidia", "GPU", "1", "80", "x", "q" * 80])
def test_what_lists_nothing(typed: str) -> None:
    assert matches(typed) == ()


def test_a_rig_of_ones_own(tmp_path: Path) -> None:
    text = "title: Mine with a K80\nvariant_of: servbadge\nsources: {}\n"
    (tmp_path / "attic.yml").write_text(text, encoding="utf-8")
    assert "attic" in {match.word for match in matches("K80", tmp_path)}


@pytest.mark.parametrize("branch", list(catalogue.branches()))
def test_the_architectures_of_a_branch_are_those_of_the_models(branch: str) -> None:
    expected = {model.architecture for model in catalogue.models().values() if runs(model, int(branch))}
    assert set(architectures(int(branch))) == expected
