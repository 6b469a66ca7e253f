"""The kinds of failure that lab.bench.trials knows, and what it says about others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from lab.bench import trials
from rigwright.core.schema import KernelWord, convert


def test_a_virtual_machine_has_every_kind_of_a_simulated_host() -> None:
    assert set(trials.KINDS) <= set(trials.VM_KINDS)


@pytest.mark.parametrize("kind", trials.VM_KINDS.values(), ids=trials.VM_KINDS)
def test_a_parameter_can_stand_in_an_inventory(kind: trials.VmKind) -> None:
    assert convert([kind.parameter], tuple[KernelWord, ...], "case", "kernel_cmdline") == (kind.parameter,)
    assert bool(kind.unit) == bool(re.fullmatch(r"systemd\.wants=lab-[a-z-]+\.service", kind.parameter))


def test_an_unknown_kind_is_named_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        trials.main(["driver-panic"])
    said = capsys.readouterr().err
    assert "no kind 'driver-panic'; there are wrong-root, panic, no-network" in said


def test_an_inventory_of_a_machine_without_its_rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / ".lab/inventory"
    (given / "host_vars").mkdir(parents=True)
    groups = {"gpu": {"hosts": {"a": {"ansible_port": 1, "p2p_wheels": "/w"}}}, "plain": {"hosts": {}}}
    (given / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups}}))
    (given / "host_vars/a.yml").write_text("rig: servbadge\n")
    monkeypatch.setattr(trials, "CHECKOUT", tmp_path)
    for with_rig, more in ((True, {"rig": "servbadge"}), (False, {})):
        path = trials.variables(tmp_path / "made", "a", with_rig=with_rig, p2p_wheels=None, reboot={"trial": True})
        written = yaml.safe_load((Path(path) / "hosts.yml").read_text())["gpu"]["hosts"]["a"]
        known_hosts = str(tmp_path / ".lab/known_hosts")
        assert written == {"ansible_port": 1, "reboot": {"trial": True}, "ssh_known_hosts": known_hosts, **more}
