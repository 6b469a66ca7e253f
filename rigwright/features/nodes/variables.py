"""The inventory variable `nodes`: how a host reaches the other nodes of a group in a training over several of them."""

from __future__ import annotations

import re

from msgspec import Struct

NO_HCA = "none"
"""The value of `hca` for a node that is not to use InfiniBand or RoCE."""


class Nodes(Struct, frozen=True):
    """`interface`: the network interface for the other nodes; None: the fastest one that all nodes share.

    `hca`: ports of InfiniBand or RoCE adapters as NCCL names them (mlx5_0:1, several joined by commas), or `none`;
    None: those whose link is up. `port`: the TCP port of the rendezvous and of the measurement, the same on all nodes.
    """

    interface: str | None = None
    hca: str | None = None
    port: int = 29400

    def __post_init__(self) -> None:
        if self.interface is not None and not re.fullmatch(r"[A-Za-z0-9_.@-]{1,15}", self.interface):
            raise ValueError(f"interface '{self.interface}'", "a network interface of the host, such as ens1f0")
        port = r"[A-Za-z0-9_.-]{1,63}:[0-9]{1,3}"
        if self.hca is not None and self.hca != NO_HCA and not re.fullmatch(rf"{port}(,{port}){{0,31}}", self.hca):
            raise ValueError(f"hca '{self.hca}'", "adapters with their ports such as mlx5_0:1,mlx5_1:1, or none")
        if not 1024 <= self.port <= 65535:
            raise ValueError(f"port {self.port}", "a TCP port from 1024 to 65535, such as 29400")


TYPES = {"nodes": Nodes}
