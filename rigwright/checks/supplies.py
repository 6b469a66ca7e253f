"""What the sensors of a management controller (BMC) say of power supplies, as ipmitool prints them."""

from __future__ import annotations

import re

FAILED = re.compile(r"lost|fail|error|absent|out of range|config", re.IGNORECASE)
"""Words of ipmitool for a supply that does not deliver, of the sensor type power supply (IPMI 2.0, table 42-3)."""
_UNIT = re.compile(r"((?:ps|psu|power supply|supply)[ _]?[\d.]+)(?![\d.])|\S+", re.IGNORECASE)


def unit_of(sensor: str) -> str:
    """The supply to which a sensor belongs, by its name: `PS1` of `PS1 Status`, `Power Supply 2` of `Power Supply 2`,
    `Supply 10.2` of `Supply 10.2 Status`; otherwise the first word."""
    match = _UNIT.match(sensor)
    return match[0].casefold() if match else ""
