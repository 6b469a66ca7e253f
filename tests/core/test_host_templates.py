"""Templates of files on hosts: the shipped ones are correct, a user's replace them, errors name file and line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rigwright.core.errors import HostError, InputError
from rigwright.core.templates import host_files
from rigwright.core.templates.host_files import HOST_FILES, SHIPPED, Templates
from tests.paths import ROOT


def own(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", HOST_FILES)
def test_ours_say_that_rigwright_wrote_the_file_and_from_which_template(name: str) -> None:
    first = SHIPPED.render(name, HOST_FILES[name].example).splitlines()[0]
    assert re.match(r"(#|//) Written by rigwright from templates/", first)
    assert f"templates/{name}" in first


def test_every_template_of_a_host_file_is_known_and_documented() -> None:
    there = {str(path.relative_to(ROOT / "templates")) for path in (ROOT / "templates").rglob("*.j2")}
    ours = {name for name in there if not name.startswith(("report/", "systemd/bench-wait"))}
    assert ours == set(HOST_FILES)
    page = (ROOT / "docs/reference/templates.md").read_text(encoding="utf-8")
    for name, file in HOST_FILES.items():
        variables = ", ".join(f"`{variable}`" for variable in file.example) or "none"
        assert f"| `{file.path}` | `{name}` | {variables} |" in page


def test_an_owner_s_template_wins_in_the_first_folder(tmp_path: Path) -> None:
    own(
        tmp_path,
        "modprobe/blocked.conf.j2",
        "{% for module in modules %}\ninstall {{ module }} /bin/false\n{% endfor %}\n",
    )
    templates = host_files.owners((tmp_path,))
    assert templates.render("modprobe/blocked.conf.j2", {"modules": ["nouveau"]}) == "install nouveau /bin/false\n"
    words = {"kernel_cmdline": ["iommu=pt"]}
    assert templates.render("grub/cmdline.cfg.j2", words) == SHIPPED.render("grub/cmdline.cfg.j2", words)
    for folder in ("first", "second"):
        own(tmp_path / folder, "cuda/ld.so.conf.j2", f"# {folder}\n{{{{ home }}}}/lib64\n")
    templates = host_files.owners((tmp_path / "first", tmp_path / "second"))
    assert templates.render("cuda/ld.so.conf.j2", {"home": "/x"}) == "# first\n/x/lib64\n"


def test_templates_of_other_names_and_backups_are_left_alone(tmp_path: Path) -> None:
    own(tmp_path, "nginx.conf.j2", "{% nonsense %}")
    assert host_files.owners((tmp_path,)) == Templates()
    for name in ("grub/cmdline.cfg.j2", "grub/cmdline.cfg.j2~"):
        own(tmp_path / "own", name, 'GRUB_CMDLINE_LINUX_DEFAULT="{{ kernel_cmdline | join(" ") }}"\n')
    assert list(host_files.owners((tmp_path / "own",)).own) == ["grub/cmdline.cfg.j2"]


@pytest.mark.parametrize(
    ("text", "line", "found", "expected"),
    [
        ("# ours\n{% fi %}\n", ":2", "unknown tag 'fi'", "valid Jinja2"),
        ("# ours\n\nX={{ kernel_cmdlin }}\n", ":3", "unknown variable 'kernel_cmdlin'; did you mean 'kernel_cmdline'?",
         "one of kernel_cmdline"),
        ("{% if False %}\n{{ inventory_hostname }}\n{% endif %}\n", ":2", "'inventory_hostname'",
         "one of kernel_cmdline"),
        ("# ours\n{{ kernel_cmdline.nobody }}\n", ":2", "no attribute 'nobody'", "defined variables"),
        ("# ours\n\n{{ kernel_cmdline + 1 }}\n", ":3", "can only concatenate list", "a value"),
        ("# ours\n{{ kernel_cmdline.__class__.__mro__ }}\n", ":2", "unsafe", ""),
        ("# {{ kernel_cmdline }}\nGRUB_CMDLINE_LINUX_DEFAULT=quiet\n", "", "lacks 'iommu=pt'",
         "'iommu=pt' outside comments"),
        ('GRUB_CMDLINE_LINUX_DEFAULT="{{ kernel_cmdline[0] }}"\n', "", "lacks 'pci=realloc'",
         "/etc/default/grub.d/zz-rigwright.cfg"),
        ('GRUB_CMDLINE_LINUX="{{ kernel_cmdline | join(" ") }}"\n', "", "lacks 'GRUB_CMDLINE_LINUX_DEFAULT'", ""),
    ],
)  # fmt: skip
def test_a_broken_one_is_named_by_file_and_line(
    tmp_path: Path, text: str, line: str, found: str, expected: str
) -> None:
    path = own(tmp_path, "grub/cmdline.cfg.j2", text)
    with pytest.raises(InputError) as caught:
        host_files.owners((tmp_path,))
    assert caught.value.where == f"{path}{line}"
    assert found in caught.value.found
    assert expected in caught.value.expected


def test_an_unknown_filter_and_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    path = own(tmp_path, "modprobe/blocked.conf.j2", "\n{{ modules | nope }}\n")
    with pytest.raises(InputError, match="No filter named 'nope'") as raised:
        host_files.owners((tmp_path,))
    assert raised.value.where == f"{path}:2"
    path = own(tmp_path, "apt/pin.j2", "")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        host_files.owners((tmp_path,))


def test_what_is_right_for_the_example_and_wrong_for_the_host(tmp_path: Path) -> None:
    path = own(tmp_path, "grub/cmdline.cfg.j2", 'GRUB_CMDLINE_LINUX_DEFAULT="iommu=pt pci=realloc"\n')
    templates = host_files.owners((tmp_path,))
    with pytest.raises(HostError, match="lacks 'quiet'") as caught:
        templates.render("grub/cmdline.cfg.j2", {"kernel_cmdline": ["quiet"]})
    assert caught.value.where == str(path)


@pytest.mark.parametrize("name", ["grub/cmdlin.cfg.j2", "grub/cmdline.cfg", "apt/pins.j2"])
def test_a_misspelt_name_is_reported(tmp_path: Path, name: str) -> None:
    path = own(tmp_path, name, "")
    with pytest.raises(InputError, match="did you mean '") as raised:
        host_files.owners((tmp_path,))
    assert raised.value.where == str(path)


def test_values_that_are_equal_in_python_are_rendered_apart() -> None:
    own = host_files.Templates({"memory/sysctl.conf.j2": ("own", "vm.nr_hugepages = {{ count }}\n")})
    texts = [own.render("memory/sysctl.conf.j2", {"count": value}) for value in (1, True, 1, 1.0)]
    assert texts == [f"vm.nr_hugepages = {value}\n" for value in (1, True, 1, 1.0)]
    other = host_files.Templates({"memory/sysctl.conf.j2": ("own", "# mine\nvm.nr_hugepages = {{ count }}\n")})
    assert other.render("memory/sysctl.conf.j2", {"count": 1}).startswith("# mine")
