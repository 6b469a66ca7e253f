"""The GPUs of a host of the inventory against its description, and the texts of its files afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from rigwright import catalogue, inventory
from rigwright.cli import init, init_draft, init_update
from rigwright.core.errors import InputError, UsageError
from rigwright.core.yaml_source import loads
from rigwright.engine.host_variables import of_host
from rigwright.facts.system import Board
from tests.paths import ROOT

THREE = {"0000:08:00.0": "PCIE-1", "0000:09:00.0": "PCIE-2", "0000:42:00.0": "PCIE-3"}
RIG = catalogue.rig("rig-3090", "a test")


def _gpus(**more: str) -> dict[str, catalogue.Model]:
    """Three RTX 3090, and `more`: models by bus number."""
    keys = {**dict.fromkeys(THREE, "rtx-3090"), **{f"0000:{bus[1:]}:00.0": key for bus, key in more.items()}}
    return {bus_id: catalogue.model(key) for bus_id, key in keys.items()}


def test_nothing_changed() -> None:
    found = init_update.compare(RIG, THREE, _gpus())
    assert (found.lines, found.rig_fits, dict(found.slots)) == ((), True, THREE)


def test_a_fourth_card_gets_a_position_of_its_own() -> None:
    found = init_update.compare(RIG, THREE, _gpus(b43="rtx-3090"))
    assert found.lines == ("PCIE-4 0000:43:00.0: NVIDIA GeForce RTX 3090 is new",)
    assert dict(found.slots) == {**THREE, "0000:43:00.0": "PCIE-4"}
    assert (found.gpus["PCIE-4"], found.rig_fits) == ("rtx-3090", False)


def test_a_card_that_came_back_elsewhere_takes_its_old_position() -> None:
    gpus = {("0000:0a:00.0" if bus_id == "0000:09:00.0" else bus_id): card for bus_id, card in _gpus().items()}
    found = init_update.compare(RIG, THREE, gpus)
    assert found.lines == (
        "PCIE-2 0000:0a:00.0: NVIDIA GeForce RTX 3090 is new",
        "PCIE-2 0000:09:00.0: no GPU there now",
    )
    assert found.rig_fits


def test_another_model_in_a_position_and_a_card_of_nvidias_list() -> None:
    found = init_update.compare(RIG, THREE, _gpus(b42="rtx-4090", b43="10de:1b82"))
    assert found.lines == (
        "PCIE-3 0000:42:00.0: NVIDIA GeForce RTX 4090 is in the place of NVIDIA GeForce RTX 3090",
        "PCIE-4 0000:43:00.0: NVIDIA GeForce GTX 1070 Ti is new",
    )
    assert found.gpus == {"PCIE-1": "rtx-3090", "PCIE-2": "rtx-3090", "PCIE-3": "rtx-4090", "PCIE-4": "10de:1b82"}


def test_a_host_without_slots_and_without_a_rig() -> None:
    named = init_update.compare(RIG, {}, _gpus())
    assert (dict(named.slots), named.rig_fits) == (THREE, True)
    assert dict(init_update.compare(None, {}, _gpus()).slots) == THREE


BLOCK = """\
# mine
rig: rig-3090   # the frame
slots:
  # the garage
  '0000:08:00.0': PCIE-1  # left
  '0000:09:00.0': PCIE-2
  '0000:42:00.0': PCIE-3  # loose cable
driver: {branch: '535'}  # tested
"""
FLOW = "slots: {'0000:08:00.0': PCIE-1, '0000:09:00.0': PCIE-2,\n    '0000:42:00.0': PCIE-3}  # in bus order\nx: 1 # y"
WANTED = {"0000:08:00.0": "PCIE-2", "0000:09:00.0": "PCIE-1", "0000:43:00.0": "PCIE-4"}


def test_a_block_keeps_its_comments() -> None:
    after = init_update.with_value(BLOCK, "x.yml", "slots", WANTED)
    assert after == BLOCK.replace("PCIE-1  # left", "PCIE-2  # left").replace(
        "'0000:09:00.0': PCIE-2\n", "'0000:09:00.0': PCIE-1\n"
    ).replace("  '0000:42", "  # '0000:42").replace("cable\n", "cable\n  '0000:43:00.0': PCIE-4\n")


def test_a_flow_is_written_anew_and_the_rest_stays() -> None:
    after = init_update.with_value(FLOW, "x.yml", "slots", WANTED)
    assert after.startswith("slots: {'0000:08:00.0': PCIE-2, '0000:09:00.0': PCIE-1, '0000:43:00.0': PCIE-4}  # in bus")
    assert after.endswith("x: 1 # y")


def test_a_key_that_is_not_there_is_added_and_a_scalar_replaced() -> None:
    assert init_update.with_value("x: 1 # y", "x.yml", "slots", {"a": "b"}) == "x: 1 # y\nslots: {a: b}\n"
    assert init_update.with_value("", "x.yml", "slots", {"a": "b"}) == "slots: {a: b}\n"
    assert init_update.with_value("# nothing yet\n", "x.yml", "rig", "mine") == "# nothing yet\nrig: mine\n"
    assert init_update.with_value(BLOCK, "x.yml", "rig", "mine") == BLOCK.replace("rig: rig-3090 ", "rig: mine ")


def test_a_file_with_secrets_is_edited_and_no_secret_is_read() -> None:
    kept = "ansible_become_password: !secret {command: ['false']}\nx: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\n"
    assert init_update.with_value(kept, "x.yml", "rig", "mine") == kept + "rig: mine\n"
    hosts = "gpu:\n  hosts:\n    a: {ansible_become_password: !secret {env: NOT_SET}}\n"
    after = init_draft.with_host(hosts, "hosts.yml", "b", {"ansible_host": "192.0.2.1"})
    assert set(hosts.splitlines()) < set(after.splitlines())


def test_line_ends_stay() -> None:
    before = BLOCK.replace("\n", "\r\n")
    after = init_update.with_value(before, "x.yml", "slots", WANTED)
    assert after.count("\r\n") == after.count("\n") == before.count("\n") + 1


@pytest.mark.parametrize(
    "text",
    [
        "slots: {a: b, # the left one\n  c: d}\n",
        "slots: &all {a: b}\nmore: *all\nother: *all\n",
        "- slots\n",
        "...\nslots: {}\n",
        "slots: [\n",
    ],
)
def test_a_layout_that_would_lose_something_is_left_alone(text: str) -> None:
    with pytest.raises(InputError) as caught:
        init_update.with_value(text, "x.yml", "slots", WANTED)
    assert "write this into it yourself: slots: {'0000:08:00.0': PCIE-2" in caught.value.fix


# --- the files


def _inventory(folder: Path, host_vars: str, **files: str) -> inventory.Inventory:
    hosts = "gpu:\n  hosts:\n    frame: {ansible_host: 192.168.1.4}\n"
    texts = {"hosts.yml": hosts, "host_vars/frame.yml": host_vars, **files}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return inventory.read(folder)


def _changed(folder: Path, known: inventory.Inventory, gpus: Mapping[str, catalogue.Model]) -> dict[str, str]:
    """The texts of the changed files, written and read again."""
    host = known.hosts["frame"]
    described = of_host(host, known.rigs)
    slots = {str(bus_id): position for bus_id, position in (described.desired.slots or {}).items()}
    found = init_update.compare(described.rig, slots, gpus)
    seen = init.Hardware(gpus, {}, "", 0, Board("ASUS", "", "X399"), "Threadripper")
    files = init._changed_files(folder, host, described, found, seen, 0)
    for path, text in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    again = of_host(inventory.read(folder).hosts["frame"], known.rigs)
    assert again.rig is not None
    assert init_update.compare(again.rig, dict(found.slots), gpus).lines == ()
    return {str(path.relative_to(folder)): text for path, text in files.items()}


HOST_VARS = BLOCK.replace("0000:09:00.0': PCIE-2", "0000:09:00.0': PCIE-2 # right") + "limits: {power_limit_w: 285}\n"


def test_a_fourth_card_makes_a_rig_of_the_hosts_own(tmp_path: Path) -> None:
    known = _inventory(tmp_path, HOST_VARS)
    files = _changed(tmp_path, known, _gpus(b43="rtx-3090"))
    assert set(files) == {"rigs/frame.yml", "host_vars/frame.yml"}
    assert loads(files["rigs/frame.yml"], "x")["gpus"] == dict.fromkeys((f"PCIE-{n}" for n in (1, 2, 3, 4)), "rtx-3090")
    comments = ("# mine", "# the frame", "# the garage", "# left", "# right", "# loose cable", "# tested")
    assert [kept for kept in (*comments, "power_limit_w: 285") if kept not in files["host_vars/frame.yml"]] == []
    assert "rig: frame   # the frame" in files["host_vars/frame.yml"]


def test_a_rig_of_ones_own_gets_the_card_and_keeps_the_rest(tmp_path: Path) -> None:
    rig = """\
title: Mine
gpus:
  PCIE-1: rtx-3090  # the good one
  PCIE-2: rtx-3090
  PCIE-3: rtx-3090
driver: "535"
cuda: "12.2"
p2p: {path: measure}
base_load_w: 150  # measured
sources: {driver: me, cuda: me, gpus: me, base_load_w: me}
"""
    known = _inventory(tmp_path, HOST_VARS.replace("rig: rig-3090", "rig: own"), **{"rigs/own.yml": rig})
    files = _changed(tmp_path, known, _gpus(b43="10de:2204"))
    assert files["rigs/own.yml"] == rig.replace("  PCIE-3: rtx-3090\n", "  PCIE-3: rtx-3090\n  PCIE-4: rtx-3090\n")
    assert "rig: own" in files["host_vars/frame.yml"]


def test_a_moved_card_changes_only_the_slots(tmp_path: Path) -> None:
    known = _inventory(tmp_path, HOST_VARS)
    gpus = {("0000:0a:00.0" if bus_id == "0000:09:00.0" else bus_id): card for bus_id, card in _gpus().items()}
    files = _changed(tmp_path, known, gpus)
    assert set(files) == {"host_vars/frame.yml"}
    assert "  0000:0a:00.0: PCIE-2\n" in files["host_vars/frame.yml"]
    assert "  # '0000:09:00.0': PCIE-2 # right\n" in files["host_vars/frame.yml"]


def test_a_host_without_a_rig_gets_one_with_its_own_branch(tmp_path: Path) -> None:
    before = "# newer than the list\nslots: {'0000:08:00.0': PCIE-1}\ndriver: {branch: '570', flavour: open} # mine\n"
    known = _inventory(tmp_path, before)
    assert init_update.compare(None, {"0000:08:00.0": "PCIE-1"}, {"0000:08:00.0": catalogue.model("t4")}).lines == (
        "no rig: the inventory names none for it",
    )
    files = _changed(tmp_path, known, {"0000:08:00.0": catalogue.model("10de:2d04")})
    assert files["host_vars/frame.yml"] == before + "rig: frame\n"
    rig = loads(files["rigs/frame.yml"], "x")
    assert (rig["gpus"], rig["driver"], rig["cuda"]) == ({"PCIE-1": "10de:2d04"}, "570", "12.8")


def test_a_variable_of_a_group_is_not_changed(tmp_path: Path) -> None:
    known = _inventory(tmp_path, "slots: {'0000:08:00.0': PCIE-1}\n", **{"group_vars/gpu.yml": "rig: rig-3090\n"})
    with pytest.raises(UsageError, match="sets rig, also for others"):
        _changed(tmp_path, known, _gpus(b43="rtx-3090"))


def test_the_example_of_the_3090_rig_is_the_catalogues() -> None:
    text = (ROOT / "inventory" / "host_vars" / "rig-3090.yml").read_text(encoding="utf-8")
    supplies = " and ".join(f"{supply.count} x {supply.watts} W" for supply in RIG.supplies)
    assert supplies == "1 x 750 W and 1 x 750 W"
    assert "two 750 W supplies" in text
    assert loads(text, "x")["limits"]["power_limit_w"] == (RIG.limits.power_limit_w if RIG.limits else None)
