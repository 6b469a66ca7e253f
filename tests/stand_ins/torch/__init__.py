"""A stand-in for torch, so that what rigwright runs in an interpreter can be watched without a GPU. It is no torch.

What it is to be stands in TORCH_STAND_IN as JSON: version, cuda, hip, flags, gpus ([[name, major, minor]]), nccl, error
(of CUDA's start), import_error; wrong_product (the GPU whose products are wrong).
"""

import json
import os
from types import SimpleNamespace

SAID = json.loads(os.environ.get("TORCH_STAND_IN", "{}"))
if SAID.get("import_error"):
    raise OSError(SAID["import_error"])
__version__ = SAID.get("version", "2.9.1+cu126")
version = SimpleNamespace(cuda=SAID.get("cuda", "12.6"), hip=SAID.get("hip"))
_C = SimpleNamespace(_cuda_getArchFlags=lambda: SAID.get("flags", "sm_60 sm_70 sm_80 compute_90"))


class Tensor:
    """Numbers of which only the factor before a pattern is known."""

    def __init__(self, factor=1):
        self.factor = factor

    def __mod__(self, _):
        return Tensor(self.factor)

    __add__ = __mod__

    def __mul__(self, by):
        return Tensor(self.factor * by)

    __sub__ = __mod__

    def reshape(self, *_sizes):
        return self

    float = cpu = reshape

    def to(self, device):
        return Tensor(2 if device == f"cuda:{SAID.get('wrong_product')}" else self.factor)

    def __matmul__(self, other):
        return Tensor(self.factor * other.factor)


def arange(_count):
    return Tensor()


def equal(one, other):
    return one.factor == other.factor


def _init():
    if SAID.get("error"):
        raise RuntimeError(SAID["error"])


_GPUS = SAID.get("gpus", [["Tesla V100-SXM2-16GB", 7, 0]] * 2)
cuda = SimpleNamespace(
    init=_init,
    get_arch_list=lambda: SAID.get("flags", "").split(),
    device_count=lambda: len(_GPUS),
    get_device_name=lambda number: _GPUS[number][0],
    get_device_capability=lambda number: tuple(_GPUS[number][1:]),
    nccl=SimpleNamespace(version=lambda: tuple(SAID.get("nccl", (2, 27, 5)))),
)

from torch import distributed  # noqa: E402, F401
