"""A parameter of a source or pin in a playbook cannot become a second line of the file that apt reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rigwright import inventory
from rigwright.core.errors import InputError
from rigwright.engine import playbook

SOURCE = {"name": "house", "url": "https://apt.example/", "key": "KEY"}
SECOND = "x\ndeb [trusted=yes] https://other.example /"


@pytest.mark.parametrize(
    ("operation", "parameters"),
    [
        ("apt.source", {**SOURCE, "url": f"https://apt.example/{SECOND}"}),
        ("apt.source", {**SOURCE, "url": "https://apt.example/ two"}),
        ("apt.source", {**SOURCE, "suite": SECOND}),
        ("apt.source", {**SOURCE, "components": [SECOND]}),
        ("apt.source", {**SOURCE, "name": "../../x"}),
        ("apt.pin", {"name": "x", "packages": ["a\nPackage: *"], "version": "1"}),
        ("apt.pin", {"name": "x", "packages": ["a"], "version": "1\nPin-Priority: 2000"}),
        ("apt.pin", {"name": "x/../y", "packages": ["a"], "version": "1"}),
    ],
)
def test_it_is_refused_before_a_connection(operation: str, parameters: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory/hosts.yml").write_text("all: {hosts: {one: {ansible_host: 192.0.2.1}}}\n")
    play = tmp_path / "play.yml"
    play.write_text(f"- name: a\n  hosts: all\n  tasks:\n    - name: b\n      {operation}: {json.dumps(parameters)}\n")
    found = inventory.read(tmp_path / "inventory")
    with pytest.raises(InputError, match=r"is (not one word|no part of a file name)"):
        playbook.bind(play, found, found.hosts["one"])
