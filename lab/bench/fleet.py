"""Measures many hosts for `scripts/bench --fleet`.

Compares a run without changes with ssh, Ansible and pyinfra, and measures the effect of latency. Hosts have no GPUs.
They share the machine's processors with the controller, so each time includes the hosts' own work.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lab.base.paths import CACHE, CHECKOUT, INVENTORY, KNOWN_HOSTS, SSH_CONFIG, SSH_KEY, USER
from lab.bench.measured import Measured, in_turn, person, row
from lab.cli import commands
from lab.host import disk

NAME, BESIDE, LATENCY_MS = "bench", (16, 64), 50
INVOKE = str(CHECKOUT / ".venv" / "bin" / "invoke")
VENV, RIVALS = CACHE / "bench-venv", CHECKOUT / "lab" / "bench" / "rivals"
SSH_ALL = 'set -e; for h; do ssh -F "$0" "$h" true </dev/null & p="$p $!"; done; for one in $p; do wait "$one"; done'
WIDTHS = (26, 10, 13, 13, 15, 11, 8)


@dataclass(frozen=True)
class Goal:
    """A goal in words, and whether it was met; None when it was not measured."""

    words: str
    met: bool | None

    def __str__(self) -> str:
        """Returns the goal's line."""
        return f"{ {True: 'met   ', False: 'MISSED', None: '-     '}[self.met] }  {self.words}"


def names(count: int) -> list[str]:
    """Returns the names of the first `count` hosts of the bench."""
    return [f"{NAME}{number}" for number in range(1, count + 1)]


def round_trips(near_s: float, far_s: float, rtt_ms: float) -> float:
    """Returns the number of round trips that a command waits for, from its time without and with added latency."""
    return (far_s - near_s) * 1000 / rtt_ms


def linear(seconds: Mapping[int, float]) -> bool:
    """Returns whether the time grows linearly or less: per host, the largest fleet is not slower than the smaller ones.

    Its time per host may be at most 1.1 times the longest time per host of the smaller fleets.
    """
    most = max(seconds)
    return seconds[most] / most <= 1.1 * max(took / count for count, took in seconds.items() if count != most)


def shares(document: Mapping[str, Any], wall_s: float) -> dict[str, float]:
    """Returns the seconds of each part of a run: medians over the hosts, and the time outside the slowest host."""
    hosts = list(document["hosts"].values())
    connect, rounds, all_s = (
        statistics.median(one[key] for one in hosts) for key in ("connecting_s", "asking_s", "seconds")
    )
    longest = max(one["seconds"] for one in hosts)
    return {
        "connect": connect,
        "rounds": rounds,
        "planning": max(0.0, all_s - connect - rounds),
        "start, turn and output": max(0.0, wall_s - longest),
    }


def rigwright(pattern: str, inventory: Path, *more: str) -> tuple[str, ...]:
    """Returns the command that is measured."""
    words = (
        "provision",
        "--host",
        pattern,
        "--inventory",
        str(inventory),
        "--playbook",
        "playbooks/bench.yml",
        "--yes",
    )
    return (INVOKE, *words, *more)


def _rivals(count: int) -> list[Measured]:
    """Returns Ansible and pyinfra with the same steps.

    Both work on as many hosts at a time as there are, and Ansible keeps its connections open.
    """
    hosts = ",".join(names(count))
    options = f"-F /dev/null -o UserKnownHostsFile={KNOWN_HOSTS} -o ControlMaster=auto -o ControlPersist=60s"
    ansible = {"ANSIBLE_SSH_ARGS": options, "ANSIBLE_PIPELINING": "1", "ANSIBLE_NOCOLOR": "1"}
    play = ("-i", str(INVENTORY), "-f", str(count), "-l", hosts, str(RIVALS / "ansible.yml"))
    way = {"ssh_user": USER, "ssh_key": str(SSH_KEY), "ssh_known_hosts_file": str(KNOWN_HOSTS)}
    way |= {"ssh_strict_host_key_checking": "yes"}
    listed = [(one.name, {"ssh_hostname": str(one.address), **way}) for one in disk.known() if one.name in names(count)]
    inventory = CACHE / "pyinfra_inventory.py"
    inventory.write_text(f"hosts = {listed!r}\n")
    deploy = ("-y", str(inventory), str(RIVALS / "pyinfra_deploy.py"))
    return [
        Measured("Ansible", (str(VENV / "bin" / "ansible-playbook"), *play), "changed=0", ansible),
        Measured("pyinfra", (str(VENV / "bin" / "pyinfra"), *deploy), "Grand total"),
    ]


def _install() -> None:
    """Installs Ansible and pyinfra in a separate venv, with the versions of requirements/bench.lock."""
    lock = CHECKOUT / "requirements" / "bench.lock"
    done = VENV / "installed"
    if done.is_file() and done.read_text() == lock.read_text():
        return
    print(f"installing Ansible and pyinfra into {VENV} ...", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    pip = [str(VENV / "bin" / "pip"), "install", "-q", "--require-hashes", "--only-binary=:all:", "-r", str(lock)]
    subprocess.run(pip, check=True)
    done.write_text(lock.read_text())


@contextmanager
def _away(count: int, rtt_ms: float) -> Iterator[Path]:
    """A folder with an inventory and an ssh_config of the same hosts, with a round trip of `rtt_ms` milliseconds."""
    far = [one for one in disk.known() if one.name in names(count)]
    argv = [sys.executable, "-m", "lab.bench.delay", str(rtt_ms), *(f"{one.address}:22" for one in far)]
    folder = CACHE / f"away-{rtt_ms:g}"
    (folder / "inventory").mkdir(parents=True, exist_ok=True)
    lines = [line.split(None, 1) for line in KNOWN_HOSTS.read_text().splitlines()]
    keys = {name: key for named, key in reversed(lines) for name in named.split(",")}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT) as proxy:
        assert proxy.stdout
        ports = {one.name: int(proxy.stdout.readline()) for one in far}
        known = [f"[127.0.0.1]:{ports[one.name]} {keys[str(one.address)]}\n" for one in far]
        (folder / "known_hosts").write_text("".join(known))
        way = {"ansible_user": USER, "ansible_ssh_private_key_file": str(SSH_KEY), "ansible_host": "127.0.0.1"}
        way["ssh_known_hosts"] = str(folder / "known_hosts")
        listed = {one.name: {**way, "ansible_port": ports[one.name]} for one in far}
        (folder / "inventory" / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": listed}}))
        config = f"User {USER}\nIdentityFile {SSH_KEY}\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known_hosts\n"
        config += "".join(f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n" for name, port in ports.items())
        (folder / "ssh_config").write_text(config)
        try:
            yield folder
        finally:
            proxy.communicate("")


def _count(count: int, rounds: int) -> dict[str, Measured]:
    """Measures `count` hosts: ssh to each at once, and rigwright; with as many as in BESIDE also Ansible and
    pyinfra."""
    pattern = ",".join(names(count))
    found = {
        "ssh": Measured("ssh HOST true, each", ("sh", "-c", SSH_ALL, str(SSH_CONFIG), *names(count))),
        "rigwright": Measured("rigwright", rigwright(pattern, INVENTORY), "Nothing to change"),
    }
    if count in BESIDE:
        found |= {one.name: one for one in _rivals(count)}
    for one in found.values():  # an unmeasured run, which makes the changes on the hosts and opens kept connections
        one.says, wanted = "", one.says
        one.run()
        one.says = wanted
        one.wall_s, one.cpu_s, one.peak_mib = [], [], []
    in_turn(list(found.values()), rounds)
    return found


def _latency(rounds: int) -> dict[str, float]:
    """Returns the number of round trips that ssh and rigwright wait for, with one host."""
    with _away(1, 0) as near, _away(1, LATENCY_MS) as far:
        both = {
            (name, place): Measured(f"{name}, {place.name}", argv)
            for place in (near, far)
            for name, argv in (
                ("ssh", ("ssh", "-F", str(place / "ssh_config"), names(1)[0], "true")),
                ("rigwright", rigwright(names(1)[0], place / "inventory")),
            )
        }
        in_turn(list(both.values()), 2 * rounds + 1)
        return {
            name: round_trips(both[name, near].median_s, both[name, far].median_s, LATENCY_MS)
            for name in ("ssh", "rigwright")
        }


def _table(found: Mapping[int, Mapping[str, Measured]]) -> Iterator[str]:
    yield row("hosts", "seconds", "x ssh true", "x rigwright", "CPU s a host", "peak MiB", widths=WIDTHS)
    for count, measured in found.items():
        ssh, ours = measured["ssh"].median_s, measured["rigwright"].median_s
        for one in measured.values():
            cells = (f"{one.median_s:.2f}", f"{one.median_s / ssh:.2f}", f"{one.median_s / ours:.2f}")
            cpu, peak = f"{one.median_cpu_s / count:.3f}", f"{max(one.peak_mib):.0f}"
            yield row(f"{count:4} {one.name}", *cells, cpu, peak, widths=WIDTHS)


def goals(found: Mapping[int, Mapping[str, Measured]], latency: Mapping[str, float]) -> Iterator[Goal]:
    """Yields the goals of the issue and the design; those that were not measured are marked."""
    for count, limit in ((1, 2.0), (16, 2.5), (64, 2.5)):
        at = found.get(count)
        met = at["rigwright"].median_s <= limit * at["ssh"].median_s if at else None
        yield Goal(f"{count} host{'s' * (count > 1)}: at most {limit:g} x ssh true", met)
    for count in BESIDE:
        beside = found.get(count)
        for name, times in (("Ansible", 15), ("pyinfra", 2)):
            met = beside[name].median_s >= times * beside["rigwright"].median_s if beside else None
            yield Goal(f"{count} hosts: {times} times as fast as {name}", met)
    for count, at in found.items():
        if count >= min(BESIDE):
            met = at["rigwright"].median_cpu_s <= at["ssh"].median_cpu_s / 2
            yield Goal(f"{count} hosts: the controller's CPU at most half of ssh's", met)
    yield Goal(f"{LATENCY_MS} ms a round trip: at most 4 round trips", latency["rigwright"] <= 4.5)
    if len(found) > 1:
        growth = {count: at["rigwright"].median_s for count, at in found.items()}
        yield Goal(f"1 to {max(found)} hosts: linear or better", linear(growth))
    peak = max(found[max(found)]["rigwright"].peak_mib)
    yield Goal(f"{max(found)} hosts: the controller takes less than 150 MB", peak * 1.048576 < 150)


def _where(count: int) -> str:
    file = CACHE / "bench.json"
    file.unlink(missing_ok=True)
    file.parent.chmod(0o777) if person().get("user") else None
    one = Measured("", rigwright(",".join(names(count)), INVENTORY, "--json", str(file)))
    one.run()
    spent = shares(json.loads(file.read_text()), one.wall_s[0])
    return ", ".join(f"{what} {took:.2f} s" for what, took in spent.items())


def _quiet(_: str) -> None:
    """Ignores the lab's messages about its hosts."""


def main() -> int:
    """Measures, prints the tables and removes the hosts. Returns the exit code."""
    rounds, counts = int(sys.argv[1]), sorted(int(word) for word in sys.argv[2].split(","))
    os.environ["RIGWRIGHT_HISTORY"] = str(CACHE / "bench-history.sqlite")
    found: dict[int, dict[str, Measured]] = {}
    where: dict[int, str] = {}
    loads: list[float] = []
    if set(BESIDE) & set(counts):
        _install()
    try:
        for count in counts:
            print(f"{count} hosts ...", flush=True)
            commands.up(name=NAME, count=count, say=_quiet)
            found[count] = _count(count, rounds)
            where[count] = _where(count)
            loads.append(os.getloadavg()[0])
            if count == counts[0]:
                latency = _latency(rounds)
    finally:
        for name in names(max(counts)):
            commands.down(name=name, say=_quiet)
    load = " ".join(f"{one:.1f}" for one in loads)
    print(
        f"\n{time.strftime('%Y-%m-%d')}, {rounds} rounds, {os.cpu_count()} CPUs, "
        f"load {load}, Python {sys.version.split()[0]}\n"
    )
    print("\n".join(_table(found)))
    print(
        f"\nRound trips that {LATENCY_MS} ms show: "
        f"rigwright {latency['rigwright']:.1f}, ssh true {latency['ssh']:.1f}\n"
    )
    for count, words in where.items():
        print(f"{count:4} hosts, a host's median: {words}")
    print()
    for goal in goals(found, latency):
        print(goal)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
