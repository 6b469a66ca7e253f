"""`invoke init` without a machine: the recognised rig, the draft, and the lines added to an inventory."""

from __future__ import annotations

import dataclasses
import datetime
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from rigwright import catalogue, inventory
from rigwright.cli import init, init_draft
from rigwright.cli.options import InitOptions
from rigwright.core.desired import variable_type
from rigwright.core.errors import HostError, InputError, UsageError
from rigwright.core.process import prompt
from rigwright.core.schema import convert
from rigwright.core.yaml_source import Mapping as YamlMapping, loads
from rigwright.facts import display
from rigwright.facts.system import Board
from tests.paths import ROOT

TODAY = datetime.date(2026, 11, 21)
SILENT = Board("", "", "")
RIGS = [catalogue.rig(name, "a test") for name in catalogue.all_rigs()]


def _matching(models: Sequence[str], board: Board = SILENT) -> list[str]:
    return [rig.key for rig in init_draft.matching(RIGS, [catalogue.model(key) for key in models], board)]


V100 = ["v100-sxm2-16gb"] * 4


@pytest.mark.parametrize(
    ("models", "board", "names"),
    [
        (V100, Board("GIGABYTE", "T180-G20-ZB3", "MT70-G20"), ["servbadge"]),
        (V100, Board("GIGABYTE", "T181-G20-00", "MU71"), ["t181"]),
        (V100, Board("Dell Inc.", "PowerEdge C4140", ""), []),
        (V100, SILENT, ["servbadge", "t181"]),
        (["v100-sxm2-32gb"] * 4, Board("GIGABYTE", "T180-G20-ZB3", ""), ["servbadge-32gb"]),
        ([*V100, "v100-pcie-16gb", "v100-pcie-16gb"], Board("GIGABYTE", "T180-G20-ZB3", ""), ["servbadge-6gpu"]),
        (["v100-sxm2-16gb"] * 3, Board("GIGABYTE", "T180-G20-ZB3", ""), []),
        (["gtx-1060-6gb", "rtx-3060"], SILENT, ["desktop"]),
        (["t4"], SILENT, []),
    ],
)
def test_matching(models: list[str], board: Board, names: list[str]) -> None:
    assert _matching(models, board) == names


def test_slots_are_in_bus_order_and_of_the_right_model() -> None:
    rig = catalogue.rig("servbadge-6gpu", "a test")
    gpus = {
        "0000:41:00.0": "v100-pcie-16gb", "0000:06:00.0": "v100-sxm2-16gb", "0000:0b:00.0": "v100-sxm2-16gb",
        "0000:07:00.0": "v100-sxm2-16gb", "0000:0a:00.0": "v100-sxm2-16gb", "0000:05:00.0": "v100-pcie-16gb",
    }  # fmt: skip
    found = init_draft.slots(rig, {bus_id: catalogue.model(key) for bus_id, key in gpus.items()})
    assert found == {
        "0000:05:00.0": "PCIE-1", "0000:06:00.0": "SXM2-1", "0000:07:00.0": "SXM2-2",
        "0000:0a:00.0": "SXM2-3", "0000:0b:00.0": "SXM2-4", "0000:41:00.0": "PCIE-2",
    }  # fmt: skip


def _drafted(
    folder: Path, models: Sequence[str], board: Board = SILENT, supply_w: int = 1600, nvswitches: int = 0
) -> catalogue.Rig:
    gpus = {f"0000:{at:02x}:00.0": catalogue.model(key) for at, key in enumerate(models, 1)}
    text = init_draft.rig_text(board, "AMD Ryzen 7", gpus, nvswitches, supply_w, TODAY)
    (folder / "mine.yml").write_text(text, encoding="utf-8")
    return catalogue.rig("mine", "a test", folder)


def test_a_drafted_rig_is_a_rig(tmp_path: Path) -> None:
    rig = _drafted(tmp_path, ["rtx-4090", "t4"], Board("ASUS", "", "ProArt X670E"))
    assert rig.title == "ASUS ProArt X670E, 1 x NVIDIA GeForce RTX 4090, 1 x Tesla T4"
    assert (rig.gpus, rig.boards) == ({"PCIE-1": "rtx-4090", "PCIE-2": "t4"}, ("ProArt X670E",))
    assert (rig.driver, rig.cuda, rig.p2p.path) == ("620", "13.5", "measure")
    assert [supply.watts for supply in rig.supplies] == [1600]


def test_positions_are_named_by_their_kind_and_nvswitches_are_drafted(tmp_path: Path) -> None:
    rig = _drafted(tmp_path, ["v100-sxm2-16gb", "v100-pcie-16gb", "v100-sxm2-16gb"], supply_w=0)
    assert list(rig.gpus) == ["SXM2-1", "PCIE-1", "SXM2-2"]
    assert (rig.cuda, rig.supplies) == ("12.9", ())
    assert list(_drafted(tmp_path, ["h100-sxm5"]).gpus) == ["SXM5-1"]
    rig = _drafted(tmp_path, ["h200"] * 8, nvswitches=4)
    assert (next(iter(rig.gpus)), rig.nvswitches, rig.p2p.path) == ("SXM-1", 4, "nvswitch")


def test_a_machine_that_lacks_a_gpu_is_still_told_by_its_board() -> None:
    three = [catalogue.model("v100-sxm2-16gb")] * 3
    board = Board("GIGABYTE", "T180-G20-ZB3", "")
    assert [rig.key for rig in init_draft.lacking(RIGS, three, board)] == ["servbadge", "servbadge-6gpu"]
    assert init_draft.lacking(RIGS, three, SILENT) == ()


def test_a_gpu_without_a_position() -> None:
    with pytest.raises(UsageError, match=r"servbadge has no position for the Tesla T4 at 0000:01:00.0"):
        init_draft.slots(catalogue.rig("servbadge", "a test"), {"0000:01:00.0": catalogue.model("t4")})


def test_nothing_is_drafted_for_gpus_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="no kernel module supports both"):
        _drafted(tmp_path, ["v100-pcie-16gb", "rtx-5090"])


@pytest.mark.parametrize("name", catalogue.all_rigs())
def test_the_variables_of_every_rig_are_understood(name: str) -> None:
    rig = catalogue.rig(name, "a test")
    positions = {f"0000:{at:02x}:00.0": position for at, position in enumerate(rig.gpus, 1)}
    found = loads(init_draft.host_text(rig, positions, TODAY), "host_vars/x.yml")
    for key, value in found.items():
        convert(value, variable_type(key), found.where(key), key)
    assert (found["rig"], found["slots"]) == (name, positions)
    assert found["driver"]["branch"] == rig.driver


VARIABLES_OF_IT = {"ansible_host": "192.168.1.20", "ansible_user": "bbadger"}


def _hosts(folder: Path, text: str) -> inventory.Inventory:
    (folder / "hosts.yml").write_text(text, encoding="utf-8")
    return inventory.read(folder)


@pytest.mark.parametrize(
    "before",
    [
        "",
        "# mine\n",
        "all:\n  hosts:\n    nas:\n      ansible_host: 192.168.1.3\n",
        "# mine\ngpu:\n  hosts:\n    # the old one\n    frame:\n      ansible_host: 192.168.1.4  # garage\n",
        "gpu:\n    hosts:\n        frame: {ansible_host: 192.168.1.4}\n    vars: {x: 1}",
        "gpu:\n  vars: {x: 1}\n  hosts:\n    frame:\n",
    ],
)
def test_a_host_is_put_in_and_everything_else_stays(tmp_path: Path, before: str) -> None:
    after = init_draft.with_host(before, "hosts.yml", "servbadge", VARIABLES_OF_IT)
    assert [line for line in before.splitlines() if line not in after.splitlines()] == []
    found = _hosts(tmp_path, after)
    host = found.hosts["servbadge"]
    assert host.address == "192.168.1.20"
    assert "gpu" in host.groups
    others = _hosts(tmp_path, before).hosts if ":" in before else {}
    assert set(found.hosts) == {*others, "servbadge"}


def test_the_example_gets_the_address(tmp_path: Path) -> None:
    before = "gpu:\n  hosts:\n    servbadge:\n      ansible_host: 192.0.2.10\n      ansible_user: ubuntu\n    b:\n"
    after = init_draft.with_host(before, "hosts.yml", "servbadge", {**VARIABLES_OF_IT, "ansible_port": 2222})
    host = _hosts(tmp_path, after).hosts["servbadge"]
    assert (host.address, host.variables["ansible_user"], host.variables["ansible_port"]) == (
        "192.168.1.20",
        "bbadger",
        2222,
    )
    without = init_draft.with_host(
        after.replace("192.168.1.20", "192.0.2.10"), "hosts.yml", "servbadge", {"ansible_host": "x"}
    )
    assert set(_hosts(tmp_path, without).hosts["servbadge"].variables) & {"ansible_user", "ansible_port"} == set()


def test_a_host_that_is_there_is_left_alone() -> None:
    before = "gpu:\n  hosts:\n    servbadge:\n      ansible_host: 192.168.1.9\n"
    with pytest.raises(UsageError, match=r"in the inventory already \(hosts.yml:3\)"):
        init_draft.with_host(before, "hosts.yml", "servbadge", VARIABLES_OF_IT)


@pytest.mark.parametrize(
    "before",
    [
        "gpu: {hosts: {a: }}\n",
        "gpu:\n  hosts: {a: }\n",
        "just text\n",
        "[]\n",
        "{all: {hosts: {a: }}}\n",
        "a: 1\n...\n",
    ],
)
def test_a_file_that_no_line_fits_into_is_left_alone(before: str) -> None:
    with pytest.raises(InputError, match="put this under gpu: hosts: yourself"):
        init_draft.with_host(before, "hosts.yml", "servbadge", VARIABLES_OF_IT)


@pytest.mark.parametrize(
    ("before", "x"),
    [
        ("gpu:\n", None),
        ("gpu:\n  hosts:\n", None),
        ("gpu:\n  vars: {a: 1}\n  hosts:\n", None),
        ("gpu:\n  hosts: &all\n    a: {ansible_host: h}\nold:\n  hosts: *all\n", None),
        ("gpu:\n  hosts:\n    servbadge: {ansible_host: 192.0.2.10, x: 1}\n    b:\n", 1),
        ((ROOT / "inventory" / "hosts.yml").read_text(encoding="utf-8"), None),
    ],
)
def test_what_is_empty_or_an_example_gets_the_address(tmp_path: Path, before: str, x: int | None) -> None:
    host = _hosts(tmp_path, init_draft.with_host(before, "hosts.yml", "servbadge", VARIABLES_OF_IT)).hosts["servbadge"]
    assert (host.address, host.variables.get("x")) == ("192.168.1.20", x)


def test_line_ends_and_comments_stay() -> None:
    before = "gpu:\r\n  hosts:\r\n    servbadge:\r\n      ansible_host: 192.0.2.10  # the basement\r\n"
    after = init_draft.with_host(
        before, "hosts.yml", "servbadge", {"ansible_host": "192.168.1.20", "ansible_user": "ann"}
    )
    assert after.count("\r\n") == after.count("\n") == 5
    assert "ansible_host: 192.168.1.20  # the basement" in after


# --- cards that no file describes


def test_a_rig_of_cards_that_only_nvidias_list_has(tmp_path: Path) -> None:
    rig = _drafted(tmp_path, ["10de:1b82", "10de:2187"], supply_w=0)
    assert rig.gpus == {"PCIE-1": "10de:1b82", "PCIE-2": "10de:2187"}
    assert rig.title == "1 x NVIDIA GeForce GTX 1070 Ti, 1 x NVIDIA GeForce GTX 1650 SUPER"
    assert (rig.driver, rig.cuda, rig.p2p.path) == ("580", "12.9", "measure")
    assert rig.notes == (init_draft.MIXED,)
    assert _drafted(tmp_path, ["rtx-3090", "rtx-3090"]).notes == ()
    assert [
        one.key
        for one in init_draft.matching([rig], [catalogue.model("10de:2187"), catalogue.model("10de:1b82")], SILENT)
    ] == ["mine"]


def test_the_owner_chooses_the_branch() -> None:
    gpus = {"0000:01:00.0": catalogue.model("10de:2187")}
    text = init_draft.rig_text(SILENT, "", gpus, 0, 0, TODAY, branch="570")
    assert (loads(text, "x")["driver"], loads(text, "x")["cuda"]) == ("570", "12.8")
    with pytest.raises(HostError, match="branch 590 does not support the NVIDIA GeForce GTX 1070 Ti"):
        init_draft.rig_text(SILENT, "", {"0000:01:00.0": catalogue.model("10de:1b82")}, 0, 0, TODAY, branch="590")
    rig = catalogue.rig("rtx-4090", "a test")
    assert loads(init_draft.host_text(rig, {}, TODAY, "570"), "x")["driver"]["branch"] == "570"


UNLISTED = {"0000:02:00.0": "3fff"}
BOX = InitOptions(host="box", address="a@b")


def _seen(gpus: Sequence[str] = (), loaded: str = "", unlisted: Mapping[str, str] = UNLISTED) -> init.Hardware:
    models = {f"0000:{at:02x}:00.0": catalogue.model(key) for at, key in enumerate(gpus, 8)}
    return init.Hardware(models, unlisted, loaded, 0, SILENT, "")


def _without_rig(folder: Path, seen: init.Hardware, options: InitOptions = BOX) -> YamlMapping:
    files = init._new_files(options, folder, seen, Console(quiet=True), TODAY)
    (path,) = files
    assert path == folder / "host_vars" / "box.yml"
    found = loads(files[path], str(path))
    assert isinstance(found, YamlMapping)
    for key, value in found.items():
        convert(value, variable_type(key), found.where(key), key)
    return found


def test_a_card_newer_than_the_list_is_taken_from_the_driver_that_drives_it(tmp_path: Path) -> None:
    found = _without_rig(tmp_path, _seen(["rtx-3090"], loaded="570.211.01"))
    assert found["driver"] == {"branch": "570", "source": "auto", "flavour": "open"}
    assert found["slots"] == {"0000:02:00.0": "PCIE-1", "0000:08:00.0": "PCIE-2"}
    assert found["cuda"] == {"toolkit": "12.8"}
    assert "rig" not in found
    text = init._new_files(BOX, tmp_path, _seen(loaded="570.211.01"), Console(quiet=True), TODAY)
    assert "NVIDIA's list here does not have 10de:3fff" in next(iter(text.values()))


def test_a_card_newer_than_the_list_is_taken_with_the_owners_branch(tmp_path: Path) -> None:
    options = dataclasses.replace(BOX, driver="580")
    assert _without_rig(tmp_path, _seen(), options)["driver"]["branch"] == "580"
    with_v100 = _without_rig(tmp_path, _seen(["v100-pcie-16gb"]), options)
    assert (with_v100["driver"]["flavour"], with_v100["cuda"]["toolkit"]) == ("auto", "12.9")


@pytest.mark.parametrize("gpus", [V100, ["rtx-3090"] * 3])
def test_a_new_machine_replaces_the_example_of_its_name(gpus: list[str], tmp_path: Path) -> None:
    path = tmp_path / "host_vars" / "servbadge.yml"
    shutil.copytree(ROOT / "inventory", tmp_path, dirs_exist_ok=True)
    options = InitOptions(host="servbadge", address="a@b", rig="" if gpus == V100 else "rig-3090")
    seen = structs.replace(_seen(gpus, unlisted={}), board=Board("GIGABYTE", "T180-G20-ZB3", "G20"))
    files = init._new_files(options, tmp_path, seen, Console(quiet=True), TODAY)
    assert len(loads(files[path], "x")["slots"]) == len(gpus)
    assert "Written by" in files[path]
    (unlisted,) = init._new_files(options, tmp_path, _seen(loaded="570.211.01"), Console(quiet=True), TODAY).values()
    assert "rig" not in loads(unlisted, "x")


def test_variables_that_the_owner_wrote_get_the_slots_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "host_vars" / "servbadge.yml"
    path.parent.mkdir()
    path.write_text("# mine\nrig: servbadge\ndriver: {branch: '535'}  # for P2P\n", encoding="utf-8")
    options = InitOptions(host="servbadge", address="a@b", rig="servbadge")
    files = init._new_files(options, tmp_path, _seen(V100, unlisted={}), Console(quiet=True), TODAY)
    assert files[path].startswith("# mine\nrig: servbadge\ndriver: {branch: '535'}  # for P2P\n")
    assert len(loads(files[path], "x")["slots"]) == 4


GDM = display.Graphical("gdm.service", ())


@pytest.mark.parametrize(
    ("graphical", "screen_gpu", "answer", "drafted"),
    [
        (GDM, "", None, True),
        (GDM, "0000:08:00.0", "n", True),
        (display.NOT_GRAPHICAL, "0000:08:00.0", "y", True),
        (display.NOT_GRAPHICAL, "0000:08:00.0", "", False),
        (display.NOT_GRAPHICAL, "0000:08:00.0", None, None),
        (display.NOT_GRAPHICAL, "", "y", None),
    ],
)
def test_a_machine_with_a_screen_gets_the_full_set(
    graphical: display.Graphical,
    screen_gpu: str,
    answer: str | None,
    drafted: bool | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`answer` None: there is no terminal. `drafted` None: the draft has no key `display`, and the plan warns."""
    monkeypatch.setattr(prompt, "on_terminal", lambda: answer is not None)
    monkeypatch.setattr(prompt, "answer", lambda question: answer if "X and Wayland" in question else "")
    for unlisted in (UNLISTED, {}):
        seen = _seen(["rtx-3090"], loaded="580.95.05", unlisted=unlisted)
        seen = structs.replace(seen, graphical=graphical, screen_gpu=screen_gpu)
        files = init._new_files(BOX, tmp_path, seen, Console(quiet=True), TODAY)
        found = loads(files[tmp_path / "host_vars" / "box.yml"], "box.yml")
        assert found["driver"].get("display") is drafted


def test_a_card_that_nothing_is_known_of_is_refused_with_what_to_type(tmp_path: Path) -> None:
    for seen in (_seen(), _seen(loaded="999.10")):
        with pytest.raises(HostError) as caught:
            init._new_files(BOX, tmp_path, seen, Console(quiet=True), TODAY)
        assert "NVIDIA's list of driver 580.178.04 does not have 10de:3fff at 0000:02:00.0" in caught.value.found
        assert "scripts/devices --version" in caught.value.fix
        assert "init --host box --address a@b --driver BRANCH" in caught.value.fix
    with pytest.raises(HostError, match="branch 590 does not support the Tesla V100"):
        _without_rig(tmp_path, _seen(["v100-pcie-16gb"]), dataclasses.replace(BOX, driver="590"))


def test_a_branch_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init.init(dataclasses.replace(BOX, driver="58", inventory=str(tmp_path))) == 1
    assert "unknown driver branch '58'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"host": "box"}, ["has no host 'box'", "init --host box --address USER@HOST"]),
        ({"host": "shown"}, ["has an example's address", "init --host shown --address USER@HOST"]),
        ({"host": "frame", "address": "a@b"}, ["in the inventory already", "init --host frame, without --address"]),
        ({"host": "box", "address": "a@b", "update": True}, ["a new address with --update"]),
    ],
)
def test_a_host_that_is_known_and_one_that_is_not(
    options: Mapping[str, Any], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _hosts(tmp_path, "gpu:\n  hosts:\n    shown: {ansible_host: 192.0.2.10}\n    frame: {ansible_host: 192.168.1.4}\n")
    assert init.init(InitOptions(**options, inventory=str(tmp_path))) == 1
    said = capsys.readouterr().err
    assert [word for word in words if word not in said] == []


# --- at a terminal


def _at_a_terminal(monkeypatch: pytest.MonkeyPatch, answers: Sequence[str]) -> list[str]:
    """The questions, as they are asked; they get these answers."""
    questions: list[str] = []
    rest = iter(answers)

    def answer(question: str = "") -> str:
        questions.append(question)
        return next(rest)

    monkeypatch.setattr(prompt, "on_terminal", lambda: True)
    monkeypatch.setattr(prompt, "answer", answer)
    return questions


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["--host and --address are missing", "init --host gpu1 --address ubuntu@192.168.1.20"]),
        ({"address": "ann@box"}, ["--host is missing", "init --host gpu1 --address ann@box"]),
    ],
)
def test_without_words_it_says_what_it_needs(
    options: Mapping[str, Any], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init.init(InitOptions(**options, inventory=str(tmp_path))) == 1
    text = capsys.readouterr().err
    assert [word for word in words if word not in text] == []


def test_without_words_it_asks_at_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = _at_a_terminal(monkeypatch, ["no name!", "box", "nowhere at all", "ann@127.0.0.1:1"])
    assert init.init(InitOptions(inventory=str(tmp_path))) == 3
    assert [question.split(",")[0] for question in questions] == [
        *["Name of the machine in the inventory"] * 2,
        *["Address of box"] * 2,
    ]
    out, err = capsys.readouterr()
    assert "'no name!' is no name for a host" in out
    assert "'nowhere at all' is no address" in out
    assert "box (127.0.0.1:1): the connection was refused" in err
    assert list(tmp_path.iterdir()) == []


def test_an_empty_answer_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _at_a_terminal(monkeypatch, [""])
    assert init.init(InitOptions(inventory=str(tmp_path))) == 1
    assert "no name was given" in capsys.readouterr().err


def test_a_host_with_an_address_is_not_asked_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _hosts(tmp_path, "gpu:\n  hosts:\n    frame: {ansible_host: 127.0.0.1, ansible_port: 1}\n")
    questions = _at_a_terminal(monkeypatch, ["frame"])
    assert init.init(InitOptions(inventory=str(tmp_path))) == 3
    assert len(questions) == 1
    assert "frame (127.0.0.1:1): the connection was refused" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answers", "name"),
    [(["2"], "t181"), (["T181"], "t181"), (["1"], "servbadge"), (["3", "0", "x", "1"], "servbadge"), ([""], None)],
)
def test_a_rig_is_chosen_by_its_number_or_name(
    answers: list[str], name: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = _at_a_terminal(monkeypatch, answers)
    rigs = [catalogue.rig(key, "a test") for key in ("servbadge", "t181")]
    chosen = init._ask_for_rig(rigs, Console(width=80))
    assert (chosen.key if chosen else None) == name
    assert questions[0].startswith("Which rig is it? 1 to 2, or its name")
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert ["1", "servbadge"] in lines
    assert ["2", "t181"] in lines
