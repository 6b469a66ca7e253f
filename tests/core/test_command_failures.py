"""The cause of a failed command, from outputs of apt, dpkg, coreutils and the shell."""

from __future__ import annotations

import pytest

from rigwright.core.command_failures import failure_in

DKMS = """Setting up nvidia-dkms-535 (535.183.01-0ubuntu0.22.04.1) ...
dpkg: error processing package nvidia-dkms-535 (--configure):
 installed nvidia-dkms-535 package post-installation script subprocess returned error exit status 10
dpkg: dependency problems prevent configuration of nvidia-headless-535:
 nvidia-headless-535 depends on nvidia-dkms-535 (= 535.183.01-0ubuntu0.22.04.1); however:
  Package nvidia-dkms-535 is not configured yet.

Errors were encountered while processing:
 nvidia-dkms-535
 nvidia-headless-535
E: Sub-process /usr/bin/dpkg returned an error code (1)
"""
FULL = """dpkg: error processing archive /var/cache/apt/archives/libnvidia-compute-535_535.183.01_amd64.deb (--unpack):
 cannot copy extracted data for './usr/lib/libcuda.so.1' to '/usr/lib/libcuda.so.1.dpkg-new': No space left on device
Errors were encountered while processing:
 /var/cache/apt/archives/libnvidia-compute-535_535.183.01_amd64.deb
E: Sub-process /usr/bin/dpkg returned an error code (1)
"""
INITRAMFS = """update-initramfs: Generating /boot/initrd.img-6.8.0-71-generic
zstd: error 70 : Write error : cannot write block : No space left on device
E: mkinitramfs failure zstd -q -1 -T0 70
update-initramfs: failed for /boot/initrd.img-6.8.0-71-generic with 1.
dpkg: error processing package initramfs-tools (--configure):
 installed initramfs-tools package post-installation script subprocess returned error exit status 1
Errors were encountered while processing:
 initramfs-tools
E: Sub-process /usr/bin/dpkg returned an error code (1)
"""
CASES = {
    "name of a repository": (
        "E: Failed to fetch https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64/3bf863cc.pub  "
        "Temporary failure resolving 'developer.download.nvidia.com'\nE: Download Failed",
        "the host cannot resolve the name developer.download.nvidia.com",
        "resolvectl query developer.download.nvidia.com",
    ),
    "name of a mirror": (
        "E: nothing was installed, 3 packages could not be fetched: dkms_3.0_all.deb: "
        "Could not resolve 'archive.example'",
        "nothing was installed: the host cannot resolve the name archive.example",
        "Acquire::http::Proxy",
    ),
    "clock of 1970": (
        "E: Release file for http://deb.example/debian/dists/bookworm/InRelease is not valid yet (invalid for another "
        "20778d). "
        "Updates for this repository will not be applied.",
        "Release file for http://deb.example/debian/dists/bookworm/InRelease is not valid yet: "
        "the host's clock is behind",
        "timedatectl set-ntp true",
    ),
    "clock far ahead": (
        "E: Release file for http://deb.example/debian/dists/bookworm/InRelease is expired (invalid since 3d 4h).",
        "Release file for http://deb.example/debian/dists/bookworm/InRelease is expired: the host's clock is ahead, "
        "or the mirror is old",
        "date -u",
    ),
    "certificate of the future": (
        "curl: (60) SSL certificate problem: certificate is not yet valid",
        "certificate is not yet valid: the host's clock is behind",
        "hwclock --systohc",
    ),
    "full /boot": (
        INITRAMFS,
        "/boot is full: /boot/initrd.img-6.8.0-71-generic could not be written",
        "sudo apt-get purge the packages of the oldest kernel",
    ),
    "connection": (
        "E: Failed to fetch http://archive.example/x  Could not connect to archive.example:80 (192.0.2.10), "
        "connection timed out",
        "the host cannot connect to archive.example",
        "Acquire::http::Proxy",
    ),
    "broken package": (
        DKMS,
        "dpkg failed on nvidia-dkms-535, nvidia-headless-535: "
        "installed nvidia-dkms-535 package post-installation script subprocess returned error exit status 10",
        "make.log",
    ),
    "full while unpacking": (
        FULL,
        "dpkg failed on libnvidia-compute-535_535.183.01_amd64.deb: cannot copy extracted data for "
        "'./usr/lib/libcuda.so.1' to '/usr/lib/libcuda.so.1.dpkg-new': No space left on device",
        "df -h /usr/lib/libcuda.so.1.dpkg-new",
    ),
    "immutable file": (
        "mv: cannot move '/etc/modprobe.d/x.conf.aB3dE9' to '/etc/modprobe.d/x.conf': Operation not permitted",
        "/etc/modprobe.d/x.conf cannot be written, not even by root (Operation not permitted): "
        "it or its directory is immutable",
        "lsattr -d /etc/modprobe.d/x.conf /etc/modprobe.d; an 'i' among the letters: sudo chattr -i",
    ),
    "immutable directory": (
        "mktemp: failed to create file via template '/etc/modprobe.d/x.conf.XXXXXX': Operation not permitted",
        "/etc/modprobe.d/x.conf cannot be written",
        "lsattr -d /etc/modprobe.d/x.conf /etc/modprobe.d",
    ),
    "read-only": (
        "mktemp: failed to create file via template '/etc/apt/x.XXXXXX': Read-only file system",
        "/etc/apt/x is on a file system that is mounted read-only",
        "findmnt -T /etc/apt/x",
    ),
    "program in a script": (
        "sh: 1: update-initramfs: not found",
        "the program update-initramfs is not on the host",
        "sudo apt-get install initramfs-tools",
    ),
    "program alone": (
        "timeout: failed to run command 'mokutil': No such file or directory",
        "the program mokutil is not on the host",
        "apt-file search bin/mokutil",
    ),
}


@pytest.mark.parametrize(("text", "found", "fix"), [pytest.param(*case, id=name) for name, case in CASES.items()])
def test_the_cause_and_not_the_last_line(text: str, found: str, fix: str) -> None:
    failure = failure_in(text)
    assert failure is not None
    assert failure.found.startswith(found)
    assert fix in failure.fix


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("E: Unable to locate package nosuch", id="another error of apt"),
        pytest.param(
            "W: Failed to fetch http://other.example/InRelease  Temporary failure resolving 'other.example'\n"
            "E: Unable to locate package nosuch",
            id="only a warning of another source",
        ),
        pytest.param("cp: cannot stat '/boot/x': No such file or directory", id="missing file"),
        pytest.param("E: Temporary failure resolving '" + "-" * 5000, id="no name"),
    ],
)
def test_nothing_is_guessed(text: str) -> None:
    assert failure_in(text) is None
