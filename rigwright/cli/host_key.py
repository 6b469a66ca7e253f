"""Shows the host keys of a host and of its gateways, and records them after a yes: `invoke trust`, `invoke init`."""

from __future__ import annotations

from rigwright.core import prompt
from rigwright.core.control_characters import visible
from rigwright.inventory.model import Host
from rigwright.ssh import connect, known_hosts

TIMEOUT_S = 20


def confirm(command: str, host: Host, yes: bool, otherwise: str) -> list[str]:
    """Records the key of each gateway and of the host after a yes, unless it is on record.

    Returns the commands that remove other keys that count before a recorded one; [] when the host can be reached now.
    `otherwise` is the message for an answer other than yes. Raises ConsentError, Unreachable, UsageError.
    """
    left: list[str] = []
    for offered in connect.offered_keys(host, TIMEOUT_S):
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
            print("A machine that was installed again has a new key; so has another machine that takes its address.")
        print(known_hosts.COMPARE)
        if not yes:
            prompt.insist(command, "Is it the same?", known_hosts.COMPARED, otherwise)
        print(f"recorded in {known_hosts.trust(offered.name, offered.key)}")
        commands = list(dict.fromkeys(old.removal for old in offered.blocking))
        for todo in commands:
            print("The other key still counts before it. This removes it:")
            print(f"    {todo}")
        left += commands
        if commands and offered.gateway:
            break
    return left
