"""The installed kernels that can be removed to make room in /boot."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rigwright.core import lazy_re
from rigwright.driver.package_sets import KERNELS
from rigwright.facts import Facts, kernel as kernels, system
from rigwright.facts.apt import dpkg
from rigwright.facts.apt.dpkg import Package

_IMAGE = lazy_re.compile(r"linux-image-(?:unsigned-)?(\d+\.\d+\.\S*?(?<!-dbg))")


def removable(installed: Mapping[str, Package], running: str, newest: str) -> dict[str, list[str]]:
    """The packages of each kernel that does not run, is not the newest and is not held; by release, oldest first."""
    releases = {match[1]: package for name, package in installed.items() if (match := _IMAGE.fullmatch(name))}
    old = [release for release, image in releases.items() if release not in (running, newest) and not image.held]
    return {
        release: sorted(name for name in installed if name.endswith(f"-{release}"))
        for release in sorted(old, key=lambda release: [int(number) for number in re.findall(r"\d+", release)])
    }


def boot_room(facts: Facts) -> str:
    """The command that removes the two oldest removable kernels, to make room in /boot."""
    installed, running, newest = facts.all(dpkg.matching(*KERNELS), system.running_kernel, kernels.newest)
    old = removable(installed, running, newest)
    kept = f"{running}, which runs{f', and {newest}, the newest' if newest not in ('', running) else ''}"
    if not old:
        return f"no old kernel can be removed (there is {kept}): sudo du -ah /boot | sort -h | tail shows what fills it"
    names = [name for release in list(old)[:2] for name in old[release]]
    more = f" (and later {', '.join(list(old)[2:])})" if len(old) > 2 else ""
    return f"sudo apt-get purge {' '.join(names)}{more}; it keeps {kept}"
