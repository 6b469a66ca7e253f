"""nouveau has the GPUs although the NVIDIA driver is installed: its blacklist was emptied, and the initrd made anew.

lspci -k says "Kernel driver in use: nouveau", nvidia-smi that it couldn't communicate with the driver, modprobe nvidia
"No such device"; the kernel log has "NVRM: The NVIDIA probe routine was not called".
"""

from __future__ import annotations

from lab.host import inside
from lab.host.disk import Host
from rigwright.core.errors import UsageError

NEEDS: tuple[str, ...] = ("gpu",)
ONE_GPU = False
LASTS: int | None = None


BARE = "no NVIDIA driver is installed: nouveau has the GPUs anyway"
_NVIDIA = ("nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia_peermem", "nvidia")
CONF = "/etc/modprobe.d/nvidia-graphics-drivers.conf"
SWAP = """
systemctl stop nvidia-persistenced 2>/dev/null || :
for module in "$@"; do if grep -q "^$module " /run/lab/hw/volatile/modules; then rmmod "$module"; fi; done
"""


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    if not inside.run(host, "ls /lib/modprobe.d/nvidia-graphics-drivers.conf 2>/dev/null || :"):
        raise UsageError(host.name, BARE, "a host with the driver", "invoke provision first")
    inside.run(host, f"echo '# emptied (fault nouveau-bound)' >{CONF}; update-initramfs -u", deadline=120)
    inside.run(host, SWAP + "modprobe nouveau; modprobe -q nvidia || :", *_NVIDIA)


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    inside.run(host, f"rm -f {CONF}; update-initramfs -u", deadline=120)
    inside.run(host, SWAP + "modprobe -q nvidia || :", "nouveau")
