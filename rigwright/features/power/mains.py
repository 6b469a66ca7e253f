"""The load of a mains circuit that several hosts share."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from rigwright.core.errors import InputError, RigwrightError
from rigwright.core.yaml_source import misspelt
from rigwright.engine.host_variables import of_host
from rigwright.features.power.budget import STEADY_PERCENT, VERDICTS, consumption_w
from rigwright.features.power.draw import EFFICIENCY_PERCENT, FULL, setting_of
from rigwright.features.power.variables import MainsCircuit
from rigwright.inventory.model import Host, Inventory


class MainsLoad(Struct, frozen=True):
    """The steady currents of the hosts on a circuit, A; `unknown`: by host why its current is not known."""

    circuit: MainsCircuit
    amps: dict[str, float]
    unknown: dict[str, str]

    @property
    def steady_a(self) -> float:
        """The steady current of all hosts whose current is known, A."""
        return sum(self.amps.values())

    @property
    def verdict(self) -> str:
        """fits, tight, or does not fit; at best tight while the current of a host is unknown."""
        percent = 100 * self.steady_a / self.circuit.amps
        return VERDICTS[2 if percent > 100 else 1 if percent > STEADY_PERCENT or self.unknown else 0]

    @property
    def reasons(self) -> Iterator[str]:
        """The load of each host, and of all of them against the breaker."""
        percent = 100 * self.steady_a / self.circuit.amps
        yield f"steady {self.steady_a:.1f} A, {percent:.0f} % of {self.circuit.amps:g} A at {self.circuit.volts:g} V"
        yield from (f"{host}: {amps:.1f} A" for host, amps in self.amps.items())
        yield from (f"{host}: not counted, {why}" for host, why in self.unknown.items())

    @property
    def options(self) -> Iterator[str]:
        """The hosts of which each alone, on another circuit, leaves enough to spare."""
        for host, amps in self.amps.items():
            rest = self.steady_a - amps
            if self.verdict != "fits" and rest <= self.circuit.amps * STEADY_PERCENT / 100 and len(self.amps) > 1:
                yield f"{host} on another circuit: {rest:.1f} A remain on this one"

    @property
    def document(self) -> dict[str, object]:
        """The key `circuit` of the JSON document."""
        hosts = {name: round(amps, 1) for name, amps in self.amps.items()} | dict.fromkeys(self.unknown)
        figures = {"amps": self.circuit.amps, "volts": self.circuit.volts, "steady_a": round(self.steady_a, 1)}
        return {"verdict": self.verdict, **figures, "hosts": hosts}


def mains_load(inventory: Inventory, host: Host, circuit: MainsCircuit, own_w: float) -> MainsLoad:
    """The load of a host's circuit. `own_w`: the steady power of the host at the output of its supplies.

    Raises InputError for a host that the inventory does not have, and for a circuit without the host itself.
    """
    where = host.origin("circuit")
    for name in circuit.hosts:
        if name not in inventory.hosts:
            raise misspelt(where, f"circuit.hosts: '{name}' is no host of the inventory", name, inventory.hosts)
    if host.name not in circuit.hosts:
        fix = f"hosts: [{', '.join((*circuit.hosts, host.name))}]"
        raise InputError(where, f"circuit.hosts does not name {host.name}", "all hosts on the circuit", fix)
    watts: dict[str, float] = {host.name: own_w}
    unknown = {}
    for name in circuit.hosts:
        if name != host.name:
            variables = of_host(inventory.hosts[name], inventory.rigs)
            try:
                if variables.rig is None:
                    unknown[name] = "it has no rig"
                else:
                    watts[name] = consumption_w(variables.rig, setting_of(variables.desired.limits) or FULL)
            except RigwrightError as error:
                unknown[name] = error.found
    amps = {name: watts[name] / EFFICIENCY_PERCENT * 100 / circuit.volts for name in circuit.hosts if name in watts}
    return MainsLoad(circuit, amps, unknown)
