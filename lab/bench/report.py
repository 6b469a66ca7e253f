"""Measures `fleet.report` of a large fleet for `scripts/bench --report`: its time and memory, the page in a browser,
the history of a year.

One simulated host of each rig is provisioned and looked at. Its documents, with other identities and with problems that
a seed draws, are those of all machines. The history is written by rigwright's own writer, run after run. What is
measured of `fleet.report` begins when all hosts have answered: comparison with the past and with peers, text, document,
record in the history, page.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.base.paths import CHECKOUT, INVENTORY
from lab.bench.measured import row
from rigwright.engine.machine import MachineResult

NAME = "report"
DAYS, EVERY_MIN = 365, 10
"""The history is of so many days; during the last day there is a report every ten minutes."""
HOURLY_DAYS = 15
"""So many days have a report each hour. In a real fleet there is one every ten minutes, of which the history keeps as
much."""
NOT_PATCHED = 0.031
"""The share of the machines with a driver of branch 535, which has no fixes any more."""
OLD, NEW = "535.261.03", "580.178.04"
WIDTHS = (46, 12, 12)
GOAL_PAGE_MB, GOAL_OPEN_S = 3.0, 2.0
Fleet = dict[str, dict[str, dict[str, Any]]]
"""By host name its part of the document of each command."""

PROGRAM = "import sys; from lab.bench.report import report; report(*sys.argv[1:])"


@dataclass
class Rig:
    """The documents of one simulated host: its part of that of each command."""

    documents: dict[str, dict[str, Any]]


def recorded(rig: str, folder: Path) -> Rig:
    """Makes a simulated host of a rig, provisions and looks at it; removes it. Returns its documents."""
    from lab.cli import commands

    own = {"RIGWRIGHT_HISTORY": str(folder / rig / "history.sqlite"), "XDG_STATE_HOME": str(folder / rig / "state")}
    words = {
        "provision": ("--yes",),
        "verify": ("--quick",),
        "fleet.report": (),
    }
    documents = {}
    commands.up(name=NAME, rig=rig, say=print)
    try:
        for command, more in words.items():
            file = folder / f"{rig}.{command}.json"
            argv = [sys.executable, "-c", "from rigwright.cli.program import main; main()", command, *more]
            argv += ["--host", NAME, "--inventory", str(INVENTORY), "--json", str(file)]
            done = subprocess.run(
                argv, cwd=CHECKOUT, env={**os.environ, **own}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            if done.returncode not in (0, 2):
                sys.exit(f"error {command}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            documents[command] = json.loads(file.read_text())["hosts"][NAME]
    finally:
        commands.down(name=NAME, say=print)
    return Rig(documents)


def machines(count: int, seed: int, rigs: Sequence[Rig]) -> Fleet:
    """By host name its part of the document of each command. Identities differ; problems are drawn from the seed."""
    chance = random.Random(seed)
    made = {}
    for number in range(1, count + 1):
        rig = rigs[number % len(rigs)]
        name = f"gpu{number:04}"
        driver = OLD if chance.random() < NOT_PATCHED else NEW
        texts = {}
        for command, document in rig.documents.items():
            short = {**document, "events": [], "p2p": None, "facts": {}}
            texts[command] = _as_machine(json.dumps(short), name, number, driver)
        hosts = {command: json.loads(text) for command, text in texts.items()}
        for host in hosts.values():
            for finding in host["findings"]:
                if finding["check"] == "driver.patched" and driver == NEW:
                    finding |= {"verdict": "pass", "seen": f"driver {NEW}", "cause": "", "fix": "", "symptom": ""}
        _spoil(hosts["fleet.report"], chance)
        made[name] = hosts
    return made


def _as_machine(text: str, name: str, number: int, driver: str) -> str:
    """The JSON of a host as that of another machine: name, address, driver, UUIDs, serials and machine-id."""
    address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    text = re.sub(rf"\b{NAME}\b", name, text)
    text = re.sub(r"\b10\.99\.\d+\.\d+\b", address, text).replace(OLD, driver)
    text = re.sub(
        r"GPU-[0-9a-f]{8}", lambda found: f"GPU-{int(found[0][4:], 16) ^ (number * 2654435761 & 0xFFFFFFFF):08x}", text
    )
    text = re.sub(
        r'("(?:product_uuid|machine_id_hash)": ")([0-9a-f-]+)"',
        lambda found: f'{found[1]}{found[2][:-8]}{number * 2654435761 & 0xFFFFFFFF:08x}"',
        text,
    )
    return re.sub(
        r'("(?:serial|board_serial)": ")([^"]{4,})"', lambda found: f'{found[1]}{found[2][:-5]}{number:05}"', text
    )


def _finding(check: str, subject: str, verdict: str, seen: str, **more: str) -> dict[str, Any]:
    empty = dict.fromkeys(("expected", "cause", "fix", "source", "symptom"), "")
    return {"check": check, "subject": subject, "verdict": verdict, "seen": seen, **empty, **more}


def _spoil(host: dict[str, Any], chance: random.Random) -> None:
    """Gives the machine the problem that chance draws, mostly none."""
    gpu = chance.choice(host["machine"]["gpus"])
    at = f"{gpu['position']} {gpu['bus_id']}".strip()
    drawn = chance.random()
    worse: dict[str, Any] | None = None
    if drawn < 0.02:
        error = {
            "where": "",
            "found": f"the connection was refused ({host['address']}, port 22)",
            "expected": "sshd that answers",
            "fix": f"ping {host['address']}",
        }
        host |= {
            "status": "unreachable",
            "error": error,
            "findings": [],
            "machine": None,
            "kept": {},
            "identity": None,
            "baseline": None,
        }
        return
    if drawn < 0.04:
        degrees = chance.randint(84, 91)
        gpu["temperature_c"] = degrees
        worse = _finding(
            "health.heat",
            at,
            "warn",
            f"{degrees} C under load, hotter than its peers",
            expected=f"about {chance.randint(64, 70)} C",
            cause="dust, a fan, or paste that has dried",
            fix="clean it; then invoke verify again",
            source="peers",
        )
    elif drawn < 0.052:
        xid = chance.choice((31, 79, 63))
        worse = _finding(
            "health.xids",
            at,
            "fail",
            f"{chance.randint(1, 9)} x Xid {xid} since boot",
            expected="none",
            cause="the GPU reported an error",
            fix=f"invoke explain 'Xid {xid}'",
        )
    elif drawn < 0.057:
        gpu |= {
            "answers": False,
            "lost": "GPU is lost",
            "temperature_c": None,
            "power_w": None,
            "utilization_percent": None,
            "memory_used_mib": None,
        }
        worse = _finding(
            "gpu.answering",
            at,
            "fail",
            "GPU is lost",
            expected="an answer",
            cause="the GPU fell off the bus",
            fix="sudo poweroff; reseat it",
            symptom="gpu.off_bus",
        )
    elif drawn < 0.067:
        worse = _finding(
            "health.memory",
            at,
            "warn",
            f"{chance.randint(1, 12)} rows remapped",
            cause="memory cells have failed",
            fix="watch it",
        )
    elif drawn < 0.097:
        worse = _finding(
            "plan",
            f"Limits in force: {at}",
            "fail",
            f"{chance.choice((250, 300))} W",
            expected="200 W",
            fix="invoke provision",
            source="inventory",
        )
    elif drawn < 0.12:
        host["kept"]["system.running_kernel"] = chance.choice(("6.8.0-71-generic", "6.8.0-60-generic"))
        host["machine"]["kernel"] = host["kept"]["system.running_kernel"]
    elif drawn < 0.13:
        free = chance.randint(40, 900)
        worse = _finding(
            "machine.room", "disks", "warn", f"/var {free} MiB free", expected="2048 MiB", fix="sudo apt clean"
        )
    if worse:
        host["findings"].append(worse)
        host["status"] = "failed" if worse["verdict"] == "fail" else host["status"]


def document_of(command: str, at: datetime.datetime, hosts: dict[str, Any], number: int) -> dict[str, Any]:
    """The document of a run at a time."""
    return {
        "schema": 2, "command": command, "run": f"{at:%Y%m%d-%H%M%S}-{number:08x}", "started": at.isoformat(),
        "ended": at.isoformat(),
        "playbook": "playbooks/provision.yml", "inventory": "inventory", "exit_code": 0, "error": None, "hosts": hosts,
    }  # fmt: skip


def times_of_a_year(now: datetime.datetime) -> Iterator[tuple[datetime.datetime, str]]:
    """The runs of a year, oldest first: `provision` each month, `verify` each week, and reports."""

    def ago(**more: float) -> datetime.datetime:
        return now - datetime.timedelta(**more)

    runs = [(ago(days=day, hours=3), "provision") for day in range(5, DAYS, 30)]
    runs += [(ago(days=day, hours=2), "verify") for day in range(1, DAYS, 7)]
    runs += [(ago(days=day), "fleet.report") for day in range(HOURLY_DAYS, DAYS, 5)]
    runs += [(ago(hours=hour), "fleet.report") for hour in range(25, HOURLY_DAYS * 24)]
    runs += [(ago(minutes=minute), "fleet.report") for minute in range(EVERY_MIN, 25 * 60, EVERY_MIN)]
    return iter(sorted(runs))


def write_year(path: Path, fleet: Fleet, seed: int, now: datetime.datetime, progress: Path) -> float:
    """Writes the history of a year, or what is missing of it after an earlier call that was ended; `progress` is the
    file that tells. Returns the median seconds that the record of a report of the last day took."""
    from rigwright.history import History

    done: dict[str, Any] = json.loads(progress.read_text()) if progress.is_file() else {"runs": 0, "record_s": []}
    runs = list(times_of_a_year(now))
    hosts: dict[str, dict[str, Any]] = {
        command: {name: copy.deepcopy(of[command]) for name, of in fleet.items()} for command in ("provision",
        "verify", "fleet.report")
    }  # fmt: skip
    usual = {name: of["verify"] for name, of in fleet.items()}
    gpus = [gpu for host in hosts["fleet.report"].values() if host["machine"] for gpu in host["machine"]["gpus"]]
    if done["runs"] > runs.index(next(run for run in runs if run[1] == "provision")):
        _few_changes(hosts["provision"])
    with History.open(path) as history:
        for number, (at, command) in enumerate(runs):
            if number < done["runs"]:
                continue
            chance = random.Random(f"{seed} {number}")
            if command == "fleet.report":
                _live(gpus, at, chance)
            days = (now - at).days
            for name, host in hosts[command].items():
                if host["kept"] and "system.running_kernel" in host["kept"]:
                    of_now = usual[name]["kept"]["system.running_kernel"]
                    kept = f"6.{days // 60}.0-{days // 60}-generic" if days > 60 else of_now
                    host["kept"]["system.running_kernel"] = kept  # a new kernel every two months
                    host["kept"]["kernel.newest"] = kept
            for name in chance.sample(sorted(fleet), max(1, len(fleet) // 200)):  # what some runs find differs
                if command != "provision" and hosts[command][name]["findings"]:
                    finding = hosts[command][name]["findings"][0]
                    finding["seen"] = f"{finding['seen'].partition(', seen ')[0]}, seen {at:%m-%d}"
            began = time.perf_counter()
            history.record(document_of(command, at, hosts[command], number))
            if command == "provision":
                _few_changes(hosts[command])
            if command == "fleet.report":
                done["record_s"].append(time.perf_counter() - began)
            done["runs"] = number + 1
            progress.write_text(json.dumps(done))
            if number % 50 == 0:
                print(f"{number} of {len(runs)} runs, {path.stat().st_size / 1e6:.0f} MB", flush=True)
    return float(statistics.median(done["record_s"][-100:]))


def _few_changes(hosts: dict[str, dict[str, Any]]) -> None:
    """Leaves three changes and steps of the first `provision`, as a later one has that moves a driver to its next
    release."""
    for host in hosts.values():
        host["changes"] = host["changes"][:3]
        host["steps"] = [*host["steps"][:3], *({**step, "status": "ok"} for step in host["steps"][3:])]


def _live(gpus: Sequence[dict[str, Any]], at: datetime.datetime, chance: random.Random) -> None:
    """Gives the GPUs the temperature and power of a moment."""
    hour = at.hour / 24
    for gpu in gpus:
        if gpu["temperature_c"] is not None:
            share = chance.random()
            gpu["temperature_c"] = int(34 + 40 * share + 5 * hour)
            gpu["power_w"] = round(40 + 150 * share, 1)


def without_pruning(folder: Path, fleet: Fleet, now: datetime.datetime) -> float:
    """The bytes of a year in which nothing is deleted, calculated from the bytes that single runs add: a report every
    ten minutes, `verify` each week, `provision` each month."""
    from rigwright.history import History, retention

    several = 6
    path, chance = folder / "whole.sqlite", random.Random(1)
    kept = retention.prune_runs, retention.prune_readings
    retention.prune_runs = retention.prune_readings = lambda *_: None  # type: ignore[assignment]
    added = {}
    try:
        with History.open(path) as history:
            for command in ("verify", "provision", "fleet.report"):
                hosts = {name: copy.deepcopy(of[command]) for name, of in fleet.items()}
                _few_changes(hosts)
                gpus = [gpu for host in hosts.values() if host["machine"] for gpu in host["machine"]["gpus"]]
                history.record(document_of(command, now, hosts, 0) | {"run": f"first-{command}"})
                before = _size(history)
                for number in range(several):
                    at = now + datetime.timedelta(minutes=number + 1)
                    _live(gpus, at, chance)
                    history.record(document_of(command, at, hosts, number) | {"run": f"{command}-{number}-aaaaaaaaaa"})
                added[command] = (_size(history) - before) / several
    finally:
        retention.prune_runs, retention.prune_readings = kept
    return (
        added["fleet.report"] * DAYS * 24 * 60 / EVERY_MIN + added["verify"] * DAYS / 7 + added["provision"] * DAYS / 30
    )


def _size(history: Any) -> int:
    """The bytes of the pages in use."""
    ask = history._database.execute
    return int(ask("PRAGMA page_size").fetchone()[0]) * (
        int(ask("PRAGMA page_count").fetchone()[0]) - int(ask("PRAGMA freelist_count").fetchone()[0])
    )


def report(documents: str, page: str, columns: str) -> None:
    """Makes the report of hosts that were looked at, as the command does, and prints seconds and peak memory of each
    part as JSON."""
    from rigwright.checks import Finding
    from rigwright.core.errors import Unreachable
    from rigwright.core.machine_identity import MachineIdentity
    from rigwright.core.typed_json import typed
    from rigwright.engine.host_run import HostRun, Options, RunState, no_events
    from rigwright.engine.playbook import BoundPlaybook
    from rigwright.engine.report import CheckResult, HostReport, PlanResult
    from rigwright.facts import pci
    from rigwright.features.fleet_report import command as fleet_report
    from rigwright.inventory.model import Host
    from rigwright.report import json_document, output_files
    from rigwright.report.console import console_on
    from rigwright.report.lazy_terminal import Output

    keys = ("subject", "verdict", "seen", "expected", "cause", "fix", "source", "symptom", "check")
    runs, state = [], RunState(threading.Semaphore())
    hosts = json.loads(Path(documents).read_text())
    for name in list(hosts):
        told = hosts.pop(name)
        host = Host(name, ("gpu", told["group"]), {"ansible_host": told["address"]})
        kept = dict(told["kept"])
        if "pci.gpus" in kept:
            kept["pci.gpus"] = typed(kept["pci.gpus"], tuple[pci.PciGpu, ...])
        if told["identity"]:
            kept["system.identity"] = MachineIdentity.of(told["identity"])
        error = told["error"] and Unreachable(*(told["error"][key] for key in ("where", "found", "expected", "fix")))
        findings = tuple(Finding(**{key: finding[key] for key in keys}) for finding in told["findings"])
        status = told["status"]
        results = (PlanResult((), told["simulated"]), MachineResult(told["machine"] or {}), CheckResult(findings))
        run = HostRun(BoundPlaybook(host, (), ()), None, Options(""), no_events, state)  # type: ignore[arg-type]
        run.report = HostReport(host, status, error, {type(each): each for each in results}, kept)
        runs.append(run)
    del hosts
    parts: dict[str, float] = {"peak at the start": _peak_mib()}
    output = Output(sys.stdout)
    output.text.console = console_on(width=int(columns), force_terminal=True, color_system=None)

    @contextlib.contextmanager
    def part(name: str) -> Iterator[None]:
        began = time.process_time(), time.perf_counter()
        yield
        parts[name] = time.perf_counter() - began[1]
        parts[f"{name}, CPU"] = time.process_time() - began[0]

    with part("compared and told"):
        fleet_report.compare_and_show(runs, output.text)
    with part("document"):
        document = json_document.document("fleet.report", "20991231-235959-0000", 2, None, [run.report for run in runs])
    with part("recorded"):
        output_files.record(document, output)
    with part("page"):
        output_files.write(document, output_files.Files(html=page), output)
    parts["peak"] = _peak_mib()
    sys.stdout.flush()
    print(json.dumps(parts), file=sys.stderr)


def _peak_mib() -> float:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0


def in_browser(page: Path) -> dict[str, float]:
    """Seconds until the page is painted and loaded, milliseconds of a search and of opening a machine; medians of five
    visits."""
    from tests.report.chromium import Chromium

    found: dict[str, list[float]] = {}
    search = """(word => { const began = performance.now(), find = document.getElementById('find');
      find.value = word; find.dispatchEvent(new Event('input')); document.body.offsetHeight;
      return performance.now() - began; })"""
    opened = """new Promise(done => { const began = performance.now(), rows = document.querySelectorAll('.row');
      const row = rows[rows.length - 1]; row.hidden = false; row.open = true;
      const look = () => row.querySelector('article') ? done(performance.now() - began) : setTimeout(look, 1);
      look(); })"""
    with Chromium() as browser:
        for _ in range(5):
            browser.visit(page, 1280, "light")
            browser.value("try { sessionStorage.clear() } catch {}")
            painted = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
            loaded = "performance.timing.loadEventEnd - performance.timing.navigationStart"
            for _ in range(100):
                if browser.value(painted) is not None:
                    break
                time.sleep(0.02)
            found.setdefault("first paint, s", []).append(browser.value(painted) / 1000)
            found.setdefault("loaded, s", []).append(browser.value(loaded) / 1000)
            if browser.value("document.getElementById('find') !== null"):
                found.setdefault("search, ms", []).append(browser.value(f"{search}('gpu01')"))
                answer = browser.ask("Runtime.evaluate", expression=opened, returnByValue=True, awaitPromise=True)
                found.setdefault("details of a machine, ms", []).append(answer["result"]["value"])
    return {name: sorted(values)[len(values) // 2] for name, values in found.items()}


def main() -> int:
    """Records the rigs, writes the history, measures, prints the table; returns 1 when a goal is missed."""
    count, seed, rigs = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
    recordings = Path(sys.argv[4]) if sys.argv[4] else None
    with tempfile.TemporaryDirectory(prefix="rigwright-report.") as made:
        folder = Path(made)
        place = recordings / f"{count}" if recordings else folder
        place.mkdir(parents=True, exist_ok=True)
        begun = place / "begun"
        if not begun.is_file():
            begun.write_text(datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"))
        now = datetime.datetime.fromisoformat(begun.read_text())
        os.environ |= {"RIGWRIGHT_HISTORY": str(folder / "history.sqlite"), "XDG_STATE_HOME": str(folder / "state")}
        known: list[Rig] = []
        for rig in rigs:
            file = recordings / f"{rig}.json" if recordings else None
            if file and file.is_file():
                known.append(Rig(json.loads(file.read_text())))
                continue
            known.append(recorded(rig, folder))
            if file:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(known[-1].documents))
        fleet = machines(count, seed, known)
        record_s = write_year(place / "history.sqlite", fleet, seed, now, place / "progress.json")
        size = (place / "history.sqlite").stat().st_size / 1e6
        if place != folder:
            shutil.copy(place / "history.sqlite", folder / "history.sqlite")
        unpruned = without_pruning(folder, fleet, now) / 1e6
        hosts = {name: {**of["fleet.report"], "group": rigs[int(name[3:]) % len(rigs)]} for name, of in fleet.items()}
        (folder / "hosts.json").write_text(json.dumps(hosts))
        page = place / "fleet.html"
        told = {}
        for columns in ("80", "120"):
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, str(folder / "hosts.json"), str(page), columns], cwd=CHECKOUT,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                sys.exit(f"error fleet.report: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
            told[columns] = done.stdout
            if recordings:
                (place / f"text-{columns}").write_text(done.stdout)
        parts = json.loads(done.stderr.splitlines()[-1])
        seen = in_browser(page)
        megabytes = page.stat().st_size / 1e6
    total = sum(value for name, value in parts.items() if not name.startswith("peak") and not name.endswith("CPU"))
    load = os.getloadavg()[0]
    print(f"\n{time.strftime('%Y-%m-%d')}, {count} machines, seed {seed}, {os.cpu_count()} CPUs, load {load:.1f}\n")
    print(row("fleet.report, after the hosts answered", "seconds", "CPU s", widths=WIDTHS))
    for name in ("compared and told", "document", "recorded", "page"):
        print(row(f"  {name}", f"{parts[name]:.2f}", f"{parts[f'{name}, CPU']:.2f}", widths=WIDTHS))
    print(row("  all", f"{total:.2f}", widths=WIDTHS))
    print(row("peak memory, MiB", f"{parts['peak']:.0f}", f"{parts['peak at the start']:.0f} before", widths=WIDTHS))
    print(row("lines of text at 80 and 120 columns", *(str(text.count("\n")) for text in told.values()), widths=WIDTHS))
    print(row("page, MB", f"{megabytes:.2f}", widths=WIDTHS))
    for name, value in seen.items():
        print(row(f"page in Chromium: {name}", f"{value:.2f}", widths=WIDTHS))
    print(row("history of a year, MB", f"{size:.0f}", widths=WIDTHS))
    print(row("  without pruning (calculated)", f"{unpruned:.0f}", widths=WIDTHS))
    print(row("  record of a report, s", f"{record_s:.2f}", widths=WIDTHS))
    goals = (
        (f"page under {GOAL_PAGE_MB:g} MB", megabytes < GOAL_PAGE_MB),
        (f"opens in under {GOAL_OPEN_S:g} s", seen["loaded, s"] < GOAL_OPEN_S),
    )
    for goal, met in goals:
        print(f"{'met   ' if met else 'MISSED'}  {goal}")
    return 0 if all(met for _, met in goals) else 1


if __name__ == "__main__":
    raise SystemExit(main())
