"""Parts of a simulated GPU server that need no host: package tables, module files, PCI tree, initrd, kernel state."""

from __future__ import annotations

import gzip
import re
import struct
from pathlib import Path

import pytest

from lab.archive import ko_file, packages
from lab.archive.repositories import kernel_values
from lab.base.paths import RIGS
from lab.hardware import pci
from lab.hardware.board import board_conf, model
from lab.hardware.pci_config import config
from lab.host import initrd
from lab.power import rig
from lab.simulators.guest_gpu import driver, klog, modules, state
from rigwright.core.errors import HostError

REAL_IN_BASE = {"kmod", "python3", "adduser", "libc6", "libgcc-s1", "initramfs-tools"}
V100 = "pci:v000010DEd00001DB1sv000010DEsd00001212bc03sc02i00"


def names(relation: str) -> list[str]:
    """Returns the package names of a relation field."""
    return [re.split(r"[ :]", part.strip())[0] for part in re.split(r"[,|]", relation) if part.strip()]


@pytest.fixture(scope="module")
def table() -> list[packages.Package]:
    return packages.load(kernel_values())


def test_every_dependency_can_be_met(table: list[packages.Package]) -> None:
    offered = {p.name for p in table} | {n for p in table for n in names(p.control.get("Provides", ""))} | REAL_IN_BASE
    for package in table:
        for field in ("Depends", "Recommends"):
            assert set(names(package.control.get(field, ""))) <= offered, package.name


def test_ubuntus_updates_have_no_real_535_and_noble_was_released_with_one(table: list[packages.Package]) -> None:
    for suite, release in (("jammy-updates", "22.04"), ("noble-updates", "24.04")):
        found = [p for p in table if suite in p.suites and "535" in p.name]
        assert len(found) == 45
        for package in found:
            assert package.version == f"535.309.01-0ubuntu0.{release}.2"
            assert "(transitional package)" in package.control["Description"]
            assert package.control["Depends"] == package.name.replace("535", "580")
            assert not package.files
    assert not [p for p in table if "jammy" in p.suites and "535" in p.name]
    real = {p.name: p.version for p in table if "noble" in p.suites and "535" in p.name}
    assert real["nvidia-headless-535-server"] == "535.161.08-0ubuntu2"
    assert real["nvidia-driver-535"] == "535.171.04-0ubuntu2"
    assert real["nvidia-fabricmanager-535"] == "535.161.08-0ubuntu3"


def test_debian_has_its_own_names_and_a_driver_family_exact_versions(table: list[packages.Package]) -> None:
    debian = {p.name: p.version for p in table if p.repository == "debian"}
    family = ("nvidia-driver", "nvidia-kernel-dkms", "nvidia-smi", "libcuda1", "nvidia-open-kernel-dkms")
    assert {debian[name] for name in family} == {"535.261.03-1"}
    assert not [name for name in debian if "-535" in name]
    old = next(p for p in table if p.name == "nvidia-driver-535" and p.version == "535.183.01-0ubuntu1")
    assert "libnvidia-compute-535 (= 535.183.01-0ubuntu1)" in old.control["Depends"]
    assert "nvidia-dkms-535 (<= 535.183.01-1), nvidia-dkms-535 (>= 535.183.01)" in old.control["Depends"]


def test_the_cuda_libraries_are_where_nvidia_puts_them(table: list[packages.Package]) -> None:
    made = {file.path: (p.name, file.content) for p in table for file in p.files}
    assert made["/usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03"] == ("libnvidia-compute-535", "cuda")
    cuda = "/usr/local/cuda-12.2/targets/x86_64-linux/lib"
    assert made[f"{cuda}/libcudart.so.12"] == ("cuda-cudart-12-2", "libcudart.so.12.2.140")
    assert made[f"{cuda}/libcublas.so.12.2.5.6"] == ("libcublas-12-2", "cublas")
    for toolkit, runtime, blas in (("13.0", "13", "13"), ("11.4", "11.0", "11")):
        cuda = f"/usr/local/cuda-{toolkit}/targets/x86_64-linux/lib"
        assert {f"{cuda}/libcudart.so.{runtime}", f"{cuda}/libcublas.so.{blas}"} <= made.keys()
    versions = [p.version for p in table if p.name == "libnccl2"]
    assert "2.21.5-1+cuda12.2" in versions
    assert len(versions) == 6


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("{name: a, version: '1', depend: [b]}", "unknown key"),
        ("{name: a-@NOPE@, version: '1'}", "@NOPE@ has no value"),
        ("{name: a, version: '1', files: [{path: /x, text: y, link: z}]}", "one of text"),
        ("{name: a, version: '1'}, {name: a, version: '1'}", "made twice"),
    ],
)
def test_mistakes_in_a_table_are_named(tmp_path: Path, row: str, wrong: str) -> None:
    (tmp_path / "t.yml").write_text(f"repository: cuda\npackages: [{row}]\n")
    with pytest.raises(ValueError, match=re.escape(wrong)):
        packages.load({}, tmp_path)


def test_a_module_file_is_an_elf_with_modinfo() -> None:
    source = "name=nvidia-uvm\nversion=535.183.01\nlicense=NVIDIA\ndepends=nvidia\nsize=4096\n"
    data = ko_file.module(ko_file.parse(source), "6.8.0-31-generic")
    assert data[:4] == b"\x7fELF"
    sections, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    start, size = struct.unpack_from("<QQ", data, sections + 64 + 24)
    fields = dict(line.split("=", 1) for line in data[start : start + size].decode().split("\0")[:-1])
    assert (fields["name"], fields["depends"], fields["version"]) == ("nvidia_uvm", "nvidia", "535.183.01")
    assert fields["vermagic"].startswith("6.8.0-31-generic ")
    assert len(data) > sections + 64 * count
    with pytest.raises(ValueError, match="line 2"):
        ko_file.parse("name=x\nnonsense\n")


def board(**changes: str) -> str:
    """Returns the board.conf of servbadge with some values changed."""
    description = rig.describe("servbadge")
    models = {gpu["model"]: model(gpu["model"]) for gpu in description["gpus"]}
    return board_conf(description, models) + "".join(f"{k.replace('__', '.')}={v}\n" for k, v in changes.items())


def test_the_tree_comes_from_the_board_description() -> None:
    gpus = list(rig.plugged_in(board(gpu1__pcie__width_now="1", gpu1__pcie__gen_now="1")))
    assert [g.address for g in gpus] == ["0000:06:00.0", "0000:07:00.0", "0000:0a:00.0", "0000:0b:00.0"]
    assert {(g.device_id, g.subsystem, g.is_display, g.bar1_bytes) for g in gpus} == {
        (0x1DB1, (0x10DE, 0x1212), False, 16 << 30)
    }
    assert [(g.generation_now, g.width_now) for g in gpus] == [(3, 16), (1, 1), (3, 16), (3, 16)]


def test_pcie_switches_and_config_space(tmp_path: Path) -> None:
    gpus = list(rig.plugged_in(board(gpu1__pcie__width_now="1", gpu1__pcie__gen_now="1")))
    pci.write(tmp_path, pci.tree(gpus, {"default": "PHB", "0-1": "PIX", "2-3": "PIX"}))
    path = (tmp_path / "bus/pci/devices/0000:07:00.0").resolve()
    above = [p.name for p in path.parents if p.name.startswith("0000:")]
    assert above == ["0000:05:10.0", "0000:04:00.0", "0000:00:02.0"]
    assert (path / "modalias").read_text().strip() == V100
    assert (path / "class").read_text() == "0x030200\n"
    assert (path / "current_link_width").read_text() == "1\n"
    assert not (path / "driver").exists()
    space = (path / "config").read_bytes()
    assert struct.unpack_from("<HH", space) == (0x10DE, 0x1DB1)
    assert struct.unpack_from("<H", space, 0x8A)[0] & 0x3FF == 1 | 1 << 4  # LnkSta: 2.5 GT/s, x1
    port = (path.parent / "config").read_bytes()
    assert struct.unpack_from("<H", port, 0x8A)[0] & 0x3FF == 1 | 1 << 4  # the port's end of the same link
    assert tuple(port[0x18:0x1B]) == (5, 7, 7)
    assert struct.unpack_from("<H", port, 0xF2A)[0] == 0x1D  # ACS redirects
    assert len((path / "resource").read_text().splitlines()) == 7


def test_two_sockets_two_root_buses_and_displays() -> None:
    def one(address: str, numa: int) -> pci.PciGpu:
        return pci.PciGpu(address, 0x2204, (0x1458, 0x403B), True, numa, 256 << 20, 4, 16, 4, 16)

    roots = pci.tree([one("0000:03:00.0", 0), one("0000:83:00.0", 1)], {})
    assert [root for root, _ in roots] == ["0000:00", "0000:80"]
    gpu = roots[1][1][-1].below[0].function
    assert gpu.clazz == 0x030000
    assert gpu.modalias.endswith("bc03sc00i00")
    assert config(gpu)[0x24] & 1  # BAR5 is I/O on display boards


def cpio(files: dict[str, bytes]) -> bytes:
    """Returns a newc archive; a content that begins with `->` is a link."""
    data = b""
    for name, content in [*files.items(), ("TRAILER!!!", b"")]:
        raw = name.encode() + b"\0"
        kind = 0o120777 if content.startswith(b"->") else 0o100644
        content = content.removeprefix(b"->")
        head = [0, kind if content else 0, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(raw), 0]
        data += b"070701" + b"".join(b"%08X" % n for n in head) + raw
        data += b"\0" * (-len(data) % 4) + content
        data += b"\0" * (-len(data) % 4)
    return data


def test_initrd_early_archive_and_precedence_of_modprobe_d(tmp_path: Path) -> None:
    main = {
        "etc/modprobe.d/linked.conf": b"->../nvidia/current/real.conf",
        "etc/modprobe.d/dangling.conf": b"->/nowhere",
        "etc/nvidia/current/real.conf": b"blacklist nouveau\n",
        "usr/lib/modprobe.d/nvidia.conf": b"blacklist nouveau\n",
        "etc/modprobe.d/nvidia.conf": b"# emptied by the admin\n",
        "lib/modules/6.8/kernel/nouveau.ko": b"ELF",
        "lib/modules/../../../evil": b"x",
        "etc/fstab": b"x",
    }
    path, early = tmp_path / "initrd", cpio({"kernel/x86/microcode/GenuineIntel.bin": b"ucode"})
    path.write_bytes(early + b"\0" * 512 + gzip.compress(cpio(main)))
    initrd.unpack(path, tmp_path / "out", tmp_path)
    found = {str(p.relative_to(tmp_path / "out")): p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert found == {
        "modprobe.d/linked.conf": b"blacklist nouveau\n",
        "modprobe.d/nvidia.conf": b"# emptied by the admin\n",
        "lib/modules/6.8/kernel/nouveau.ko": b"ELF",
    }


@pytest.mark.parametrize("content", [b"nonsense", b"\x1f\x8bbroken", b"070701short"])
def test_a_damaged_initrd_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "initrd"
    path.write_bytes(content)
    with pytest.raises(HostError):
        initrd.unpack(path, tmp_path / "out", tmp_path)


class Entry:
    """GRUB's choice: the initrd and the kernel command line."""

    initrd: str | None = "/boot/initrd.img"
    command_line = "ro module_blacklist=ast"


@pytest.fixture
def hw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the hardware of servbadge, switched on; the guest's programs read it."""
    hardware, root = tmp_path / "hw", tmp_path / "root"
    (root / "boot").mkdir(parents=True)
    (root / "etc/apt/sources.list.d").mkdir(parents=True)
    (root / "etc/apt/sources.list.d/debian.list").write_text("deb http://example.invalid bookworm main\n")
    (root / "boot/initrd.img").write_bytes(gzip.compress(cpio({"usr/lib/modules/6.8/modules.dep": b"x"})))
    rig.install("servbadge", "h", root, hardware, "http://10.0.0.1:8080/")
    (hardware / "volatile/state").write_text("gpu0.temp=99\n")
    rig.power_on("servbadge", root, hardware, Entry())
    paths = {"HW": "", "SYSFS": "/sys", "PROC": "/proc", "MODULES": "/volatile/modules"}
    for module in (state, klog, modules, driver):
        for name in paths.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, f"{hardware}{paths[name]}")
    monkeypatch.setattr(modules, "run", modinfo)
    return hardware


def modinfo(_: str, path: str) -> tuple[int, str, str]:
    """Returns the output of modinfo for a file made by `ko`."""
    text = Path(path).read_text().split("rigwright")[0]
    return 0, "".join(f"{line.replace('=', ':      ', 1)}\n" for line in text.splitlines()), ""


def ko(folder: Path, name: str, **fields: str) -> str:
    """Writes a module file for the fake modinfo; returns its path."""
    values = {"name": name, "license": "GPL", "depends": "", "vermagic": f"{modules.KERNEL} SMP"} | fields
    path = folder / f"{name}.ko"
    path.write_text("".join(f"{k}={v}\n" for k, v in values.items()) + "rigwright-size=4096\n")
    return str(path)


def test_power_on_leaves_nothing_of_the_last_boot(hw: Path, tmp_path: Path) -> None:
    written = (hw / "volatile/state").read_text()
    assert written.startswith("driver.loaded=none\nboot.token=")
    assert "temp" not in written
    assert (hw / "initrd/lib/modules/6.8/modules.dep").exists()
    assert (hw / "cmdline").read_text() == "ro module_blacklist=ast\n"
    assert (hw / "volatile/clients").stat().st_mode & 0o777 == 0o666
    assert not list((tmp_path / "root/etc/apt/sources.list.d").iterdir())
    assert "deb http://10.0.0.1:8080/ubuntu jammy-updates" in (tmp_path / "root/etc/apt/sources.list").read_text()
    assert "cuda" not in (tmp_path / "root/etc/apt/sources.list").read_text()
    no_initrd = Entry()
    no_initrd.initrd = None
    rig.power_on("servbadge", tmp_path / "root", hw, no_initrd)
    assert not (hw / "initrd").exists()


def test_nouveau_keeps_the_gpus_from_nvidia(hw: Path, tmp_path: Path) -> None:
    modules.insert(ko(tmp_path, "nouveau"), [])
    assert {who for _, who in state.devices("nouveau")} == {"nouveau"}
    nvidia = ko(tmp_path, "nvidia", license="NVIDIA", version="535.183.01")
    with pytest.raises(modules.Refused, match="No such device"):
        modules.insert(nvidia, [])
    modules.remove("nouveau")
    modules.insert(nvidia, [])
    assert modules.loaded() == ["nvidia"]
    assert "driver.loaded=535.183.01" in (hw / "volatile/state").read_text()
    assert "  535.183.01  " in (hw / "proc/nvidia/version").read_text()
    third = rig.describe("servbadge", "h")["gpus"][2]["uuid"]
    assert third in (hw / "proc/nvidia/gpus/0000:0a:00.0/information").read_text()
    assert (hw / "sys/module/nvidia/version").read_text() == "535.183.01\n"
    modules.insert(ko(tmp_path, "nvidia_uvm", license="NVIDIA", depends="nvidia"), [])
    with pytest.raises(modules.Refused, match="is in use by: nvidia_uvm"):
        modules.remove("nvidia")
    modules.remove("nvidia_uvm")
    modules.remove("nvidia")
    assert "driver.loaded=none" in (hw / "volatile/state").read_text()
    assert {who for _, who in state.devices("nvidia")} == {None}


def test_what_the_kernel_refuses(hw: Path, tmp_path: Path) -> None:
    volta = ko(tmp_path, "nvidia", license="Dual MIT/GPL", version="535.183.01")  # it has no open module
    for path, why in (
        (ko(tmp_path, "ast"), "Operation not permitted"),
        (ko(tmp_path, "old", vermagic="5.15.0-1-generic SMP"), "Exec format error"),
        (ko(tmp_path, "needy", depends="nvidia"), "Unknown symbol"),
        (volta, "No such device"),
    ):
        with pytest.raises(modules.Refused, match=why):
            modules.insert(path, [])
    modules.insert(ko(tmp_path, "nouveau"), ["modeset=0"])
    assert modules.loaded() == ["nouveau"]
    assert {who for _, who in state.devices("nouveau")} == {None}
    assert (hw / "sys/module/nouveau/parameters/modeset").read_text() == "0\n"


def test_every_rig_can_be_switched_on(tmp_path: Path) -> None:
    assert list(RIGS.glob("*.yml"))
    for path in RIGS.glob("*.yml"):
        description = rig.describe(path.stem)
        models = {gpu["model"]: model(gpu["model"]) for gpu in description["gpus"]}
        gpus = list(rig.plugged_in(board_conf(description, models)))
        pci.write(tmp_path / path.stem, pci.tree(gpus, description["pcie_levels"], rig.switches(description)))
        shown = {p.name for p in (tmp_path / path.stem / "bus/pci/devices").iterdir()}
        assert {gpu["bus_id"].lower() for gpu in description["gpus"]} <= shown
