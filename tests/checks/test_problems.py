"""Problems are made of findings: those that the lab's faults caused, in tests/cases/problems, and made ones."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from rigwright.checks import Finding, of_symptom, unknown
from rigwright.checks.gpu import answering, limits_in_force
from rigwright.checks.health import xids
from rigwright.checks.problems import Problem, judge, problems
from rigwright.core.change import Change, Note
from rigwright.core.command import Result
from rigwright.core.desired import Limits
from rigwright.engine.plan import PlannedStep
from rigwright.engine.playbook import Step
from rigwright.engine.verify import drift
from rigwright.facts import FactStore, kernel_log, pci
from rigwright.facts.gpu import gpus as gpu, health as gpu_health
from rigwright.inventory.model import Host
from rigwright.operations import file
from rigwright.report.terminal import Text
from tests import reports
from tests.paths import CASES
from tests.test_cases import case_named

RECORDED = sorted((CASES / "problems").glob("*.yml"))
FAULTS = {
    "gpu_lost": ("lost", "cold boot"),
    "ecc": ("memory errors", "restart the program"),
    "nvlink_down": (": NVLink ", "nvlink"),
    "p2p_denied": ("no peer access over NVLink", "nvidia-smi topo -p2p n"),
}
"""By fault: what its problem is called, and what its first step contains."""


def recorded(path: Any) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """Returns a case and its findings."""
    case = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return case, tuple(Finding(**finding) for finding in case["findings"])


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_recorded_machine(path: Any) -> None:
    """A case is named after its faults, `_twice` for one fault of two GPUs: each fault is one problem with a fix."""
    case, findings = recorded(path)
    made = problems(findings)
    assert [
        {"title": problem.title, "verdict": problem.verdict, "findings": len(problem.findings),
         "begins": problem.steps[0].command or problem.steps[0].text}
        for problem in made
    ] == case["problems"]  # fmt: skip
    assert sentence(made, findings) == case["verdict"]
    bad = [finding for finding in findings if finding.verdict in ("fail", "unknown", "warn")]
    assert sorted(map(repr, (finding for problem in made for finding in problem.findings))) == sorted(map(repr, bad))
    faults, each = [fault for fault in FAULTS if fault in path.stem], 2 if path.stem.endswith("_twice") else 1
    failed = [problem for problem in made if problem.verdict != "warn"]
    assert len(failed) == len(faults) * each
    for title, step in (FAULTS[fault] for fault in faults):
        its_own = [problem for problem in failed if title in problem.title]
        assert len({problem.gpus for problem in its_own}) == each
        assert all(step in f"{problem.steps[0].command} {problem.steps[0].text}" for problem in its_own)


def sentence(made: Sequence[Problem], findings: Sequence[Finding]) -> str:
    """Returns the sentence of the judgement; "" if there is none."""
    verdict = judge(made, findings)
    return verdict.sentence if verdict else ""


def lost(number: int) -> Finding:
    """Returns the finding of a lost GPU."""
    return of_symptom("gpu.off_bus", f"SXM3-{number} 0000:{number:02x}:00.0", "GPU is lost", "an answer", "host")


def test_what_is_one_problem_and_what_two() -> None:
    assert [problem.title for problem in problems((lost(1), lost(2)))] == ["SXM3-1: lost", "SXM3-2: lost"]
    (problem,) = problems(tuple(map(lost, range(1, 17))))
    assert problem.title == "SXM3-1, SXM3-2, SXM3-3 and 13 more: lost"
    assert len(problem.gpus) == len(problem.findings) == 16
    ends = [of_symptom("nvlink.error", f"SXM2-{n} 0000:0{n}:00.0", "1 x Xid 74", "none", "host") for n in (1, 2)]
    (problem,) = problems(tuple(replace(end, check="health.xids") for end in ends))
    assert problem.gpus == ("SXM2-1", "SXM2-2")
    steps = [Finding(f"step: {number}", "fail", "a", "b", "", "invoke provision", check="plan") for number in range(9)]
    (problem,) = problems(tuple(steps))
    assert problem.title == "9 differences from the playbook"
    assert sentence((problem,), steps) == "Not as configured: 9 differences from the playbook"


def test_the_stronger_restart_wins_and_a_machine_has_one() -> None:
    """The GPU's memory needs a reset, but the driver asks for a reboot: one reboot in place of the reset."""
    place = "SXM2-2 0000:07:00.0"
    memory = of_symptom(
        "ecc.uncorrectable", place, "2 errors", fix="sudo nvidia-smi -r -i 0000:07:00.0; return the GPU"
    )
    asks = Finding(place, "fail", "the driver asks for: Reboot", fix="sudo reboot", check="health.recovered")
    (problem,) = problems((memory, asks))
    assert [step.command or step.text for step in problem.steps] == ["sudo reboot", "return the GPU"]
    _, findings = recorded(CASES / "problems" / "gpu_lost_and_ecc.yml")
    boots, errors, _ = problems(tuple(findings))
    assert [step.restart for step in boots.steps] == [3, 0, 0, 0]
    assert [step.command or step.text for step in errors.steps][:2] == [
        "restart the program", "no reset of its own: the cold boot that SXM2-3 needs does it",
    ]  # fmt: skip


def test_a_fault_of_another_gpu_stays_a_problem_of_its_own() -> None:
    limits = Finding("SXM3-2 0000:02:00.0", "fail", "300 W", "200 W", "", "invoke limits", check="gpu.limits_in_force")
    assert [problem.title for problem in problems((lost(1), limits))] == [
        "SXM3-1: lost",
        "SXM3-2: 300 W, expected 200 W",
    ]
    of_the_lost = Finding("SXM3-1 0000:01:00.0", "fail", "GPU is lost", check="gpu.limits_in_force")
    assert len(problems((lost(1), of_the_lost))) == 1


def test_a_gpu_that_answers_again_hides_nothing() -> None:
    case = case_named("checks", "health.xids", "answers_again")
    store = FactStore()
    for fact in (kernel_log.kernel, gpu_health.cards):
        store.learn([(fact, Result(0, case["facts"][fact.name].encode()))])
    back = next(xids(store, slots=case["parameters"]["slots"]))
    limits = Finding(back.subject, "fail", "300 W", "200 W", "", "invoke limits", check="gpu.limits_in_force")
    made = problems((back, limits))
    assert [problem.title for problem in made] == [
        "SXM2-1: 300 W, expected 200 W",
        "SXM2-1: was off the bus at 2026-11-22 14:05 and answers again (2 x Xid 79)",
    ]
    assert sentence(made, (back, limits)) == "Not fit for work: SXM2-1: 300 W, expected 200 W"


def test_verdicts_without_a_failure() -> None:
    passed = tuple(Finding("x", "pass", "", check=f"c.{number}") for number in range(34))
    unknown = tuple(Finding(f"x{number}", "unknown", f"no answer {number}") for number in range(3))
    warn = Finding("a", "warn", "old"), Finding("b", "warn", "slow", check="x.y")
    differs = Finding("Limits", "fail", "300 W", "200 W", check="plan")
    sentences = [
        sentence(problems(found), found)
        for found in (passed, (*passed, *warn), (*passed, *unknown), (differs, *unknown[:2]), ())
    ]
    assert sentences == [
        "Fit for work: 34 checks hold", "Fit, with 2 warnings",
        "Not proved: x0: no answer 0; x1: no answer 1; x2: no answer 2",
        "Not as configured: 1 difference from the playbook; not proved: x0: no answer 0 and 1 more", "",
    ]  # fmt: skip
    assert getattr(judge((), (), answered=False), "sentence", "") == "Not known: the host does not answer"


def test_the_terminal_shows_the_verdict_then_each_problem_once_with_commands_apart() -> None:
    stream = io.StringIO()
    _, findings = recorded(CASES / "problems" / "gpu_lost_and_ecc.yml")
    report = reports.report(Host("box", (), {}), status="failed", findings=findings)
    text = Text(stream, "inventory", many=False)
    text.verdict(report)
    text.problems(report)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "box: Do not use SXM2-3: lost; SXM2-2: memory errors"
    assert [line for line in lines if line.startswith("  FAIL")] == [
        "  FAIL  SXM2-3: lost",
        "  FAIL  SXM2-2: memory errors",
    ]
    assert "               2. sudo nvidia-smi -lgc 300,1500" in lines
    assert not [line for line in lines if "gpu.answering" in line or "pcie.links" in line]


def test_differences_are_shown_by_step_and_settings_of_others_are_warnings() -> None:
    def planned(name: str, **found: Any) -> PlannedStep:
        return PlannedStep(Step(name, name, file.present, {}, "here"), **found)

    limits = [Change("change", f"SXM2-{number} 0000:0{number}:00.0 power limit", "200 W", "180 W") for number in (1, 2)]
    found = drift([
        planned("Pins of others", status="ok",
                notes=(Note("00-old pins nvidia: take it out", True, foreign=True), Note("x: y", True))),
        planned("Limits in force", status="pending", changes=tuple(limits)),
        planned("Limits at boot", status="pending", changes=(Change("add", "gpu-limits.service", "", "1 byte"),)),
    ])  # fmt: skip
    stream = io.StringIO()
    Text(stream, "inventory", many=False).problems(reports.report(Host("box", (), {}), status="failed", findings=found))
    shown = [line.strip() for line in stream.getvalue().splitlines() if line]
    assert shown[:3] == [
        "FAIL  3 differences from the playbook",
        "differ:   Limits in force: SXM2-1 0000:01:00.0 power limit, SXM2-2 0000:02:00.0 power limit",
        "Limits at boot: gpu-limits.service (not there)",
    ]
    assert shown[-2:] == ["warn  Pins of others: 00-old pins nvidia", "fix:   1. take it out"]


def test_unfinished_work_follows_from_a_job_at_work() -> None:
    job = of_symptom("run.interrupted", "an interrupted run", "its rigwright-job-3 is at work", "", "host")
    follow = (
        of_symptom("apt.half_installed", "packages", "half configured"),
        of_symptom("apt.locked", "packages", "locked by apt-get (7)"),
        of_symptom("dkms.build_failed", "driver", "no module for 6.1"),
        Finding("pin", "fail", "no pin", check="driver.pin_in_force"),
        Finding("Limits", "fail", "200 W", "180 W", "", "invoke provision", check="plan"),
        Finding("GPUs", "unknown", "no driver", check="gpu.answering"),
    )
    made = problems(
        (job, lost(1), *(replace(each, check=each.check or f"machine.{n}") for n, each in enumerate(follow)))
    )
    assert [(problem.title, len(problem.findings)) for problem in made] == [
        ("a job of an interrupted run of rigwright is still at work on the host", 7),
        ("SXM3-1: lost", 1),
    ]
    stream = io.StringIO()
    report = reports.report(Host("box", (), {}), status="failed", findings=made[0].findings)
    Text(stream, "inventory", many=False).problems(report)
    assert "6 more findings of the same cause" in stream.getvalue()
    assert "differ:" not in stream.getvalue()


def test_gpus_that_were_not_started_are_one_problem_each_with_all_that_follows() -> None:
    """nvidia-smi then says nothing to the other checks: they are unknown, and follow from it."""
    store = FactStore()
    words = (
        "NVRM: GPU 0000:0{0}:00.0: Failed to copy vbios to system memory.\n"
        "NVRM: GPU 0000:0{0}:00.0: RmInitAdapter failed! (0x30:0xffff:1)"
    )
    answers = {
        pci.gpus: Result(0, b"0000:01:00.0 0x030200 1db1 nvidia\n0000:02:00.0 0x030200 1db1 nvidia\n"),
        gpu.gpus: Result(6, b"No devices were found\n"),
        gpu.nvml: Result(0, b'{"gpus": []}'),
        kernel_log.kernel: Result(0, "\n".join(words.format(number) for number in (1, 2)).encode()),
    }
    store.learn(answers.items())
    others = [
        unknown(name, name, str(store.known[gpu.gpus]))
        for name in ("health.memory", "health.not_throttled", "card.equal")
    ]
    findings = [*answering(store), *limits_in_force(store, limits=Limits(power_limit_w=200)), *others]
    made = problems(tuple(findings))
    assert [(problem.gpus, problem.symptom) for problem in made] == [
        (("0000:01:00.0",), "gpu.init_vbios"), (("0000:02:00.0",), "gpu.init_vbios"),
    ]  # fmt: skip
    assert sum(len(problem.findings) for problem in made) == len(findings) == 7
    assert made[0].steps[0].text == "a cold boot first"
