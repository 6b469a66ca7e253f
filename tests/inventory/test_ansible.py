"""Inventories of every form (tests/cases/inventories) are read as Ansible reads them: compared with Ansible itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rigwright.core.errors import UsageError
from rigwright.inventory import read
from rigwright.inventory.model import Inventory
from rigwright.report import json_document
from rigwright.report.tables import inventory as report
from tests.paths import CASES

FILES = sorted((CASES / "inventories").iterdir())
PATTERNS = {
    "plain.ini": """all * gpu old ungrouped gpu:!old gpu:&old gpu,!old !old !gpu:&ungrouped &old gpu,console
        node* node0? *a-1
        node0[1-2]* ~node0[34] ~.*b-.* ~no gpu:!~node.* gpu[0] gpu[-1] gpu[1:3] gpu[2:] gpu[0:0] gpu[3:99] old[1]
        node0*[1] rack-*[0:1]
        ungrouped[0]:gpu[1] console:&ungrouped old[0],gpu[0] node01,node01,gpu""",
    "children.ini": "site gpu storage v100:&storage site:!gpu gpu[0] site[-1] v* *a* rtx,v100 all:!site",
    "diamond.yml": "top left right middle bottom lonely,bottom left:&right all:!top",
    "ungrouped.yml": "all ungrouped gpu all:!ungrouped",
    "addresses.ini": "six 2001:db8::1 2001:db8::1,lab lab:!127.0.0.1 gw* 127.0.0.1 lab[1]",
    "order.ini": "a b c c[0] c[2:3] a,b b,a b:&a",
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns Ansible's results by the name of the inventory; Ansible reads no configuration of this machine's user."""
    home = tmp_path_factory.mktemp("home")
    (home / "ansible.cfg").touch()
    asked = json.dumps([[str(path), PATTERNS.get(path.name, "").split()] for path in FILES])
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("ansible_says.py")), asked],
        cwd=home,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "ANSIBLE_CONFIG": str(home / "ansible.cfg"),
            "LC_ALL": "C.UTF-8",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip([path.name for path in FILES], json.loads(done.stdout), strict=True))


@pytest.fixture(params=FILES, ids=lambda path: path.name)
def case(request: pytest.FixtureRequest) -> Path:
    """Returns each inventory in turn."""
    path: Path = request.param
    return path


def test_the_list_is_ansibles(case: Path, answers: dict[str, Any]) -> None:
    """Groups, children and hosts are in the same order, and every host has the same variables."""
    found = read(case)
    wanted = answers[case.name]["list"]
    assert wanted["_meta"]["hostvars"], "Ansible read nothing: the case is wrong"
    assert json_document.plain(report.listing(found, found.hosts)) == wanted


def test_the_tree_is_ansibles(case: Path, answers: dict[str, Any]) -> None:
    found = read(case)
    assert "\n".join(report.graph(found, found.hosts)) == answers[case.name]["graph"]


@pytest.mark.parametrize(("name", "pattern"), [(name, one) for name, text in PATTERNS.items() for one in text.split()])
def test_patterns_are_ansibles(answers: dict[str, Any], name: str, pattern: str) -> None:
    """The hosts and their order are equal; for a pattern without hosts, rigwright gives an error."""
    path = next(path for path in FILES if path.name == name)
    assert _names(read(path), pattern) == answers[name]["patterns"][pattern]


def _names(inventory: Inventory, pattern: str) -> list[str]:
    try:
        return inventory.names(pattern)
    except UsageError:
        return []
