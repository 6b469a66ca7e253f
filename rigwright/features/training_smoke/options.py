"""The options of `invoke train.smoke`."""

from __future__ import annotations

from rigwright.cli.option_values import count
from rigwright.cli.options import PlaybookOptions, option


class TrainSmokeOptions(PlaybookOptions, command="train.smoke"):
    """Train a small model on 1, 2, 3, 4, 8, ... and all GPUs of a host, and say whether it learns and how fast.

        invoke train.smoke --host servbadge
        invoke train.smoke --host servbadge --seconds 120 --yes
        invoke train.smoke --host servbadge --python ~/venv/bin/python
        invoke train.smoke --nodes --host gpu
        invoke train.smoke --nodes --links --host gpu

    Uses the training environment of the inventory, or another interpreter with torch. The loss must fall and be equal
    on all GPUs; samples a second and the efficiency are compared with the rig and with earlier trainings of this
    machine; the transport that NCCL took is named. The recorder runs meanwhile. Asks before it begins, installs
    nothing, and refuses while programs use the GPUs (docs/guide/training.md).

    With --nodes the hosts are the nodes of one training: it says which interface and which InfiniBand or RoCE ports it
    takes and why, measures the network between every two nodes, and names the slow one (docs/guide/nodes.md).

    Exit 0 when all is well, 2 when something is not.
    """

    seconds: int = option(
        "how long all trainings take together; 5 to 3600", 60, type=count("seconds", 5, 3600, example=60)
    )
    python: str = option("an interpreter with torch on the host, in place of the training environment")
    nodes: bool = option("train on 2 to 32 hosts together, and measure the network between them", False)
    links: bool = option("with --nodes: only measure the network; needs no GPU and no torch", False)
    unlike: bool = option("with --nodes: also where the nodes differ in driver, GPUs, torch or NCCL", False)
    yes: bool = option("begin without asking", False)
