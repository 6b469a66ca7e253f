"""Cache keys (`Command.cache_key`): the state of what is installed, and of the devices.

A command with such a key runs again only after a change or a boot. A change of a file in place changes its time, its
replacement the inode, and a new entry the time of the folder.
"""

from __future__ import annotations

from rigwright.core.command import state_of

INSTALLED = state_of(
    "/etc/os-release",
    "/var/lib/dpkg/status /var/lib/dpkg/updates /var/lib/dpkg/info /var/lib/dpkg/triggers /var/lib/dpkg/triggers/* "
    "/var/lib/dpkg/arch",
    "/var/lib/dpkg/alternatives /var/lib/dpkg/alternatives/cuda* /etc/alternatives",
    "/var/lib/apt/extended_states /var/lib/apt/lists /var/lib/rigwright/pin-proof",
    "/etc/apt /etc/apt/* /etc/apt/*/* /usr/share/keyrings /usr/share/keyrings/*",
    "/boot /boot/* /boot/grub/* /etc/default/grub /etc/default/grub.d /etc/default/grub.d/*",
    "/etc/modprobe.d /etc/modprobe.d/* /run/modprobe.d/* /usr/local/lib/modprobe.d/* /lib/modprobe.d /lib/modprobe.d/*",
    "/lib/modules /lib/modules/* /lib/modules/*/build /lib/modules/*/modules.dep /lib/modules/*/updates "
    "/lib/modules/*/updates/*",
    "/lib/modules/*/updates/dkms/* /lib/modules/*/extra/* /lib/modules/*/kernel/drivers/video/nvidia* "
    "/lib/modules/*/kernel/nvidia*/*",
    "/etc/ld.so.cache /usr/lib/*/libnvidia-ml.so.1",
    "/.profile /etc/profile /etc/profile.d /etc/profile.d/* /usr/local/cuda* /usr/local/cuda*/bin "
    "/usr/local/cuda*/bin/nvcc",
    "/usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin",
)
"""Packages, apt's lists, kernels and modules, the configuration of GRUB and modprobe, libraries, CUDA and programs.

A program that is replaced in place, without its package, is not noticed until the next boot."""

DEVICES = (
    "stat -c %N /sys/bus/pci/devices/* /sys/bus/pci/devices/*/driver; head -qc 64 /sys/bus/pci/devices/*/config; "
    "grep MemTotal /proc/meminfo; cat /sys/devices/system/cpu/online /sys/devices/system/cpu/present; "
    + state_of(
        "/sys/firmware/dmi/tables/DMI /sys/class/dmi/id/* /usr/share/misc/pci.ids /usr/bin /usr/sbin /usr/local/bin "
        "/usr/local/sbin"
    )
)
"""The PCI devices, their drivers and the first 64 bytes of their configuration (all ones for a device that does not
answer), the memory and processors in use, and the tables of the firmware."""
