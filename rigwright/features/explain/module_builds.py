"""Which driver release builds for a kernel, for a text in which the driver's module does not build."""

from __future__ import annotations

import datetime

from rigwright import catalogue
from rigwright.catalogue.kernels import builds, first_builders, newest_kernel
from rigwright.core import lazy_re
from rigwright.core.numbers import numbers

_DRIVER = lazy_re.compile(r"\bnvidia[-/](?:srv[-/])?(\d{3}\.\d{1,3}(?:\.\d{1,3})?)\b")
_KERNEL = lazy_re.compile(r"(?:linux-headers-|/lib/modules/|\bkernel |\bLinux \S{1,60} )v?(\d{1,2}\.\d{1,2})\.\d")


class ModuleBuilds:
    """The driver release and the kernel series that the lines of a text name first."""

    def __init__(self) -> None:
        self._driver = self._kernel = ""

    def feed(self, line: str) -> None:
        """Reads a line."""
        if not self._driver and (driver := _DRIVER.search(line)):
            self._driver = driver[1]
        if not self._kernel and (kernel := _KERNEL.search(line)):
            self._kernel = kernel[1]

    def advice(self, today: datetime.date) -> str:
        """What builds in place of the release, of branches that still get releases today; "" if the text does not name
        a release that is known."""
        name = self._driver.partition(".")[0]
        branch = catalogue.branches().get(name)
        if branch is None or not branch.builds_to_kernel:
            return ""
        last = newest_kernel(branch.versions)
        kernel = self._kernel if builds(self._driver, self._kernel or "0") != "builds" else ""
        if kernel and (first := first_builders(kernel).get(name)):
            return f"{first} of branch {name} builds for kernel {kernel}"
        if not kernel and newest_kernel((self._driver,)) != last:
            return f"{branch.versions[-1]} of branch {name} builds up to kernel {last}"
        others = first_builders(kernel) if kernel else _beyond(last)
        alive = {other: first for other, first in others.items() if (catalogue.branches()[other].eol or today) >= today}
        named = ", ".join(f"{first} ({other})" for other, first in alive.items() if int(other) > int(name))
        beyond = f"for kernel {kernel}" if kernel else f"for kernels newer than {last}"
        return f"no release of branch {name} is known to build {beyond}" + (f"; these do: {named}" if named else "")


def _beyond(kernel: str) -> dict[str, str]:
    """By branch, its newest release and the kernel up to which that builds, where that is newer than `kernel`."""
    newest = {name: newest_kernel(branch.versions) for name, branch in catalogue.branches().items()}
    return {
        name: f"{catalogue.branches()[name].versions[-1]} up to {last}"
        for name, last in newest.items()
        if last and numbers(last) > numbers(kernel)
    }
