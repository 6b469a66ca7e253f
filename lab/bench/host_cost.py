"""What the commands of a run cost the host, for `scripts/bench --profile`: processor and wall time of each, alone.

    python -m lab.bench.host_cost HOST PLAYBOOK     prints the table as a JSON text

The commands are those that the last run of `provision` read the host with; what is asked for once for several facts is
one command. Those whose answers the host keeps (`Command.cache_key`) are marked: a run without changes does not start
them.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Sequence

from lab.base.paths import CHECKOUT, INVENTORY, SSH_CONFIG
from rigwright.core.command import Command
from rigwright.core.control_characters import one_line
from rigwright.engine import read_ahead
from rigwright.facts import merging

_MOST = 14
_PROGRAM = """
import base64, json, resource, subprocess, sys, time
def used():
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime
def once(argv, stdin):
    before, began = used(), time.perf_counter()
    null, env = subprocess.DEVNULL, {"LC_ALL": "C", "PATH": "PLACES"}
    subprocess.run(argv, input=stdin, stdout=null, stderr=null, env=env)
    return used() - before, time.perf_counter() - began
print(json.dumps([min(once(argv, base64.b64decode(stdin)) for _ in range(5)) for argv, stdin in json.load(sys.stdin)]))
""".replace("PLACES", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")


def once_each(commands: Sequence[Command]) -> list[Command]:
    """The commands as a batch asks them."""
    merged = merging.merged(tuple(commands))
    inside = {number for one in merged for number in one.numbers}
    return [*(each for number, each in enumerate(commands) if number not in inside), *(one.command for one in merged)]


def table(host: str, commands: Sequence[Command]) -> str:
    """A line for each of the commands that cost a lab host most, and for all others together."""
    asked = once_each(commands)
    given = json.dumps([[list(each.argv), base64.b64encode(each.stdin).decode()] for each in asked])
    argv = ["ssh", "-F", str(SSH_CONFIG), host, "sudo", "python3", "-c", f"'{_PROGRAM}'"]
    done = subprocess.run(argv, input=given, capture_output=True, text=True, check=True)
    rows = sorted(zip(json.loads(done.stdout), asked, strict=True), key=lambda row: -row[0][0])
    lines = [
        f"{1000 * cpu_s:8.1f} ms  {1000 * wall_s:8.1f} ms  "
        f"{'kept' if each.cache_key else '    '}  {one_line(_shown(each))[:100]}"
        for (cpu_s, wall_s), each in rows[:_MOST]
    ]
    rest = sum(cpu_s for (cpu_s, _), _ in rows[_MOST:])
    kept = [cpu_s for (cpu_s, _), each in rows if each.cache_key]
    asked_s = [cpu_s for (cpu_s, _), each in rows if not each.cache_key]
    return "\n".join(
        [
            "processor    alone              command",
            *lines,
            f"{1000 * rest:8.1f} ms                     {len(rows[_MOST:])} others",
            f"{1000 * sum(asked_s):8.1f} ms                     {len(asked_s)} commands that each run asks",
            f"{1000 * sum(kept):8.1f} ms               kept  {len(kept)} commands; together for {len(commands)} facts",
        ]
    )


def _shown(command: Command) -> str:
    """The program of a command; the last line of a script that says something."""
    if command.argv[:2] != ("sh", "-c"):
        return " ".join(command.argv)
    lines = [line.strip() for line in command.argv[2].splitlines() if len(line.strip()) > 15]
    return f"script: {lines[-1] if lines else command.argv[2]}"


if __name__ == "__main__":
    same_again = " ".join(["provision", str(CHECKOUT / sys.argv[2]), str(INVENTORY.resolve())])
    print(json.dumps(table(sys.argv[1], read_ahead.recorded_commands(sys.argv[1], same_again))))
