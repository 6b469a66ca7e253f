"""The disk is slow: 1 MiB and 40 operations a second, as a dying disk or a rebuilding array.

apt and dpkg take minutes for what took seconds; the kernel log can say "task ... blocked for more than 120 seconds".
"""

from __future__ import annotations

from lab.vm.machine import Machine
from lab.vm.qmp import Qmp

ONE_GPU = False
AT_POWER_ON = True
BYTES_PER_S, OPERATIONS_PER_S = 1 << 20, 40


def apply(machine: Machine, gpu: str) -> None:  # noqa: ARG001
    _throttle(machine, BYTES_PER_S, OPERATIONS_PER_S)


def heal(machine: Machine, gpu: str) -> None:  # noqa: ARG001
    _throttle(machine, 0, 0)


def _throttle(machine: Machine, bytes_per_s: int, operations_per_s: int) -> None:
    limits = {"bps": bytes_per_s, "bps_rd": 0, "bps_wr": 0, "iops": operations_per_s, "iops_rd": 0, "iops_wr": 0}
    with Qmp(machine.qmp) as qmp:
        qmp.execute("block_set_io_throttle", device="disk", **limits)
