"""CUDA toolkits on the host."""

from __future__ import annotations

import re

from rigwright.core.command import Result, script
from rigwright.facts import Fact


def nvcc(toolkit: str) -> Fact[str]:
    """The release that a toolkit's nvcc prints; "" if nvcc is missing or fails."""

    def parse(result: Result) -> str:
        match = re.search(r"release (\d+\.\d+)", result.text)
        return match[1] if match and result.code == 0 else ""

    text = 'toolkit=$1; "/usr/local/cuda-$toolkit/bin/nvcc" --version 2>/dev/null'
    return Fact(f"cuda.nvcc({toolkit})", script(text, toolkit), parse)


def runtime(toolkit: str) -> Fact[bool]:
    """Whether the dynamic linker knows a CUDA runtime of the toolkit's major version."""
    text = 'major=$1; ldconfig -p | grep -qF "libcudart.so.$major" && echo yes; :'
    return Fact(f"cuda.runtime({toolkit})", script(text, toolkit.split(".")[0]), lambda result: "yes" in result.text)
