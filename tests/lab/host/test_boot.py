"""The lab's firmware selects the kernel to boot from GRUB's configuration; no host is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.host.boot import BootEntry, choose, read_grubenv, write_grubenv
from lab.host.firmware import firmware, inside
from lab.host.grub_parser import GrubError
from tests.grub_header import HEADER

ENTRY = r"""menuentry 'TITLE' --class ubuntu --class gnu-linux $menuentry_id_option 'NAME' {
	load_video
	insmod gzio
	if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
	set root='hd0,gpt2'
	search --no-floppy --fs-uuid --set=root --hint-bios=hd0,gpt2  0c0de
	echo	'Loading Linux KVER ...'
	linux	/boot/vmlinuz-KVER root=UUID=0c0de ro  EXTRA
	initrd	/boot/microcode.img /boot/initrd.img-KVER
}
"""


def entry(title: str, id_: str, kver: str, extra: str = "") -> str:
    return ENTRY.replace("TITLE", title).replace("NAME", id_).replace("KVER", kver).replace("EXTRA", extra)


MENU = (
    entry("Ubuntu", "simple", "6.8.0-57")
    + "submenu 'Advanced options for Ubuntu' $menuentry_id_option 'advanced' {\n"
    + entry("Ubuntu, with Linux 6.8.0-57", "advanced-57", "6.8.0-57")
    + entry("Ubuntu, with Linux 6.8.0-52", "advanced-52", "6.8.0-52", "quiet")
    + "}\n### BEGIN /etc/grub.d/41_custom ###\n"
    + "if [ -f  ${config_directory}/custom.cfg ]; then\n  source ${config_directory}/custom.cfg\n"
    + 'elif [ -z "${config_directory}" -a -f  $prefix/custom.cfg ]; then\n  source $prefix/custom.cfg\nfi\n'
)


def boot(
    default: str = "0", grubenv: dict[str, str] | None = None, menu: str = MENU, **more: str
) -> tuple[BootEntry, dict[str, str]]:
    files = {"/boot/grub/grub.cfg": HEADER.replace("@DEFAULT@", default) + menu, "/boot/microcode.img": ""}
    for kver in ("6.8.0-57", "6.8.0-52"):
        files |= {f"/boot/vmlinuz-{kver}": "", f"/boot/initrd.img-{kver}": ""}
    if grubenv is not None:
        files["/boot/grub/grubenv"] = write_grubenv(grubenv)
    if "custom" in more:
        files["/boot/grub/custom.cfg"] = more["custom"]
    for path in more.get("without", "").split():
        del files[path]
    return choose(files.get)


def test_first_entry_with_its_command_line() -> None:
    found, grubenv = boot()
    assert found == BootEntry(
        "Ubuntu",
        "/boot/vmlinuz-6.8.0-57",
        "/boot/initrd.img-6.8.0-57",
        "BOOT_IMAGE=/boot/vmlinuz-6.8.0-57 root=UUID=0c0de ro",
    )
    assert grubenv == {}


@pytest.mark.parametrize(
    "default",
    ["1>1", "advanced>advanced-52", "Advanced options for Ubuntu>Ubuntu, with Linux 6.8.0-52", "1>advanced-52"],
)
def test_default_names_an_entry_of_the_submenu(default: str) -> None:
    found, _ = boot(default)
    assert found.command_line == "BOOT_IMAGE=/boot/vmlinuz-6.8.0-52 root=UUID=0c0de ro quiet"


@pytest.mark.parametrize(
    ("default", "title"),
    [
        *((default, "Ubuntu") for default in ("9", "nonsense", "", "${saved_entry}", "advanced-52")),
        ("1", "Ubuntu, with Linux 6.8.0-57"),
    ],
)
def test_default_that_is_not_in_the_menu_boots_the_first_and_a_submenu_its_first(default: str, title: str) -> None:
    assert boot(default, {"saved_entry": "gone"})[0].title == title


def test_entries_that_are_saved_or_chosen_once() -> None:
    found, grubenv = boot("${saved_entry}", {"saved_entry": "advanced>advanced-52"})
    assert found.kernel == "/boot/vmlinuz-6.8.0-52"
    assert grubenv == {"saved_entry": "advanced>advanced-52"}
    found, grubenv = boot("0", {"saved_entry": "x", "next_entry": "1>1"})
    assert found.kernel == "/boot/vmlinuz-6.8.0-52"
    assert grubenv == {"saved_entry": "x", "next_entry": ""}
    again, after = boot("0", grubenv)
    assert again.kernel == "/boot/vmlinuz-6.8.0-57"
    assert after == grubenv
    menu = MENU.replace("\tload_video\n", "\tsavedefault\n")
    assert boot("1>1", {"a": "1"}, menu)[1] == {"a": "1", "saved_entry": "advanced>advanced-52"}
    assert boot("0", {"next_entry": "1>1", "saved_entry": "0"}, menu)[1] == {"next_entry": "", "saved_entry": "0"}


def test_custom_cfg_adds_an_entry_and_sees_the_default() -> None:
    custom = 'if [ "${default}" = "trial" ]; then\n set tried=1\nfi\n'
    custom += entry("Trial", "trial", "6.8.0-57", "x=${tried}")
    found, _ = boot("0", {"next_entry": "trial"}, custom=custom)
    assert found.command_line.endswith("ro x=1")
    assert boot("0", custom=custom)[0].title == "Ubuntu"


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("a='b c'", "a=b c"),
        ('a="b $missing c"', "a=b  c"),
        ("$missing", None),
        ("''", ""),
        ("${two}", "one two"),
        ("memmap=4G\\$16G", "memmap=4G$16G"),
        ("memmap=4G$16G", "memmap=4GG"),
        ('dyndbg=\\"+p\\"', 'dyndbg="+p"'),
        ("a \\\n b", "a b"),
        ("a#b", "a#b"),
        ("a # b", "a"),
    ],
)
def test_words_are_quoted_as_grub_does(written: str, seen: str | None) -> None:
    menu = f"set two='one two'\nmenuentry x {{ linux /boot/vmlinuz-6.8.0-57 {written}\n}}\n"
    words = "" if seen is None else f" {seen}"
    assert boot(menu=menu)[0].command_line == f"BOOT_IMAGE=/boot/vmlinuz-6.8.0-57{words}"


@pytest.mark.parametrize(
    ("menu", "says"),
    [
        ("", "no entry"),
        ("menuentry x { initrd /boot/initrd.img-6.8.0-57\n}", "load the kernel first"),
        ("menuentry x { linux /boot/nothing\n}", "`/boot/nothing' not found"),
        ("menuentry x { linux /boot/vmlinuz-6.8.0-57; initrd /boot/nothing\n}", "`/boot/nothing' not found"),
        ("menuentry x {\n", "expected `}'"),
        ("if true; then\n", "expected `fi'"),
        ("}\n", "syntax error"),
        ("fi\n", "syntax error"),
        ("set a='b\n", "unterminated quote"),
        ("echo a | cat\n", "near `|'"),
        ("while true; do true; done\n", "no loops"),
        ("[ a -nt b ]\n", "no test"),
    ],
)
def test_what_stops_grub_is_said(menu: str, says: str) -> None:
    with pytest.raises(GrubError, match=says.replace("|", r"\|")):
        boot(menu=menu)


def test_missing_files_are_said_and_unknown_commands_change_nothing() -> None:
    for path in ("/boot/grub/grub.cfg", "/boot/initrd.img-6.8.0-57"):
        with pytest.raises(GrubError, match=f"{path.rpartition('/')[2]}' not found"):
            boot(without=path)
    assert boot(menu="frobnicate --hard\nif frobnicate; then set default=1; fi\n" + MENU)[0].title == "Ubuntu"


def test_grubenv_is_1024_bytes_and_reads_back() -> None:
    variables = {"saved_entry": "a>b", "path": "c:\\d", "empty": ""}
    block = write_grubenv(variables)
    assert len(block) == 1024
    assert block.startswith("# GRUB Environment Block\n")
    assert read_grubenv(block) == variables


def test_links_never_lead_off_the_hosts_disk(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "boot").mkdir(parents=True)
    outside.mkdir()
    (outside / "grub.cfg").write_text("secret")
    (root / "boot" / "grub").symlink_to(outside)
    assert inside(root, "/boot/grub/grub.cfg") == root / str(outside).lstrip("/") / "grub.cfg"
    assert inside(root, "/../../etc/./passwd") == root / "etc/passwd"
    with pytest.raises(GrubError, match="not found"):
        firmware(root)
    (root / "loop").symlink_to("loop")
    with pytest.raises(GrubError, match="symlinks"):
        inside(root, "/loop/x")


def test_firmware_clears_next_entry_on_the_disk_and_leaves_the_rest(tmp_path: Path) -> None:
    grub = tmp_path / "boot" / "grub"
    grub.mkdir(parents=True)
    for name in ("vmlinuz", "initrd.img"):
        (tmp_path / "boot" / f"{name}-6.8.0-57").write_bytes(b"\x00\xff")
    (tmp_path / "boot" / "microcode.img").touch()
    (grub / "grub.cfg").write_text(HEADER.replace("@DEFAULT@", "0") + MENU)
    (grub / "grubenv").write_text(write_grubenv({"saved_entry": "0", "next_entry": "simple"}))
    assert firmware(tmp_path).title == "Ubuntu"
    assert read_grubenv((grub / "grubenv").read_text()) == {"saved_entry": "0", "next_entry": ""}
    before = (grub / "grubenv").stat().st_mtime_ns
    firmware(tmp_path)
    assert (grub / "grubenv").stat().st_mtime_ns == before
