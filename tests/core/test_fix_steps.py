"""Fixes of findings as steps: commands apart from what they show, loops of the shell as one step."""

from __future__ import annotations

import pytest

from rigwright.core.fix_steps import Step, steps, strongest


@pytest.mark.parametrize(
    ("fix", "expected"),
    [
        ("", ()),
        ("sudo reboot", (Step("", "sudo reboot"),)),
        ("cold boot (sudo poweroff, mains off for 30 seconds); then sudo nvidia-smi -lgc 300,1500 as a test: wait",
         (Step("cold boot (sudo poweroff, mains off for 30 seconds)"), Step("as a test: wait", "sudo nvidia-smi -lgc 300,1500"))),
        ("sudo dmesg | grep -e NVRM -e Xid, then invoke explain 'ITS; TEXT'; then a reboot",
         (Step("", "sudo dmesg | grep -e NVRM -e Xid"), Step("", "invoke explain 'ITS; TEXT'"), Step("a reboot"))),
        ("not needed; for bridge in 05:08.0 04:00.0; do sudo setpci -s $bridge ECAP_ACS+0x6.w=0000; done",
         (Step("not needed"), Step("", "for bridge in 05:08.0 04:00.0; do sudo setpci -s $bridge ECAP_ACS+0x6.w=0000; done"))),
        ("nvidia-smi -q -d ECC shows the counters; if it happens again, return the GPU",
         (Step("shows the counters", "nvidia-smi -q -d ECC"), Step("if it happens again, return the GPU"))),
        ("grep -A3 'load error: x' /var/log/nvidia-installer.log", (Step("", "grep -A3 'load error: x' /var/log/nvidia-installer.log"),)),
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
    ],
)
def test_restart(fix: str, restart: int) -> None:
    assert steps(fix)[0].restart == restart


def test_strongest() -> None:
    reset, cold = steps("stop its programs; sudo nvidia-smi -r; look again"), steps("cold boot")
    assert strongest(reset, (cold,)) == (Step("stop its programs"), Step("cold boot"), Step("look again"))
    assert strongest(cold, (reset,)) == cold
    assert strongest(steps("look"), (steps("sudo reboot"),)) == (Step("", "sudo reboot"), Step("look"))
