"""Documents in the format of runs, without a host, for the tests of the report page."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from rigwright import catalogue
from rigwright.core.schema import BusId
from rigwright.engine import machine
from rigwright.facts import Unavailable, driver, system
from rigwright.facts.gpu import health as gpu_health, topology
from rigwright.facts.gpu.figures import Dated, GpuFigures
from rigwright.facts.gpu.health import Card, Errors
from rigwright.facts.gpu.topology import NvLink, Place
from rigwright.facts.plain import plain
from rigwright.features.stress import measured_before

RUN = "20261121-101500-1f2e"


def uuid(number: int) -> str:
    """Returns the UUID of the GPU of that number."""
    return f"GPU-00000000-0000-4000-8000-{number:012d}"


def bus_id(number: int) -> str:
    """Returns the GPU's PCI bus id."""
    return f"0000:{number + 6:02x}:00.0"


def a_card(number: int, **more: Any) -> Card:
    """Returns a healthy V100."""
    made: dict[str, Any] = {
        "serial": f"03206825326{number:02d}", "vbios": "88.00.4F.00.09", "part_number": "900-2G503-0000-000",
        "device_id": "1db1", "subsystem_id": "121210de", "memory_mib": 16384, "bar1_mib": 16384, "width": 16,
        "width_max": 16, "generation": 3, "generation_max": 3, "generation_host": 3, "replays": 0,
        "temperature_c": 33, "slowdown_c": 87, "memory_temperature_c": 31, "power_w": 40.0, "power_limit_w": 200.0,
        "power_default_w": 300.0, "power_min_w": 150.0, "power_max_w": 300.0, "state": "P0", "graphics_mhz": 135,
        "memory_mhz": 877, "graphics_max_mhz": 1530, "memory_max_mhz": 877, "ecc": True, "ecc_next_boot": True,
        "ecc_since_load": Errors(0, 0), "ecc_ever": Errors(0, 0), "retired_single_bit": 0, "retired_double_bit": 0,
        "retirement_pending": False, **more,
    }  # fmt: skip
    return Card(bus_id(number), uuid(number), str(made.pop("name", "Tesla V100-SXM2-16GB")), **made)


def a_place(number: int, gpus: int) -> Place:
    """Returns the GPU's PCI location: two GPUs per PCIe switch, half of the switches on each of two processors."""
    node = 2 * number // gpus
    switch = number // 2 * 2
    return Place(
        bus_id(number), True, node, f"pci0000:{node * 8}0",
        (f"0000:{node * 8}0:02.0", f"0000:a{switch:x}:00.0", f"0000:b{switch:x}:0{number % 2}.0")
    )  # fmt: skip


def links(count: int, each: int = 2) -> tuple[NvLink, ...]:
    """Returns `each` NVLinks between every two of the GPUs."""
    return tuple(
        NvLink(uuid(one), other * each + number, 25.781, bus_id(other), 0)
        for one in range(count)
        for other in range(count)
        for number in range(each)
        if one != other
    )


def to_switches(count: int, each: int = 6) -> tuple[NvLink, ...]:
    """Returns `each` NVLinks from every GPU, each to a different NVSwitch."""
    return tuple(
        NvLink(uuid(one), number, 25.781, f"0000:{0xD0 + number:x}:00.0") for one in range(count)
        for number in range(each)
    )  # fmt: skip


def known(cards: tuple[Card, ...], nvlinks: tuple[NvLink, ...] | None = None) -> dict[Any, Any]:
    """Returns the facts of a machine with these cards."""
    return {
        system.board: system.Board("GIGABYTE", "T180-G20-ZB3", "MT70-T18-00"),
        system.cpu: "2 x Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz",
        system.os_release: system.OsRelease("ubuntu", "22.04", "jammy", "Ubuntu 22.04.5 LTS"),
        system.running_kernel: "5.15.0-130-generic",
        driver.loaded_version: "535.261.03",
        gpu_health.cards: cards,
        topology.places: tuple(a_place(number, len(cards)) for number in range(len(cards))),
        topology.nvlinks: links(len(cards)) if nvlinks is None else nvlinks,
    }


def a_machine(facts: dict[Any, Any], rig: str | None = "servbadge") -> dict[str, Any]:
    """Returns the key `machine` of a host with these facts."""
    found = catalogue.rig(rig, "test") if rig else None
    places = facts[topology.places] if isinstance(facts[topology.places], tuple) else ()
    positions = list(found.gpus) if found else []
    return machine.of(facts, found, {BusId(one.bus_id): name for one, name in zip(places, positions, strict=False)})


def without_driver() -> dict[Any, Any]:
    """Returns a machine with four GPUs on the bus and no nvidia-smi."""
    reason = Unavailable("nvidia-smi is not installed")
    return {
        **known(tuple(map(a_card, range(4)))),
        gpu_health.cards: reason,
        topology.nvlinks: reason,
        driver.loaded_version: None,
    }


def result(gb_s: float, transport: str = "", **more: Any) -> dict[str, Any]:
    """Returns a result of the P2P document."""
    made = {"ok": True, "outcome": "ok", "gb_s": gb_s, "latency_us": 7.9, "error": None, **more}
    return {**made, "transport": transport, "kind": transport.partition("/")[0]} if transport else made


def a_p2p(count: int) -> dict[str, Any]:
    """Returns a P2P document with NVLinks between all GPUs, as in docs/reference/nccl_p2p.md."""
    without = result(7.3, "SHM")
    return {
        "schema": 1, "outcome": "ok", "seconds": 95.0, "notes": [], "errors": [], "leftovers": [], "judged": [],
        "versions": {"driver": "535.261.03", "cuda_driver": "12.2", "cuda_runtime": "12.2", "nccl": "2.21.5"},
        "gpus": [
            {"index": one, "bus_id": f"0000{bus_id(one).upper()}", "uuid": uuid(one), "own": result(369.6)}
            for one in range(count)
        ],
        "pairs": [
            {"from": a, "to": b, "bytes": result(47.9), "staged": result(7.9),
             "collective": {**result(44.4, "P2P/direct pointer"), "without_p2p": without, "with_level_sys": None}}
            for a in range(count)
            for b in range(count)
            if a != b
        ],
        "all_reduce": {"ok": True, "outcome": "ok", "busbw_gb_s": 126.041, "gpus": list(range(count)), "error": None,
                       "without_p2p": {"ok": True, "busbw_gb_s": 5.855}},
        "scaling": [
            {"gpus": number, "step_ms": 1217.0, "product_ms": 1200.0, "all_reduce_ms": 17.0, "speed_up": number * 0.98,
             "efficiency": 0.98, "error": None}
            for number in range(1, count + 1)
        ],
    }  # fmt: skip


def finding(verdict: str, subject: str = "SXM2-1 0000:06:00.0", **more: str) -> dict[str, str]:
    """Returns a finding of a document."""
    made = {"check": "gpu.limits_in_force", "seen": "200 W", "expected": "", "cause": "", "fix": "", "source": ""}
    return {**made, "symptom": "", **more, "verdict": verdict, "subject": subject}


def a_host(**more: Any) -> dict[str, Any]:
    """Returns a host of a document without faults."""
    made: dict[str, Any] = {
        "status": "ok", "error": None, "steps": [], "changes": [], "findings": [finding("pass")], "facts": {},
        "gpus": [],
        "machine": None, "events": [], "simulated": "", "rebooted": False, "round_trips": 2, "seconds": 0.41,
    }  # fmt: skip
    return {**made, **more}


def a_document(command: str = "verify", code: int = 0, **hosts: Any) -> dict[str, Any]:
    """Returns a document of these hosts."""
    return {"schema": 1, "command": command, "run": RUN, "exit_code": code, "error": None, "hosts": hosts}


def healthy(**more: Any) -> dict[str, Any]:
    """Returns a machine with four V100s, NVLinks and a P2P test, without faults."""
    return a_host(machine=a_machine(known(tuple(map(a_card, range(4))))), p2p=a_p2p(4), **more)


def stressed(host: dict[str, Any], without: int = 0, **more: Any) -> list[dict[str, Any]]:
    """Returns the key `measured` of a host whose GPUs were stressed, but the last `without`; `more`: other figures of
    all."""
    gpus = host["machine"]["gpus"]
    figures = GpuFigures(
        "", "", 200.0, "535.261.03", "12.2", 600.0, {"fp32": 13.37, "fp16": 98.4, "fp64": 6.61},
        {"fp32": 1312.0, "fp16": 1290.0, "fp64": 1400.0},
        742.0, 12.6, 12.4, 66.0, 71.0, 74.0, 211.0, "power limit",
    )  # fmt: skip
    figures = replace(figures, **more)
    at = "2026-05-12T10:00:00+00:00"
    before = {
        gpu["uuid"]: (Dated(at, RUN, replace(figures, uuid=gpu["uuid"], name=gpu["name"])),)
        for gpu in gpus[: len(gpus) - without]
    }
    rows: list[dict[str, Any]] = plain(measured_before.of_machine(host["machine"], before))
    return rows


def broken() -> dict[str, Any]:
    """Returns the same machine with faults, and with texts that contain terminal sequences or markup."""
    cards = (a_card(0, width=1, ecc_ever=Errors(117, 2), retirement_pending=True), a_card(1), a_card(2), a_card(3))
    ends = tuple(one for one in links(4) if (one.uuid, one.number) not in ((uuid(0), 2), (uuid(1), 0)))
    host = healthy(status="failed")
    host["machine"] = a_machine(known((*cards[:3], Card(bus_id(3), "", "", lost="GPU is lost")), ends))
    pairs = {(one["from"], one["to"]): one["collective"] for one in host["p2p"]["pairs"]}
    pairs[0, 2].update(ok=False, outcome="wrong data", gb_s=None, error="17 words differ")
    pairs[1, 2].update(ok=False, outcome="hang", gb_s=None, error="no answer within 40 s")
    pairs[3, 0].update(ok=None, outcome="not run", gb_s=None, error="the GPU is lost")
    pairs[2, 0].update(gb_s=0.791, transport="SHM")
    host["findings"] = [
        finding("pass"), finding("info", "PyTorch"),
        finding("warn", "SXM2-3 0000:08:00.0", seen="84 °C", source="peers"),
        finding("unknown", "SXM2-4", seen="\x1b[31m<script>alert(1)</script>\u202e no answer"),
        finding("fail", "SXM2-1 to SXM2-2", seen="1 NVLink", expected="2 NVLinks", source="rig",
                symptom="p2p.nvlink_down",
                cause="a badly seated module", fix="power off, reseat SXM2-2: " + "/a/very/long/path" * 12),
    ]  # fmt: skip
    return host


def switched() -> dict[str, Any]:
    """Returns a machine with sixteen GPUs on NVSwitches."""
    cards = tuple(a_card(number, name="Tesla V100-SXM3-32GB", device_id="1db8") for number in range(16))
    return a_host(machine=a_machine(known(cards, to_switches(16)), "dgx-2"), p2p=a_p2p(16))


def unreachable() -> dict[str, Any]:
    """Returns a host that did not answer."""
    error = {"where": "gone", "found": "connection refused", "expected": "an answer", "fix": "ssh gone"}
    return a_host(status="unreachable", error=error, findings=[])


def all_lost() -> dict[str, Any]:
    """Returns a machine whose sixteen GPUs are all lost."""
    cards = tuple(Card(bus_id(number), "", "", lost="GPU is lost") for number in range(16))
    machine = a_machine(known(cards, ()), "dgx-2")
    symptom = {
        "check": "gpu.answering",
        "symptom": "gpu.off_bus",
        "seen": "GPU is lost",
        "fix": "sudo poweroff; reseat it",
    }
    findings = [finding("fail", f"{gpu['position']} {gpu['bus_id']}", **symptom) for gpu in machine["gpus"]]
    return a_host(status="failed", machine=machine, findings=findings)


def one_lost() -> dict[str, Any]:
    """Returns a machine with four GPUs, one of them lost, and memory errors of another."""
    lost = Card(bus_id(2), "", "", lost="GPU is lost")
    worn = a_card(1, ecc_ever=Errors(117, 2), retirement_pending=True)
    host = {**healthy(status="failed"), "machine": a_machine(known((a_card(0), worn, lost, a_card(3))))}
    cause = "the GPU fell off the PCIe bus: power, heat, or its contacts"
    host["findings"] = [
        finding("fail", f"SXM2-3 {bus_id(2)}", check="gpu.answering", symptom="gpu.off_bus", seen="GPU is lost",
                cause=cause,
                fix="sudo poweroff; reseat SXM2-3"),
        finding("fail", f"SXM2-2 {bus_id(1)}", check="health.memory", seen="2 uncorrected errors",
                cause="a memory cell failed"),
        finding("pass"),
    ]  # fmt: skip
    return host


LONG_NAME = "a-very-long-host-name-in-rack-17-of-the-second-machine-room1"
LONG_TITLE = "a rig whose owner has written everything into its title: the board, the supplies, " * 2 + "R" * 40
"""60 and 200 characters."""


def long_names() -> dict[str, Any]:
    """Returns the machine with a lost GPU, whose rig has a title of 200 characters."""
    host = one_lost()
    host["machine"]["rig"]["title"] = LONG_TITLE
    return host
