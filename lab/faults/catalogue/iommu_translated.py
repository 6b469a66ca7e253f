"""A later file in /etc/default/grub.d takes the kernel's parameters away, as an image's 50-cloudimg-settings.cfg does:
from the next boot on the IOMMU translates.

/proc/cmdline has no iommu=pt, dmesg says "iommu: Default domain type: Translated". Healed, the parameters are back
after another boot.
"""

from __future__ import annotations

from lab.host import inside
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ()
ONE_GPU = False
LASTS: int | None = None


CONF = "/etc/default/grub.d/zzz-cloudimg-settings.cfg"
LINES = "GRUB_CMDLINE_LINUX_DEFAULT=console=tty1\\nGRUB_CMDLINE_LINUX=\\n"


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    inside.run(host, f"printf '{LINES}' >{CONF}; update-grub 2>&1")


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    inside.run(host, f"rm -f {CONF}; update-grub 2>&1")
