"""Prints Ansible's own result for inventories, in one process for all, because its start takes a second.

python tests/inventory/ansible_says.py '[["hosts.yml", ["gpu", "all:!old"]]]'

prints, for each inventory, the output of `ansible-inventory --list` and `--graph`, and the hosts of each pattern.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from typing import Any

from ansible.cli.inventory import InventoryCLI
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader


def printed(path: str, *words: str) -> str:
    """Returns the output of `ansible-inventory -i PATH WORDS` in a child: Ansible has its command line in globals."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.close(ours)
        with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
            InventoryCLI(["ansible-inventory", "-i", path, *words]).run()
        with os.fdopen(theirs, "w", encoding="utf-8") as pipe:
            pipe.write(text.getvalue())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, encoding="utf-8") as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return found


def one(path: str, patterns: list[str]) -> dict[str, Any]:
    """Returns all results for one inventory."""
    manager = InventoryManager(DataLoader(), [path])
    return {
        "list": json.loads(printed(path, "--list")),
        "graph": printed(path, "--graph").rstrip("\n"),
        "patterns": {pattern: [str(host) for host in manager.get_hosts(pattern)] for pattern in patterns},
    }


if __name__ == "__main__":
    json.dump([one(path, patterns) for path, patterns in json.loads(sys.argv[1])], sys.stdout)
