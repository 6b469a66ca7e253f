"""Changes the simulated hardware of a host for a fault: its state, its configuration spaces, its kernel log."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from lab.hardware import hw_state, infiniband, pci
from lab.hardware.pci_config import ACS_CONTROL, LINK_STATUS, Link
from lab.hardware.rigfile import describe
from lab.host.disk import Host
from lab.power import switch
from lab.simulators.kernelfs import serve as kernelfs

ERROR, WARNING = 3, 4
_DRIVER = "driver.loaded"


def value(host: Host, gpu: int, key: str, default: str = "") -> str:
    """Returns a value of a GPU, with the same precedence as in the driver library: its own, then its model's."""
    now = hw_state.values(host.hw)
    return now.get(f"gpu{gpu}.{key}") or now.get(f"model.{now.get(f'gpu{gpu}.model')}.{key}") or default


def remembers(host: Host, **keys: object) -> None:
    """Sets values that survive every boot (nvram). `__` in a key stands for a dot; an empty value removes the key."""
    hw_state.edit(host.hw, nvram=_dotted(keys))


def now(host: Host, **keys: object) -> None:
    """Sets values that last until power off (volatile).

    `__` in a key stands for a dot; an empty value removes the key.
    """
    hw_state.edit(host.hw, volatile=_dotted(keys))


def of_gpu(gpu: int, **keys: object) -> dict[str, object]:
    """Returns keys of one GPU, for `now` and `remembers`."""
    return {f"gpu{gpu}.{key}": value for key, value in keys.items()}


def at_next_boot(host: Host, key: str, wanted: str) -> None:
    """Sets a value from the next boot on; an empty value restores the original value from the next boot on."""
    held = hw_state.read(host.hw, hw_state.NVRAM)
    waits = "0" if not wanted and held.get(key, "0") != "0" else wanted
    hw_state.edit(host.hw, nvram={hw_state.NEXT + key: waits})


def others(host: Host, gpu: int) -> Iterator[tuple[int, str]]:
    """Yields every other GPU of the host, and the pair of both GPUs, such as `0-2`."""
    for other in range(int(hw_state.read(host.hw, hw_state.BOARD).get("gpus", 0))):
        if other != gpu:
            yield other, f"{min(gpu, other)}-{max(gpu, other)}"


def says(host: Host, *texts: str, priority: int = ERROR) -> None:
    """Writes these lines to the host's kernel log, if the host runs."""
    if switch.running(host.name):
        kernelfs.log(host.name, [(priority, text) for text in texts])


def xid(host: Host, gpu: int, number: int, text: str) -> None:
    """Reports an Xid in the kernel log and to programs that wait for events. Does nothing if no driver is loaded."""
    if hw_state.read(host.hw, hw_state.VOLATILE).get(_DRIVER, "none") == "none":
        return
    place = value(host, gpu, "bus_id").lower().removesuffix(".0")
    count = int(value(host, gpu, "xid.count", "0")) + 1
    now(host, **of_gpu(gpu, xid__last=number, xid__count=count))
    says(host, f"NVRM: Xid (PCI:{place}): {number}, pid='<unknown>', name=<unknown>, {text}", priority=WARNING)


def functions(host: Host) -> list[str]:
    """Returns the addresses of the PCI functions that were present when the host was switched on."""
    return sorted(path.name for path in (host.hw / "sys/bus/pci/devices").glob("*"))


def device(host: Host, address: str) -> Path | None:
    """Returns the sysfs folder of a PCI function, or None if it does not exist."""
    found = (host.hw / "sys/bus/pci/devices" / address.lower()).resolve()
    return found if found.is_dir() else None


def space(host: Host, address: str) -> Path:
    """Returns the file with the configuration space of a function."""
    served = host.folder / "pci" / address.lower()
    found = device(host, address)
    return served if served.exists() or found is None else found / "config"


def poke(host: Host, address: str, at: int, word: int) -> None:
    """Writes 16 bits of a configuration space, including bits that are read-only in real hardware."""
    with space(host, address).open("r+b") as file:
        file.seek(at)
        file.write(struct.pack("<H", word))


def peek(host: Host, address: str, at: int) -> int:
    """Reads 16 bits of a configuration space."""
    with space(host, address).open("rb") as file:
        file.seek(at)
        return int(struct.unpack("<H", file.read(2))[0])


def fall_off(host: Host, gpu: int, off: bool) -> None:
    """Makes a GPU stop answering on the bus (all bits read as 1), or with `off` False makes it answer again."""
    address = value(host, gpu, "bus_id").lower()
    folder = device(host, address)
    if folder is None:
        return
    path = space(host, address)
    kept, whole = host.folder / f"pci-{address}", path.read_bytes()
    answers = whole[:4] != b"\xff" * 4  # after a boot it does, also where nobody has healed it
    if off and answers:
        kept.write_bytes(whole)
        ones = len(whole) // 2 if path.parent.name == "pci" else len(whole)
        path.write_bytes(b"\xff" * ones + bytes(len(whole) - ones))
        _put(folder, {"current_link_speed": "Unknown", "current_link_width": "63"})
    elif not off and not answers and kept.exists():
        path.write_bytes(kept.read_bytes())
        kept.unlink()
        retrain(host, gpu)


def retrain(host: Host, gpu: int) -> None:
    """Sets the speed and width of the GPU's link, at both ends, to the values in the GPU's state."""
    folder = device(host, value(host, gpu, "bus_id"))
    if folder is None:
        return
    most = (int(value(host, gpu, "pcie.gen_max", "3")), int(value(host, gpu, "pcie.width_max", "16")))
    link = Link(
        *most,
        *(
            int(value(host, gpu, f"pcie.{key}_now", str(full)))
            for key, full in zip(("gen", "width"), most, strict=True)
        ),
    )
    for end in (folder, folder.parent):
        kept = peek(host, end.name, LINK_STATUS) & ~0x3FF
        poke(host, end.name, LINK_STATUS, kept | link.generation_now | link.width_now << 4)
        _put(end, pci.link_now(link))


def adapters(host: Host, state: str) -> None:
    """Gives every InfiniBand and RoCE adapter a state of infiniband.STATES, now and in every boot."""
    fitted = describe(host.rig)["infiniband"] if host.rig else []
    hw_state.edit(host.hw, nvram={f"{infiniband.KEY}{one['device']}": state for one in fitted})
    infiniband.write(host.hw / "infiniband", fitted, {one["device"]: state for one in fitted})


def acs(host: Host) -> dict[str, int]:
    """Returns the ACS control register of every bridge, by address."""
    folders = {address: device(host, address) for address in functions(host)}
    bridges = [name for name, found in folders.items() if found and (found / "class").read_text().startswith("0x0604")]
    return {address: peek(host, address, ACS_CONTROL) for address in bridges}


def _put(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def _dotted(keys: dict[str, object]) -> dict[str, object]:
    return {key.replace("__", "."): value for key, value in keys.items()}
