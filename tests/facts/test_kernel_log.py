"""The command that reads the kernel log: which lines of a long log it keeps, and in which order."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rigwright.core.command import Result
from rigwright.facts import kernel_log, parsed

FAULT = (
    "DMAR: [DMA Read NO_PASID] Request device [3b:00.0] fault addr 0x7f000000 [fault reason 0x06] PTE Read access is "
    "not set"
)
CORRECTED = "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x2f offset:0x0)"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=2211, name=python3, GPU has fallen off the bus."


def _read(folder: Path, lines: list[str]) -> tuple[str, ...]:
    """Reads the fact on a host whose journal has these lines."""
    (folder / "log").write_text("".join(f"{line}\n" for line in lines))
    journal = folder / "journalctl"
    journal.write_text(f'#!/bin/sh\ncat "{folder}/log"\n')
    journal.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "LC_ALL": "C"}
    done = subprocess.run(kernel_log.kernel.command.argv, env=env, capture_output=True, timeout=60, check=False)
    value: tuple[str, ...] = parsed(kernel_log.kernel, Result(done.returncode, done.stdout, done.stderr))
    return value


def test_errors_of_memory_and_iommu_are_kept_in_order(tmp_path: Path) -> None:
    lines = [
        "usb 1-3: new device",
        XID,
        FAULT,
        "eth0: link up",
        CORRECTED,
        "[Hardware Error]: System Fatal error.",
        XID,
    ]
    assert _read(tmp_path, lines) == (XID, FAULT, CORRECTED, "[Hardware Error]: System Fatal error.", XID)


def test_a_flood_of_one_kind_leaves_the_other(tmp_path: Path) -> None:
    flood = [f"EDAC MC0: 1 CE memory read error on DIMM_A{number}" for number in range(700)]
    kept = _read(tmp_path, [XID, FAULT, *flood])
    assert kept == (XID, *flood[-500:])
    flood = [f"NVRM: line {number}" for number in range(4100)]
    assert _read(tmp_path, [FAULT, *flood]) == (FAULT, *flood[-4000:])


def test_a_late_fault_is_kept_after_many_lines_of_the_iommu(tmp_path: Path) -> None:
    boot = [f"pci 0000:00:{number:02x}.0: Adding to iommu group {number}" for number in range(256)]
    kept = _read(tmp_path, [*boot, FAULT])
    assert kept == (*boot[:200], FAULT)
    assert [fault.bus_id for fault in kernel_log.iommu_faults(kept)] == ["0000:3b:00.0"]
