"""Publishes the loaded driver version: for the simulated driver library and in /proc/driver/nvidia."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time

from lab.simulators.guest_gpu.state import HW, PROC, devices, nvswitches, read, write

SWITCH = "BIOS Version: 92.10.14.00.01\n"


def announce(version: str | None, license_text: str | None) -> None:
    """Makes the simulated driver library and /proc/driver/nvidia report this version; None: no driver is loaded."""
    state = HW + "/volatile/state"
    with open(state + ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = [
            line for line in read(state).splitlines() if not line.startswith(("driver.loaded=", "driver.instance="))
        ]
        kept += [f"driver.loaded={version or 'none'}", f"driver.instance={time.time_ns() // 1000000}"]
        write(state, "".join(line + "\n" for line in kept))
    for name in ("nvidia", "nvidia-nvswitch"):
        shutil.rmtree(f"{PROC}/{name}", ignore_errors=True)
    if version is None:
        return
    kind = "x86_64 Kernel Module" if license_text == "NVIDIA" else "Open Kernel Module for x86_64"
    compiler = "gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04.2) "
    write(
        PROC + "/nvidia/version",
        f"NVRM version: NVIDIA UNIX {kind}  {version}  Thu Nov 19 12:00:00 UTC 2026\nGCC version:  {compiler}\n",
    )
    text = read(HW + "/board.conf")
    board = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    numbers = {board[key].lower(): key.split(".")[0] for key in board if re.fullmatch(r"gpu\d+\.bus_id", key)}
    mine = [device for device, driver in devices("nvidia") if driver == "nvidia"]
    write(PROC + "/nvidia-nvswitch/permissions", "DeviceFileMode: 438\n")
    for device in nvswitches():
        write(f"{PROC}/nvidia-nvswitch/devices/{os.path.basename(device)}/information", SWITCH)
    for minor, device in enumerate(mine):
        _information(board, numbers.get(os.path.basename(device), "gpu?"), device, minor)


def _information(board: dict[str, str], gpu: str, device: str, minor: int) -> None:
    """Writes /proc/driver/nvidia/gpus/ADDRESS/information."""
    address = os.path.basename(device)

    def of(key: str) -> str:
        return board.get(f"{gpu}.{key}") or board.get(f"model.{board.get(gpu + '.model')}.{key}", "?")

    rows = (
        ("Model", "\t\t", of("name")), ("IRQ", "  \t\t", read(device + "/irq").strip()), ("GPU UUID", "\t", of("uuid")),
        ("Video BIOS", "\t", of("vbios")), ("Bus Type", "\t", "PCIe"), ("DMA Size", "\t", "47 bits"),
        ("DMA Mask", "\t", "0x7fffffffffff"), ("Bus Location", "\t", address), ("Device Minor", "\t", str(minor)),
    )  # fmt: skip
    text = "".join(f"{name}: {gap} {value}\n" for name, gap, value in rows)
    write(f"{PROC}/nvidia/gpus/{address}/information", text + "GPU Excluded:\t No\n")
