"""The steps that the driver asks for: NVML's own, and mistakes in their file."""

from __future__ import annotations

import pynvml

from rigwright.catalogue.recovery_actions import all_recovery_actions

NVML_NAMES = {
    "Reset": "GPU_RESET",
    "Reboot": "NODE_REBOOT",
    "Drain P2P": "DRAIN_P2P",
    "Drain and Reset": "DRAIN_AND_RESET",
}


def test_every_step_is_one_of_nvml() -> None:
    assert list(all_recovery_actions()) == list(NVML_NAMES)
    numbers = [getattr(pynvml, f"NVML_GPU_RECOVERY_ACTION_{name}") for name in NVML_NAMES.values()]
    assert numbers == [1, 2, 3, 4]
