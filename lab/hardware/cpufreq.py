"""Writes the simulated frequency policies of a machine's processors, as files for a bind mount over
/sys/devices/system/cpu/cpufreq.

One policy per CPU, with its driver, governor and governors. No frequency is set: a governor that is written is only
remembered, until the power is switched off. Unlike a kernel the files take any word. A file SIMULATED beside them says
so.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

NOTE = "The files here are simulated by the lab of rigwright: no frequency of a processor is set.\n"


def cpus() -> list[int]:
    """Returns the numbers of this machine's CPUs, which are those of its hosts."""
    return sorted(int(path.name[3:]) for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*"))


def write(folder: Path, given: dict[str, Any] | None, numbers: Iterable[int]) -> None:
    """Makes `folder` with a policy of each CPU; without one for a machine whose kernel sets no frequency (`given`
    None).

    `given`: driver, governor (that of a boot), governors (all that the driver has).
    """
    folder.mkdir()
    (folder / "SIMULATED").write_text(NOTE)
    if given is None:
        return
    for number in numbers:
        policy = folder / f"policy{number}"
        policy.mkdir()
        texts = {
            "affected_cpus": str(number),
            "related_cpus": str(number),
            "scaling_driver": given["driver"],
            "scaling_available_governors": " ".join(given["governors"]),
            "scaling_governor": given["governor"],
        }
        for name, text in texts.items():
            (policy / name).write_text(text + "\n")
            (policy / name).chmod(0o644 if name == "scaling_governor" else 0o444)
