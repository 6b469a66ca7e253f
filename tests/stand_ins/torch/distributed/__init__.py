"""Of the stand-in: what torch was built with."""

import torch


def is_available():
    return True


def is_nccl_available():
    return torch.SAID.get("nccl", True) is not None
