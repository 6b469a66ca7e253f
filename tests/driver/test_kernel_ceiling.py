"""Kernels for which the driver's module does not build, and the real apt: archives of kernels as Debian and Ubuntu name
them, simulated upgrades, and installations in a dpkg database of their own.

Needs apt-get on the machine, and no root.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, strategies as st

from rigwright.driver.apt_pin import read_pins
from rigwright.driver.kernel_ceiling import CEILING, UPGRADE_WITHOUT, ceiling_pin, ceiling_text, exceeds, too_new
from rigwright.facts.apt.dpkg import Move
from tests.driver.apt_machine import Machine, archive, run


def debian(release: str, version: str, suite: str = "") -> str:
    """Returns a kernel of Debian with its metapackages; `suite`: the end of its package names, such as +deb13."""
    name = f"{release}{suite}"
    return f"""
Package: linux-image-{name}-amd64
Version: {version}

Package: linux-headers-{name}-common
Version: {version}

Package: linux-headers-{name}-amd64
Version: {version}
Depends: linux-headers-{name}-common (= {version})

Package: linux-image-amd64
Version: {version}
Depends: linux-image-{name}-amd64 (= {version})

Package: linux-headers-amd64
Version: {version}
Depends: linux-headers-{name}-amd64 (= {version})
"""


def ubuntu(release: str, version: str, series: str = "") -> str:
    """Returns a kernel of Ubuntu with its metapackages; `series`: the end of their names, such as -hwe-24.04."""
    meta = version + (f"~{series[5:]}.1" if series else "")
    return f"""
Package: linux-modules-{release}-generic
Version: {version}

Package: linux-image-{release}-generic
Version: {version}
Depends: linux-modules-{release}-generic

Package: linux-headers-{release}
Version: {version}

Package: linux-headers-{release}-generic
Version: {version}
Depends: linux-headers-{release}

Package: linux-image-generic{series}
Version: {meta}
Depends: linux-image-{release}-generic

Package: linux-headers-generic{series}
Version: {meta}
Depends: linux-headers-{release}-generic

Package: linux-generic{series}
Version: {meta}
Depends: linux-image-generic{series} (= {meta}), linux-headers-generic{series} (= {meta})
"""


class Host(NamedTuple):
    """A distribution: the ceiling of its driver, the kernels of its archive (installed, a security update, one that is
    too new), the metapackages that are installed, and the image packages of the update and of the too new kernel."""

    os_release: str
    ceiling: str
    kernels: tuple[str, str, str]
    metapackages: tuple[str, ...]
    update: str
    too_new: str


HOSTS = {
    "Debian 12 with 535.261.03": Host(
        "ID=debian\nVERSION_ID=12\n", "6.16",
        (debian("6.1.0-40", "6.1.153-1"), debian("6.1.0-41", "6.1.158-1"),
         debian("6.17.13", "6.17.13-1~bpo12+1", "+deb12")),
        ("linux-image-amd64", "linux-headers-amd64"),
        "linux-image-6.1.0-41-amd64", "linux-image-6.17.13+deb12-amd64",
    ),
    "Debian 13 with 550.163.01": Host(
        "ID=debian\nVERSION_ID=13\n", "6.14",
        (debian("6.12.48", "6.12.48-1", "+deb13"), debian("6.12.57", "6.12.57-1", "+deb13"),
         debian("6.19.6", "6.19.6-1", "+deb13")),
        ("linux-image-amd64", "linux-headers-amd64"),
        "linux-image-6.12.57+deb13-amd64", "linux-image-6.19.6+deb13-amd64",
    ),
    "Ubuntu 24.04 with 535.161.08": Host(
        "ID=ubuntu\nVERSION_ID=24.04\nVERSION_CODENAME=noble\n", "6.8",
        (ubuntu("6.8.0-31", "6.8.0-31.31"), ubuntu("6.8.0-149", "6.8.0-149.149"), ubuntu("7.0.0-14", "7.0.0-14.14")),
        ("linux-generic",), "linux-image-6.8.0-149-generic", "linux-image-7.0.0-14-generic",
    ),
    "Ubuntu 24.04 with its newer kernels": Host(
        "ID=ubuntu\nVERSION_ID=24.04\nVERSION_CODENAME=noble\n", "6.16",
        (ubuntu("6.14.0-33", "6.14.0-33.33", "-hwe-24.04"), ubuntu("6.14.0-37", "6.14.0-37.37", "-hwe-24.04"),
         ubuntu("6.17.0-20", "6.17.0-20.20", "-hwe-24.04")),
        ("linux-generic-hwe-24.04",), "linux-image-6.14.0-37-generic", "linux-image-6.17.0-20-generic",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTS)
def test_a_kernel_that_the_driver_does_not_build_for_is_withheld(folder: Path, name: str) -> None:
    """The kernels that it builds for still get their updates. Without the ceiling the upgrade takes the newest one."""
    host = HOSTS[name]
    sources = [archive(folder / f"archive{n}", "X", "X", text) for n, text in enumerate(host.kernels)]
    machine = Machine(folder / "machine", host.os_release, sources[:1])
    words = [
        line.split()[1]
        for line in run("apt-get", "-s", "install", *host.metapackages, config=machine.config).splitlines()
        if line.startswith("Inst ")
    ]
    machine.install(words)
    (machine.folder / "etc/sources.list").write_text("".join(f"{line}\n" for line in sources))
    run("apt-get", "-q", "update", config=machine.config)

    machine.pin(ceiling_text(host.ceiling).encode(), CEILING)
    moves = machine.next_upgrade()
    assert {host.update, *host.metapackages} <= set(moves), "the metapackages bring the update"
    assert not [name for name, version in moves.items() if exceeds(version, host.ceiling)]
    refused = run("apt-get", "-s", "install", host.too_new, config=machine.config, status=100)
    assert "no installation candidate" in refused
    kept_out = too_new(UPGRADE_WITHOUT.parse(machine.answer(UPGRADE_WITHOUT)), host.ceiling)
    assert kept_out[0].name == host.too_new

    machine.pin(b"", CEILING)
    assert host.too_new in machine.next_upgrade()


@given(*(st.tuples(st.integers(3, 12), st.integers(0, 120)) for _ in range(2)), st.sampled_from(["", ".0-8.8", "-1"]))
def test_exactly_the_newer_series_match_the_pin(limit: tuple[int, int], other: tuple[int, int], end: str) -> None:
    ceiling, version = "{}.{}".format(*limit), "{}.{}{}".format(*other, end)
    assert list(read_pins(ceiling_text(ceiling))) == [ceiling_pin(ceiling)]
    matches = re.search(ceiling_pin(ceiling).pin.removeprefix("version ").strip("/"), version)
    assert bool(matches) == (other > limit) == exceeds(version, ceiling)


def test_only_new_packages_of_kernels_are_too_new() -> None:
    names = ("linux-libc-dev", "linux-headers-6.17.0-8", "linux-image-6.17.0-8-generic", "linux-generic-hwe-24.04")
    moves = tuple(Move(name, "6.16.0-1.1", "6.17.0-8.8") for name in names)
    assert [move.name for move in too_new(moves, "6.16")] == [names[2], names[1], names[3]]
    assert too_new((Move(names[2], "6.17.0-8.8", ""), Move("linux-firmware", "", "20260317.1")), "6.16") == []
