"""The inventory variable `circuit`: the mains circuit of a host, which other hosts may share."""

from __future__ import annotations

from msgspec import Struct


class MainsCircuit(Struct, frozen=True):
    """The current of the breaker, the mains voltage, and all hosts on it."""

    amps: float
    volts: float
    hosts: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.amps <= 400:
            raise ValueError(f"amps {self.amps:g}", "the breaker's current from 1 to 400 A, such as 16")
        if not 90 <= self.volts <= 480:
            raise ValueError(f"volts {self.volts:g}", "the mains voltage from 90 to 480 V, such as 230")
        if not self.hosts or len(set(self.hosts)) < len(self.hosts):
            raise ValueError(f"hosts {list(self.hosts)}", "each host on the circuit once")


TYPES = {"circuit": MainsCircuit}
