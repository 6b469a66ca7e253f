"""Paths, content and parsing of apt preferences files, and packages that are held back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import asdict

from rigwright.core.errors import HostError
from rigwright.core.templates.host_files import SHIPPED, Templates


class Pin(Struct, frozen=True):
    """A stanza: names or globs of packages, apt's selector (`version 535*`, `release l=LABEL`), and the priority."""

    packages: tuple[str, ...]
    pin: str
    priority: int

    @property
    def version(self) -> str:
        """The version at which the packages are held, in apt's form (`535.183.01*`); "" for any other kind of pin."""
        return self.pin.removeprefix("version ") if self.priority == 1001 and self.pin.startswith("version ") else ""


_DRIVER = ("nvidia-driver-535", "nvidia-dkms-535", "libnvidia-compute-535", "cuda-drivers", "libcuda1", "dkms")
"""A glob that matches one of these names concerns the driver."""


def interferes(pin: Pin) -> bool:
    """Whether a foreign stanza works against rigwright's pin: it prefers another driver (priority 1000 or more), or
    excludes the driver (negative priority)."""
    names = [name.removeprefix("src:").split(":")[0] for name in pin.packages]
    concerns = any(re.search("nvidia|cuda", name) or any(fnmatchcase(each, name) for each in _DRIVER) for name in names)
    return concerns and (pin.priority >= 1000 or (pin.priority < 0 and "*" not in names))


NVIDIAS = "/etc/apt/preferences.d/nvidia-driver-pin"
"""The preferences file of NVIDIA's packages nvidia-driver-pinning-BRANCH and -VERSION, with priority 1000."""
PINNING = "nvidia-driver-pinning-*"
"""A glob of those packages. Only one of them can be installed."""


def held_back(where: str, held: Sequence[str], consequence: str) -> HostError:
    """The error for packages that somebody put on hold (apt-mark hold), and that apt has to change."""
    verb = "is" if len(held) == 1 else "are"
    return HostError(
        where,
        f"{', '.join(held)} {verb} held (apt-mark hold): {consequence}",
        "packages that apt may install or change",
        f"sudo apt-mark unhold {' '.join(held)}, on the host; then run the same command again",
    )


def pin_path(name: str) -> str:
    """The path of one of rigwright's preferences files."""
    return f"/etc/apt/preferences.d/rigwright-{name}"


def pin_text(
    packages: Sequence[str],
    version: str,
    block: str = "",
    also: Mapping[str, Sequence[str]] | None = None,
    not_from: str = "",
    templates: Templates = SHIPPED,
) -> str:
    """The text of an apt preferences file that holds `packages` at `version` (priority 1001 allows downgrades).

    `also`: packages by other versions. `not_from` (release l=LABEL): an archive from which the packages are never
    installed. `block`: names of packages that are never installed. apt uses the first stanza that matches a version of
    a package. Raises HostError if an owner's template omits one of these.
    """
    pins = [Pin(tuple(packages), f"version {version}", 1001)]
    if not_from:
        pins.insert(0, Pin(tuple(packages), not_from, -1))
    pins += [Pin(tuple(names), f"version {each}", 1001) for each, names in (also or {}).items()]
    if block:
        pins.append(Pin((block,), "version *", -1))
    return templates.render("apt/pin.j2", {"pins": [asdict(pin) for pin in pins]})


def read_pins(text: str) -> Iterator[Pin]:
    """The stanzas of a preferences file, in order. Ignores comments, other fields, and stanzas without a pin."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in "\n".join(lines).split("\n\n"):
        fields: dict[str, str] = {}
        last = ""
        for line in stanza.splitlines():
            if line[:1].isspace() and last:
                fields[last] += " " + line.strip()
            elif ":" in line:
                name, _, value = line.partition(":")
                last = name.strip().lower()
                fields[last] = value.strip()
        priority = fields.get("pin-priority", "")
        if fields.get("package") and fields.get("pin") and priority.removeprefix("-").isdigit():
            yield Pin(tuple(fields["package"].split()), fields["pin"], int(priority))
