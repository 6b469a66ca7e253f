"""ACS is switched on again on every bridge, as after a firmware update: it sends traffic between GPUs through the root
complex.

lspci -vvv as root says "ACSCtl: SrcValid+ ... ReqRedir+"; setpci takes it back, the next boot has what boards come
with.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.hardware import hw_state
from lab.hardware.pci_config import ACS_CONTROL, ACS_ON
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu",)
ONE_GPU = False
LASTS: int | None = 0
BEFORE = "acs.before"


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    before = tamper.acs(host)
    if not hw_state.read(host.hw, hw_state.VOLATILE).get(BEFORE):
        hw_state.edit(host.hw, volatile={BEFORE: " ".join(f"{address}/{bits}" for address, bits in before.items())})
    for address in before:
        tamper.poke(host, address, ACS_CONTROL, ACS_ON)


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    for one in hw_state.read(host.hw, hw_state.VOLATILE).get(BEFORE, "").split():
        address, _, bits = one.partition("/")
        tamper.poke(host, address, ACS_CONTROL, int(bits))
    hw_state.edit(host.hw, volatile={BEFORE: ""})
