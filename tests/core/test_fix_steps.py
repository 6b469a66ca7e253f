"""Fixes of findings as steps: commands apart from what they show, loops of the shell as one step."""

from __future__ import annotations

import subprocess

import pytest

from rigwright import catalogue
from rigwright.core.fix_steps import Step, steps, strongest


@pytest.mark.parametrize(
    ("fix", "expected"),
    [
        ("", ()),
        ("sudo reboot", (Step("", "sudo reboot"),)),
        ("cold boot (sudo poweroff, mains off for 30 seconds); then sudo nvidia-smi -lgc 300,1500 as a test: wait",
         (Step("cold boot (sudo poweroff, mains off for 30 seconds)"),
          Step("as a test: wait", "sudo nvidia-smi -lgc 300,1500"))),
        ("sudo dmesg | grep -e NVRM -e Xid, then invoke explain 'ITS; TEXT'; then a reboot",
         (Step("", "sudo dmesg | grep -e NVRM -e Xid"), Step("", "invoke explain 'ITS; TEXT'"), Step("a reboot"))),
        ("not needed; for bridge in 05:08.0 04:00.0; do sudo setpci -s $bridge ECAP_ACS+0x6.w=0000; done",
         (Step("not needed"), Step("", "for bridge in 05:08.0 04:00.0; do sudo setpci -s $bridge ECAP_ACS+0x6.w=0000; "
                                       "done"))),
        ("nvidia-smi -q -d ECC shows the counters; if it happens again, return the GPU",
         (Step("shows the counters", "nvidia-smi -q -d ECC"), Step("if it happens again, return the GPU"))),
        ("sudo dpkg --configure -a; or invoke provision; else at every boot for b in 1 2; do x $b; done, as root",
         (Step("", "sudo dpkg --configure -a"), Step("", "invoke provision", "or"),
          Step("as root", "for b in 1 2; do x $b; done", "else at every boot"))),
        ("for a V100 it must contain sm_70; then do not use it",
         (Step("for a V100 it must contain sm_70"), Step("do not use it"))),
        ("the kernel's log; the dialog's end, then lspci -d 10de:",
         (Step("the kernel's log"), Step("the dialog's end"), Step("", "lspci -d 10de:"))),
        ("sudo lspci -vvv | grep -e LnkSta: -e ACSCtl; reseat the card",
         (Step("", "sudo lspci -vvv | grep -e LnkSta: -e ACSCtl"), Step("reseat the card"))),
        ("pip list | grep nccl: the version; sudo nvidia-smi -lgc 1,2 instead of -ac",
         (Step("the version", "pip list | grep nccl"), Step("instead of -ac", "sudo nvidia-smi -lgc 1,2"))),
        ("grep -A3 'load error: x' /var/log/nvidia-installer.log",
         (Step("", "grep -A3 'load error: x' /var/log/nvidia-installer.log"),)),
    ],
)  # fmt: skip
def test_steps(fix: str, expected: tuple[Step, ...]) -> None:
    assert steps(fix) == expected


@pytest.mark.parametrize(
    ("fix", "restart"),
    [
        ("cold boot (sudo poweroff, mains off for 30 seconds)", 3),
        ("sudo reboot", 2),
        ("sudo nvidia-smi -r -i 0000:07:00.0, or reboot, so that the page is retired", 1),
        ("if it happens again, power off and reseat the card", 0),
        ("invoke provision", 0),
        ("nvidia-smi -q | grep 'Reset Required'", 0),
        ("nvidia-smi: if it fails too, sudo reboot", 0),
        ("or sudo reboot", 0),
        ("before a reboot: modinfo nvidia", 0),
        ("iommu=pt on the kernel command line (grub.cmdline), sudo reboot", 2),
        ("SXM2: power off, tighten the screws", 3),
    ],
)
def test_restart(fix: str, restart: int) -> None:
    assert steps(fix)[0].restart == restart


def test_what_the_catalogue_sets_apart_is_a_command() -> None:
    fixes = [symptom.fix for symptom in catalogue.all_symptoms().values()]
    commands = [step.command for fix in fixes for step in steps(fix) if step.command]
    assert len(commands) > 100
    assert [command for command in commands if " do not " in command or "\n" in command] == []
    checked = subprocess.run(["bash", "-n"], input="\n".join(commands), capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, ""), "the line is that of a command, counted from 1"


def test_strongest() -> None:
    reset, cold = steps("stop its programs; sudo nvidia-smi -r; look again"), steps("cold boot")
    assert strongest(reset, (cold,)) == (Step("stop its programs"), Step("cold boot"), Step("look again"))
    assert strongest(cold, (reset,)) == cold
    assert strongest(steps("look"), (steps("sudo reboot"),)) == (Step("", "sudo reboot"), Step("look"))
