"""The inventory variable `containers`: container engines that reach the GPUs."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from rigwright.core.desired import CudaSource

LATEST = "latest"


class Containers(Struct, frozen=True):
    """Which engines a host has, and the release of NVIDIA Container Toolkit.

    `engine`: docker or podman, of the host's distribution, or both. `toolkit`: a release ('1.18.1'), or latest: the
    newest one when the host is provisioned first; the pin keeps it from then on. `image`: the image of the smoke
    container, already on the host; "": one that is made of the host's own files.
    """

    engine: Literal["docker", "podman", "both"]
    toolkit: str = LATEST
    image: str = ""

    def __post_init__(self) -> None:
        if self.toolkit != LATEST and not re.fullmatch(r"\d{1,4}\.\d{1,4}\.\d{1,4}", self.toolkit):
            raise ValueError(f"toolkit '{self.toolkit}'", "latest, or a release in quotes, such as '1.18.1'")
        if not re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._/:@-]{0,250})?", self.image):
            raise ValueError(f"image '{self.image}'", "a name such as registry.example/cuda:12.2, without spaces")

    @property
    def engines(self) -> tuple[str, ...]:
        """podman, docker, or both."""
        return ("podman", "docker") if self.engine == "both" else (self.engine,)


TYPES = {"containers": Containers, "container_repository": CudaSource}
