"""Playbooks are bound to a host before any connection; every error names file and line."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from rigwright import inventory
from rigwright.core.desired import Clocks, Driver, Limits
from rigwright.core.errors import InputError
from rigwright.core.schema import convert
from rigwright.core.yaml_source import loads
from rigwright.engine import playbook
from rigwright.engine.playbook import BoundPlaybook
from tests.paths import ROOT

HOSTS = """\
gpu:
  vars:
    driver: {branch: '535'}
    limits: {power_limit_w: 200}
    people: [ada, bob]
    nothing: []
    number: 7
    greeting: "hello {{ inventory_hostname }}"
  hosts:
    servbadge: {rig: servbadge}
    other: {}
"""
PLAY = "- name: A play\n  hosts: gpu\n  tasks:\n"
CHECKS = "- name: A play\n  hosts: gpu\n  checks:\n"


class Project:
    """A folder with an inventory, a playbook and templates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "playbooks" / "x.yml"
        for name in ("inventory", "playbooks", "templates"):
            (folder / name).mkdir()
        self.hosts(HOSTS)

    def hosts(self, text: str) -> None:
        """The inventory."""
        (self.folder / "inventory" / "hosts.yml").write_text(text, encoding="utf-8")

    def bind(self, text: str, host: str = "servbadge", *tags: str) -> BoundPlaybook:
        """Returns the playbook's steps for a host."""
        self.path.write_text(text, encoding="utf-8")
        found = inventory.read(self.folder / "inventory")
        return playbook.bind(self.path, found, found.hosts[host], frozenset(tags))

    def refused(self, text: str, host: str = "servbadge") -> InputError:
        """Returns the error of a playbook."""
        with pytest.raises(InputError) as caught:
            self.bind(text, host)
        return caught.value

    def template(self, path: str, text: str) -> Path:
        """Writes a file of the project, such as a template; returns its path."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Returns an empty project with two hosts."""
    return Project(tmp_path)


def names(bound: BoundPlaybook) -> list[str]:
    """Returns the names of the steps."""
    return [step.name for step in bound.steps]


# --- binding


def test_a_step(project: Project) -> None:
    text = PLAY + "    - name: Packages\n      apt.packages: {names: [curl]}\n    - apt.clean:\n"
    step, unnamed = project.bind(text).steps
    assert (step.name, step.operation, step.parameters) == ("Packages", "apt.packages", {"names": ["curl"]})
    assert (step.where, step.skipped, unnamed.name) == (f"{project.path}:5", "", "apt.clean")


def test_variables_keep_their_types(project: Project) -> None:
    text = PLAY + '    - driver.held: {driver: "{{ driver }}"}\n    - limits.applied: {limits: "{{ limits }}"}\n'
    first, second = project.bind(text, "other").steps
    assert first.parameters == {"driver": Driver("535")}
    assert second.parameters == {"limits": Limits(power_limit_w=200)}


def test_text_around_a_variable_makes_a_text(project: Project) -> None:
    text = PLAY + "    - file.present: {path: /etc/motd, content: '{{ greeting }}, {{ number }} GPUs\n\n'}\n"
    (step,) = project.bind(text).steps
    assert step.parameters["content"] == "hello servbadge, 7 GPUs\n"


def test_variables_of_play_and_task_come_over_the_inventory_s(project: Project) -> None:
    text = (
        "- name: A play\n  hosts: gpu\n  vars: {number: 8, more: '{{ number + 1 }}'}\n  tasks:\n"
        "    - file.present: {path: /a, content: '{{ number }} {{ more }}'}\n"
        "    - file.present: {path: /a, content: '{{ number }} {{ more }}'}\n      vars: {number: 9}\n"
    )
    first, second = project.bind(text).steps
    assert (first.parameters["content"], second.parameters["content"]) == ("8 9", "9 9")


def test_a_template(project: Project) -> None:
    project.template(
        "templates/x.service.j2", "# {{ inventory_hostname }}\n{% for one in people %}{{ one }}\n{% endfor %}"
    )
    (step,) = project.bind(PLAY + "    - systemd.unit: {name: x.service, template: x.service.j2}\n").steps
    assert step.parameters["template"] == "# servbadge\nada\nbob\n"


def test_loops(project: Project) -> None:
    text = PLAY + "    - name: 'User {{ item }}'\n      user.present: {name: '{{ item }}'}\n      loop: LIST\n"
    found = project.bind(text.replace("LIST", '"{{ people }}"'))
    assert names(found) == ["User ada", "User bob"]
    assert [step.parameters["name"] for step in found.steps] == ["ada", "bob"]
    assert names(project.bind(text.replace("LIST", "[eve]"))) == ["User eve"]
    assert names(project.bind(text.replace("LIST", '"{{ nothing }}"'))) == []


def test_a_loop_over_mappings(project: Project) -> None:
    text = PLAY + (
        "    - name: '{{ item.name }}'\n      user.present: {name: '{{ item.name }}', groups: '{{ item.groups }}'}\n"
        "      loop:\n        - {name: ada, groups: [video]}\n        - {name: bob, groups: []}\n"
    )
    found = project.bind(text)
    assert [step.parameters for step in found.steps] == [
        {"name": "ada", "groups": ["video"]},
        {"name": "bob", "groups": []},
    ]


@pytest.mark.parametrize(
    ("when", "skipped"),
    [
        ("rig is defined", ""),
        ("rig is not defined", "when: rig is not defined"),
        ("number > 5", ""),
        ("number > 5 and driver.branch == '550'", "when: number > 5 and driver.branch == '550'"),
        ("[rig is defined, number > 9]", "when: number > 9"),
        ("[rig is defined, number > 1]", ""),
        ("nothing", "when: nothing"),
        ("true", ""),
        ("false", "when: False"),
    ],
)
def test_conditions(project: Project, when: str, skipped: str) -> None:
    (step,) = project.bind(PLAY + f"    - apt.clean:\n      when: {when}\n").steps
    assert step.skipped == skipped


def test_a_condition_holds_for_each_item_and_comes_before_the_parameters(project: Project) -> None:
    text = PLAY + "    - user.present: {name: '{{ item }}'}\n      loop: [ada, bob]\n      when: item != 'ada'\n"
    assert [bool(step.skipped) for step in project.bind(text).steps] == [True, False]
    text = PLAY + "    - cuda.toolkit: {cuda: '{{ cuda }}', driver: '{{ driver }}'}\n      when: cuda is defined\n"
    assert project.bind(text).steps[0].skipped == "when: cuda is defined"


TAGGED = PLAY + (
    "    - {name: first, apt.clean: , tags: [always]}\n"
    "    - {name: second, apt.clean: , tags: [driver, packages]}\n"
    "    - {name: third, apt.clean: , tags: boot}\n"
    "    - {name: fourth, apt.clean: }\n"
    "  checks:\n"
    "    - {name: fifth, driver.versions_equal: , tags: [driver]}\n"
)


@pytest.mark.parametrize(
    ("tags", "steps", "checks"),
    [
        ((), "first second third fourth", "fifth"),
        (("driver",), "first second", "fifth"),
        (("boot",), "first third", ""),
        (("boot", "packages"), "first second third", ""),
        (("no-such-tag",), "first", ""),
    ],
)
def test_tags(project: Project, tags: tuple[str, ...], steps: str, checks: str) -> None:
    found = project.bind(TAGGED, "servbadge", *tags)
    assert names(found) == steps.split()
    assert [check.name for check in found.checks] == checks.split()


def test_a_play_is_for_its_hosts(project: Project) -> None:
    text = (
        "- {name: one, hosts: servbadge, tasks: [{name: a, apt.clean: }]}\n"
        "- {name: two, hosts: 'gpu:!servbadge', tasks: [{name: b, apt.clean: }]}\n"
        "- {name: three, hosts: all, tasks: [{name: c, apt.clean: }]}\n"
        "- {name: four, hosts: 'gpu:!all', tasks: [{name: d, apt.clean: }]}\n"
        "- {name: five, hosts: [servbadge, other], tasks: [{name: e, apt.clean: }]}\n"
    )
    assert names(project.bind(text, "servbadge")) == ["a", "c", "e"]
    assert names(project.bind(text, "other")) == ["b", "c", "e"]


def test_checks(project: Project) -> None:
    text = CHECKS + "    - name: GPUs\n      gpu.present: {rig: '{{ rig }}'}\n      when: rig is defined\n"
    (check,) = project.bind(text).checks
    assert (check.name, check.check, check.parameters["rig"].key) == ("GPUs", "gpu.present", "servbadge")
    assert project.bind(text, "other").checks == ()


@pytest.mark.parametrize("name", ["provision", "train", "limits", "limits-reset", "bench"])
def test_our_own_playbooks(name: str) -> None:
    root = ROOT
    found = inventory.read(root / "inventory")
    bound = playbook.bind(root / "playbooks" / f"{name}.yml", found, found.only())
    assert bound.steps
    assert len({step.name for step in bound.steps}) == len(bound.steps), "two steps of one name"


def test_an_imported_playbook_comes_first(project: Project) -> None:
    first = "    - {name: First, apt.packages: {names: [curl]}}\n"
    checks = "  checks:\n    - {name: GPUs, gpu.present: {rig: servbadge}}\n"
    project.template("playbooks/base.yml", PLAY + first + checks)
    second = "    - {name: Second, apt.packages: {names: [curl]}, tags: [more]}\n"
    bound = project.bind("- import_playbook: base.yml\n" + PLAY + second)
    assert names(bound) == ["First", "Second"]
    assert [step.where.rpartition("/")[2] for step in bound.steps] == ["base.yml:4", "x.yml:5"]
    assert [check.name for check in bound.checks] == ["GPUs"]
    assert bound.tags == {"more"}


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("- import_playbook: none.yml\n", 1, "none.yml is not there"),
        ("- import_playbook: x.yml\n", 1, "x.yml imports itself"),
        ("- import_playbook: ../playbooks/x.yml\n", 1, "../playbooks/x.yml imports itself"),
        ("- import_playbook: [x.yml]\n", 1, "import_playbook is ['x.yml']"),
        ("- import_playbook:\n", 1, "import_playbook is None"),
        ("- import_playbook: base.yml\n  hosts: gpu\n", 2, "unknown key beside import_playbook 'hosts'"),
        ("- import_playbok: base.yml\n", 1, "unknown key of a play 'import_playbok'; did you mean 'import_playbook'?"),
    ],
)
def test_a_bad_import(project: Project, text: str, line: int, found: str) -> None:
    error = project.refused(text)
    assert (error.where, found in error.found) == (f"{project.path}:{line}", True), str(error)


def test_two_playbooks_that_import_each_other(project: Project) -> None:
    project.template("playbooks/y.yml", "- import_playbook: x.yml\n")
    error = project.refused("- import_playbook: y.yml\n")
    assert (Path(error.where).name, error.found) == ("y.yml:1", "x.yml imports itself")


def test_train_is_provision_and_more() -> None:
    found = inventory.read(ROOT / "inventory")
    base, whole = (
        playbook.bind(ROOT / "playbooks" / f"{name}.yml", found, found.only()) for name in ("provision", "train")
    )
    assert whole.steps[: len(base.steps)] == base.steps
    assert whole.checks[: len(base.checks)] == base.checks
    assert len(whole.steps) > len(base.steps)


# --- mistakes in a task


@pytest.mark.parametrize(
    ("task", "line", "found"),
    [
        ("    - apt.package: {names: [curl]}\n", 4, "unknown operation 'apt.package'; did you mean 'apt.packages'?"),
        ("    - apt_packages: {names: [curl]}\n", 4, "unknown operation 'apt_packages'; did you mean 'apt.packages'?"),
        ("    - apt.packages.x: {}\n", 4, "unknown operation 'apt.packages.x'"),
        ("    - os.path: {}\n", 4, "unknown operation 'os.path'"),
        ("    - apt.install: {}\n", 4, "unknown operation 'apt.install'"),
        ("    - apt._INSTALL: {}\n", 4, "unknown operation 'apt._INSTALL'"),
        ("    - driver.versions_equal: {}\n", 4, "unknown operation 'driver.versions_equal'"),
        ("    - apt.clean:\n      wehn: true\n", 5, "unknown key of a task 'wehn'; did you mean 'when'?"),
        ("    - name: x\n", 4, "a task without an operation"),
        ("    - apt.clean:\n      apt.hold: {names: []}\n", 4, "operations apt.clean, apt.hold"),
        (
            "    - apt.packages:\n        nams: [curl]\n",
            5,
            "unknown parameter of apt.packages 'nams'; did you mean 'names'?",
        ),
        ("    - apt.packages: {}\n", 4, "apt.packages lacks 'names'"),
        (
            "    - grub.cmdline: {kernel_cmdline: [], templates: x}\n",
            4,
            "unknown parameter of grub.cmdline 'templates'",
        ),
        ("    - apt.packages: [curl]\n", 4, "the parameters of apt.packages are ['curl']"),
        ("    - apt.packages:\n        names: curl\n", 5, "'names' is 'curl'"),
        ("    - apt.packages:\n        names: [1]\n", 5, "'names' is 1"),
        ("    - file.present:\n        path: /a\n        content: x\n        mode: 0644\n", 7, "'mode' is 420"),
        ("    - systemd.service:\n        name: x\n        enabled: 'yes'\n", 6, "'enabled' is 'yes'"),
        ("    - driver.held:\n        driver: {branch: 535}\n", 5, "'driver.branch' is 535"),
        (
            "    - driver.held:\n        driver: {brunch: '535'}\n",
            5,
            "unknown key of 'driver' 'brunch'; did you mean 'branch'?",
        ),
        ("    - driver.held:\n        driver: {source: cuda}\n", 5, "'driver' lacks branch"),
        ("    - driver.held:\n        driver: {branch: '535', source: nvidia}\n", 5, "'driver': source 'nvidia'"),
        (
            "    - driver.held:\n        driver: {branch: '535', version: 550.54.14}\n",
            5,
            "'driver': branch '535', version '550.54.14'",
        ),
        ("    - driver.held:\n        driver: '535'\n", 5, "'driver' is '535'"),
        ("    - limits.applied:\n        limits: {power_limit_w: 200.5}\n", 5, "'limits.power_limit_w' is 200.5"),
        ("    - limits.applied:\n        limits: {power_limit_w: true}\n", 5, "'limits.power_limit_w' is True"),
        (
            "    - limits.applied:\n        limits: {application_clocks: {memory_mhz: 877}}\n",
            5,
            "'limits.application_clocks' lacks graphics_mhz",
        ),
        ("    - user.present:\n        name: '{{ nobody }}'\n", 5, "'nobody'"),
        ("    - user.present:\n        name: 'x{{ nobody }}'\n", 5, "nobody"),
        ("    - user.present:\n        name: '{{ people[7] }}'\n", 5, "people[7]"),
        ("    - user.present:\n        name: '{{ number / 0 }}'\n", 5, "division by zero"),
        ("    - user.present:\n        name: '{{ 1 + }}'\n", 5, "1 +"),
        ("    - user.present:\n        name: 'x {% if %}'\n", 5, "template error"),
        ("    - user.present: {name: ada}\n      loop: 5\n", 5, "'loop' is 5"),
        ("    - user.present: {name: ada}\n      loop: ada\n", 5, "'loop' is 'ada'"),
        ("    - user.present: {name: ada}\n      loop: {a: 1}\n", 5, "'loop' is {'a': 1}"),
        ("    - user.present: {name: ada}\n      when: 5\n", 5, "'when' is 5"),
        ("    - user.present: {name: ada}\n      when: nobody == 1\n", 5, "'nobody == 1'"),
        ("    - user.present: {name: ada}\n      when: '{{ number }} > 1'\n", 5, ""),
        ("    - user.present: {name: ada}\n      when:\n", 5, "'when' is None"),
        ("    - user.present: {name: ada}\n      tags: 5\n", 5, "'tags' is 5"),
        ("    - user.present: {name: ada}\n      tags: {a: b}\n", 5, "'tags' is {'a': 'b'}"),
        ("    - user.present: {name: ada}\n      vars: [a]\n", 5, "'vars' is ['a']"),
        ("    - apt.packages: {nams: [curl]}\n      when: rig is not defined\n", 4, "did you mean 'names'"),
        ("    - user.present: {name: \"{{ ''.__class__.__mro__ }}\"}\n", 4, ""),
        ("    - just words\n", 4, "a task that is no mapping"),
        ("    - systemd.service: {on: true}\n", 4, "the key True, which YAML reads as no text"),
        ("    - systemd.unit: {name: x.service, template: absent.j2}\n", 0, "no such template"),
        ("    - systemd.unit: {name: x.service, template: ../hosts.yml}\n", 4, "'../hosts.yml' is outside templates/"),
        ("    - systemd.unit: {name: x.service, template: /etc/passwd}\n", 4, "'/etc/passwd' is outside templates/"),
        ("    - user.present:\n        name: \"{{ 'x' * 10**15 }}\"\n", 5, "too large for the memory"),
        ("    - user.present:\n        name: \"a{{ 'x' * 10**15 }}\"\n", 5, "too large for the memory"),
    ],
)
def test_mistakes_in_a_task(project: Project, task: str, line: int, found: str) -> None:
    error = project.refused(PLAY + task)
    if line:
        assert error.where.startswith(f"{project.path}:{line}")
    assert found in str(error)


def test_a_mistake_says_what_was_wanted(project: Project) -> None:
    for task, expected in (
        ("file.present: {path: /a, content: x, mode: 0644}", "a text (in quotes)"),
        ("apt.package: {}", "one of apt.packages, "),
        ("user.present: {nam: x}", "one of groups, login_shell, name"),
    ):
        assert project.refused(f"{PLAY}    - {task}\n").expected.startswith(expected)
    error = project.refused("- name: x\n  hosts: gpus\n")
    assert error.fix.startswith("put servbadge into that group: `gpus: {hosts: {servbadge: }}` in the inventory")


def test_a_mistake_in_a_template_is_at_the_template_s_line(project: Project) -> None:
    play = PLAY + "    - file.template: {path: /a, template: x.j2}\n"
    template = project.template("templates/x.j2", "one\ntwo\n{% if %}\n")
    assert project.refused(play).where == f"{template}:3"
    project.template("templates/x.j2", "one\n{{ nobody }}\n")
    error = project.refused(play)
    assert (error.where, "nobody" in error.found) == (f"{template}:2", True)


# --- mistakes in a play


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("", 0, "no list of plays"),
        ("name: x\n", 0, "no list of plays"),
        ("- just words\n", 1, "a play that is no mapping"),
        ("- name: x\n", 1, "a play without 'hosts'"),
        ("- hosts: all\n", 1, "a play without 'name'"),
        ("- name: x\n  host: all\n", 2, "unknown key of a play 'host'; did you mean 'hosts'?"),
        ("- name: x\n  hosts: all\n  task: []\n", 3, "unknown key of a play 'task'; did you mean 'tasks'?"),
        ("- name: x\n  hosts: all\n  tasks: {a: b}\n", 3, "'tasks' is no list"),
        ("- name: x\n  hosts: all\n  vars: [a]\n", 3, "'vars' is ['a']"),
        ("- name: x\n  hosts: all\n  vars: {a: '{{ b }}', b: '{{ a }}'}\n", 1, "refers to itself"),
        ("- name: x\n  hosts: gpuu\n", 2, "no host or group 'gpuu'; did you mean 'gpu'?"),
        ("- name: x\n  hosts: [gpuu]\n", 2, "gpuu"),
        ("- name: x\n  hosts:\n", 2, "'hosts'"),
        (
            "- name: x\n  hosts: all\n  checks:\n    - gpu.presant: {rig: x}\n",
            4,
            "unknown check 'gpu.presant'; did you mean 'gpu.present'?",
        ),
        ("- name: x\n  hosts: all\n  checks:\n    - apt.clean: {}\n", 4, "unknown check 'apt.clean'"),
        ("- name: x\n  hosts: all\n  checks:\n    - name: y\n", 4, "a task without a check"),
    ],
)
def test_mistakes_in_a_play(project: Project, text: str, line: int, found: str) -> None:
    error = project.refused(text)
    assert error.where.startswith(f"{project.path}:{line}" if line else str(project.path))
    assert found in str(error)


# --- mistakes in rigwright's variables


@pytest.mark.parametrize(
    ("variables", "where", "found"),
    [
        ("rig: servbagde", 3, "unknown rig 'servbagde'; did you mean 'servbadge'?"),
        ("rig: 5", 3, "'rig' is 5"),
        ("driver: {branch: 535}", 3, "'driver.branch' is 535"),
        ("driver: '535'", 3, "'driver' is '535'"),
        ("driver: {branch: '535', versoin: x}", 3, "unknown key of 'driver' 'versoin'; did you mean 'version'?"),
        ("cuda: {toolkit: 12.2}", 3, "'cuda.toolkit' is 12.2"),
        ("limits: {power_limit: 200}", 3, "unknown key of 'limits' 'power_limit'; did you mean 'power_limit_w'?"),
        ("kernel_cmdline: iommu=pt", 3, "'kernel_cmdline' is 'iommu=pt'"),
        ("kernel_cmdline: [iommu=pt, 5]", 3, "'kernel_cmdline' is 5"),
        ("cuda_repository: https://mirror.example", 3, "'cuda_repository' is 'https://mirror.example'"),
        ("p2p_wheels: false", 3, "'p2p_wheels' is False"),
        ("ssh_known_hosts: [a]", 3, "'ssh_known_hosts' is ['a']"),
        ("accepted: [driver.patched]", 3, "'accepted' is ['driver.patched']"),
        ("accepted: {driver.patchd: {until: 2027-03-01, because: x}}", 3, "did you mean 'driver.patched'?"),
        ("accepted: {pcie.narow: {until: 2027-03-01, because: x}}", 3, "did you mean 'pcie.narrow'?"),
        ("accepted: {driver.patched: {until: 2027-03-01}}", 3, "'accepted.driver.patched' lacks because"),
        ("accepted: {driver.patched: {because: x}}", 3, "'accepted.driver.patched' lacks until"),
        ("accepted: {driver.patched: {until: 2027-03-01, because: ' '}}", 3, "because ' '"),
        ("accepted: {driver.patched: {until: soon, because: x}}", 3, "'accepted.driver.patched.until' is 'soon'"),
        ("accepted: {driver.patched: 2027-03-01}", 3, '{until: 2027-03-01, because: "a reason"}'),
        ("accepted: {gpu.off_bus: {until: 2027-03-01, because: x}}", 3, "is a failure, not a warning"),
        ("accepted: {p2p.ran: {until: 2027-03-01, because: x}}", 3, "what is not proved cannot be accepted"),
    ],
)
def test_mistakes_in_variables(project: Project, variables: str, where: int, found: str) -> None:
    project.hosts(f"gpu:\n  hosts:\n    servbadge: {{{variables}}}\n")
    error = project.refused(PLAY + "    - apt.clean:\n")
    assert error.where == f"{project.folder}/inventory/hosts.yml:{where}"
    assert found in str(error)


def test_a_mistake_in_group_vars_is_named_there(project: Project) -> None:
    """The error names the line in group_vars, not the host's line in hosts.yml."""
    for variable in ("kernel_cmdline: iommu=pt", 'greeting2: "{{ nobody }}"'):
        file = project.template("inventory/group_vars/all.yml", f"site: here\n{variable}\n")
        assert project.refused(PLAY + "    - apt.clean:\n").where.startswith(f"{file}:2")


def test_variables_of_variables(project: Project) -> None:
    project.hosts("gpu: {hosts: {servbadge: {a: '{{ b }}', b: '{{ a }}'}}}\n")
    assert "refers to itself" in project.refused(PLAY + "    - apt.clean:\n").found
    project.hosts("gpu: {hosts: {servbadge: {a: '{{ b }}!', b: '{{ c }}', c: [1, '{{ d }}'], d: 2}}}\n")
    (step,) = project.bind(PLAY + "    - file.present: {path: /a, content: '{{ a }}'}\n").steps
    assert step.parameters["content"] == "[1, 2]!"


# --- types


def _converted(text: str, wanted: Any) -> Any:
    return convert(loads(f"x: {text}\n", "x.yml")["x"], wanted, "x.yml:1", "x")


@pytest.mark.parametrize(
    ("text", "wanted", "value"),
    [
        ("'a'", str, "a"),
        ("1", int, 1),
        ("1", float, 1.0),
        ("true", bool, True),
        ("null", str | None, None),
        ("[a]", list[str], ["a"]),
        ("{/: 1}", dict[str, int], {"/": 1}),
        ("2027-03-01", datetime.date, datetime.date(2027, 3, 1)),
        ("'2027-03-01'", datetime.date, datetime.date(2027, 3, 1)),
        ("2027-03-01 10:00:00", datetime.date, datetime.date(2027, 3, 1)),
        ("{branch: '535.183.01'}", Driver, Driver("535", "535.183.01")),
        ("{memory_mhz: 877, graphics_mhz: 1005}", Clocks, Clocks(877, 1005)),
        ("{persistence: null}", Limits, Limits()),
        (
            "{application_clocks: {memory_mhz: 1, graphics_mhz: 2}}",
            Limits | None,
            Limits(application_clocks=Clocks(1, 2)),
        ),
    ],
)
def test_types(text: str, wanted: Any, value: object) -> None:
    found = _converted(text, wanted)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1", str),
        ("'1'", int),
        ("1.0", int),
        ("true", int),
        ("1", bool),
        ("'true'", bool),
        ("true", float),
        ("abc", list[str]),
        ("{a: 1}", list[str]),
        ("[[a]]", list[str]),
        ("[1]", dict[str, int]),
        ("'1.3.2027'", datetime.date),
        ("{a: b}", dict[str, int]),
        ("null", str),
        ("[]", Limits),
        ("{}", Clocks),
        ("{branch: ''}", Driver),
        ("{branch: x}", Driver),
        ("{branch: '535', version: '535'}", Driver),
    ],
)
def test_types_that_do_not_fit(text: str, wanted: Any) -> None:
    with pytest.raises(InputError) as caught:
        _converted(text, wanted)
    assert caught.value.where == "x.yml:1"
    assert caught.value.found


# --- a user's templates


def test_an_owner_s_template_beside_the_inventory_reaches_the_operation(project: Project) -> None:
    text = '# ours\nGRUB_CMDLINE_LINUX_DEFAULT="{{ kernel_cmdline | join(" ") }}"\n'
    project.template("inventory/templates/grub/cmdline.cfg.j2", text)
    (step,) = project.bind(PLAY + "    - grub.cmdline: {kernel_cmdline: [iommu=pt]}\n").steps
    rendered = step.parameters["templates"].render("grub/cmdline.cfg.j2", {"kernel_cmdline": ["a"]})
    assert rendered == '# ours\nGRUB_CMDLINE_LINUX_DEFAULT="a"\n'


def test_a_broken_template_beside_the_inventory_stops_before_any_connection(project: Project) -> None:
    path = project.template("inventory/templates/grub/cmdline.cfg.j2", "# ours\n{{ kernel_cmdlin }}\n")
    error = project.refused(PLAY + "    - apt.clean:\n")
    assert error.where == f"{path}:2"
    assert error.found == "unknown variable 'kernel_cmdlin'; did you mean 'kernel_cmdline'?"


def test_a_template_of_a_unit_is_looked_for_beside_the_inventory_first(project: Project) -> None:
    for folder in ("inventory/templates", "templates"):
        project.template(f"{folder}/x.service.j2", f"# {folder}\n")
    (step,) = project.bind(PLAY + "    - systemd.unit: {name: x.service, template: x.service.j2}\n").steps
    assert step.parameters["template"] == "# inventory/templates\n"


EQUAL = """\
all:
  vars: {ansible_user: root, driver: {branch: '535'}}
  children:
    gpu:
      hosts:
        a: {ansible_host: 10.0.0.1, note: 1}
        b: {ansible_host: 10.0.0.2, note: 1}
        c: {ansible_host: 10.0.0.3, note: true}
        d: {ansible_host: 10.0.0.4, note: 1, ansible_become_password: secret-words}
        e: {ansible_host: 10.0.0.5, note: 1, db_password: secret-words}
        f: {ansible_host: 10.0.0.6, note: 1, db_password: secret-words}
    other:
      hosts:
        g: {ansible_host: 10.0.0.7, note: 1}
"""


def _bound(project: Project, text: str, tolerant: bool = False) -> dict[str, BoundPlaybook]:
    project.hosts(EQUAL)
    project.path.write_text(text, encoding="utf-8")
    found = inventory.read(project.folder / "inventory")
    hosts = found.select("all")
    bound, refused = playbook.bind_all(project.path, found, hosts, frozenset(), tolerant, frozenset())
    assert [each.host for each in bound] == hosts
    return {each.host.name: each for each in bound if each.host.name not in refused}


def test_hosts_that_differ_in_nothing_that_is_read_have_the_same_steps(project: Project) -> None:
    """Each is also equal to what the host is bound to alone."""
    bound = _bound(project, PLAY + "    - name: N {{ note }}\n      file.directory: {path: /x}\n")
    assert bound["a"].steps is bound["b"].steps is bound["d"].steps
    assert bound["c"].steps[0].name == "N True"
    assert bound["a"].steps[0].name == "N 1"
    assert bound["e"].steps is not bound["f"].steps, "a secret may be read"
    assert bound["g"].steps == ()
    found = inventory.read(project.folder / "inventory")
    for name, each in bound.items():
        alone = playbook.bind(project.path, found, found.select(name)[0])
        assert (alone.steps, alone.desired, alone.tags) == (each.steps, each.desired, each.tags)


@pytest.mark.parametrize(
    "task",
    [
        "name: N\n      file.directory: {path: '/srv/{{ inventory_hostname }}'}",
        "name: At {{ ansible_host }}\n      file.directory: {path: /x}",
        "name: N\n      when: inventory_hostname == 'a'\n      file.directory: {path: /x}",
        'name: N\n      file.present: {path: /x, content: "{{ ansible_host }}"}',
        "name: N\n      file.template: {path: /x, template: own.j2}",
    ],
)
def test_what_reads_the_name_or_the_address_is_bound_for_each_host(project: Project, task: str) -> None:
    project.template("templates/own.j2", "{{ inventory_hostname }} at {{ ansible_host }}\n")
    bound = _bound(project, f"{PLAY}    - {task}\n")
    steps = [bound[name].steps[0] for name in "abde"]
    assert all(
        one != two for at, one in enumerate(steps[1:], 1) for two in steps[:at] if "when" not in task or two is steps[0]
    )


def test_a_mistake_in_the_playbook_is_the_error_of_each_host(project: Project) -> None:
    assert _bound(project, "- name: P\n  hosts: gpu\n  what: 1\n", tolerant=True) == {}
