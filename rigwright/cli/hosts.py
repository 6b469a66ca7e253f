"""Commands for hosts: make them so, prove it, show what they are."""

from __future__ import annotations

from rigwright.cli import words
from rigwright.cli.command import command


def run(name: str, **said: object) -> int:
    """The exit code of a command, given what was said of its options."""
    from rigwright.commands import run as do
    from rigwright.showing import Said

    def describe(address: str, inventory: str) -> str:
        from rigwright import init as first

        return first.offer(address, inventory)

    return do(Said(name, **said), describe)  # type: ignore[arg-type]


@command(
    help={
        **words.HELP,
        **words.HTML,
        "disrupt": "also what was not announced, or interrupts GPU work",
        "wheels": words.WHEELS,
        **words.EXECUTOR,
        "serial": "in batches of so many hosts, or percents of them; the last size counts for the rest: 1,10%,100%",
        "max_fail": "stop when more hosts than this have failed, and leave the rest alone (in batches: 0)",
        "resume": "go on with the rollout that stopped last: its hosts, playbook and inventory",
        "reboots": "so many hosts may be rebooting at a time (default: 1)",
    },
)
def provision(
    host: str | None = None,
    playbook: str = "",
    inventory: str = "",
    yes: bool = False,
    json: str = "",
    html: str = "",
    tags: str = "",
    disrupt: bool = False,
    wheels: str = "",
    serial: str = "",
    max_fail: str = "",
    resume: bool = False,
    reboots: str = "",
    executor: str = "",
) -> int:
    """Make a host a proven GPU server: shows the plan, asks, applies it, reboots, proves it.

    Many hosts in batches: --serial 1,10%,100% begins with one and stops when it fails; docs/rollouts.md.
    """
    said = {"playbook": playbook, "inventory": inventory, "json": json, "html": html, "tags": tags, "wheels": wheels}
    rollout = {"serial": serial, "max_fail": max_fail, "resume": resume, "reboots": reboots, "executor": executor}
    return run("provision", host=host, yes=yes, disrupt=disrupt, **said, **rollout)


@command(help={**words.HELP, **words.EXECUTOR})
def plan(
    host: str | None = None,
    playbook: str = "",
    inventory: str = "",
    yes: bool = False,
    json: str = "",
    tags: str = "",
    executor: str = "",
) -> int:
    """Show what provision would change. Changes nothing; exit 2 when there is something."""
    return run(
        "plan", host=host, playbook=playbook, inventory=inventory, yes=yes, json=json, tags=tags, executor=executor
    )


@command(
    optional=["nccl_tests"],
    help={
        **words.HELP,
        **words.HTML,
        **words.TEST,
        **words.EXECUTOR,
        **words.PROGRAMS,
        "watch": "look again every few seconds, across power cycles, until Ctrl-C",
    },
)
def verify(
    host: str | None = None,
    playbook: str = "",
    inventory: str = "",
    yes: bool = False,
    json: str = "",
    html: str = "",
    tags: str = "",
    quick: bool = False,
    busy: bool = False,
    wheels: str = "",
    watch: bool = False,
    executor: str = "",
    nccl_tests: str | bool = "",
    python: str = "",
) -> int:
    """Prove that a host still is what it was made, and say what is wrong with it; also of one that was never provisioned.

    Changes nothing; exit 2 when something is not as wanted. `--tags hardware` needs no driver; with `--watch` it is for somebody
    who reseats GPUs.

    Peer-to-peer is tested too, with small messages, where the GPUs are idle and the host has the libraries; with --tags p2p
    it is tested in full, and the libraries are brought. docs/p2p.md.
    """
    others = {"nccl_tests": "usual" if nccl_tests is True else nccl_tests, "python": python}
    said = {"playbook": playbook, "inventory": inventory, "json": json, "html": html, "tags": tags, "wheels": wheels}
    return run("verify", host=host, yes=yes, quick=quick, busy=busy, watch=watch, executor=executor, **said, **others)


@command(
    help={
        key: text
        for key, text in {**words.HELP, **words.HTML, **words.TEST, **words.EXECUTOR}.items()
        if key not in ("yes", "tags")
    }
)
def accept(
    host: str | None = None,
    playbook: str = "",
    inventory: str = "",
    json: str = "",
    html: str = "",
    quick: bool = False,
    busy: bool = False,
    wheels: str = "",
    executor: str = "",
) -> int:
    """Show what second-hand hardware is worth: serials, memory errors ever, links, speeds. Changes nothing; exit 2 on a flaw.

    Peer-to-peer is tested in full, where the GPUs are idle and the host has the libraries, or --wheels says where they come
    from. With --html a sheet to print and sign.
    """
    said = {
        "playbook": playbook,
        "inventory": inventory,
        "json": json,
        "html": html,
        "wheels": wheels,
        "executor": executor,
    }
    return run("accept", host=host, quick=quick, busy=busy, **said)


@command(help={**words.HELP, **words.EXECUTOR})
def facts(
    host: str | None = None,
    playbook: str = "",
    inventory: str = "",
    yes: bool = False,
    json: str = "",
    tags: str = "",
    executor: str = "",
) -> int:
    """Show what a host says of itself: system, kernel, GRUB, driver, GPUs."""
    return run(
        "facts", host=host, playbook=playbook, inventory=inventory, yes=yes, json=json, tags=tags, executor=executor
    )


@command(
    help={
        **words.HELP,
        **words.EXECUTOR,
        "show": "only show; exit 2 on drift",
        "reset": "back to the GPUs' own defaults, until the next limits or boot",
    },
)
def limits(
    host: str | None = None,
    playbook: str = "",
    inventory: str = "",
    yes: bool = False,
    json: str = "",
    tags: str = "",
    show: bool = False,
    reset: bool = False,
    executor: str = "",
) -> int:
    """Put persistence, power limits and clocks in force on the GPUs that differ, and show them all."""
    return run(
        "limits",
        host=host,
        playbook=playbook,
        inventory=inventory,
        yes=yes,
        json=json,
        tags=tags,
        show=show,
        reset=reset,
        executor=executor,
    )
