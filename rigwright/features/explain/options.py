"""The options of `invoke explain`."""

from __future__ import annotations

from rigwright.cli.options import InventoryOptions, option


class ExplainOptions(InventoryOptions, command="explain", positional=("name",)):
    """Explain a GPU, a machine, a driver, a word, an error text or an Xid: cause, fix, source. Connects to no host.

        invoke explain                     # lists the topics, machines and GPUs
        invoke explain v100-sxm2-16gb      # a name; also servbadge, 535, 12.2, 10de:1db1
        invoke explain 'RTX 6000'          # part of a name: lists the entries
        invoke explain iommu               # a word; also P2P, bf16, 'training hangs'
        invoke explain 'Xid 79'            # an error; also its whole text, in quotes
        nvidia-smi -q | invoke explain -   # what a program printed
        sudo dmesg | invoke explain -

    With - it reads nvidia-smi (also -q, topo -m), lspci -vv, lshw, ipmitool, p2pBandwidthLatencyTest,
    dmesg, logs of NCCL and other programs, and Python tracebacks, also several in one text. It says what
    is wrong, causes before their consequences, and how many lines it did not understand.
    """

    name: str = option(
        "a name, a word, an error text in quotes, 'Xid 79', or - to read what nvidia-smi, dmesg or a program printed;"
        " without it the known names are listed"
    )
