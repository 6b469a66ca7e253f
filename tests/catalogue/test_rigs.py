"""The catalogue's rigs: every file loads, agrees with its GPUs and its driver, and keeps its known values."""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import get_args

import pytest
from msgspec import structs

from rigwright import catalogue
from rigwright.catalogue.rigs import Kind, Rig
from rigwright.core.errors import InputError
from rigwright.core.yaml_source import load, only_keys
from tests.paths import CASES

FILES = CASES / "rigs"
"""The intended description of each machine, one file each; a change of a rig requires a change of its case."""

# nvidia-smi topo -m of a DGX-1V, the half above the diagonal: links from each GPU to those after it.
CUBE_MESH = ("1122000", "210200", "20010", "0001", "112", "21", "2")

NAME = pytest.mark.parametrize("name", sorted({*catalogue.all_rigs(), *(path.stem for path in FILES.glob("*.yml"))}))


def _rig(name: str) -> Rig:
    return catalogue.rig(name, "a test")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _links(rig: Rig) -> dict[frozenset[str], int]:
    return {frozenset((a, b)): links for a, b, links in rig.pairs}


def _kinds(rig: Rig) -> set[str]:
    """Returns the kinds of path that pairs of a rig can have."""
    links = _links(rig)
    single = {position for position, lanes in rig.lanes.items() if lanes.width == 1}
    found: set[str] = set()
    for pair in map(frozenset, combinations(rig.gpus, 2)):
        if rig.p2p.path == "nvswitch":
            found.add("nvswitch")
        elif pair in links:
            found.add(f"nv{links[pair]}")
        elif pair & single:
            found.add("x1")
        else:
            found |= {"host"} if rig.p2p.path == "none" else {"host", "pcie"}
    return found


def test_every_rig_has_a_case() -> None:
    cases = {path.stem for path in FILES.glob("*.yml")}
    assert [f"write tests/cases/rigs/{name}.yml" for name in catalogue.all_rigs() if name not in cases] == []
    assert cases - set(catalogue.all_rigs()) == set(), "cases of no rig"


@NAME
def test_it_is_what_it_was_meant_to_be(name: str) -> None:
    rig, case = _rig(name), load(FILES / f"{name}.yml")
    only_keys(case, _CASE_KEYS, "key of a rig's case")
    assert dict(Counter(rig.models)) == case["gpus"]
    assert (rig.driver, rig.cuda, rig.p2p.path) == (case["driver"], case["cuda"], case["path"])
    assert (sum(rig.links.values()), rig.nvswitches) == (case.get("links", 0), case.get("nvswitches", 0))
    assert (rig.bandwidth_gb_s, rig.all_reduce_gb_s) == (case.get("bandwidth_gb_s", {}), case.get("all_reduce_gb_s"))
    assert (rig.limits.power_limit_w if rig.limits else None) == case.get("power_limit_w")
    assert (structs.asdict(rig.scaling) if rig.scaling else None) == case.get("scaling")
    assert rig.key == name
    assert rig.title.strip()
    assert rig.p2p.why.strip()


_CASE_KEYS = (
    "gpus", "driver", "cuda", "path", "links", "nvswitches", "bandwidth_gb_s", "all_reduce_gb_s", "power_limit_w",
    "scaling"
)  # fmt: skip


@NAME
def test_its_driver_and_cuda_serve_all_of_its_gpus(name: str) -> None:
    rig = _rig(name)
    branch = catalogue.branches()[rig.driver]
    assert branch.kind == "long-term support"
    assert branch.cuda is not None
    assert _version(rig.cuda) <= _version(branch.cuda)
    toolkit = catalogue.toolkits().get(rig.cuda)
    if toolkit:
        assert _version(toolkit.shipped_driver) <= _version(branch.versions[-1])
    models = [catalogue.model(key) for key in rig.models]
    for model in models:
        assert model.first_branch <= int(rig.driver) <= (model.last_branch or 999), model.key
        assert model.last_cuda is None or _version(rig.cuda) <= _version(model.last_cuda), model.key
    assert set.intersection(*(set(model.module_flavours) for model in models)), "no kernel modules drive all of them"


@NAME
def test_its_links_are_those_of_its_gpus(name: str) -> None:
    rig = _rig(name)
    links = _links(rig)
    assert len(links) == len(rig.links), "a pair twice, once in each order"
    assert all(count > 0 for count in links.values())
    assert bool(links) == (rig.p2p.path == "nvlink")
    for position, key in rig.gpus.items():
        nvlink = catalogue.model(key).nvlink
        used = sum(count for pair, count in links.items() if position in pair)
        assert used == (nvlink.links if nvlink and links else 0), position


@NAME
def test_nvswitches_go_with_their_path(name: str) -> None:
    rig = _rig(name)
    fabrics = {catalogue.model(key).fabric for key in rig.models}
    assert (rig.nvswitches > 0) == (rig.p2p.path == "nvswitch")
    if rig.nvswitches:
        assert fabrics <= {"nvswitch", "either"}
    else:
        assert "nvswitch" not in fabrics


@NAME
def test_peers_are_what_the_models_are_granted(name: str) -> None:
    rig = _rig(name)
    granted = {catalogue.model(key).p2p.pcie for key in rig.models}
    if rig.p2p.path == "pcie":
        assert granted == {"granted"}
    if rig.p2p.path == "measure":
        assert "measure" in granted
    if rig.p2p.path == "none":
        assert granted != {"granted"} or len(set(rig.models)) > 1
    if rig.p2p.path in ("nvlink", "nvswitch"):
        assert "granted" in {catalogue.model(key).p2p.nvlink for key in rig.models}


@NAME
def test_figures_are_of_paths_that_occur(name: str) -> None:
    rig = _rig(name)
    assert set(rig.bandwidth_gb_s) <= _kinds(rig)
    assert {kind for kind in _kinds(rig) if kind.startswith("nv")} <= set(rig.bandwidth_gb_s)
    assert _kinds(rig) <= set(get_args(Kind))
    if rig.scaling:
        assert 1 < rig.scaling.gpus <= len(rig.gpus)
        assert 1 < rig.scaling.speed_up <= rig.scaling.gpus


@NAME
def test_its_limits_fit_its_gpus(name: str) -> None:
    limits = _rig(name).limits
    if limits is None:
        return
    assert limits.persistence is True
    for model in map(catalogue.model, _rig(name).models):
        if limits.power_limit_w is not None:
            assert model.power_w.min is not None
            assert model.power_w.max is not None
            assert model.power_w.min <= limits.power_limit_w <= model.power_w.max
        if limits.application_clocks is not None:
            clocks = limits.application_clocks
            assert "application" in model.clock_verbs
            assert "GeForce" not in model.name
            assert int(_rig(name).driver) < 590
            assert clocks.memory_mhz in model.clocks_mhz.memory
            assert clocks.graphics_mhz <= (model.clocks_mhz.graphics_max or 0)


@NAME
def test_it_says_where_it_is_from(name: str) -> None:
    document = load(catalogue.FOLDER / "rigs" / f"{name}.yml")
    for key in ("gpus", "driver", "cuda"):
        assert key not in document or key in document["sources"], f"sources: lacks a line for {key}"
    for source in document["sources"].values():
        assert source.strip()
        assert not re.search(r"/work|\.\./|captures|compat|seeds|\.md|\[[A-Z]\]", source), "our own notes"
    assert not re.search(r"/work|captures|seeds/|\[[A-Z]\]", " ".join(document.get("notes", [])))


def test_a_dgx_1v_is_a_hybrid_cube_mesh() -> None:
    links = _links(_rig("dgx-1v"))
    drawn = {
        frozenset((f"SXM2-{row}", f"SXM2-{row + 1 + at}")): int(count)
        for row, counts in enumerate(CUBE_MESH)
        for at, count in enumerate(counts)
        if count != "0"
    }
    assert links == drawn


def test_the_links_and_lanes_of_some_rigs() -> None:
    for name in ("servbadge", "servbadge-32gb", "servbadge-6gpu", "t181"):
        modules = [position for position in _rig(name).gpus if position.startswith("SXM2-")]
        assert _links(_rig(name)) == {frozenset(pair): 2 for pair in combinations(modules, 2)}
    lanes = {name: _rig(name).lanes for name in catalogue.all_rigs() if _rig(name).lanes}
    assert {name: {at: (one.width, one.generation) for at, one in found.items()} for name, found in lanes.items()} == {
        "desktop": {"PCIE-2": (1, 3)}
    }


def test_a_variant_has_what_it_does_not_change() -> None:
    base, variant = _rig("servbadge"), _rig("servbadge-32gb")
    assert (variant.boards, variant.links, variant.limits) == (base.boards, base.links, base.limits)
    assert (variant.supplies, variant.base_load_w) == (base.supplies, base.base_load_w)
    assert variant.scaling is None
    assert variant.sources["supplies"] == base.sources["supplies"]
    assert variant.sources["limits"] != base.sources["limits"]
    assert sum(supply.watts * supply.count for supply in variant.supplies) == 3300


GOOD = """\
title: A rig
gpus:
  SXM2-1: v100-sxm2-16gb
  SXM2-2: v100-sxm2-16gb
driver: "535"
cuda: "12.2"
p2p: {path: nvlink}
sources: {driver: the owner, links: the owner, lanes: the owner, supplies: the owner}
"""


def _own(folder: Path, text: str) -> Path:
    path = folder / "own.yml"
    path.write_text(text, encoding="utf-8")
    return path


def _refused(folder: Path, text: str, at: str) -> str:
    """Returns the error about a user's rig of that text; it names the file and the line that begins with `at`."""
    path = _own(folder, text)
    with pytest.raises(InputError) as caught:
        catalogue.rig("own", "inventory:3", folder=folder)
    line = next(number for number, line in enumerate(text.splitlines(), 1) if line.strip().startswith(at))
    assert caught.value.where == f"{path}:{line}"
    return str(caught.value)


def test_rigs_of_the_users_own(tmp_path: Path) -> None:
    _own(tmp_path, GOOD + "links: {SXM2-1 SXM2-2: 2}\nlanes: {SXM2-1: {width: 8, generation: 3}}\n")
    rig = catalogue.rig("own", "inventory:3", folder=tmp_path)
    assert rig.models == ("v100-sxm2-16gb", "v100-sxm2-16gb")
    assert list(rig.pairs) == [("SXM2-1", "SXM2-2", 2)]
    assert (rig.slots, rig.supplies, rig.limits) == ({}, (), None)
    (tmp_path / "mine.yml").write_text("title: Mine\nvariant_of: servbadge\nsources: {}\n", encoding="utf-8")
    rig = catalogue.rig("mine", "inventory:3", folder=tmp_path)
    assert (rig.title, rig.key, rig.links) == ("Mine", "mine", _rig("servbadge").links)
    (tmp_path / "servbadge.yml").write_text(GOOD, encoding="utf-8")
    assert catalogue.rig("servbadge", "inventory:3", folder=tmp_path).title == "A rig"
    assert len(_rig("servbadge").gpus) == 4


def test_an_unknown_rig_is_told_where_it_was_named() -> None:
    with pytest.raises(InputError, match="did you mean 'servbadge'") as caught:
        catalogue.rig("servbage", "inventory:3")
    assert caught.value.where == "inventory:3"


@pytest.mark.parametrize(
    ("lines", "at", "words"),
    [
        ("board: an X399", "board:", "did you mean 'boards'"),
        ("links: {SXM2-1 SXM2-3: 2}", "links:", "unknown position 'SXM2-3'"),
        ("lanes: {SXM2-3: {width: 8, generation: 3}}", "lanes:", "unknown position 'SXM2-3'"),
        ('slots: {"0000:06:00.0": SXM2-3}', "slots:", "unknown position 'SXM2-3'"),
        ('slots: {"06:00.0": SXM2-1}', "slots:", "'06:00.0' is no bus id"),
        ("links: {SXM2-1 SXM2-2: 7}", "links:", "7 NVLinks at SXM2-1"),
        ("links: {SXM2-1 SXM2-1: 2}", "links:", "a link of 'SXM2-1 SXM2-1'"),
        ("links: {SXM2-1: 2}", "links:", "a link of 'SXM2-1'"),
        ('links: {SXM2-1 SXM2-2: "2"}', "links:", "'links.SXM2-1 SXM2-2' is '2'"),
        ("memory_gib: 64", "memory_gib:", "'memory_gib' has no source"),
        ("base_load_w: 400", "base_load_w:", "'base_load_w' has no source"),
        ('supplies: [{watts: "750"}]', "supplies:", "'supplies.watts' is '750'"),
        ("supplies: [{watts: 7}]", "supplies:", "'supplies': watts 7"),
        ("supplies: [{count: 2}]", "supplies:", "'supplies' lacks watts"),
        ("lanes: {SXM2-1: {width: 8}}", "lanes:", "lacks generation"),
        ("variant_of: own", "variant_of:", "a variant of itself"),
        ("variant_of: servbage", "variant_of:", "did you mean 'servbadge'"),
        ("variant_of: servbadge-32gb", "variant_of:", "'servbadge-32gb' is a variant itself"),
    ],
)
def test_a_mistake_is_named_by_file_and_line(tmp_path: Path, lines: str, at: str, words: str) -> None:
    assert words in _refused(tmp_path, f"{GOOD}{lines}\n", at)


@pytest.mark.parametrize(
    ("good", "bad", "at", "words"),
    [
        ("SXM2-2: v100-sxm2-16gb", "SXM2-2: v100-sxm2-16g", "SXM2-2:", "did you mean 'v100-sxm2-16gb'"),
        ('driver: "535"', "driver: 535", "driver:", "'driver' is 535"),
        ('driver: "535"', 'driver: "535.104"', "driver:", "no driver branch"),
        ("path: nvlink", "path: nvlnk", "p2p:", "did you mean 'nvlink'"),
        ("sources: {driver", "sources: {nothing: the owner, driver", "sources:", "a source of 'nothing'"),
        ("title: A rig\n", "", "gpus:", "lacks title"),
    ],
)
def test_a_spoilt_line_is_named(tmp_path: Path, good: str, bad: str, at: str, words: str) -> None:
    assert good in GOOD
    assert words in _refused(tmp_path, GOOD.replace(good, bad, 1), at)
