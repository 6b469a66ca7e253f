"""A boot that is tried once: what keeps it from being tried, what GRUB boots with rigwright's block, and what a failed
trial says."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lab.host.boot import choose, write_grubenv
from rigwright.core.change import Change
from rigwright.core.command import Command, Result, script
from rigwright.core.desired import Reboot
from rigwright.core.templates.host_files import SHIPPED
from rigwright.engine import apply as engine_apply, plugins
from rigwright.engine.boot import trial as engine
from rigwright.engine.boot.entries import block
from rigwright.engine.boot.obstacles import custom_of_owner, equal_words, obstacles
from rigwright.engine.boot.reasons import obstacles_to_login, reason, worse
from rigwright.engine.plan import PlannedStep
from rigwright.engine.playbook import BoundPlaybook, Step
from rigwright.engine.report import ApplyResult
from rigwright.facts import grub, kernel_log, parsed, pci, pstore
from rigwright.facts.boot import trial as facts
from rigwright.facts.boot.trial import BEGIN, END, Boot, Trial
from rigwright.facts.gpu import gpus as gpu
from rigwright.inventory.model import Host
from rigwright.operations.trial import BLOCK as BLOCK_SCRIPT, CLEAR
from tests import nvidia_smi
from tests.grub_header import HEADER
from tests.host_runs import host_run
from tests.machine_speed import within
from tests.ssh.fake_transport import FakeTransport

CUSTOM = """### BEGIN /etc/grub.d/41_custom ###
if [ -f  ${config_directory}/custom.cfg ]; then
  source ${config_directory}/custom.cfg
fi
### END /etc/grub.d/41_custom ###
"""
OLD, NEW = "6.1.0-50-amd64", "6.1.0-60-amd64"
REBOOT = Step("Reboot", "reboot.if_needed", lambda _facts: iter(()), {}, "play.yml:1")


def entry(
    kernel: str = OLD,
    words: str = "root=UUID=7d1a ro  quiet",
    name: str = "simple",
    folder: str = "/boot",
    more: str = "",
) -> str:
    """Returns a menu entry as Ubuntu's 10_linux writes it."""
    return f"""menuentry 'Linux {kernel}' --class debian --class gnu-linux \
$menuentry_id_option 'gnulinux-{name}-7d1a' {{
	recordfail
	savedefault
	load_video
	# a comment
	if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
	search --no-floppy --fs-uuid --set=root  7d1a
	linux	{folder}/vmlinuz-{kernel} {words}
{more}	initrd	{folder}/microcode.img {folder}/initrd.img-{kernel}
}}
"""


def config(*entries: str, default: str = "0") -> str:
    """Returns a grub.cfg with these entries."""
    return HEADER.replace("@DEFAULT@", default) + "".join(entries or (entry(),)) + CUSTOM


def machine(**changed: Any) -> Boot:
    """Returns a host that runs the old kernel, where a boot can be tried."""
    whole = Boot(
        "boot-1", f"BOOT_IMAGE=/boot/vmlinuz-{OLD} root=UUID=7d1a ro quiet", ("file", 1024), ("none", 0), (), "",
        "ext2", False,
        300_000, {f"initrd.img-{OLD}": 40 << 20}, {}, "", config(),
    )  # fmt: skip
    return replace(whole, **changed)


def test_nothing_is_in_the_way() -> None:
    assert obstacles(machine()) == ()
    assert obstacles(machine(environment={"next_entry": "", "saved_entry": "0", "initrdfail": ""})) == ()
    assert obstacles(machine(environment={"next_entry": grub.TRIAL})) == (), (
        "rigwright's own, of a run that ended early"
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"missing": ("grub-editenv",)}, "grub-editenv is missing"),
        ({"missing": ("systemd-debug-generator",)}, "systemd-debug-generator is missing"),
        ({"missing": ("update-initramfs",)}, "not made by initramfs-tools"),
        ({"grubenv": ("none", 0)}, "there is no /boot/grub/grubenv (sudo grub-editenv /boot/grub/grubenv create)"),
        ({"grubenv": ("link", 1024)}, "grubenv is a link"),
        ({"grubenv": ("file", 512)}, "has 512 bytes in place of 1024"),
        ({"environment": None}, "grub-editenv cannot read"),
        ({"environment": {"next_entry": "2"}},
         "has next_entry=2 (sudo grub-editenv /boot/grub/grubenv unset next_entry)"),
        ({"environment": {"prev_saved_entry": "0"}}, "has prev_saved_entry=0"),
        ({"environment": {"prev_entry": "x"}}, "has prev_entry=x"),
        ({"environment": {"initrdfail": "1"}}, "has initrdfail=1"),
        ({"environment": {"recordfail": "1"}}, "has recordfail=1"),
        ({"kexec": True}, "a reboot starts without GRUB"),
        ({"layers": "diskfilter mdraid1x"}, "on software RAID, which GRUB cannot write to"),
        ({"layers": "diskfilter mdraid1x lvm"}, "on LVM and software RAID"),
        ({"layers": "lvm"}, "on LVM"),
        ({"layers": "luks2 cryptodisk"}, "on an encrypted disk"),
        ({"layers": None}, "grub-probe does not say"),
        ({"filesystem": "btrfs"}, "on btrfs"),
        ({"filesystem": "zfs"}, "on zfs"),
        ({"config": config().replace("save_env next_entry", "true")}, "does not save next_entry"),
        ({"config": config().replace("custom.cfg", "other.cfg")}, "grub.cfg does not read custom.cfg"),
        ({"config": config() + 'set default="2"\n'}, "grub.cfg sets default after 00_header"),
        ({"config": config() + "set timeout=0\n"}, "grub.cfg sets timeout after 00_header"),
        ({"config": config().replace("set timeout=0", "set timeout=-1")}, "GRUB waits for a key"),
        ({"custom": ("file", 20), "custom_text": "set default=mine\n"}, "custom.cfg sets default itself"),
        ({"custom": ("link", 20)}, "custom.cfg is a link"),
        ({"custom": ("file", 70_000)}, "custom.cfg has 70000 bytes"),
        ({"custom": ("file", 40), "custom_text": f"{BEGIN}\n"}, "has only a part of rigwright's block"),
        ({"config": config() + "set superusers=root\n"}, "GRUB asks for a password"),
        ({"config": config(entry(words="root=UUID=7d1a ro -- single"))}, "the default entry has words after ` -- `"),
        ({"config": HEADER + CUSTOM}, "grub.cfg has no menu entry"),
        ({"command_line": "root=UUID=7d1a ro"}, "has no BOOT_IMAGE"),
        ({"command_line": "BOOT_IMAGE=/vmlinuz-9 root=UUID=7d1a"},
         "no entry of grub.cfg loads /vmlinuz-9, which runs now"),
        ({"command_line": f"BOOT_IMAGE=/boot/vmlinuz-{OLD} ro -- 3"}, "/proc/cmdline has words after ` -- `"),
        ({"command_line": f'BOOT_IMAGE=/boot/vmlinuz-{OLD} dyndbg="file a +p"'}, "a parameter with quotes"),
        ({"free_kib": 80_000}, "/boot has 78 MiB free, and a copy of the initramfs beside a new one needs 88"),
        ({"images": {}}, f"the initramfs /boot/initrd.img-{OLD}, with which the host runs, is gone"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_in_the_way(changed: dict[str, Any], words: str) -> None:
    assert words in "; ".join(map(str, obstacles(machine(**changed))))


@pytest.mark.parametrize("line", ["\n", " \n", "\t" * 40 + "\n", "source /" + "/" * 60_000 + "\n", "set set set\n"])
def test_a_grub_cfg_of_empty_lines_needs_no_minute(line: str) -> None:
    """Hostile: a pattern that goes on over line ends is tried again from each of them."""
    long = line * min(90_000, (4 << 20) // len(line))
    began = time.thread_time()
    obstacles(machine(config=config() + long, custom=("file", len(long)), custom_text=long))
    assert within(time.thread_time() - began, 5)


@pytest.mark.parametrize(
    ("of_grub", "running", "same"),
    [
        ("root=UUID=7d1a ro  quiet", "root=UUID=7d1a ro quiet", True),
        ("ro quiet splash $vt_handoff", "ro quiet splash vt.handoff=7", True),
        ("ro quiet splash $vt_handoff", "ro quiet splash", True),
        ("ro quiet ${extra} iommu=pt", "ro quiet iommu=pt", True),
        ("ro quiet $vt_handoff", "ro splash vt.handoff=7", False),
        ("ro $a ro", "ro", False),
        ("ro quiet", "ro quiet iommu=pt", False),
    ],
)
def test_words_of_grub_and_of_the_kernel(of_grub: str, running: str, same: bool) -> None:
    assert equal_words(of_grub, running) is same


class Disk:
    """The files that GRUB reads, and how it changes grubenv."""

    def __init__(self, boot: Boot, text: str, grub_cfg: str | None = None, owner: str = "") -> None:
        self.files = {
            "/boot/grub/grub.cfg": grub_cfg or boot.config,
            "/boot/grub/custom.cfg": owner + text,
            "/boot/grub/grubenv": write_grubenv({"next_entry": grub.TRIAL}),
        }
        for folder in ("/boot", ""):
            for kernel in (OLD, NEW):
                self.files |= {f"{folder}/vmlinuz-{kernel}": "", f"{folder}/initrd.img-{kernel}": ""}
            self.files |= {f"{folder}/microcode.img": "", f"{folder}/initrd-rigwright-fallback": ""}
        self.writable = True

    def boots(self) -> tuple[str, str | None]:
        """Returns the command line and the initramfs of the next boot."""
        found, saved = choose(self.files.get, self.writable)
        if self.writable:
            self.files["/boot/grub/grubenv"] = write_grubenv(saved)
        return found.command_line, found.initrd


def kept_disk(boot: Boot, grub_cfg: str | None = None) -> Disk:
    """Returns the disk of a host whose next boot is what runs now; no boot is to be tried."""
    disk = Disk(boot, block(boot, SHIPPED, "RUN", (), with_trial=False), grub_cfg)
    disk.files["/boot/grub/grubenv"] = write_grubenv({})
    return disk


TRIED = "panic=60 rigwright.trial=RUN systemd.wants=rigwright-trial.service"


def cfg_with(words: str, kernel: str = OLD) -> str:
    return config(entry(kernel, f"root=UUID=7d1a ro  quiet {words}"), entry(name="old"))


@pytest.mark.parametrize(
    ("new", "kernel", "modules", "before"),
    [
        (cfg_with("iommu=pt"), OLD, (), ""),
        (cfg_with("", NEW), NEW, (), ""),
        (config(), OLD, ("nvidia", "nvidia_uvm"), " module_blacklist=nvidia,nvidia_uvm"),
    ],
    ids=["command line", "kernel", "driver"],
)
def test_tried_once_then_what_ran_before(new: str, kernel: str, modules: tuple[str, ...], before: str) -> None:
    boot = machine(config=new)
    assert obstacles(boot) == ()
    disk = Disk(boot, block(boot, SHIPPED, "RUN", modules, with_trial=True))
    line, initrd = disk.boots()
    extra = "iommu=pt " if "iommu=pt" in new else ""
    assert line == f"BOOT_IMAGE=/boot/vmlinuz-{kernel} root=UUID=7d1a ro quiet {extra}{TRIED}"
    assert initrd == f"/boot/initrd.img-{kernel}"
    fallback = f"BOOT_IMAGE=/boot/vmlinuz-{OLD} root=UUID=7d1a ro quiet{before} rigwright.fallback=RUN"
    for _ in range(2):
        assert disk.boots() == (fallback, "/boot/initrd-rigwright-fallback")
    assert "recordfail" not in disk.files["/boot/grub/grubenv"], "neither entry writes what the owner's do"
    assert "saved_entry" not in disk.files["/boot/grub/grubenv"]


def test_before_the_reboot_what_runs_is_the_default() -> None:
    """A power cut between the change and the reboot boots what ran before it."""
    disk = kept_disk(machine(), cfg_with("iommu=pt", NEW))
    assert disk.boots()[0] == f"BOOT_IMAGE=/boot/vmlinuz-{OLD} root=UUID=7d1a ro quiet rigwright.fallback=RUN"


def test_grub_that_cannot_write_never_boots_the_trial() -> None:
    boot = machine(config=cfg_with("iommu=pt"))
    disk = Disk(boot, block(boot, SHIPPED, "RUN", (), with_trial=True))
    disk.writable = False
    for _ in range(3):
        assert disk.boots()[0].endswith(" ro quiet rigwright.fallback=RUN")


def test_an_entry_that_a_person_chooses_for_one_boot_boots() -> None:
    disk = kept_disk(machine(config=cfg_with("iommu=pt")))
    disk.files["/boot/grub/grubenv"] = write_grubenv({"next_entry": "0"})
    assert disk.boots()[0].endswith("quiet iommu=pt")


def test_a_kernel_that_is_gone_is_followed_by_the_other_entry() -> None:
    boot = machine(config=cfg_with("", NEW))
    text = block(boot, SHIPPED, "RUN", (), with_trial=True)
    disk = Disk(boot, text)
    del disk.files[f"/boot/vmlinuz-{NEW}"]
    assert disk.boots()[0].endswith(" rigwright.fallback=RUN"), "the trial's kernel"
    disk = Disk(boot, text)
    disk.files["/boot/grub/grubenv"] = write_grubenv({})
    del disk.files[f"/boot/vmlinuz-{OLD}"]
    assert disk.boots()[0] == f"BOOT_IMAGE=/boot/vmlinuz-{NEW} root=UUID=7d1a ro quiet", "the kernel of before"


def test_without_the_kept_copy_the_ordinary_initramfs_is_used() -> None:
    disk = kept_disk(machine())
    del disk.files["/boot/initrd-rigwright-fallback"]
    assert disk.boots()[1] == f"/boot/initrd.img-{OLD}"


@pytest.mark.parametrize("default", ["1>1", "advanced>gnulinux-old-7d1a", "${saved_entry}"])
def test_defaults_in_a_submenu(default: str) -> None:
    menu = f"submenu 'Advanced' $menuentry_id_option 'advanced' {{\n{entry(NEW, name='new')}{entry(name='old')}}}\n"
    boot = machine(
        config=config(entry(NEW, "ro debug"), menu, default=default),
        environment={"saved_entry": "advanced>gnulinux-old-7d1a"},
    )
    assert obstacles(boot) == ()
    disk = Disk(boot, block(boot, SHIPPED, "RUN", (), with_trial=True))
    assert disk.boots()[0] == f"BOOT_IMAGE=/boot/vmlinuz-{OLD} root=UUID=7d1a ro quiet {TRIED}"
    assert disk.boots()[0].endswith("rigwright.fallback=RUN")


def test_a_separate_boot_partition() -> None:
    boot = machine(
        config=config(entry(folder="")), command_line=f"BOOT_IMAGE=(hd0,gpt2)/vmlinuz-{OLD} root=UUID=7d1a ro quiet"
    )
    assert obstacles(boot) == ()
    disk = Disk(boot, block(boot, SHIPPED, "RUN", (), with_trial=True))
    assert disk.boots()[1] == f"/initrd.img-{OLD}"
    assert disk.boots() == (
        f"BOOT_IMAGE=/vmlinuz-{OLD} root=UUID=7d1a ro quiet rigwright.fallback=RUN",
        "/initrd-rigwright-fallback",
    )


def test_a_variable_of_grub_in_the_line() -> None:
    running = f"BOOT_IMAGE=/boot/vmlinuz-{OLD} root=UUID=7d1a ro quiet vt.handoff=7"
    boot = machine(config=config(entry(words="root=UUID=7d1a ro  quiet $vt_handoff")), command_line=running)
    text = block(boot, SHIPPED, "RUN", (), with_trial=True)
    assert f"ro  quiet $vt_handoff {TRIED}" in text
    assert "ro quiet vt.handoff=7 rigwright.fallback=RUN" in text


def test_a_cloud_image_that_boots_without_an_initramfs() -> None:
    """Both of its kernel lines have the words, and initrdfail, which would try a trial twice, is not called."""
    more = "\tinitrdfail\n\tlinux\t/boot/vmlinuz-6.1.0-50-amd64 root=PARTUUID=1 ro panic=-1 #Dont try to use initrd\n"
    boot = machine(config=config(entry(more=more)))
    text = block(boot, SHIPPED, "RUN", (), with_trial=True)
    trial = text.partition("--id rigwright-trial")[2]
    assert trial.count(f" {TRIED}\n") == 2
    assert "initrdfail" not in text
    assert "#" not in trial.replace(END, "")


def test_what_runs_is_already_the_entry_of_an_earlier_run() -> None:
    """A second run on a host that has come back: the kept initramfs stays, and rigwright's words are not doubled."""
    first = block(machine(), SHIPPED, "RUN", ("nvidia",), with_trial=False)
    running = f"BOOT_IMAGE=/boot/vmlinuz-{OLD} root=UUID=7d1a ro quiet module_blacklist=nvidia rigwright.fallback=RUN"
    boot = machine(
        config=config(entry(NEW)), command_line=running, custom_text=first, custom=("file", len(first)),
        images={f"initrd.img-{OLD}": 1, "initrd-rigwright-fallback": 1},
    )  # fmt: skip
    assert obstacles(boot) == ()
    disk = Disk(boot, block(boot, SHIPPED, "RUN2", ("nvidia",), with_trial=True))
    assert f"vmlinuz-{NEW}" in disk.boots()[0]
    line = f"BOOT_IMAGE=/boot/vmlinuz-{OLD} root=UUID=7d1a ro quiet module_blacklist=nvidia rigwright.fallback=RUN2"
    assert disk.boots() == (line, "/boot/initrd-rigwright-fallback")


def test_the_owners_module_blacklist_stays() -> None:
    running = f"BOOT_IMAGE=/boot/vmlinuz-{OLD} root=UUID=7d1a ro module_blacklist=floppy,pcspkr quiet"
    text = block(machine(command_line=running), SHIPPED, "RUN", ("nvidia",), with_trial=False)
    assert "ro quiet module_blacklist=floppy,pcspkr,nvidia rigwright.fallback=RUN\n" in text


@pytest.mark.parametrize("word", ["a;b", "a$b", "a{b}", "a|b", "#a", "a<b"])
def test_words_that_are_special_to_grub_are_quoted(word: str) -> None:
    boot = machine(command_line=f"BOOT_IMAGE=/boot/vmlinuz-{OLD} ro {word}", config=config(entry(words="ro x")))
    disk = kept_disk(boot)
    assert disk.boots()[0].endswith(f" ro {word} rigwright.fallback=RUN")


def shell(folder: Path, text: str, stdin: str = "", *args: str) -> subprocess.CompletedProcess[str]:
    """Runs one of the scripts for hosts with folders of this test in place of the host's."""
    (folder / "boot/grub").mkdir(parents=True, exist_ok=True)
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("grub-script-check", "grub-editenv", "sync", "systemctl"):
        (programs / name).write_text("#!/bin/sh\ncase $* in *refused*) exit 1;; esac\n")
        (programs / name).chmod(0o755)
    own = (
        re.sub("/boot(?!_id)", f"{folder}/boot", text)
        .replace("/var/lib/rigwright", f"{folder}/state")
        .replace("/etc/", f"{folder}/etc/")
    )
    environment = {"PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin"}
    return subprocess.run(
        ["sh", "-c", own, "sh", *args], input=stdin, capture_output=True, text=True, env=environment, check=False
    )


BLOCK = f"{BEGIN}\nmenuentry 'a' {{\n  true\n}}\n{END}\n"


@pytest.mark.parametrize("owner", [None, "", "set x=1\n", "menuentry 'mine' {\n  true\n}", "\n\n"])
def test_the_owners_custom_cfg_stays_byte_for_byte(tmp_path: Path, owner: str | None) -> None:
    file = tmp_path / "boot/grub/custom.cfg"
    file.parent.mkdir(parents=True)
    if owner is not None:
        file.write_text(owner)
        file.chmod(0o640)
    for _ in range(3):  # a second block takes the place of the first
        assert shell(tmp_path, BLOCK_SCRIPT, BLOCK).returncode == 0
        assert file.read_text().startswith(owner or BEGIN)
        assert file.read_text().count(BEGIN) == 1
        assert custom_of_owner(file.read_text()).rstrip("\n") == (owner or "").rstrip("\n")
    for _ in range(2):
        assert shell(tmp_path, BLOCK_SCRIPT).returncode == 0
        assert (file.read_text() if file.exists() else None) == (owner or None), "an empty one is not needed"
    if owner:
        assert file.stat().st_mode & 0o777 == 0o640


def test_half_a_block_is_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "boot/grub/custom.cfg"
    file.parent.mkdir(parents=True)
    file.write_text(f"{BEGIN}\nmenuentry 'mine' {{ }}\n")
    done = shell(tmp_path, BLOCK_SCRIPT, BLOCK)
    assert done.returncode == 1
    assert "only a part of rigwright's block" in done.stderr
    assert file.read_text() == f"{BEGIN}\nmenuentry 'mine' {{ }}\n"


def test_the_command_line_of_before_is_restored(tmp_path: Path) -> None:
    """The first run of several keeps the file; what a later one would keep is already the new one."""
    drop_in = tmp_path / "etc/default/grub.d/zz-rigwright.cfg"
    drop_in.parent.mkdir(parents=True)
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot/initrd.img-1").write_text("old")
    assert shell(tmp_path, engine._KEEP, "", "initrd.img-1", "").returncode == 0
    drop_in.write_text("new")
    (tmp_path / "boot/initrd.img-1").write_text("new")
    assert shell(tmp_path, engine._KEEP, "", "", "again").returncode == 0
    assert (tmp_path / "boot/initrd-rigwright-fallback").read_text() == "old"
    assert shell(tmp_path, engine._UNDO).stdout == "undone\n"
    assert not drop_in.exists()
    assert shell(tmp_path, engine._UNDO).stdout == ""
    drop_in.write_text("old")
    assert shell(tmp_path, engine._KEEP, "", "", "").returncode == 0
    drop_in.write_text("new")
    assert shell(tmp_path, engine._UNDO).stdout == "undone\n"
    assert drop_in.read_text() == "old"


def test_a_boot_without_room_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot/initrd.img-1").write_text("old")
    full = engine._KEEP.replace(
        "cp -- ", "dd if=/dev/zero of=initrd-rigwright-fallback.new count=1 2>/dev/null; false -- "
    )
    assert shell(tmp_path, full, "", "initrd.img-1", "").returncode == 1
    assert [path.name for path in (tmp_path / "boot").glob("initrd*")] == ["initrd.img-1"]


def announced(reboot: Reboot | None, **known: Any) -> PlannedStep:
    """Returns the planned reboot of a host, with what the plan says about its trial."""
    plugins.known("operations")
    run = host_run({})
    given = {"boot": machine(), "trial": None, "outcome": None, **known}
    run.store.known |= {facts.boot: given["boot"], facts.trial: given["trial"], facts.outcome: given["outcome"]}
    due = Change("run", "reboot", "iommu=pt not in /proc/cmdline", reboot=True)
    step = Step("Reboot", "reboot.if_needed", lambda _facts: iter((due,)), {}, "play.yml:1")
    changes = (due,) if given.get("due", True) else ()
    return engine.with_trial_notes(run, reboot, (PlannedStep(step, "pending" if changes else "ok", changes),))[0]


RAID = machine(layers="diskfilter mdraid1x")


def test_the_plan_says_whether_the_boot_is_tried() -> None:
    (note,) = announced(None).notes
    assert note.text.startswith("the new boot is tried once.")
    assert f"what runs now ({OLD}), within 10 min" in note.text
    (note,) = announced(None, boot=RAID).notes
    assert note.warn
    assert note.text.startswith("the new boot cannot be tried once: /boot/grub is on software RAID")
    for changed, words in (
        ({"grubenv": ("link", 1024)}, "/boot/grub/grubenv is a link"),
        ({"free_kib": 80_000}, "/boot has 78 MiB free, and a copy of the initramfs beside a new one needs 88"),
    ):
        (note,) = announced(None, boot=machine(**changed)).notes
        assert note.text.startswith(f"the new boot cannot be tried once: {words}")
        refused = announced(Reboot(trial=True), boot=machine(**changed))
        assert (refused.status, refused.error is not None) == ("failed", True)
        assert f"a boot cannot be tried on this host: {words}" in str(refused.error)
    (note,) = announced(Reboot(trial=False), boot=RAID).notes
    assert note.text == "the new boot is not tried: the inventory says reboot: {trial: false}"
    assert announced(None, due=False).notes == ()
    assert announced(Reboot(trial=True)).status == "pending"


def test_the_plan_says_what_becomes_of_what_was_kept_and_is_not_needed() -> None:
    """The inventory was changed back before the boot: the next run takes the entry away, unless another boot has
    failed."""
    kept = replace(ended(), stage="prepared")
    planned = announced(None, trial=kept, due=False)
    assert (planned.status, planned.changes[0].before) == ("pending", "not booted")
    planned = announced(None, trial=kept, boot=machine(command_line=BACK), due=False)
    assert planned.status == "ok"
    assert "because its boot was not healthy: invoke rollback" in planned.notes[0].text


def test_the_plan_says_what_an_earlier_trial_left() -> None:
    outcome = facts.Outcome("OLD", "2026-11-22 19:05 UTC", "6.1.0 with iommu=pt", "no ssh server ran")
    assert announced(None, outcome=outcome, due=False).notes == (), "no boot is to be tried"
    told = announced(None, outcome=outcome).notes[0]
    assert told.text == (
        "6.1.0 with iommu=pt was tried in run OLD, 2026-11-22 19:05 UTC, and the host went back: no ssh server ran"
    )
    running = announced(None, trial=replace(ended(), stage="running"), due=False)
    assert running.status == "pending", "it would end by itself"
    assert running.changes[0].before == "this boot, not confirmed"
    assert "invoke provision" in running.notes[0].text


def ended(stage: Any = "returned", systemd: bool = True, **words: tuple[str, ...]) -> Trial:
    """Returns a trial that has ended."""
    return Trial(stage, "RUN", {"run": "RUN"}, "boot-3", systemd, words, ())


UP = {
    "state": ("running",),
    "address": ("eth0 10.0.0.2/24",),
    "route": ("default via 10.0.0.1",),
    "ssh": ("ssh.service",),
}


@pytest.mark.parametrize(
    ("trial", "says"),
    [
        (ended("not tried", systemd=False), "GRUB could not write grubenv"),
        (ended(systemd=False), "it never reached systemd"),
        (ended(), "the host was reset before it wrote down more"),
        (ended(**{**UP, "state": ("maintenance",)}), "an emergency shell"),
        (ended(**{**UP, "shell": ("emergency.service",), "failed": ("data.mount loaded failed",)}),
         "an emergency shell; failed: data.mount"),
        (ended(**{**UP, "address": ()}), "it had no network"),
        (ended(**{**UP, "ssh": ()}), "no ssh server ran"),
        (ended(**UP), "no controller confirmed it in time"),
    ],
)  # fmt: skip
def test_what_a_trial_that_ended_says(trial: Trial, says: str) -> None:
    assert says in reason(trial, ()).text
    assert reason(trial, ("0 of 4 GPUs answer",)).text == "it was not healthy: 0 of 4 GPUs answer"


BACK = f"BOOT_IMAGE=/boot/vmlinuz-{OLD} root=UUID=7d1a ro quiet rigwright.fallback=RUN"


def applied(
    command_line: str, grub_cfg: str, stage: str = "", undo_error: str = ""
) -> tuple[FakeTransport, ApplyResult]:
    """Applies a playbook whose reboot has nothing to do to a host with a trial; returns what ran, and the result."""
    plugins.known("operations")
    armed = f"armed boot-0\nnext {stage}\n" if stage else ""
    record = json.dumps({"run": "RUN", "boot": "boot-0", "image": f"initrd.img-{OLD}", "modules": []})
    texts = {
        facts.trial.command: f"boot boot-1\nline {command_line}\nrecord {record}\n{armed}",
        facts.boot.command: f"boot boot-1\nline {command_line}\ngrubenv file 1024\ncustom none 0\nlayers\n"
        "filesystem ext2\nfree 300000\n"
        f"--env\n--custom\n\n--cfg\n{grub_cfg}",
    }

    def answer(cmd: Command) -> Result:
        if cmd == script(engine._UNDO):
            return Result(1 if undo_error else 0, b"", undo_error.encode())
        return Result(0, texts.get(cmd, "").encode())

    transport: Any = FakeTransport(answer)
    run = host_run(transport, "RUN2", bound=BoundPlaybook(Host("h", (), {}), (REBOOT,), ()))
    return transport, engine_apply.apply(run, (PlannedStep(REBOOT, "ok"),))


@pytest.mark.parametrize("stage", ["", "none"])
def test_what_ran_before_stays_the_default_while_grub_cfg_starts_another_kernel(stage: str) -> None:
    """A trial of a new kernel failed, and nothing is left to do on the kernel of before: the new one must not boot
    next."""
    transport, result = applied(BACK, config(entry(NEW), entry(name="old")), stage)
    assert result.error is None
    assert script(BLOCK_SCRIPT) not in transport.ran


@pytest.mark.parametrize(
    ("command_line", "grub_cfg"),
    [(BACK, config()), (machine().command_line, config(entry(NEW), entry(name="old")))],
    ids=["grub.cfg starts what ran before", "the host has booted nothing else"],
)
def test_what_was_kept_and_is_not_needed_is_taken_away(command_line: str, grub_cfg: str) -> None:
    transport, result = applied(command_line, grub_cfg)
    assert result.error is None
    assert script(BLOCK_SCRIPT) in transport.ran


def test_a_cut_while_a_boot_was_made_permanent_is_finished() -> None:
    transport, result = applied(machine().command_line, config(), "\npermanent yes")
    assert result.error is None
    assert script(CLEAR, "healthy", "") in transport.ran
    assert script(engine._UNDO) not in transport.ran
    assert not any("trial-outcome.json.new" in str(command) for command in transport.ran)


def test_kernel_parameters_that_cannot_be_put_back_are_an_error() -> None:
    _, result = applied(BACK, cfg_with("iommu=pt"), "none", "cp: No space left on device\n")
    assert result.error is not None
    assert "it never reached systemd" in result.error.found
    assert "cannot be put back (cp: No space left on device)" in result.error.found


def test_a_trial_in_which_gpus_do_not_start_has_the_driver_s_own_sentence() -> None:
    plugins.known("operations")
    texts = {
        pci.gpus.command: "0000:01:00.0 0x030200 1db1 nvidia\n",
        gpu.gpus.command: "No devices were found\n",
        kernel_log.kernel.command: "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x31:0xffff:967)\n",
    }
    run = host_run(lambda cmd: Result(0, texts.get(cmd, "state running").encode()))
    trial = replace(ended(), record={"run": "RUN", "gpus": 1, "answering": 1})
    assert engine.Trials(run, None).reasons(trial, REBOOT) == (
        "0 of 1 GPUs answer (0000:01:00.0 does not answer the driver, which could not start it: "
        "RmInitAdapter failed! (0x31:0xffff:967))",
    )


@pytest.mark.parametrize(
    ("answering", "gpus_after", "on_host", "why"),
    [
        (4, None, 4, ()),
        (4, None, 3, ("3 of 4 GPUs answer",)),
        (4, 0, None, ()),  # back to a machine without a driver
        (4, 3, 3, ()),
        (4, 4, 3, ("3 of 4 GPUs answer",)),
        (3, 4, 3, ()),  # one was silent before, too
        (None, 4, 0, ("0 of 4 GPUs answer",)),
        (None, 4, None, ("0 of 4 GPUs answer",)),  # a rollback that is undone
    ],
)
def test_gpus_are_those_of_the_state_that_the_change_leads_to(
    answering: int | None, gpus_after: int | None, on_host: int | None, why: tuple[str, ...]
) -> None:
    """`answering`: before the change; `gpus_after`: in the state that it leads to; `on_host`: in the trial; None:
    without a driver."""
    plugins.known("operations")
    row = "0, GPU-{0}, 0000:0{0}:00.0, V, Enabled, 300, 100, 300, 300, 877, 1530, 877, 1530"
    smi = (
        "nvidia-smi: not found\n" if on_host is None else "\n".join(row.format(n) for n in range(1, on_host + 1)) + "\n"
    )
    texts = {
        pci.gpus.command: "".join(f"0000:0{n}:00.0 0x030200 1db1 nvidia\n" for n in range(1, 5)),
        gpu.gpus.command: nvidia_smi.xml("gpu.gpus", smi) if smi.strip() else "No devices were found\n",
    }
    run = host_run(
        lambda cmd: Result(127 if "not found" in texts.get(cmd, "") else 0, texts.get(cmd, "state running").encode())
    )
    record = engine._expecting({"run": "RUN", "gpus": 4, "answering": answering}, gpus_after)
    assert engine.Trials(run, None).reasons(replace(ended(), record=record), REBOOT) == why


WAS = {
    **UP,
    "active": ("docker.service", "ssh.service"),
    "filter": ("ufw.service",),
    "route6": ("default via fe80::1",),
}


@pytest.mark.parametrize(
    ("then", "says"),
    [
        ({}, ()),
        ({"state": ("degraded",), "failed": ("mdcheck.service",)}, ()),
        ({"state": ("degraded",), "failed": ("docker.service",)}, ("docker.service failed, and ran before",)),
        ({"state": ("starting",), "job": ("postgresql.service",)},
         ("systemd did not finish its start: it waits for postgresql.service",)),
        ({"address": ("eth0 10.0.0.2/24", "docker0 172.17.0.1/16")}, ()),
        ({"address": ("eth0 10.0.7.9/24",)}, ()),
        ({"address": ("enp1s0 10.0.0.2/24",)}, ()),
        ({"address": ("eth1 10.0.9.9/24",)}, ("the address eth0 10.0.0.2/24 was missing",)),
        ({"route": ()}, ("it had no default route (before: default via 10.0.0.1)",)),
        ({"full": ("/var",)}, ("/var was full",)),
        ({"ssh": (), "sshd": ("/etc/ssh/sshd_config line 3: Bad configuration option",)},
         ("no ssh server ran (/etc/ssh/sshd_config line 3: Bad configuration option)",)),
        ({"ssh": (), "full": ("/var",), "failed": ("ssh.service", "docker.service")},
         ("no ssh server ran", "/var was full", "docker.service failed, and ran before")),
        ({"shell": ("emergency.service",), "ssh": (), "address": ()}, ("it ended in an emergency shell",)),
    ],
)  # fmt: skip
def test_a_boot_is_compared_with_before_the_run(then: dict[str, Any], says: tuple[str, ...]) -> None:
    assert worse(WAS, {**WAS, **then}) == says


@pytest.mark.parametrize("key", ["address", "route", "route6", "ssh", "full", "failed", "state"])
def test_what_was_so_before_is_no_reason(key: str) -> None:
    was = {**WAS, **{"full": ("/var",), "failed": ("docker.service",), "state": ("starting",)}, "active": ()}
    if key in ("address", "route", "route6", "ssh"):
        was[key] = ()
    assert worse(was, was) == ()


@pytest.mark.parametrize(
    ("then", "says"),
    [
        ({}, ()),
        ({"address": ("eth0 10.0.7.9/24",)}, ("it had other addresses: eth0 10.0.7.9/24 (before: eth0 10.0.0.2/24)",)),
        ({"login": ("User u from 10.0.0.1 not allowed because not listed in AllowUsers",)},
         ("sshd said: User u from 10.0.0.1 not allowed because not listed in AllowUsers",)),
        ({"nologin": ("System is booting up.",)}, ("/run/nologin was there, which keeps users out",)),
        ({"filter": ()}, ()),
        ({"filter": ("nftables.service", "ufw.service")},
         ("a packet filter was started that did not run before: nftables.service",)),
    ],
)  # fmt: skip
def test_what_keeps_a_controller_out_of_a_healthy_boot(then: dict[str, Any], says: tuple[str, ...]) -> None:
    assert obstacles_to_login(WAS, {**WAS, **then}) == says
    trial = replace(ended(**{**WAS, **then}), before=WAS)
    assert reason(trial, (), None, ("port 22 was closed",)).text == "; ".join(("port 22 was closed", *says))


VFS = "Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)"
PANIC = f"[ 2.0][ T1] {VFS}"


def kept(*lines: str, backend: str = "erst", is_module: bool = False, uefi: bool = False) -> pstore.Records:
    """Returns what pstore kept since the list was written."""
    return pstore.Records(backend, is_module, uefi, True, lines[-1] if lines else "", lines)


@pytest.mark.parametrize(
    ("trial", "panic", "says"),
    [
        (ended(systemd=False), kept("[ 1.9] VFS: Cannot open", PANIC), f"the kernel stopped: {VFS}"),
        (ended(), kept(PANIC), f"systemd was started, and then the kernel stopped: {VFS}"),
        (ended(**{**UP, "ssh": ()}), kept(PANIC), "no ssh server ran"),
        (ended(systemd=False), kept(), "or the power failed; pstore (erst) has no record of a panic"),
        (ended(systemd=False), kept(backend="efi", is_module=True),
         "pstore (efi) has no record of a panic, and keeps none of the time before it was loaded"),
        (ended(systemd=False), kept(backend="", uefi=True), "(efi_pstore is not loaded)"),
        (ended(), kept(backend=""), "the host has no place for it (pstore has no backend: no UEFI, ERST or ramoops)"),
        (ended(systemd=False), None, "or the power failed"),
    ],
)  # fmt: skip
def test_the_last_words_of_a_kernel(trial: Trial, panic: pstore.Records | None, says: str) -> None:
    why = reason(trial, (), panic)
    assert why.text.endswith(says)
    assert why.said == (panic.lines if panic else ())


def test_only_records_of_the_trial_count(tmp_path: Path) -> None:
    """An older panic does not count, wherever its record lies after the trial; the clock of the host is not asked."""
    mounted, archive = (tmp_path / place.lstrip("/") for place in pstore.PLACES)
    state = tmp_path / "state/trial"
    for folder in (mounted, archive / "7", state):
        folder.mkdir(parents=True)

    def sh(text: str) -> str:
        own = text
        for place, path in zip(pstore.PLACES, (mounted, archive), strict=True):
            own = own.replace(place, str(path))
        done = shell(tmp_path, own)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (archive / "7/dmesg-efi-1").write_text("Panic#1 Part1\n<0>[ 1.0] Kernel panic - not syncing: an older one\n")
    (mounted / "dmesg-efi-2").write_text("Panic#1 Part1\n<0>[ 1.0] Kernel panic - not syncing: not archived yet\n")
    assert "unlisted" in sh(pstore._READ)
    sh(pstore.LIST)
    # systemd-pstore moves the record of before and joins it to dmesg.txt, which is new.
    (mounted / "dmesg-efi-2").rename(archive / "7/dmesg-efi-2")
    (archive / "7/dmesg.txt").write_text("Kernel panic - not syncing: not archived yet\n")
    assert "record" not in sh(pstore._READ)
    (mounted / "dmesg-erst-3").write_text(f"Panic#1 Part1\n<0>{PANIC}\n")
    found = parsed(pstore.records, Result(0, sh(pstore._READ).encode()))
    assert isinstance(found, pstore.Records)
    assert found.lines == (PANIC,)


def test_the_records_are_listed_before_the_trial_is_chosen(tmp_path: Path) -> None:
    (tmp_path / "state/trial").mkdir(parents=True)
    done = shell(tmp_path, engine._ARM)
    assert (done.returncode, done.stderr) == (1, ""), "this grub-editenv does not show what it was given"
    assert sorted(path.name for path in (tmp_path / "state/trial").iterdir()) == [
        "armed",
        "panic-records",
        "started",
        "words",
    ]


def watch(folder: Path, programs: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the program that watches a trial, without its end, which reboots, with other programs in place of
    systemd's."""
    whole = SHIPPED.render("trial/watch.sh.j2", {"folder": str(folder / "disk/trial")})
    text, end, _ = whole.partition("[ ! -e /run/rigwright/trial-healthy ] || exit 0\n")
    assert end
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    for name, body in {
        "journalctl": ":",
        "ip": ":",
        "sync": ":",
        "dmesg": ":",
        "systemctl": "exit 1",
        **programs,
    }.items():
        (place / name).write_text(f"#!/bin/sh\n{body}\n")
        (place / name).chmod(0o755)
    return subprocess.run(
        ["sh", "-c", text, "sh", *words], capture_output=True, text=True, check=False, timeout=60,
        env={"PATH": f"{place}:/usr/sbin:/usr/bin:/sbin:/bin"},
    )  # fmt: skip


def test_an_emergency_shell_is_written_down_after_the_root_file_system_was_checked_and_made_writable(
    tmp_path: Path,
) -> None:
    """With systemd.unit=emergency.target it is read-only; what is a file here cannot have a folder."""
    (tmp_path / "disk").touch()
    systemctl = f"""echo "$@" >>{tmp_path}/asked
case "$*" in
  "start systemd-remount-fs.service") rm {tmp_path}/disk; mkdir {tmp_path}/disk ;;
  "start systemd-fsck-root.service") touch {tmp_path}/checked ;;
  "is-active --quiet emergency.service") ;;
  *) exit 1 ;;
esac"""
    dmesg = f"if [ -e {tmp_path}/checked ]; then echo a check; else echo before; fi"
    done = watch(tmp_path, {"systemctl": systemctl, "journalctl": dmesg}, "words")
    assert (done.returncode, done.stderr) == (0, "")
    asked = [line for line in (tmp_path / "asked").read_text().splitlines() if line.startswith("start ")]
    assert asked == ["start systemd-fsck-root.service", "start systemd-remount-fs.service"]
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text()
    assert (tmp_path / "disk/trial/started").read_text() == boot_id
    words = (tmp_path / "disk/trial/words").read_text()
    assert "shell emergency.service\n" in words
    assert "said before\n" in words
    assert "a check" not in words, "what the check said is not of the trial"


def test_a_root_file_system_that_a_check_cannot_repair_is_not_made_writable(tmp_path: Path) -> None:
    (tmp_path / "disk").touch()
    systemctl = f'echo "$@" >>{tmp_path}/asked; exit 1'
    watch(tmp_path, {"systemctl": systemctl}, "words")
    assert "remount" not in (tmp_path / "asked").read_text()


def test_the_start_of_systemd_is_written_down_as_soon_as_the_root_file_system_is_writable(tmp_path: Path) -> None:
    """The unit starts before systemd-remount-fs.service."""
    (tmp_path / "disk").touch()
    sleep = f"[ -d {tmp_path}/disk ] || {{ rm {tmp_path}/disk; mkdir {tmp_path}/disk; }}"
    done = watch(tmp_path, {"sleep": sleep}, "watch", "5")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "disk/trial/started").exists()


def test_a_full_disk_does_not_keep_the_words_of_a_trial_away(as_root: None, tmp_path: Path) -> None:  # noqa: ARG001
    """What is armed has its room on the disk; without that, nothing can be written any more."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", disk], check=True)
    try:
        (disk / "trial").mkdir()
        room = re.search(r"^head -c .*$", engine._ARM, re.MULTILINE)
        assert room
        subprocess.run(["sh", "-ec", room[0]], cwd=disk / "trial", check=True)
        fills = "dd if=/dev/zero of=fill bs=4k 2>/dev/null; ! echo words >other"
        subprocess.run(["sh", "-c", fills], cwd=disk, check=True, stderr=subprocess.DEVNULL)
        done = watch(tmp_path, {"systemctl": "echo degraded", "df": "echo; echo x 1 1 0 100% /var"}, "words")
        assert (done.returncode, done.stderr) == (0, "")
        text = (disk / "trial/words").read_text()
        assert facts.words_of_boot(text.rstrip("\n"))["full"] == ("/var",)
        assert (disk / "trial/started").read_text().strip() == Path(
            "/proc/sys/kernel/random/boot_id"
        ).read_text().strip()
    finally:
        subprocess.run(["umount", disk], check=True)
