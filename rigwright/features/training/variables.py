"""The inventory variable `training`: a Python environment with torch for the GPUs of a host."""

from __future__ import annotations

import posixpath
import re

from msgspec import Struct

from rigwright.core.schema import AbsolutePath, Release

AUTO = "auto"
_SYSTEM = re.compile(
    r"/|/(opt|usr|usr/local|home|root|var|var/lib|srv|tmp|mnt|data)"
    r"|/(boot|dev|etc|proc|run|sys|bin|sbin|lib|lib32|lib64)(/.*)?|/usr/(?!local/).*"
)
"""Folders of the system, which are no folder of an environment."""
_PATH = re.compile(r"/[A-Za-z0-9._+/-]{1,200}")


class Training(Struct, frozen=True):
    """Where the environment is, whose it is, and what is in it.

    `path`: a folder of its own. `owner`: the user who owns it, and as whom pip runs. `python`: a Python that apt has
    ('3.11'); None: the host's python3. `torch`: auto (the line of wheels with kernels for every GPU that runs on the
    driver), or a version of which the catalogue has the hashes. `lock`: a requirements file with hashes on the host, in
    place of the catalogue's. `wheels`: a folder of wheels on the host, in place of an index. `index`: a package index;
    "": that of the host's pip configuration.
    """

    path: AbsolutePath = AbsolutePath("/opt/train")
    owner: str = "root"
    python: Release | None = None
    torch: str = AUTO
    lock: AbsolutePath | None = None
    wheels: AbsolutePath | None = None
    index: str = ""

    def __post_init__(self) -> None:
        path = self.path
        if not _PATH.fullmatch(path) or posixpath.normpath(path) != path or _SYSTEM.fullmatch(path):
            expected = "a folder of its own and not of the system, of letters, digits and ._+-/, such as /opt/train"
            raise ValueError(f"path '{path}'", expected)
        if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", self.owner):
            raise ValueError(f"owner '{self.owner}'", "a user of the host, such as ubuntu")
        if self.python is not None and not re.fullmatch(r"3\.\d{1,2}", self.python):
            raise ValueError(f"python '{self.python}'", "a Python of the distribution, such as '3.11'")
        if self.torch != AUTO and not re.fullmatch(r"\d+\.\d+\.\d+", self.torch):
            raise ValueError(f"torch '{self.torch}'", "auto, or a version of three numbers in quotes, such as '2.7.1'")
        if self.torch != AUTO and self.lock:
            raise ValueError(f"torch {self.torch} and a lock", "one of them: the lock names its torch")
        for name in ("lock", "wheels"):
            value = getattr(self, name)
            if value is not None and not _PATH.fullmatch(value):
                expected = "a path on the host of letters, digits and ._+-/, such as /srv/wheels"
                raise ValueError(f"{name} '{value}'", expected)
        if self.index and not re.fullmatch(r"https?://[^\s'\"@]{1,300}", self.index):
            raise ValueError("index is no address", "http://... or https://..., without a password")
        if self.index and self.wheels:
            raise ValueError("index and wheels", "one of them: an index, or a folder on the host")


TYPES = {"training": Training}
