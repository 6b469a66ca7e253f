"""Of the stand-in: collectives that answer without asking anybody."""

import os

import torch


def is_available():
    return True


def is_nccl_available():
    return torch.SAID.get("nccl", True) is not None


def init_process_group(backend, timeout):
    assert backend == "nccl"
    assert timeout.total_seconds() > 600
    torch.misbehave("connect")
    path = os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid()))
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    to, way = (rank + 1) % count, torch.SAID.get("way", "P2P/CUMEM")
    with open(path, "w") as log:
        log.write(f"host:1:1 [{rank}] NCCL INFO Channel 00/0 : {rank}[{rank}] -> {to}[{to}] via {way}\n")


def barrier(device_ids):
    assert device_ids == [int(os.environ["LOCAL_RANK"])]


def all_reduce(tensor):
    count = int(os.environ["WORLD_SIZE"])
    wrong = torch.misbehave("sum")
    rank = int(os.environ["RANK"])
    if tensor.factor == rank + 1:
        tensor.factor = count * (count + 1) // 2 + wrong


class P2POp:
    def __init__(self, call, tensor, peer):
        self.call, self.tensor, self.peer = call, tensor, peer


def isend():
    pass


def irecv():
    pass


class _Work:
    def wait(self):
        pass


def batch_isend_irecv(both):
    for one in both:
        if one.call is irecv:
            one.tensor.factor = one.peer + 1 + torch.misbehave("message")
    return [_Work()]
