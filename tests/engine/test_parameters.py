"""Parameters: the task's value, else the host's variable of that name, else the default, else an error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from rigwright import inventory
from rigwright.core.desired import Cuda, Driver, Limits, variable_names, variable_type
from rigwright.core.errors import InputError
from rigwright.engine import parameters, playbook, plugins
from rigwright.engine.host_variables import of_host
from rigwright.inventory.model import Host
from tests.engine.test_playbook import CHECKS, PLAY, Project
from tests.paths import files

HOSTS = """\
gpu:
  vars:
    driver: {branch: '535'}
    limits: {power_limit_w: 200}
  hosts:
    servbadge: {rig: servbadge, kernel_cmdline: [iommu=pt]}
    plain: {}
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Returns an empty project with two hosts, of which one has a rig."""
    made = Project(tmp_path)
    made.hosts(HOSTS)
    return made


def given(project: Project, task: str, host: str = "servbadge", play: str = PLAY) -> Mapping[str, Any]:
    """Returns the parameters of the only step of a play with this task."""
    return project.bind(play + task, host).steps[0].parameters


# --- precedence of values


def test_a_check_without_parameters_is_a_whole_task(project: Project) -> None:
    (check,) = project.bind(CHECKS + "    - name: Links\n      pcie.links:\n").checks
    assert check.parameters["rig"].key == "servbadge"
    assert set(check.parameters) == {"rig", "slots"}


@pytest.mark.parametrize("written", ["", " {}", " null"])
def test_the_host_gives_what_the_task_does_not(project: Project, written: str) -> None:
    found = given(project, f"    - limits.boot:{written}\n")
    assert (found["limits"], found["expected_gpus"]) == (Limits(power_limit_w=200), 4)


def test_the_task_comes_before_the_host_also_with_null(project: Project) -> None:
    found = given(project, "    - limits.applied: {limits: {power_limit_w: 150}}\n")
    assert found["limits"] == Limits(power_limit_w=150)
    (check,) = project.bind(CHECKS + "    - pcie.links: {rig: null}\n").checks
    assert check.parameters["rig"] is None


def test_the_default_counts_where_neither_gives_one(project: Project) -> None:
    found = given(project, "    - limits.boot:\n", "plain")
    assert set(found) == {"limits"}, "rig, slots and expected_gpus are left to the operation's defaults"
    assert given(project, "    - grub.cmdline:\n", "plain") == {}
    assert given(project, "    - grub.cmdline:\n") == {"kernel_cmdline": ("iommu=pt",)}


def test_other_parameters_are_beside_those_of_the_host(project: Project) -> None:
    found = given(project, "    - preflight.passed: {free_mib: {/: 1}}\n")
    assert found == {"free_mib": {"/": 1}, "driver": Driver("535")}


def test_vars_of_play_and_task_come_before_the_inventory_s(project: Project) -> None:
    play = "- name: A play\n  hosts: gpu\n  vars: {driver: {branch: '550'}, number: 1}\n  tasks:\n"
    assert given(project, "    - driver.held:\n", play=play)["driver"] == Driver("550")
    task = "    - driver.held:\n      vars: {driver: {branch: '560'}}\n"
    assert given(project, task, play=play)["driver"] == Driver("560")
    assert given(project, "    - driver.held: {driver: '{{ driver }}'}\n", play=play)["driver"] == Driver("550")


def test_a_rig_of_vars_brings_its_number_of_gpus(project: Project) -> None:
    task = "    - limits.boot:\n      vars: {rig: rig-3090}\n"
    known = playbook.of_host(inventory.read(project.folder / "inventory").hosts["plain"], Path())
    assert known.rig is None
    found = given(project, task, "plain")
    assert found["expected_gpus"] > 1


def test_the_inventory_may_say_how_many_gpus_are_expected(project: Project) -> None:
    text = HOSTS.replace("plain: {}", "plain: {expected_gpus: 2}").replace(
        "rig: servbadge,", "rig: servbadge, expected_gpus: 3,"
    )
    project.hosts(text)
    assert [given(project, "    - limits.boot:\n", host)["expected_gpus"] for host in ("plain", "servbadge")] == [2, 3]


def test_a_mistake_in_vars_is_named_at_their_line(project: Project) -> None:
    error = project.refused(PLAY + "    - driver.held:\n      vars:\n        driver: '535'\n")
    assert (error.where, error.found) == (f"{project.path}:6", "'driver' is '535'")


def test_the_values_of_a_host_are_made_once(project: Project) -> None:
    """Every step gets the same object, because binding many hosts in one process must be fast."""
    one, two = project.bind(PLAY + "    - driver.held:\n    - driver.installed:\n").steps
    assert one.parameters["driver"] is two.parameters["driver"]


def test_the_bound_playbook_has_what_the_host_should_be(project: Project) -> None:
    desired = project.bind(PLAY + "    - apt.clean:\n").desired
    assert (desired.rig, desired.driver, desired.cuda, desired.expected_gpus) == ("servbadge", Driver("535"), None, 4)


# --- values of the run


def test_a_check_gets_what_the_run_knows() -> None:
    function = plugins.known("checks")["machine.unchanged"]
    assert parameters.inject(function, {"rig": None}, {"earlier": 1, "slots": {}}) == {
        "rig": None,
        "earlier": 1,
        "slots": {},
    }
    other = plugins.known("checks")["pcie.errors"]
    assert parameters.inject(other, {}, {"earlier": 1}) == {}


def test_no_task_gives_what_the_run_gives(project: Project) -> None:
    error = project.refused(CHECKS + "    - machine.unchanged: {earlier: null}\n")
    assert error.found == "unknown parameter of machine.unchanged 'earlier'"
    assert error.expected == "one of rig, slots"


# --- mistakes


def test_a_required_variable_that_the_host_does_not_have(project: Project) -> None:
    error = project.refused(PLAY + "    - apt.clean:\n    - cuda.held:\n", "plain")
    assert str(error) == (
        f"{project.path}:5: cuda.held needs 'cuda': neither the task nor host plain in the inventory has it\n"
        "  expected: the variable cuda in the inventory, or cuda: ... in the task\n"
        "  fix:      see docs/reference/inventory.md; `when: cuda is defined` skips the task on hosts without it"
    )


def test_a_required_parameter_that_is_no_variable(project: Project) -> None:
    error = project.refused(PLAY + "    - apt.packages:\n")
    assert str(error) == (
        f"{project.path}:4: apt.packages lacks 'names'\n"
        "  expected: names: ...\n"
        "  fix:      add `names: ...` below apt.packages; "
        "docs/reference/operations.md and checks.md describe all parameters"
    )


@pytest.mark.parametrize(
    ("task", "line", "message"),
    [
        ("cuda.held:\n        cuda: '12.2'", 5, "'cuda' is '12.2'\n  expected: {toolkit: ..., beside: ...}"),
        ("cuda.held:\n        cuda: {toolkit: 12.2}", 5, "'cuda.toolkit' is 12.2\n  expected: a text (in quotes)"),
        ("grub.cmdline: {kernel_cmdline: quiet}", 4, "'kernel_cmdline' is 'quiet'\n  expected: a list: ['quiet']"),
        ("limits.boot: {expected_gpus: four}", 4, "'expected_gpus' is 'four'\n  expected: a whole number"),
        (
            "driver.held: [535]",
            4,
            "the parameters of driver.held are [535]\n"
            "  expected: {NAME: VALUE, ...}\n"
            "  fix:      give each parameter by its name; driver.held has driver, cuda_repository",
        ),
    ],
)
def test_a_value_of_the_wrong_type(project: Project, task: str, line: int, message: str) -> None:
    assert str(project.refused(PLAY + f"    - {task}\n")) == f"{project.path}:{line}: {message}"


# --- the rule holds for every operation and check


@pytest.mark.parametrize("kind", ["operations", "checks"])
def test_a_parameter_named_like_a_variable_has_its_type(kind: plugins.Kind) -> None:
    variables = {**{name: variable_type(name) for name in variable_names()}, "rig": Cuda}
    odd = []
    for name, function in plugins.known(kind).items():
        for parameter, hint in parameters.types(function).items():
            kinds = {one for one in get_args(hint) if one is not type(None)} or {hint}
            wanted = variables.get(parameter, hint)
            named = {getattr(one, "__name__", "") for one in kinds}
            if hint != wanted and wanted not in kinds and not (parameter == "rig" and named == {"Rig"}):
                odd.append(f"{name}: {parameter}")
    assert odd == []


def test_our_own_playbooks_give_no_parameter_its_own_variable() -> None:
    for path in files("playbooks/*.yml"):
        for play in playbook.read(path):
            for task in [*(play.get("tasks") or []), *(play.get("checks") or [])]:
                for given in (value for value in task.values() if isinstance(value, dict)):
                    own = [name for name in given if name in variable_names() and f"{{{{ {name}" in str(given[name])]
                    assert own == [], path.name


def test_an_exception_of_the_limits_names_a_card_that_no_file_describes_by_its_pci_id(tmp_path: Path) -> None:
    def limits(name: str) -> Limits:
        host = Host("frame", ("all",), {"limits": {"gpus": {name: {"power_limit_w": 90}}}}, "hosts.yml:3")
        found = of_host(host, tmp_path).desired.limits
        assert found is not None
        return found

    assert limits("10de:2187").of("10de:2187", "", "").power_limit_w == 90
    assert limits("10de:2187").of("10de:1b82", "", "").power_limit_w is None
    with pytest.raises(InputError, match=r"limits\.gpus: no GPU '10de:21'"):
        limits("10de:21")
