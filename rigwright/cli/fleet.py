"""Commands for many hosts: compared, reported on, asked one thing."""

from __future__ import annotations

from rigwright.cli import words
from rigwright.cli.command import command


@command(
    name="check",
    help={
        "host": words.SOME,
        "playbook": "what they should be (default: playbooks/provision.yml)",
        "inventory": words.HELP["inventory"],
        "since": "compare with the past until then: 7d, 12h, a date (default: when it was last as it should be)",
        "tags": words.HELP["tags"],
        "json": words.HELP["json"],
        **words.EXECUTOR,
    },
)
def check(
    host: str = "",
    playbook: str = "",
    inventory: str = "",
    since: str = "",
    tags: str = "",
    json: str = "",
    executor: str = "",
) -> int:
    """Compare hosts with their playbook, their own past and their peers, and follow every GPU. Changes nothing.

    GPUs that are too hot, slowed down, or whose memory or log has errors are named too. Exit 2 when something differs, 3 when a host does not answer; the others are compared all the same.
    """
    from rigwright import survey
    from rigwright.showing import Said

    said = Said("fleet.check", host or "all", playbook, inventory, since=since, tags=tags, json=json, executor=executor)
    return survey.check(said)


@command(
    name="run",
    help={
        "cmd": "the command, in quotes, for the host's shell; its stdin is empty",
        "host": words.SOME,
        "inventory": words.HELP["inventory"],
        "sudo": "as root (default: as the user that logs in)",
        "timeout_s": "seconds until it is ended (default: 60)",
        "json": words.HELP["json"],
        **words.EXECUTOR,
    },
)
def run(
    cmd: str = "",
    host: str = "",
    inventory: str = "",
    sudo: bool = False,
    timeout_s: str = "60",
    json: str = "",
    executor: str = "",
) -> int:
    """Run one command on many hosts at once, and show what they answer; equal answers are shown once.

    Asks nothing and proves nothing: it is for looking around. Exit 1 where the command failed, 3 when a host does not answer.
    """
    from rigwright import oneoff

    return oneoff.run(cmd, host, inventory, sudo, timeout_s, json, executor)


@command(
    name="report",
    help={
        "host": words.SOME,
        "playbook": "what they should be (default: playbooks/provision.yml)",
        "inventory": words.HELP["inventory"],
        "since": "drift from the past until then: 7d, 12h, a date (default: when it was last as it should be)",
        "html": "write the page to FILE (default: fleet.html, unless --json or --prometheus is said)",
        "json": words.HELP["json"],
        "prometheus": "write metrics to FILE.prom, for node_exporter's textfile collector",
        "reload": "a browser that shows the page reads it again every so many seconds, such as 300",
        **words.EXECUTOR,
    },
)
def report(
    host: str = "",
    playbook: str = "",
    inventory: str = "",
    since: str = "",
    html: str = "",
    json: str = "",
    prometheus: str = "",
    reload: str = "",
    executor: str = "",
) -> int:
    """Write a fleet's page, to leave open on a screen; JSON, metrics. Changes nothing.

    What is wrong comes first: drift as fleet.check finds it, checks that fail as
    verify does (without the peer-to-peer test), what became different since the
    last report, what ends soon. Then every machine with its GPUs: how warm they
    are and what they draw, now and in the last days.

        invoke fleet.report
        invoke fleet.report --host gpu --html /srv/www/gpu.html --reload 300
        invoke fleet.report --prometheus rigwright.prom --json fleet.json

    Exit 2 when something is not as wanted, 3 when a host does not answer; the
    others are complete all the same. How to make one every ten minutes, and all
    metrics: docs/fleet.md.
    """
    from rigwright import overview
    from rigwright.showing import Said

    said = Said(
        overview.COMMAND, host or "all", playbook, inventory, since=since, json=json, html=html, prometheus=prometheus,
        reload=reload, executor=executor,
    )  # fmt: skip
    return overview.report(said)
