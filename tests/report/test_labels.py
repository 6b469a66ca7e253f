"""The words for what checks found: what holds, what failed, what could not be answered, and what is required are
counted apart."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace

from rigwright.checks import Finding, Verdict
from rigwright.cli import provision
from rigwright.cli.provision import closing
from rigwright.engine.report import CheckResult, HostReport, PlanResult
from rigwright.inventory.model import Host
from rigwright.report.labels import checks_in_words
from rigwright.report.terminal import Text

REQUIRED = Finding(
    "peer-to-peer test", "warn", "required since 2026-11-22 11:24 UTC by run r1: after [reboot]", fix="invoke provision"
)


def report(*verdicts: Verdict, required: bool = False, name: str = "h") -> HostReport:
    """Returns the report of a host with these findings."""
    found = tuple(Finding(f"subject {number}", verdict, "text") for number, verdict in enumerate(verdicts))
    tests = (REQUIRED,) if required else ()
    return HostReport(Host(name, (), {})).with_result(CheckResult((*found, *tests), required_tests=tests))


@pytest.mark.parametrize(
    ("verdicts", "required", "words"),
    [
        (("pass", "pass", "warn", "info"), False, "2 checks hold"),
        (("pass",), False, "1 check holds"),
        (("pass", "fail", "unknown", "unknown"), False, "1 check holds, 1 failed, 2 could not be answered"),
        (("unknown",), True, "0 checks hold, 1 could not be answered, 1 test is required"),
        ((), True, "0 checks hold, 1 test is required"),
    ],
)
def test_three_counts_have_three_words(verdicts: tuple[Verdict, ...], required: bool, words: str) -> None:
    assert checks_in_words(report(*verdicts, required=required)) == words


@pytest.mark.parametrize(
    ("verdicts", "required", "proved"),
    [
        (("pass", "pass", "warn"), False, True),
        (("pass", "fail"), False, False),
        (("pass", "unknown"), False, False),
        (("pass",), True, False),
        ((), False, False),
    ],
)
def test_proved_is_said_only_if_every_check_passed(verdicts: tuple[Verdict, ...], required: bool, proved: bool) -> None:
    made = report(*verdicts, required=required)
    assert ("proved" in closing([made], made.host.name)) == proved
    assert (made.verdict is not None and made.verdict.sentence.startswith("Fit")) == proved


def test_a_required_test_is_counted_apart_and_replaced_after_the_checks() -> None:
    sentences = [
        made.verdict and made.verdict.sentence
        for made in (report("pass", required=True), report("warn", required=True))
    ]
    assert sentences == ["Not proved: 1 test is required", "Not proved: 1 test is required, 1 warning"]
    planned = HostReport(Host("h", (), {})).with_result(PlanResult((), required_tests=(REQUIRED,)))
    assert (planned.findings, planned.verdict, planned.required_tests) == ((), None, (REQUIRED,))
    checked = planned.with_result(CheckResult((Finding("GPUs", "pass", "4"),)))
    assert (len(checked.findings), checked.required_tests) == (1, ())


def test_a_plan_names_what_is_required_once_for_all_hosts_of_it() -> None:
    reports = [
        HostReport(Host(name, (), {})).with_result(PlanResult((), required_tests=(REQUIRED,)))
        for name in ("gpu1", "gpu2")
    ]
    assert [each.status for each in reports] == ["ok", "ok"]
    stream = io.StringIO()
    Text(stream, "inventory", True).plans(reports)
    assert stream.getvalue().count("required since") == 1
    assert (
        "gpu1, gpu2 warn peer-to-peer test: required since 2026-11-22 11:24 UTC by run r1: after [reboot]\n"
        in stream.getvalue()
    )
    assert "invoke provision" in stream.getvalue()


def test_hosts_with_the_same_result_are_shown_as_one() -> None:
    same = [report("pass", "fail", name=f"gpu{number}") for number in range(1, 5)]
    others = [report("pass", name="a"), report("pass", name="b"), report("pass", "fail", required=True, name="c")]
    groups = provision._with_one_result([others[0], *same[:2], *others[1:], *same[2:]])
    assert [[each.host.name for each in group] for group in groups] == [
        ["a"], ["b"], ["gpu1", "gpu2", "gpu3", "gpu4"], ["c"],
    ]  # fmt: skip
    seconds = [replace(each, seconds=float(number)) for number, each in enumerate(same)]
    assert closing(seconds, "gpu[1:4]").startswith("[bold]gpu[1:4][/]: 0 changes each, ")
    assert closing(seconds, "gpu[1:4]").endswith(", 3.0 s")
    assert closing(seconds[:1], "gpu1").startswith("[bold]gpu1[/]: 0 changes, ")
