"""Findings: cause and fix come from the catalogue's symptoms, root causes come first, and the text has both."""

from __future__ import annotations

import io

from rigwright import catalogue
from rigwright.checks import Finding, boot, of_symptom, ranked, unknown
from rigwright.engine import plugins, verify
from rigwright.engine.playbook import Check
from rigwright.facts import FactStore, systemd
from rigwright.inventory.model import Host
from rigwright.report.terminal import Text
from tests import reports
from tests.host_runs import host_run


def test_a_symptom_gives_verdict_cause_and_fix() -> None:
    known = catalogue.all_symptoms()["ecc.remap_pending"]
    found = of_symptom("ecc.remap_pending", "GPU 2", "pending", "none", "host", names={"INDEX": "2"})
    assert (found.verdict, found.cause, found.symptom) == (known.level, known.cause, known.key)
    assert "nvidia-smi -r -i 2," in found.fix
    assert "INDEX" not in found.fix
    said = "nvidia-smi says: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    assert unknown("gpu.answering", "GPUs", said).symptom == "module.not_loaded"
    assert unknown("gpu.answering", "GPUs", "no answer").fix == "invoke provision"


def test_a_check_names_its_findings_and_a_pass_has_no_fix() -> None:
    active = systemd.Unit("loaded", "active", "exited", "enabled", False)
    store = FactStore({systemd.unit(name): active for name in (systemd.LIMITS_UNIT, systemd.LIMITS_TIMER)})
    assert {(one.check, one.verdict, one.fix) for one in boot.limits_unit_ready(store)} == {
        ("boot.limits_unit_ready", "pass", "")
    }


def test_root_causes_come_first() -> None:
    order = ["pass", "warn", "unknown", "fail", "info", "fail"]
    found = ranked(Finding("", verdict, "", check=str(at)) for at, verdict in enumerate(order))  # type: ignore[arg-type]
    assert [one.check for one in found] == ["3", "5", "2", "1", "4", "0"]


def test_what_cannot_be_judged_for_one_reason_is_one_entry() -> None:
    stream = io.StringIO()
    findings = (
        of_symptom("pcie.narrow", "PCIE-1 [x]", "x1", "x16", "host"),
        unknown("a", "Links", "no answer"),
        unknown("b", "Heat", "no answer"),
    )
    Text(stream, "inventory", many=False).findings(reports.report(Host("h", (), {}), findings=findings))
    text = stream.getvalue()
    assert "????  Links, Heat: no answer" in text
    assert "PCIE-1 [x]: x1" in text
    assert "expected: x16 (by the host itself)" in text


def test_what_the_peer_to_peer_test_has_measured_is_told_once() -> None:
    """NCCL's settings appear once: with their measured cost after a peer-to-peer test, else as in the files."""
    host = Host("h", (), {})
    names = ("environment.clean", "environment.not_stalled", "p2p.ran", "p2p.settings", "nccl_programs.nccl_tests")
    known = plugins.known("checks")
    checks = tuple(Check(name, name, known[name], {}, "") for name in names)
    run = host_run({}, host=host)

    def names_of(checks: tuple[Check, ...], *, tested: bool) -> list[str]:
        return [check.check for check in verify.answerable(checks, run, tested=tested)]

    assert names_of(checks, tested=False) == ["environment.clean", "environment.not_stalled"]
    assert names_of(checks, tested=True) == ["environment.not_stalled", "p2p.ran", "p2p.settings"]
    assert names_of(checks[:3], tested=True) == ["environment.clean", "environment.not_stalled", "p2p.ran"]
