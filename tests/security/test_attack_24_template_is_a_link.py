"""Attack 24: a template of a colleague's inventory that is a link to a private file of the person who runs
rigwright."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rigwright import inventory
from rigwright.core.errors import InputError
from rigwright.core.templates import host_files
from rigwright.engine import playbook

PLAY = "- name: a\n  hosts: all\n  tasks:\n    - name: b\n      file.template: {path: /etc/x, template: x.j2}\n"


def _link_a_file(templates: Path, private: Path) -> None:
    templates.mkdir()
    (templates / "x.j2").symlink_to(private / "x.j2")


def _link_the_folder(templates: Path, private: Path) -> None:
    templates.symlink_to(private)


@pytest.mark.parametrize("link", [_link_a_file, _link_the_folder])
def test_it_is_not_read(link: Callable[[Path, Path], None], tmp_path: Path) -> None:
    private, colleagues = tmp_path / "private", tmp_path / "inventory"
    private.mkdir()
    colleagues.mkdir()
    (private / "x.j2").write_text("KEY")
    (colleagues / "hosts.yml").write_text("all: {hosts: {one: {ansible_host: 192.0.2.1}}}\n")
    (tmp_path / "play.yml").write_text(PLAY)
    link(colleagues / "templates", private)
    found = inventory.read(colleagues)
    with pytest.raises(InputError, match=r"x\.j2 is a link to .*private/x\.j2, outside") as caught:
        playbook.bind(tmp_path / "play.yml", found, found.hosts["one"])
    assert "KEY" not in str(caught.value)


def test_a_template_of_rigwright_s_is_not_replaced_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("KEY")
    folder = tmp_path / "inventory" / "templates"
    (folder / "modprobe").mkdir(parents=True)
    (folder / "modprobe" / "blocked.conf.j2").symlink_to(tmp_path / "private")
    with pytest.raises(InputError, match="is a link to"):
        host_files.owners((folder,))


def test_a_link_within_the_inventory_is_followed(tmp_path: Path) -> None:
    folder = tmp_path / "inventory" / "templates"
    folder.mkdir(parents=True)
    (folder / "real.j2").write_text("text")
    (folder / "x.j2").symlink_to("real.j2")
    (tmp_path / "inventory" / "hosts.yml").write_text("all: {hosts: {one: {ansible_host: 192.0.2.1}}}\n")
    (tmp_path / "play.yml").write_text(PLAY)
    found = inventory.read(tmp_path / "inventory")
    assert len(playbook.bind(tmp_path / "play.yml", found, found.hosts["one"]).steps) == 1
