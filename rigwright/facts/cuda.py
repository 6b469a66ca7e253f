"""CUDA toolkits on the host."""

from __future__ import annotations

import re

from msgspec import Struct

from rigwright.core.command import Result, command, script
from rigwright.facts import Fact
from rigwright.facts.installed import INSTALLED


def _release(result: Result) -> str:
    match = re.search(r"release (\d{1,3}\.\d{1,3})", result.text)
    return match[1] if match and result.code == 0 else ""


def nvcc(toolkit: str) -> Fact[str]:
    """The release that a toolkit's nvcc prints; "" if nvcc is missing or fails."""
    text = 'toolkit=$1; "/usr/local/cuda-$toolkit/bin/nvcc" --version 2>/dev/null'
    return Fact(f"cuda.nvcc({toolkit})", script(text, toolkit, cache_key=INSTALLED), _release)


def runtime(toolkit: str) -> Fact[bool]:
    """Whether the dynamic linker knows a CUDA runtime of the toolkit's major version."""
    text = 'major=$1; ldconfig -p | grep -qF "libcudart.so.$major" && echo yes; :'
    asks = script(text, toolkit.split(".")[0], cache_key=INSTALLED)
    return Fact(f"cuda.runtime({toolkit})", asks, lambda result: "yes" in result.text)


_LOGIN = """env -i HOME=/ LC_ALL=C sh -l -c 'nvcc --version' 2>/dev/null"""
login_nvcc = Fact("cuda.login_nvcc", script(_LOGIN), _release)
"""The release of the nvcc on the PATH of a login shell; "" without one."""


class Alternative(Struct, frozen=True):
    """The target of /usr/local/cuda by update-alternatives. `automatic`: it follows the priorities. `choices`: the
    folders of toolkits."""

    value: str
    automatic: bool
    choices: tuple[str, ...]


def _alternative(result: Result) -> Alternative | None:
    if result.code != 0:
        return None
    fields: dict[str, list[str]] = {}
    for line in result.lines:
        name, _, value = line.partition(": ")
        fields.setdefault(name, []).append(value)
    value, status = fields["Value"][0], fields["Status"][0]
    if status not in ("auto", "manual"):
        raise ValueError(f"{status[:20]!r} is no status of an alternative")
    return Alternative(value, status == "auto", tuple(fields.get("Alternative", [])[:50]))


alternative: Fact[Alternative | None] = Fact(
    "cuda.alternative", command("update-alternatives", "--query", "cuda", reads=True, cache_key=INSTALLED), _alternative
)
"""The alternative `cuda`, which NVIDIA's packages register; None without it."""
