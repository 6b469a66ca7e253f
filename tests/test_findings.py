"""Findings: cause and fix come from the catalogue's symptoms, root causes come first, and the text says both."""

from __future__ import annotations

import io
import threading
from pathlib import Path

from rigwright import catalogue
from rigwright.checks import Finding, of_symptom, ranked, unknown
from rigwright.crew import Work
from rigwright.facts import p2p
from rigwright.fleet import HostReport
from rigwright.hostrun import HostRun, Options, Shared
from rigwright.hosts import Host
from rigwright.playbook import Bound, Check
from rigwright.recorded import Recorded
from rigwright.report.text import Text


def test_a_symptom_gives_verdict_cause_and_fix() -> None:
    known = catalogue.symptoms()["ecc.remap_pending"]
    found = of_symptom("ecc.remap_pending", "gpu.memory", "GPU 2", "pending", "none", "host", names={"INDEX": "2"})
    assert (found.verdict, found.cause, found.symptom) == (known.level, known.cause, known.key)
    assert "nvidia-smi -r -i 2," in found.fix
    assert "INDEX" not in found.fix


def test_a_reason_that_the_catalogue_knows_brings_its_fix() -> None:
    said = "nvidia-smi says: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    assert unknown("gpu.answering", "GPUs", said).symptom == "module.not_loaded"
    assert unknown("gpu.answering", "GPUs", "no answer").fix == "invoke provision"


def test_root_causes_come_first() -> None:
    order = ["pass", "warn", "unknown", "fail", "info", "fail"]
    found = ranked(Finding(str(at), "", verdict, "") for at, verdict in enumerate(order))  # type: ignore[arg-type]
    assert [one.check for one in found] == ["3", "5", "2", "1", "4", "0"]


def test_what_cannot_be_judged_for_one_reason_is_one_entry() -> None:
    stream = io.StringIO()
    report = HostReport(Host("h", (), {}))
    report.findings = (
        of_symptom("pcie.narrow", "pci.links", "PCIE-1 [x]", "x1", "x16", "host"),
        unknown("a", "Links", "no answer"),
        unknown("b", "Heat", "no answer"),
    )
    Text(stream, "inventory", many=False).findings(report)
    text = stream.getvalue()
    assert "????  Links, Heat: no answer" in text
    assert "PCIE-1 [x]: x1" in text
    assert "wanted: x16 (by the host itself)" in text


def test_what_the_peer_to_peer_test_has_measured_is_told_once() -> None:
    """NCCL's settings, with what they cost; without the test as they stand in files."""
    host = Host("h", (), {})
    names = ("environment.clean", "environment.not_stalled", "p2p.ran", "p2p.settings", "programs.torch")
    checks = tuple(Check(name, name, lambda _: iter(()), {}, "") for name in names)
    run = HostRun(host, Recorded({}), Options("1"), lambda _: None, Shared(threading.Semaphore()))
    work = Work(Bound(host, (), checks), run, HostReport(host))
    assert [one.check for one in work.checks] == ["environment.clean", "environment.not_stalled"]
    work.report.p2p = p2p.read((Path(__file__).parent / "cases/p2p/pair.json").read_text(encoding="utf-8"))
    assert [one.check for one in work.checks] == ["environment.not_stalled", "p2p.ran", "p2p.settings"]
    work.bound = Bound(host, (), checks[:3])
    assert [one.check for one in work.checks] == ["environment.clean", "environment.not_stalled", "p2p.ran"]
