"""Runs rigwright's command line with one of its speed tricks turned off, and compares its cost with that of all tricks.

    python -m lab.bench.tricks ROUNDS [NAME...]       the table of `scripts/bench --without NAME`
    python -m lab.bench.tricks run NAME WORD...       one command without a trick; NAME `none`: with all of them

docs/develop/speed.md says what each trick does.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

RTT_MS = 50


def _replace(owner: object, name: str, value: object) -> None:
    getattr(owner, name)  # a name that has changed is an error, not a trick that stays on
    setattr(owner, name, value)


def _patterns_at_once() -> None:
    from rigwright.core import lazy_re

    _replace(lazy_re, "compile", re.compile)


def _nothing_ahead() -> None:
    from rigwright.engine import read_ahead

    _replace(read_ahead, "recorded_commands", lambda _host, _command: ())


def _every_answer_parsed() -> None:
    from rigwright.engine.shared_results import SharedResults
    from rigwright.facts.repeated_answers import RepeatedAnswers

    _replace(RepeatedAnswers, "parsed", lambda _self, _asked, parse, result: parse(result))
    _replace(SharedResults, "of", lambda _self, _subject, store, make, _keep=None: make(store))


def _one_request_after_the_other() -> None:
    from rigwright.ssh import pipelined_login

    _replace(pipelined_login, "_IN_ORDER", "no version begins with this")


def _nothing_on_disk() -> None:
    from rigwright.core.files import disk_cache

    _replace(disk_cache, "enabled", False)


def _nothing_kept_on_the_host() -> None:
    from rigwright.facts import installed

    _replace(installed, "INSTALLED", "")
    _replace(installed, "DEVICES", "")


def _entry_points_by_metadata() -> None:
    from importlib import metadata

    from rigwright.core import features

    points = metadata.entry_points(group=features.ENTRY_POINTS)
    _replace(features, "_of_other_distributions", lambda: {point.name: point.load() for point in points})


def _mock_is_imported() -> None:
    import unittest.mock  # noqa: F401


def _garbage_is_collected() -> None:
    _replace(gc, "set_threshold", lambda *_: None)
    _replace(gc, "freeze", lambda: None)


TRICKS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "lazy_re": _patterns_at_once,
    "read_ahead": _nothing_ahead,
    "repeated_answers": _every_answer_parsed,
    "pipelined_login": _one_request_after_the_other,
    "disk_cache": _nothing_on_disk,
    "kept_on_host": _nothing_kept_on_the_host,
    "entry_points": _entry_points_by_metadata,
    "mock": _mock_is_imported,
    "garbage": _garbage_is_collected,
}
"""What turns each trick off. `none` is the run with all of them."""


@contextmanager
def _far_inventory(folder: Path, rtt_ms: float) -> Iterator[str]:
    """Yields an inventory in which a round trip to the host takes `rtt_ms` milliseconds."""
    import yaml

    from lab.base.paths import INVENTORY, KNOWN_HOSTS
    from lab.bench import no_change
    from lab.host import disk

    address = str(next(host.address for host in disk.known() if host.name == no_change.NOW.host))
    argv = [sys.executable, "-m", "lab.bench.delay", str(rtt_ms), f"{address}:22"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout
        port = int(proxy.stdout.readline())
        lines = [line.split(None, 1) for line in KNOWN_HOSTS.read_text().splitlines()]
        known = "".join(f"[127.0.0.1]:{port} {key}\n" for names, key in lines if address in names.split(","))
        (folder / "known_hosts").write_text(known)
        shutil.copytree(INVENTORY, folder / "inventory")
        hosts = folder / "inventory" / "hosts.yml"
        groups = yaml.safe_load(hosts.read_text())
        way = {"ansible_host": "127.0.0.1", "ansible_port": port, "ssh_known_hosts": str(folder / "known_hosts")}
        groups["all"]["children"]["gpu"]["hosts"][no_change.NOW.host].update(way)
        hosts.write_text(yaml.safe_dump(groups))
        try:
            yield str(folder / "inventory")
        finally:
            proxy.communicate("")


def compare(rounds: int, names: list[str]) -> int:
    """Provisions a simulated host, and prints for each trick the cost of a run without changes, as a ratio to the run
    with all of them, near and with a round trip of RTT_MS. Returns the exit code."""
    from lab.base.paths import INVENTORY
    from lab.bench import no_change
    from lab.bench.measured import Measured, in_turn, row
    from lab.cli import commands as lab

    host = no_change.NOW
    lab.up(name=host.host, rig=no_change.RIG, say=print)
    try:
        with tempfile.TemporaryDirectory(prefix="rigwright-bench-") as made:
            os.chmod(made, 0o777)
            no_change.prepare(host, host.commands())
            with _far_inventory(Path(made), RTT_MS) as far:
                runs = {}
                for where, inventory in (("", str(INVENTORY)), (f", {RTT_MS} ms away", far)):
                    words = ("provision", "--yes", "--host", host.host, "--inventory", inventory)
                    for name in ("none", *names):
                        argv = (no_change.PYTHON, "-m", "lab.bench.tricks", "run", name, *words)
                        state = {"XDG_STATE_HOME": f"{made}/{name}{where}"}
                        runs[name, where] = Measured(name + where, argv, "Nothing to change", state)
                in_turn(list(runs.values()), 3)  # the third run of each reads ahead all that it needs
                for run in runs.values():
                    run.wall_s.clear()
                    run.cpu_s.clear()
                in_turn(list(runs.values()), rounds)
    finally:
        lab.down(name=host.host, say=print)
    print(row("provision.yml without", "seconds", "x all tricks", "CPU s", "x all"))
    for (_, where), run in runs.items():
        whole = runs["none", where]
        wall, cpu = run.median_s / whole.median_s, run.median_cpu_s / whole.median_cpu_s
        print(row(run.name, f"{run.median_s:.3f}", f"{wall:.2f}", f"{run.median_cpu_s:.3f}", f"{cpu:.2f}"))
    return 0


def main(words: list[str]) -> int:
    """Runs a command without a trick, or compares; returns the exit code."""
    if words[0] != "run":
        return compare(int(words[0]), words[1:] or [name for name in TRICKS if name != "none"])
    TRICKS[words[1]]()
    from rigwright.cli import program

    sys.argv = ["invoke", *words[2:]]
    program.main()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
