"""`invoke trust`: shows the host keys of a host and of its gateways, and records them after a yes."""

from __future__ import annotations

from rich.console import Console

from rigwright.cli.answer import Answer, answered
from rigwright.cli.given_inventory import read_inventory
from rigwright.cli.options import TrustOptions
from rigwright.core.control_characters import visible
from rigwright.core.errors import HistoryError
from rigwright.core.process import prompt
from rigwright.history import History
from rigwright.inventory.model import Host
from rigwright.report.labels import local_time
from rigwright.ssh import connect, known_hosts


@answered
def trust(options: TrustOptions, _console: Console) -> Answer:
    """Shows and records the keys of each host and its gateways; exit 2 when another key still counts."""
    inventory = read_inventory(options.inventory, options.vault_password_file)
    hosts = [inventory.only()] if options.host is None else inventory.select(options.host)
    otherwise = "the answer was no; nothing was recorded"
    removals = [command for host in hosts for command in confirm("trust", host, options.yes, otherwise)]
    return Answer(exit_code=2 if removals else 0)


def confirm(command: str, host: Host, yes: bool, otherwise: str) -> list[str]:
    """Records the key of each gateway and of the host after a yes, unless it is on record.

    Returns the commands that remove other keys that ssh prefers to a recorded one. `otherwise` is the message for an
    answer other than yes. Raises ConsentError, Unreachable, UsageError.
    """
    removals: list[str] = []
    for offered in connect.offered_keys(host):
        known = offered.known
        name = f"the gateway {offered.name}" if offered.gateway else f"{host.name} ({offered.name})"
        if known is not None:
            if not offered.gateway:
                print(f"{visible(name)} offers the key that is on record: {known.where}")
            continue
        print(f"{visible(name)} offers {known_hosts.fingerprint(offered.key)}")
        for other in offered.others:
            about = ", ".join(text for text in (visible(other.where), other.since) if text)
            print(f"Another key is on record for {visible(offered.name)}: {known_hosts.fingerprint(other.key)}")
            print(f"  {about}")
        if offered.others:
            if not offered.gateway and (reached := _last_reached(host.name)):
                print(f"The last run that reached {visible(host.name)}: {reached}")
            print("A machine that was installed again has a new key; so has another machine that takes its address.")
        print(known_hosts.comparison(offered.key))
        if not yes:
            prompt.insist(command, "Is it the same?", known_hosts.COMPARED, otherwise)
        print(f"recorded in {known_hosts.trust(offered.name, offered.key)}")
        commands = list(dict.fromkeys(old.removal for old in offered.blocking))
        for todo in commands:
            print("The other key still counts before it. This removes it:")
            print(f"    {todo}")
        removals += commands
        if commands and offered.gateway:
            break
    return removals


def _last_reached(name: str) -> str:
    """When a recorded run reached the host last, and that run's id; "" when the history has none of the last 100."""
    try:
        with History.open(write=False) as past:
            for run in past.runs(100, name):
                if any(host.name == name and host.status != "unreachable" for host in run.hosts):
                    return f"{local_time(run.started)}, run {visible(run.id)}"
    except HistoryError:
        pass
    return ""
