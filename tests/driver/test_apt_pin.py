"""The effect of rigwright's pins on the real apt: archives of a few package descriptions, simulated upgrades.

Needs apt-get on the machine, and no root.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rigwright.core.command import script
from rigwright.core.desired import Driver
from rigwright.core.errors import HostError
from rigwright.driver.apt_pin import NVIDIAS, pin_text
from rigwright.driver.resolve import Resolution, resolved
from rigwright.facts import Fact
from rigwright.facts.apt import archive as apt_archive, dpkg
from rigwright.operations import apt, driver as operations
from tests.driver.apt_machine import Machine, archive, run

NOBLE = "ID=ubuntu\nVERSION_ID=24.04\nVERSION_CODENAME=noble\n"
KERNEL = "6.8.0-31-generic"
GRUB = (
    'parses=yes\n--env\n--cfg\nset default="0"\n'
    f"menuentry 'Ubuntu' {{\n\tlinux\t/boot/vmlinuz-{KERNEL} root=UUID=1 ro\n"
    f"\tinitrd\t/boot/initrd.img-{KERNEL}\n}}\n"
)


KINDS = (
    "nvidia-headless nvidia-headless-no-dkms nvidia-dkms nvidia-kernel-common libnvidia-compute nvidia-utils".split()
)


def driver(name: str, version: str) -> str:
    """Returns the packages of a driver as in Ubuntu's archive; NAME is for example 535-server."""
    exact, release = f"(= {version})", version.split("-")[0]
    return f"""
Package: nvidia-headless-{name}
Version: {version}
Depends: nvidia-headless-no-dkms-{name}, nvidia-dkms-{name}

Package: nvidia-headless-no-dkms-{name}
Version: {version}
Depends: nvidia-kernel-common-{name} (>= {release}), libnvidia-compute-{name} {exact}

Package: nvidia-dkms-{name}
Version: {version}
Depends: nvidia-kernel-common-{name} (>= {release})

Package: nvidia-kernel-common-{name}
Version: {version}

Package: libnvidia-compute-{name}
Version: {version}

Package: nvidia-utils-{name}
Version: {version}
Depends: libnvidia-compute-{name} (>= {release})
"""


def transitional(old: str, new: str, version: str) -> str:
    """Returns those packages as transitional packages that depend on another branch."""
    return "\n".join(
        f"Package: {kind}-{old}\nVersion: {version}\nDepends: {kind}-{new}\nDescription: transitional package\n"
        for kind in KINDS
    )


def modules(name: str, kernel: str, version: str, release: str) -> str:
    """Returns a kernel with Ubuntu's prebuilt module, and the metapackages for the newest kernel."""
    return f"""
Package: linux-image-{kernel}
Version: {version}

Package: linux-image-generic
Version: {version}
Depends: linux-image-{kernel}

Package: linux-signatures-nvidia-{kernel}
Version: {version}

Package: linux-objects-nvidia-{name}-{kernel}
Version: {version}

Package: linux-modules-nvidia-{name}-{kernel}
Version: {version}
Depends: linux-image-{kernel}, linux-signatures-nvidia-{kernel} (= {version}), linux-objects-nvidia-{name}-{kernel} \
(= {version}), nvidia-kernel-common-{name} (<= {release}-1), nvidia-kernel-common-{name} (>= {release})
"""


UNBRANCHED = """
Package: libnvidia-compute
Version: 615.20-0ubuntu1

Package: cuda-drivers
Version: 615.20-1
Depends: libnvidia-compute

Package: nvidia-container-toolkit
Version: 1.17.0-1
"""


def pinned(machine: Machine, wanted: Driver, *installed: str) -> Resolution:
    """Installs these packages on the machine and writes rigwright's pin; returns the resolution of the driver."""
    machine.install(installed)
    found: Resolution = machine.ask(resolved, wanted, None)
    (change,) = machine.ask(operations.pinned_exactly, driver=wanted)
    machine.pin(change.commands[0].stdin)
    return found


def words(name: str, version: str) -> list[str]:
    return [f"{kind}-{name}={version}" for kind in KINDS]


def with_archives(folder: Path, *packages: str, nvidias: str = "", secure_boot: bool = False) -> Machine:
    """Returns a machine with an archive of Ubuntu for each text of packages, and one of NVIDIA for `nvidias`."""
    sources = [archive(folder / f"ubuntu{n}", "Ubuntu", "Ubuntu", text) for n, text in enumerate(packages)]
    if nvidias:
        sources.append(archive(folder / "compute/cuda/repos/ubuntu2404", "NVIDIA", "NVIDIA CUDA", nvidias))
    return Machine(folder / "machine", NOBLE, sources, secure_boot=secure_boot)


def test_the_real_branch_stays_where_the_updates_only_bring_another(folder: Path) -> None:
    real = driver("535-server", "535.161.08-0ubuntu2")
    updates = transitional("535-server", "580-server", "535.309.01-0ubuntu0.24.04.2")
    updates += "\n" + driver("580-server", "580.178.04-0ubuntu0.24.04.1")
    noble = with_archives(folder, real, updates)
    found = pinned(noble, Driver("535"), *words("535-server", "535.161.08-0ubuntu2"))
    assert (found.version, found.source, len(found.closure)) == ("535.161.08", "distribution", 6)
    assert noble.next_upgrade() == {}
    assert run("apt-get", "-s", "install", "nvidia-utils-580-server", config=noble.config, status=100)
    noble.pin(b"")
    assert noble.next_upgrade()["nvidia-dkms-580-server"] == "580.178.04-0ubuntu0.24.04.1"


def test_a_newer_driver_goes_down_to_the_pin(folder: Path) -> None:
    """The command of the installation and any upgrade downgrade the driver to the pinned version."""
    both = driver("535-server", "535.161.08-0ubuntu2") + "\n" + driver("535-server", "535.183.01-0ubuntu1")
    noble = with_archives(folder, both)
    pinned(noble, Driver("535.161.08"), *words("535-server", "535.183.01-0ubuntu1"))
    assert set(noble.next_upgrade().values()) == {"535.161.08-0ubuntu2"}
    asked = words("535-server", "535.161.08-0ubuntu2")
    moves = run("apt-get", "-s", "-y", "--allow-downgrades", "install", *asked, config=noble.config)
    assert moves.count("\nInst ") + moves.startswith("Inst ") == 6
    noble.pin(b"")
    assert noble.next_upgrade() == {}


@pytest.mark.parametrize("branch", ["535", "580"])
def test_the_same_release_of_another_archive_is_kept_out(folder: Path, branch: str) -> None:
    """Both archives use the same package names, and NVIDIA's build of the same release has a higher version."""
    version = {"535": "535.183.01", "580": "580.178.04"}[branch]
    theirs = driver(branch, f"{version}-0ubuntu1") + "\n" + UNBRANCHED
    noble = with_archives(folder, driver(branch, f"{version}-0ubuntu0.24.04.1"), nvidias=theirs)
    found = pinned(noble, Driver(branch), *words(branch, f"{version}-0ubuntu0.24.04.1"))
    assert found.source == "distribution"
    assert set(found.closure.values()) == {f"{version}-0ubuntu0.24.04.1"}
    assert noble.next_upgrade() == {}
    noble.pin(b"")
    assert set(noble.next_upgrade().values()) == {f"{version}-0ubuntu1"}


def test_names_without_a_branch_are_kept_out_and_the_container_toolkit_is_not(folder: Path) -> None:
    noble = with_archives(folder, driver("535-server", "535.161.08-0ubuntu2"), nvidias=UNBRANCHED)
    pinned(noble, Driver("535"), *words("535-server", "535.161.08-0ubuntu2"))
    for name in ("libnvidia-compute", "cuda-drivers"):
        assert "no installation candidate" in run("apt-get", "-s", "install", name, config=noble.config, status=100)
    name = "nvidia-container-toolkit"
    assert f"Inst {name}" in run("apt-get", "-s", "install", name, config=noble.config)


def test_a_built_module_and_its_kernel_stay_together(folder: Path) -> None:
    """The pin keeps the module and the hold keeps the kernel; both are necessary."""
    first = driver("580-server", "580.126.20-0ubuntu2") + modules("580-server", KERNEL, "6.8.0-31.31", "580.126.20")
    later = driver("580-server", "580.178.04-0ubuntu1") + modules("580-server", KERNEL, "6.8.0-31.31+1", "580.178.04")
    later += modules("580-server", "6.8.0-149-generic", "6.8.0-149.149", "580.178.04")
    noble = with_archives(folder, first, later, secure_boot=True)
    noble.known["grub.grub"] = GRUB.encode()
    name = f"linux-modules-nvidia-580-server-{KERNEL}"
    parts = [name, f"linux-objects-nvidia-580-server-{KERNEL}", f"linux-signatures-nvidia-{KERNEL}"]
    kernel = [f"linux-image-{KERNEL}", "linux-image-generic"]
    there = [f"{one}=6.8.0-31.31" for one in (*parts, *kernel)]
    own = words("580-server", "580.126.20-0ubuntu2")
    there += [word for word in own if not word.startswith(("nvidia-headless-580", "nvidia-dkms-580"))]
    found = pinned(noble, Driver("580.126.20"), *there)
    assert (found.version, found.kernel) == ("580.126.20", KERNEL)
    assert {one: found.closure[one] for one in parts} == dict.fromkeys(parts, "6.8.0-31.31")
    assert set(noble.next_upgrade()) == {*kernel, "linux-image-6.8.0-149-generic"}
    noble.install(there, held=kernel)
    assert noble.next_upgrade() == {}
    noble.pin(b"")
    assert {name, "nvidia-utils-580-server"} <= set(noble.next_upgrade())


def test_no_module_for_this_kernel_and_release_moves_both(folder: Path) -> None:
    ubuntu = driver("580-server", "580.178.04-0ubuntu1") + modules("580-server", KERNEL, "6.8.0-31.31", "580.126.20")
    newer = "6.8.0-149-generic"
    ubuntu += modules("580-server", newer, "6.8.0-149.149", "580.178.04")
    ubuntu += f"""
Package: linux-modules-nvidia-580-server-generic
Version: 6.8.0-149.149
Provides: nvidia-dkms-580-server (= 580.178.04-0ubuntu1), nvidia-prebuilt-kernel
Depends: linux-modules-nvidia-580-server-{newer} (= 6.8.0-149.149), nvidia-kernel-common-580-server (>= 580.178.04)
"""
    noble = with_archives(folder, ubuntu)
    noble.known["grub.grub"] = GRUB.encode()
    found = noble.ask(resolved, Driver("580", modules="prebuilt"), None)
    assert found.kernel == newer
    assert found.closure[f"linux-image-{newer}"] == "6.8.0-149.149"
    assert f"none for {KERNEL}: the kernel moves with it" in found.reason
    with pytest.raises(HostError, match=r"no source has a built and signed module of 580\.126\.20"):
        noble.ask(resolved, Driver("580.126.20", modules="prebuilt"), None)


def unbranched(version: str) -> str:
    """Returns packages of NVIDIA's repository as from branch 590 on, whose metapackage recommends a package with a
    pin."""
    branch, release = version.partition(".")[0], version.split("-")[0]
    return f"""
Package: nvidia-open
Version: {version}
Depends: nvidia-dkms-open (>= {release})
Recommends: nvidia-driver-pinning-{branch}

Package: nvidia-dkms-open
Version: {version}
Depends: libnvidia-compute (>= {release})

Package: libnvidia-compute
Version: {version}

Package: nvidia-driver-pinning-{branch}
Version: {branch}-1ubuntu1
Architecture: all
Provides: nvidia-driver-pinning
Conflicts: nvidia-driver-pinning
Replaces: nvidia-driver-pinning
"""


def with_both_branches(folder: Path) -> Machine:
    """Returns a machine with branch 595 from NVIDIA's repository, which has 615 too."""
    both = unbranched("595.71.05-0ubuntu1") + "\n" + unbranched("615.71.09-0ubuntu1")
    noble = with_archives(folder, nvidias=both)
    noble.install([f"{name}=595.71.05-0ubuntu1" for name in ("nvidia-dkms-open", "libnvidia-compute")])
    return noble


def test_a_pin_of_nvidias_own_lets_in_what_ours_keeps_out(folder: Path) -> None:
    """Of two stanzas for one version apt takes that of the first file. The private apt of the facts reads only
    rigwright's."""
    noble = with_both_branches(folder)
    names = ["libnvidia-compute", "nvidia-dkms-open"]
    text = pin_text(names, "595.71.05*", "nvidia-open nvidia-driver-pinning-*")
    noble.pin(text.encode())
    refused = run("apt-get", "-s", "install", "nvidia-open", config=noble.config, status=100)
    assert "no installation candidate" in refused
    theirs = noble.folder / "etc/preferences.d" / Path(NVIDIAS).name
    theirs.write_text("Package: nvidia-open\nPin: version 615.*\nPin-Priority: 1000\n")
    policy = run("apt-cache", "policy", "nvidia-open", config=noble.config)
    assert "Candidate: 615.71.09-0ubuntu1" in policy
    asked = apt_archive.simulated(("nvidia-open",), text)
    assert "no installation candidate" in asked.parse(noble.answer(asked)).error
    theirs.rename(f"{theirs}.disabled")
    assert run("apt-get", "-s", "install", "nvidia-open", config=noble.config, status=100) == refused


def test_an_installation_brings_no_pin_of_nvidias_own(folder: Path) -> None:
    """The metapackage recommends one: a plain installation would bring it, rigwright's does not."""
    noble = with_both_branches(folder)
    (noble.folder / "status").write_text("")
    asked = ("nvidia-open=615.71.09-0ubuntu1",)
    plain = run("apt-get", "-s", "-o", "APT::Install-Recommends=true", "install", *asked, config=noble.config)
    assert "Inst nvidia-driver-pinning-615" in plain
    planned = apt_archive.simulated(asked, "").parse(noble.answer(apt_archive.simulated(asked, "")))
    assert {move.name for move in planned.moves} == {"nvidia-open", "nvidia-dkms-open", "libnvidia-compute"}
    assert " --no-install-recommends " in apt.install(list(asked)).argv[2]


@pytest.mark.parametrize("needed", [False, True])
def test_a_pin_of_nvidias_own_is_purged_alone(folder: Path, needed: bool) -> None:
    """Purged, as its file in /etc would stay otherwise; refused if another package would go with it."""
    name = "nvidia-driver-pinning-595"
    packages = unbranched("595.71.05-0ubuntu1") + f"\nPackage: site-policy\nVersion: 1\nDepends: {name}\n"
    noble = with_archives(folder, nvidias=packages)
    noble.install([f"{name}=595-1ubuntu1", *(["site-policy=1"] if needed else [])])
    argv = [word.replace("; apt-get -y", "; apt-get -s -y") for word in apt.purge([name]).argv]
    assert argv != list(apt.purge([name]).argv)
    said = run(*argv, config=noble.config, status=1 if needed else 0)
    assert ("E: apt would also remove site-policy" in said) is needed
    assert (f"Purg {name}" in said) is not needed


@pytest.mark.parametrize(
    "status", ["not-installed\n", "installed\nMaintainer: nobody\nVersion: 1.0\nDescription: old\n"]
)
def test_a_held_package_that_the_driver_needs_is_named(folder: Path, status: str) -> None:
    needs_dkms = driver("535-server", "535.309.01-0ubuntu1").replace(
        "Depends: nvidia-kernel-common-535-server (>= 535.309.01)\n",
        "Depends: nvidia-kernel-common-535-server (>= 535.309.01), dkms (>= 2)\n",
    )
    free = "\nPackage: dkms\nVersion: 3.0\n\nPackage: unrelated\nVersion: 3.0\n"
    machine = with_archives(folder, needs_dkms + free)
    begin = "Status: hold ok "
    held = "".join(f"Package: {name}\n{begin}{status}Architecture: amd64\n\n" for name in ("dkms", "unrelated"))
    (machine.folder / "status").write_text(held)
    with pytest.raises(HostError, match=r"^driver: dkms is held \(apt-mark hold\): ") as caught:
        machine.ask(resolved, Driver(branch="535", source="distribution"), None)
    assert caught.value.fix.startswith("sudo apt-mark unhold dkms, on the host")
    (machine.folder / "status").write_text(held.replace("hold ok", "install ok"))
    machine.store.forget()
    assert "nvidia-dkms-535-server" in machine.ask(resolved, Driver(branch="535", source="distribution"), None).closure


def test_a_hold_in_the_way_of_a_repair_is_named(folder: Path) -> None:
    packages = "Package: one\nVersion: 2\nDepends: two (= 2)\n\nPackage: two\nVersion: 2\n"
    machine = with_archives(folder, packages)
    common = "Architecture: amd64\nMaintainer: nobody\nDescription: none\n"
    (machine.folder / "status").write_text(
        f"Package: one\nStatus: install ok unpacked\nVersion: 2\nDepends: two (= 2)\n{common}\n"
        f"Package: two\nStatus: hold ok installed\nVersion: 1\n{common}\n"
    )
    machine.store.known[dpkg.dpkg_audit] = ""
    with pytest.raises(HostError, match="two is held") as caught:
        machine.ask(apt.clean)
    assert caught.value.fix.startswith("sudo apt-mark unhold two, on the host")


def test_the_lists_are_read_again_after_an_update_of_the_host(folder: Path) -> None:
    """The archive gets a package within the ten minutes; the sources stay as they are."""
    machine = with_archives(folder, "Package: old\nVersion: 1\n")
    offered = apt_archive.offered(("new", "old"))
    assert list(machine.ask(lambda facts: facts(offered)).versions) == ["old"]
    shutil.rmtree(folder / "ubuntu0")
    archive(folder / "ubuntu0", "Ubuntu", "Ubuntu", "Package: old\nVersion: 1\n\nPackage: new\nVersion: 1\n")
    machine.store.forget()
    assert list(machine.ask(lambda facts: facts(offered)).versions) == ["old"], "within ten minutes nothing is fetched"
    run("apt-get", "-q", "update", config=machine.config)
    machine.store.forget()
    assert sorted(machine.ask(lambda facts: facts(offered)).versions) == ["new", "old"]


def test_a_foreign_pin_moves_the_driver_and_is_named(folder: Path) -> None:
    """A pin of 1001 for another version works also in a file that apt reads after rigwright's."""
    old, new = "535.183.01-0ubuntu1", "535.261.03-0ubuntu1"
    both = driver("535-server", old) + "\n" + driver("535-server", new)
    machine = with_archives(folder, both)
    name = "nvidia-utils-535-server"
    names = [name, "libnvidia-compute-535-server"]
    machine.install([f"{each}={old}" for each in names])
    machine.pin(pin_text(names, "535.183.01*").encode())
    assert machine.next_upgrade() == {}
    site = machine.folder / "etc/preferences.d/site"
    site.write_text("Package: *nvidia*\nPin: version 535.261.03*\nPin-Priority: 1001\n")
    assert machine.next_upgrade()[name] == new
    (machine.folder / "etc/preferences.d/ignored.off").write_text(site.read_text())
    notes = machine.ask(operations.foreign_rules)
    assert [note.text.split(" ")[0] for note in notes] == [str(site)]


def test_the_set_changes_at_the_same_release_on_debian(folder: Path) -> None:
    """libcuda1 has no name of NVIDIA's, and depends on what has: the simulation without the installed driver leaves it
    out too."""
    needing = ("nvidia-kernel-dkms", "nvidia-smi", "libcuda1", "xserver-xorg-video-nvidia")
    names = dict.fromkeys(needing, "Depends: nvidia-alternative (= 535.261.03-1)")
    names |= {"nvidia-alternative": "", "nvidia-persistenced": ""}
    names["nvidia-driver"] = "Depends: nvidia-kernel-dkms, xserver-xorg-video-nvidia (= 535.261.03-1)"
    stanzas = (f"Package: {name}\nVersion: 535.261.03-1\n{needs}".strip() for name, needs in names.items())
    line = archive(folder / "bookworm", "Debian", "Debian", "\n\n".join(stanzas))
    machine = Machine(folder / "machine", "ID=debian\nVERSION_ID=12\n", [line])
    machine.install([f"{name}=535.261.03-1" for name in names], held=list(names))
    for display, left_out in ((True, set()), (False, {"nvidia-driver", "xserver-xorg-video-nvidia"})):
        machine.store.forget(everything=True)
        found = machine.ask(resolved, Driver("535", source="distribution", display=display), None)
        assert (set(found.closure), found.display) == (set(names) - left_out, display)


def test_the_room_for_the_private_lists_is_checked(folder: Path) -> None:
    """df says that 90 MiB are free: nothing is left there."""
    machine = Machine(folder / "machine", "ID=debian\nVERSION_ID=12\n", [])
    fact = apt_archive.offered(("a",))
    df = 'df() { echo Filesystem; echo "/dev/vda1 500 410 90 82% /var"; }\n'
    full = Fact(fact.name, script(df + fact.command.argv[2], *fact.command.argv[4:]), fact.parse)
    assert machine.answer(full).error_text == f"NOROOM 90 {apt_archive.LISTS_MIB}"
    assert list((folder / "machine/scratch").iterdir()) == []
    assert machine.answer(fact).code == 0
