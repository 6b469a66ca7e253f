"""The host does not come back from its next reboot: its firmware waits for somebody to press a key.

ssh gets no connection; lab.status says "booting", and the console why. Healing cuts the power and switches it on again.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.hardware import hw_state
from lab.host.disk import Host
from lab.power import switch

NEEDS: tuple[str, ...] = ()
ONE_GPU = False
LASTS: int | None = None


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.at_next_boot(host, "boot.hang", "1")


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    hangs = hw_state.read(host.hw, hw_state.NVRAM).get("boot.hang") == "1"
    tamper.remembers(host, boot__hang="", next__boot__hang="")
    if hangs and switch.running(host.name):
        switch.cut(host.name)
        switch.on(host)
