"""The distributions of simulated GPU servers, read from distros.yml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

DEFAULT = "ubuntu2204"


@dataclass(frozen=True)
class Distro:
    """A distribution; `release` holds the values for its os-release, and is empty where Debian's os-release is kept."""

    name: str
    repository: str
    suites: tuple[str, ...]
    components: str
    keyring: str
    preinstalled: tuple[str, ...]
    release: dict[str, str]

    def sources(self, url: str) -> str:
        """Returns the text of sources.list for the archive at `url`."""
        return "".join(f"deb {url}/{self.repository} {suite} {self.components}\n" for suite in self.suites)

    def shell(self) -> str:
        """Returns the shell variables that guest_gpu/build-layer reads."""
        values = {"repository": self.repository, "keyring": self.keyring} | self.release
        return "".join(f"{key}='{value}'\n" for key, value in values.items())


@lru_cache(maxsize=1)
def distros() -> dict[str, Distro]:
    """Returns all distributions by name."""
    given: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("distros.yml").read_text(encoding="utf-8"))
    return {
        name: Distro(
            name, one["repository"], tuple(one["suites"]), one["components"], one["keyring"],
            tuple(one["preinstalled"]),
            one.get("release", {}),
        )
        for name, one in given.items()
    }  # fmt: skip
