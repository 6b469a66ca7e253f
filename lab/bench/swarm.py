"""Measures a thousand hosts for `scripts/bench --swarm`: simulated endpoints that speak SSH, some of which fail.

The endpoints are a process of their own (`lab/bench/swarm_endpoints.py`), so processor time and memory are those of the
controller alone. Who fails and how is drawn from a seed. Afterwards each host must have exactly the verdict that its
failure deserves.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from lab.base.paths import CHECKOUT, INVENTORY, KNOWN_HOSTS, SSH_KEY
from lab.bench import swarm_recording, swarm_workers
from lab.bench.measured import row

SHARES = {"away": 0.02, "silent": 0.005, "stuck": 0.005, "wrong key": 0.01, "flood": 0.005}
"""The share of each failure: nothing listens; no answer to the connection; no answer to a script; another host key;
endless output."""
SAYS = {
    "away": "the connection was refused",
    "silent": "no login within",
    "stuck": "the connection was lost",
    "wrong key": "the host key has changed",
    "flood": "its output is longer than",
}
"""What the error of a host says, by its failure."""
NAME, REAL = "swarm", "swarm-real"
COMMANDS = {"fleet.check": ("fleet.check",), "provision": ("provision", "--yes")}
TIMES = ("", " again")
"""Each command runs with an empty history, and again with what the first run recorded."""
WIDTHS = (26, 10, 10, 12, 11, 8, 15)
HEADINGS = ("hosts", "seconds", "CPU s", "ms a host", "peak MiB", "wrong", "workers' CPU s")
"""The last one only with --executor."""
GOAL_CPU_S, GOAL_MIB = 0.015, 300 / 1.048576
PROGRAM = """
import atexit, pathlib, re, sys
def peak(file):
    status = pathlib.Path("/proc/self/status").read_text()
    file.write_text(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1])
atexit.register(peak, pathlib.Path(sys.argv.pop(1)))
stages = sys.argv.pop(1)
if stages:
    from lab.bench import swarm_stages
    swarm_stages.run(pathlib.Path(stages), sys.argv[1:])
from lab.bench.tricks import TRICKS
TRICKS[sys.argv.pop(1)]()
from rigwright.cli.program import main
main()
"""
"""Runs a command and writes the peak memory of its process, KiB, to the file of its first word; with a second word the
stages to that file; the third is a trick that is turned off, or `none`.

`ru_maxrss` is no measure of it: Linux counts the process that started the command as well (kernel/exec:
`setmax_mm_hiwater_rss`)."""


@dataclass(frozen=True)
class Swarm:
    """Endpoints in a folder: their plan, the inventory and what the seed says of each (`kinds`, by host name)."""

    folder: Path
    kinds: Mapping[str, str]

    @property
    def inventory(self) -> Path:
        """The inventory that lists the endpoints."""
        return self.folder / "inventory"


@dataclass
class Run:
    """A measured command: its cost for the controller, and its JSON document."""

    code: int
    wall_s: float
    cpu_s: float
    peak_mib: float
    hosts: Mapping[str, Any] = field(repr=False)
    said: str = field(default="", repr=False)
    workers_cpu_s: float = 0.0
    """Processor time of all workers, with `--executor`."""
    stages: Mapping[str, float] = field(default_factory=dict)


def drawn(count: int, seed: int, shares: Mapping[str, float] = SHARES) -> list[str]:
    """The kind of each endpoint, "ok" for one without failure: the exact shares, at least one of each, in an order
    drawn from the seed."""
    failing = [kind for kind, share in shares.items() for _ in range(max(1, round(count * share)))]
    kinds = [*failing, *["ok"] * (count - len(failing))]
    random.Random(seed).shuffle(kinds)
    return kinds


def prepare(
    folder: Path,
    recording: Path,
    count: int,
    seed: int,
    variables: Mapping[str, Any],
    shares: Mapping[str, float] = SHARES,
    real: Mapping[str, Mapping[str, Any]] | None = None,
) -> Swarm:
    """Writes the plan of the endpoints, their inventory, known hosts and login key. `real`: other hosts of the
    inventory, with their connections."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(seed + 1)
    with socket.create_server(("127.81.0.1", 0)) as free:  # so that two swarms can run at once
        port: int = free.getsockname()[1]
    endpoints, hosts, known = [], {}, []
    kinds: dict[str, str] = {}
    for number, kind in enumerate(drawn(count, seed, shares), start=1):
        name, address = f"swarm{number:05}", f"127.81.{number // 250}.{number % 250 + 1}"
        host_key = asyncssh.generate_private_key("ssh-ed25519")
        offered = asyncssh.generate_private_key("ssh-ed25519") if kind == "wrong key" else host_key
        endpoints.append(
            {
                "number": number, "kind": kind, "address": address, "port": port,
                "latency_s": round(min(0.5, chance.lognormvariate(-4, 0.8)), 4),
                "host_key": offered.export_private_key().decode(),
            }
        )  # fmt: skip
        known.append(f"[{address}]:{port} {host_key.export_public_key().decode()}")
        hosts[name] = {"ansible_host": address}
        kinds[name] = kind
    login = folder / "id_ed25519"
    login.write_bytes(asyncssh.generate_private_key("ssh-ed25519").export_private_key())
    login.chmod(0o600)
    (folder / "known_hosts").write_text("".join(known))
    (folder / "plan.json").write_text(json.dumps({"recording": str(recording), "endpoints": endpoints}))
    way = {"ansible_user": "root", "ansible_port": port, "ansible_ssh_private_key_file": str(login)}
    groups = {"swarm": {"hosts": hosts, "vars": {**variables, **way, "ssh_known_hosts": str(folder / "known_hosts")}}}
    if real:
        groups["real"] = {"hosts": {name: dict(given) for name, given in real.items()}, "vars": dict(variables)}
        kinds |= dict.fromkeys(real, "ok")
    (folder / "inventory").mkdir(exist_ok=True)
    (folder / "inventory" / "hosts.yml").write_text(json.dumps({"all": {"children": {"gpu": {"children": groups}}}}))
    return Swarm(folder, kinds)


@contextlib.contextmanager
def endpoints(swarm: Swarm) -> Iterator[list[str]]:
    """Runs the endpoints. At the end the list has the first scripts that the recording lacks."""
    argv = [sys.executable, "-m", "lab.bench.swarm_endpoints", str(swarm.folder / "plan.json")]
    missing: list[str] = []
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT) as process:
        assert process.stdout
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the endpoints did not begin to listen")
        try:
            yield missing
        finally:
            told = process.communicate("")[0]
            missing.extend(json.loads(told.splitlines()[-1])["first"] if told else ["the endpoints ended"])


def measured(
    swarm: Swarm,
    words: Sequence[str],
    *,
    forget: bool = True,
    stages: bool = False,
    workers: swarm_workers.Workers | None = None,
    without: str = "none",
) -> Run:
    """Runs a command on all hosts, and measures the controller: processor time and memory of its process. `forget`:
    with an empty history. `stages`: also the processor time of each stage. `workers`: they have the hosts, and are
    measured too. `without`: a trick of `lab.bench.tricks` that is turned off."""
    document = swarm.folder / "document.json"
    history = swarm.folder / "history"
    peak = swarm.folder / "peak_memory_kib"
    for file in (document, peak, *(history.glob("*") if forget and history.is_dir() else ())):
        file.unlink(missing_ok=True)
    own = {"RIGWRIGHT_HISTORY": str(history / "history.sqlite"), "XDG_STATE_HOME": str(swarm.folder / "state")}
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"} | own
    of_stages = swarm.folder / "stages.json"
    argv = [sys.executable, "-c", PROGRAM, str(peak), str(of_stages) if stages else "", without, *words]
    argv += ["--inventory", str(swarm.inventory), "--host", "all", "--json", str(document)]
    argv += workers.words() if workers else []
    before_s = workers.cpu_s() if workers else 0.0
    with (swarm.folder / "said").open("w+") as said:
        began = time.perf_counter()
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=CHECKOUT, env=environment
        )
        _, status, used = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read()
    if not (document.is_file() and peak.is_file()):
        raise RuntimeError(f"{' '.join(words)}: exit {child.returncode}\n{text[-2000:]}")
    hosts = json.loads(document.read_text())["hosts"]
    run = Run(child.returncode, wall_s, used.ru_utime + used.ru_stime, int(peak.read_text()) / 1024, hosts, text)
    if workers:
        run.workers_cpu_s = workers.cpu_s() - before_s
    if stages:
        run.stages = json.loads(of_stages.read_text())
    return run


def wrong(swarm: Swarm, run: Run) -> list[str]:
    """What is not as the seed says: a host without a verdict, one that is not of the swarm, a verdict that is not that
    of its failure, and a host that was changed."""
    lines = [f"{name}: no verdict" for name in swarm.kinds.keys() - run.hosts.keys()]
    lines += [f"{name}: not asked for" for name in run.hosts.keys() - swarm.kinds.keys()]
    answers = {
        name: _answer(run.hosts[name]) for name, kind in swarm.kinds.items() if kind == "ok" and name in run.hosts
    }
    usual = Counter(answer for name, answer in answers.items() if not name.startswith(REAL)).most_common(1)
    lines += [
        f"{name}: {answer}, the others {usual[0][0]}"
        for name, answer in answers.items()
        if not name.startswith(REAL) and answer != usual[0][0]
    ]
    for name, kind in swarm.kinds.items():
        host = run.hosts.get(name, {})
        error = json.dumps(host.get("error"))
        if host and (error != "null" if kind == "ok" else SAYS[kind] not in error):
            lines.append(f"{name} ({kind}): {host.get('status')}, {error[:300]}")
        elif changed := [change["subject"] for change in host.get("changes") or () if change["done"]]:
            lines.append(f"{name}: it was changed: {', '.join(changed)[:300]}")
    return sorted(lines)


def _answer(host: Mapping[str, Any]) -> str:
    """What endpoints without a failure must have in common: they gave the same answers."""
    kept, findings = len(host.get("kept") or ()), len(host.get("findings") or ())
    return f"{host.get('status')} with {findings} findings and {kept} facts"


def verdicts(swarm: Swarm, run: Run) -> Counter[str]:
    """How many hosts have each status."""
    return Counter(str(run.hosts[name]["status"]) for name in swarm.kinds if name in run.hosts)


def _host_variables(name: str) -> dict[str, Any]:
    """The variables of the recorded host that are not about its connection."""
    from rigwright import inventory

    of_host = inventory.read(INVENTORY).hosts[name].variables
    return {key: value for key, value in of_host.items() if not key.startswith(("ansible_", "ssh_"))}


def _real(count: int) -> dict[str, dict[str, Any]]:
    """The connection of real lab hosts that this bench made, by name."""
    if not count:
        return {}
    from rigwright import inventory

    hosts = inventory.read(INVENTORY).hosts
    keys = ("ansible_host", "ansible_port", "ansible_user", "ansible_ssh_private_key_file", "ssh_known_hosts")
    way = ("ssh_known_hosts", str(KNOWN_HOSTS)), ("ansible_ssh_private_key_file", str(SSH_KEY))
    return {
        name: {**dict(way), **{key: hosts[name].variables[key] for key in keys if key in hosts[name].variables}}
        for name in (f"{REAL}{number}" for number in range(1, count + 1))
    }


def _record(folder: Path, file: Path) -> None:
    """Runs the measured commands on the provisioned host, in the order in which they are measured; writes the
    recording."""
    made = folder / "recording.json"
    swarm_recording.save(made, swarm_recording.Recording({}, _host_variables(NAME)))
    for name, words in COMMANDS.items():
        for time_ in TIMES:  # without read-ahead, which is for a few hosts
            own = {
                "RIGWRIGHT_HISTORY": str(folder / name / "history.sqlite"),
                "XDG_STATE_HOME": str(folder / f"{name}{time_}-state"),
            }
            argv = [sys.executable, "-m", "lab.bench.swarm_recording", str(made), *words, "--host", NAME]
            argv += ["--inventory", str(INVENTORY), "--json", str(folder / "one-document.json")]
            _run(argv, (0, 2), own)  # 2: it differs from its playbook, as each endpoint then does
    shutil.copyfile(made, file)


def _run(argv: Sequence[str], codes: Collection[int], variables: Mapping[str, str]) -> None:
    """Runs a command that is not measured; exits the benchmark when its exit code is none of these."""
    environment = {**os.environ, **variables}
    done = subprocess.run(
        argv, cwd=CHECKOUT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode not in codes:
        sys.exit(f"error {' '.join(argv)}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


@contextlib.contextmanager
def _lab_hosts(folder: Path, recording: Path, real: int, rig: str) -> Iterator[None]:
    """Provisions a lab host, makes the recording of it if there is none, and boots the real hosts, which are copies of
    it: the measured `provision` finds nothing to change. Removes them all at the end."""
    from lab.cli import commands

    if recording.exists() and not real:
        yield
        return
    try:
        commands.up(name=NAME, rig=rig, say=print)
        argv = [sys.executable, "-c", "from rigwright.cli.program import main; main()", *COMMANDS["provision"]]
        _run([*argv, "--host", NAME, "--inventory", str(INVENTORY)], (0,), {})
        if not recording.exists():
            _record(folder, recording)
        if real:
            began = time.monotonic()
            commands.up(name=REAL, count=real, copy_of=NAME, say=lambda _: None)
            print(f"{real} copies of {NAME} are up after {time.monotonic() - began:.0f} s", flush=True)
        commands.down(name=NAME, say=print)
        yield
    finally:
        commands.down(name=NAME, say=lambda _: None)
        for number in range(1, real + 1):
            commands.down(name=f"{REAL}{number}", say=lambda _: None)


@contextlib.contextmanager
def _workers(given: argparse.Namespace, folder: Path) -> Iterator[swarm_workers.Workers | None]:
    """Runs the workers of --executor; none without it."""
    if not given.executor:
        yield None
        return
    with swarm_workers.running(given.executor, given.slice, folder / "workers") as workers:
        yield workers


def _row(name: str, count: int, run: Run, bad: Sequence[str]) -> str:
    cpu_ms = 1000 * run.cpu_s / count
    of_workers = (f"{run.workers_cpu_s:.1f}",) if run.workers_cpu_s else ()
    return row(
        f"{count:5} {name}", f"{run.wall_s:.1f}", f"{run.cpu_s:.1f}", f"{cpu_ms:.1f}", f"{run.peak_mib:.0f}",
        str(len(bad)),
        *of_workers, widths=WIDTHS,
    )  # fmt: skip


def _stages(runs: Mapping[str, Run], count: int) -> Iterator[str]:
    """The lines of the table of stages: milliseconds a host of each command."""
    widths = (42, *(len(name) + 3 for name in runs))
    yield "\n" + row("ms a host", *runs, widths=widths)
    for stage in dict.fromkeys(stage for run in runs.values() for stage in run.stages):
        cells = (1000 * run.stages.get(stage, 0.0) / count for run in runs.values())
        yield row(stage, *(f"{cell:.2f}" for cell in cells), widths=widths)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench --swarm")
    parser.add_argument("counts")
    parser.add_argument("--real", type=int, default=0)
    parser.add_argument("--executor", type=int, default=0)
    parser.add_argument("--slice", type=int, default=0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--rig", default="servbadge")
    parser.add_argument("--recording", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--stages", action="store_true")
    parser.add_argument("--without", default="none")
    return parser.parse_args()


def main() -> int:
    """Measures each count, prints the table and removes the hosts; returns 1 for a wrong verdict."""
    given = _options()
    counts = sorted(int(word) for word in given.counts.split(","))
    shares = {kind: share for kind, share in SHARES.items() if kind != "stuck" or not given.quick}
    lines: list[str] = []
    all_bad: list[str] = []
    found: dict[tuple[int, str], Run] = {}
    with tempfile.TemporaryDirectory(prefix="rigwright-swarm.") as made:
        folder = Path(made)
        recording = given.recording or folder / "recorded.json"
        with _lab_hosts(folder, recording, given.real, given.rig), _workers(given, folder) as workers:
            variables = swarm_recording.load(recording).variables
            for count in counts:
                swarm = prepare(folder / str(count), recording, count, given.seed, variables, shares, _real(given.real))
                for name, words in COMMANDS.items():
                    for time_ in TIMES:
                        with endpoints(swarm) as missing:
                            run = found[count, f"{name}{time_}"] = measured(
                                swarm,
                                words,
                                forget=not time_,
                                stages=given.stages,
                                workers=workers,
                                without=given.without,
                            )
                        bad = [*wrong(swarm, run), *(f"not recorded: {text[:200]}" for text in missing)]
                        all_bad += bad
                        lines.append(_row(f"{name}{time_}", len(swarm.kinds), run, bad))
                        print(lines[-1], dict(verdicts(swarm, run)), flush=True)
    load = os.getloadavg()[0]
    print(f"\n{time.strftime('%Y-%m-%d')}, seed {given.seed}, {os.cpu_count()} CPUs, load {load:.1f}\n")
    print(row(*(HEADINGS if given.executor else HEADINGS[:-1]), widths=WIDTHS))
    print("\n".join([*lines, *all_bad[:20]]))
    most = max(counts)
    if given.stages:
        print("\n".join(_stages({name: run for (count, name), run in found.items() if count == most}, most)))
    for (count, name), run in found.items() if not all_bad else ():
        if count == most:
            cpu_met, memory_met = run.cpu_s <= GOAL_CPU_S * most, run.peak_mib <= GOAL_MIB
            print(f"{'met   ' if cpu_met else 'MISSED'}  {name}: at most {1000 * GOAL_CPU_S:g} ms of CPU a host")
            print(f"{'met   ' if memory_met else 'MISSED'}  {name}: less than 300 MB")
    return 1 if all_bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
