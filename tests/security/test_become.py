"""Variables about becoming root that rigwright does not follow are refused, not ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from rigwright.core.errors import InputError
from rigwright.inventory import read
from rigwright.inventory.model import Host


def selected(folder: Path, text: str) -> Host:
    """Returns the host of an inventory with these variables."""
    (folder / "hosts.yml").write_text(f"all:\n  hosts:\n    box: {{{text}}}\n")
    (host,) = read(folder / "hosts.yml").select("box")
    return host


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ansible_become: false", "ansible_become"),
        ("ansible_become: 'no'", "ansible_become"),
        ("ansible_become: 0", "ansible_become"),
        ("ansible_become: '{{ 1 == 2 }}'", "ansible_become"),
        ("ansible_become: false, ansible_user: ubuntu", "ansible_become"),
        ("ansible_become_user: postgres", "ansible_become_user"),
        ("ansible_sudo_user: postgres", "ansible_sudo_user"),
        ("ansible_become_user: 'root; id'", "ansible_become_user"),
        ("ansible_become_method: su", "ansible_become_method"),
        ("ansible_become_method: doas", "ansible_become_method"),
        ("ansible_become_exe: /opt/sudo", "ansible_become_exe"),
        ("ansible_become_flags: '-u postgres'", "ansible_become_flags"),
        ("ansible_connection: docker", "ansible_connection"),
        ("ansible_connection: [ssh]", "ansible_connection"),
    ],
)
def test_it_is_refused(tmp_path: Path, text: str, name: str) -> None:
    with pytest.raises(InputError) as caught:
        selected(tmp_path, text)
    assert caught.value.where == f"{tmp_path}/hosts.yml:3"
    assert caught.value.found.startswith(f"{name} is ")


@pytest.mark.parametrize(
    "text",
    [
        "ansible_become: true, ansible_become_user: root, ansible_become_method: sudo, "
        "ansible_become_flags: '-H -S -n'",
        "ansible_become: 'yes'",
        "ansible_become: false, ansible_user: root",
        "ansible_connection: local",
        "ansible_connection: ansible.builtin.ssh",
    ],
)
def test_it_is_what_rigwright_does(tmp_path: Path, text: str) -> None:
    assert selected(tmp_path, text).name == "box"
