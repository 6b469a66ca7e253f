"""The options of `invoke stress`."""

from __future__ import annotations

from rigwright.cli.option_values import duration
from rigwright.cli.options import PlaybookOptions, WheelsOptions, option


class StressOptions(WheelsOptions, PlaybookOptions, command="stress"):
    """Load all GPUs of a host with all that they can do, and say which one is slow, hot, wrong or lost.

        invoke stress --host servbadge
        invoke stress --host servbadge --minutes 60 --yes
        invoke stress --host servbadge --minutes 1 --json stress.json

    Four stages share the time: each GPU alone (its speed in each kind of product, its memory, its link);
    one GPU, two, and so on to all together; all in the pattern of training, whose power falls and rises
    for all at once; and all for the rest. The same products must give the same bits each time and on
    each GPU of a model. A GPU that falls off the bus or hangs is a result, with the stage and the second.
    Each GPU is compared with its peers, its model, and its own earlier stresses on this machine.

    Asks before it begins. A weak supply, a poor contact or bad cooling may cost GPUs or reset the machine
    now rather than in the third week of a training; that is its purpose. It installs nothing, and refuses
    while programs use the GPUs. Ctrl-C ends it within seconds (docs/guide/stress.md).

    Exit 0 when all GPUs are well, 2 when one is not.
    """

    minutes: float = option(
        "how long all stages take together; 0.1 to 1440", 10, type=duration("minutes", 0.1, 1440, "10")
    )
    findings: bool = option("show every finding: the evidence of each problem, and what passed", False)
    yes: bool = option("begin without asking", False)
