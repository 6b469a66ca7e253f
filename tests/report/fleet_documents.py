"""Documents in the format of `fleet.report` for any number of machines, without a host."""

from __future__ import annotations

import datetime
import math
from typing import Any

from msgspec.structs import replace

from rigwright import catalogue
from rigwright.catalogue import lifecycle
from rigwright.facts import driver, system
from rigwright.facts.gpu.health import Card, Errors
from rigwright.facts.plain import plain
from tests.report import run_documents as made
from tests.report.run_documents import a_card, a_host, a_machine, bus_id, finding, known

ENDED = datetime.datetime(2026, 11, 21, 18, 30, tzinfo=datetime.timezone.utc)
SINCE = "2026-11-20T18:30:00+00:00"
RUN = "20261121-183000-1f2e"
KINDS = (
    ("v100", "servbadge", 4, "Tesla V100-SXM2-16GB", "1db1", "535.261.03", 16384, 200.0),
    ("rtx", "rig-3090", 3, "NVIDIA GeForce RTX 3090", "2204", "580.178.04", 24576, 285.0),
    ("a100", "dgx-a100-8x", 8, "NVIDIA A100-SXM4-40GB", "20b0", "580.178.04", 40960, 400.0),
)
"""Group, rig, number of GPUs, model, PCI id, driver, MiB and watts of each kind of machine."""


def uuid(host: int, number: int) -> str:
    """Returns the UUID of a GPU of the fleet."""
    return f"GPU-{host:08x}-0000-4000-8000-{number:012d}"


def a_node(number: int, **more: Any) -> dict[str, Any]:
    """Returns a healthy machine under load; its number determines its kind."""
    group, rig, count, name, device, version, mib, watts = KINDS[number % 3 if number % 5 else 0]
    load = (number * 7) % 10 / 10
    cards = tuple(_card(number, at, load, name=name, device_id=device, memory_mib=mib, power_limit_w=watts)
                  for at in range(count))  # fmt: skip
    facts = {**known(cards, ()), driver.loaded_version: version}
    kept = {"system.os_release": plain(facts[system.os_release]), "driver.loaded_version": version,
            "pci.gpus": [{"device_id": device}] * count}  # fmt: skip
    host = a_host(
        address=f"192.0.2.{number}", kept=kept, machine=a_machine(facts, rig if rig in catalogue.all_rigs() else None)
    )
    host["fleet"] = {
        "groups": ["gpu", group], "answered": SINCE, "since": SINCE, "run": "20261120-183000-0a1b", "was": "ok",
        "became": [], "new": [], "gone": [],
        "ends": [plain(end) for end in lifecycle.ends(kept, ENDED.date())],
        "readings": {uuid(number, at): _readings(number, at, cards[at]) for at in range(count)},
    }  # fmt: skip
    host["measured"] = _measured(number, host)
    return {**host, **more}


def _measured(number: int, host: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the figures of all GPUs but those of every fourth machine; the first GPU of every sixth is slow."""
    gpus = host["machine"]["gpus"]
    model = catalogue.model_of(gpus[0]["device_id"])
    if number % 4 == 0 or model is None:
        return []
    fp32 = model.tflops.fp32 if model.tflops else 30.0
    rates = {"fp32": round(fp32 * (0.83 + number % 5 / 100), 2)}
    rows = made.stressed(host, tflops=rates, clocks_mhz={"fp32": 1400.0}, power_limit_w=gpus[0]["power_limit_w"])
    if number % 6 == 3:
        slow = {
            "tflops": {"fp32": 0.7 * rates["fp32"]},
            "shares": {"fp32": 0.7 * rates["fp32"] / fp32} if model.tflops else {},
        }
        rows[0] |= {**slow, "slowed_by": "heat, by the driver"}
    return rows


def _card(host: int, at: int, load: float, **more: Any) -> Card:
    warm = int(34 + 40 * load + (at * 5 + host) % 7)
    limit = float(more["power_limit_w"])
    some = a_card(
        at, temperature_c=warm, power_w=round(30 + (limit - 40) * load + at, 1), utilization_percent=int(98 * load),
        memory_used_mib=int(more["memory_mib"] * load * 0.9), **more,
    )  # fmt: skip
    return replace(some, uuid=uuid(host, at))


def _readings(host: int, at: int, card: Card) -> list[list[float]]:
    """Returns readings of every three hours for a week that rise by day and fall by night."""
    begin = ENDED.timestamp() - 7 * 86400
    found = []
    for step in range(56):
        wave = 0.5 + 0.5 * math.sin(step / 8 * 2 * math.pi + host)
        found.append([begin + step * 10800, round(34 + 30 * wave + at), round(40 + 120 * wave + 3 * at, 1)])
    return [*found, [ENDED.timestamp(), float(card.temperature_c or 0), float(card.power_w or 0)]]


def a_fleet(count: int, code: int = 2) -> dict[str, Any]:
    """Returns a fleet of `count` machines; from the third machine on, about every tenth has a fault."""
    hosts = {f"node-{number:02d}": a_node(number) for number in range(1, count + 1)}
    for number, name in enumerate(list(hosts), 1):
        if number in _WRONG:
            _WRONG[number](hosts[name])
    return a_document(code, **hosts)


def a_document(code: int = 0, **hosts: Any) -> dict[str, Any]:
    """Returns a document of these machines."""
    return {
        "schema": 1, "command": "fleet.report", "run": RUN, "started": "2026-11-21T18:29:56.500+00:00",
        "ended": ENDED.isoformat(),
        "playbook": "playbooks/provision.yml", "inventory": "inventory", "exit_code": code, "error": None,
        "hosts": hosts,
    }  # fmt: skip


def away(host: dict[str, Any]) -> None:
    """Makes the host unreachable."""
    error = {
        "where": "gone",
        "found": "connection refused (192.0.2.9, port 22)",
        "expected": "an answer",
        "fix": "ssh gone",
    }
    host |= {"status": "unreachable", "error": error, "findings": [], "machine": None, "kept": {}, "measured": None}
    host["fleet"]["ends"] = []


def _kernel(host: dict[str, Any]) -> None:
    wrong = finding("fail", "kernel", check="fleet.peers", seen="6.8.0-71-generic", expected="5.15.0-130-generic",
                    cause="7 of 9 in v100 have the expected value", source="peers")  # fmt: skip
    host |= {"status": "failed", "findings": [wrong, finding("pass")]}
    host["fleet"]["became"] = [
        {"subject": "kernel", "before": "5.15.0-130-generic", "after": "6.8.0-71-generic", "run": ""}
    ]


def _limit(host: dict[str, Any]) -> None:
    at = f"{bus_id(1)} {uuid(1, 1)[:12]}"
    host |= {"status": "failed", "findings": [
        finding("fail", f"{at} power limit w", check="fleet.peers", seen="300", expected="200",
                cause="15 of 16 GPUs of this model in v100 have the expected value", source="peers"),
        finding("fail", "SXM2-2 0000:07:00.0 power", check="plan", seen="300 W", expected="200 W",
                fix="invoke provision", source="inventory"),
    ]}  # fmt: skip
    host["fleet"]["new"] = [
        {"check": "plan", "subject": "SXM2-2 0000:07:00.0 power", "verdict": "fail", "seen": "300 W"}
    ]


def _lost(host: dict[str, Any]) -> None:
    gpu = host["machine"]["gpus"][-1]
    gpu |= {"uuid": "", "answers": False, "lost": "GPU is lost", "temperature_c": None, "power_w": None,
            "utilization_percent": None, "memory_used_mib": None, "power_limit_w": None}  # fmt: skip
    wrong = finding("fail", f"{gpu['bus_id']} GPU-5d1c2f60", check="fleet.gpus", seen="missing", expected="here",
                    cause="it fell off the bus, or was removed", source="past")  # fmt: skip
    host |= {"status": "failed", "findings": [wrong]}


def _hot(host: dict[str, Any]) -> None:
    gpu = host["machine"]["gpus"][0]
    gpu |= {"temperature_c": 86}
    warn = finding("warn", f"{gpu['position']} {gpu['bus_id']}", check="health.heat",
                   seen="86 C under load, hotter than its peers", expected="about 71 C",
                   cause="dust, a fan, or paste that has dried", fix="clean it; then invoke verify again",
                   source="peers")  # fmt: skip
    host |= {"findings": [warn, finding("pass")]}
    host["fleet"]["gone"] = [
        {"check": "health.xids", "subject": "Xids", "verdict": "warn", "seen": "3 x Xid 79 since boot"}
    ]


def _ecc(host: dict[str, Any]) -> None:
    host["machine"]["gpus"][1]["ecc_ever"] = plain(Errors(117, 2))


_WRONG = {3: _limit, 5: away, 6: _hot, 14: _kernel, 21: _lost, 23: _kernel, 31: away, 33: _ecc}


def twelve() -> dict[str, Any]:
    """Returns twelve machines: unreachable, lost, failed, drifting, never provisioned, hot, and one without an earlier
    report.

    Their names have 60 characters and differ in the last two.
    """
    hosts = [a_node(number) for number in range(1, 13)]
    for number, change in ((1, away), (2, _lost), (4, away), (5, _hot), (7, _kernel), (8, _bare), (9, _bare)):
        change(hosts[number])
    fault = finding("fail", f"PCIE-1 {bus_id(0)}", check="health.xids", seen="Xid 63", cause="a page is being retired")
    hosts[6] |= {"status": "failed", "findings": [fault]}
    hosts[10]["fleet"] |= {"since": None, "answered": None}
    return a_document(3, **{f"{made.LONG_NAME[:-2]}{number:02d}": host for number, host in enumerate(hosts)})


def _bare(host: dict[str, Any]) -> None:
    """Makes the machine one that was never provisioned."""
    host |= {"status": "failed", "findings": [finding("fail", f"step {number}", check="plan") for number in range(9)]}
    host["machine"]["driver"] = ""
    for gpu in host["machine"]["gpus"]:
        values = ("temperature_c", "power_w", "utilization_percent", "memory_used_mib")
        gpu |= {"answers": False, **dict.fromkeys(values)}


def hostile(value: Any, poison: str, key: str = "") -> Any:
    """Returns the same document with every text that comes from a host replaced with `poison`."""
    kept = ("verdict", "kind", "state", "date", "since", "answered", "started", "ended", "status", "was", "source",
            "bus_id", "command", "at")  # fmt: skip
    if isinstance(value, dict):
        return {name: hostile(inner, poison, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [hostile(inner, poison, key) for inner in value]
    return poison if isinstance(value, str) and key not in kept else value


__all__ = ["ENDED", "a_document", "a_fleet", "a_node", "away", "hostile", "made", "twelve", "uuid"]
