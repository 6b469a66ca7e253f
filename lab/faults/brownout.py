"""What a low 12 V rail does to a host: `python -m lab.faults.brownout HOST GPU` or `HOST reset`. The controller runs
it."""

from __future__ import annotations

import sys

from lab.faults.catalogue import gpu_lost
from lab.host import cgroups
from lab.host.disk import load
from lab.power import switch
from lab.simulators.kernelfs import serve as kernelfs


def main(name: str, what: str) -> int:
    """Makes a GPU fall off the bus, as the fault gpu-lost does, or cuts the host's power and switches it on again.

    Returns 1 for a host that does not exist.
    """
    host = load(name)
    if host is None:
        return 1
    if what != "reset":
        gpu_lost.apply(host, int(what))
        return 0
    cgroups.enter(kernelfs.GROUP)  # out of the host's group, which the power cut ends
    with host.console.open("a") as console:
        console.write("lab: a 12 V rail was below 10.8 V: the machine resets\n")
    switch.cut(name)
    switch.on(host)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
