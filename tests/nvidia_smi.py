"""The XML of `nvidia-smi -q -x` from rows of cells, so that a case needs one line for each GPU."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

_BUS, _NAME, _POWER = "bus id", "product_name", "gpu_power_readings"
_LIMITS = tuple(f"{_POWER}/{kind}_power_limit" for kind in ("requested", "min", "max", "default"))
_CLOCKS = tuple(
    f"{group}applications_clocks/{kind}_clock" for group in ("", "default_") for kind in ("mem", "graphics")
)
_GPU = ("index", "uuid", _BUS, _NAME, "persistence_mode", *_LIMITS, *_CLOCKS)
CELLS = {
    "gpu.gpus": _GPU,
    "run_record.limits": _GPU,
    "gpu.ecc_modes": ("uuid", _BUS, _NAME, "ecc_mode/current_ecc", "ecc_mode/pending_ecc"),
    "mig.modes": ("uuid", _BUS, _NAME, "mig_mode/current_mig", "mig_mode/pending_mig"),
    "pcie.states": (_BUS, "performance_state"),
}
"""The paths of the cells, by the fact that reads them."""


def xml(fact: str, rows: str) -> str:
    """What nvidia-smi prints for GPUs with these rows, in the order of the bus; lines that are no rows stay as they
    are, and so does XML."""
    if "<nvidia_smi_log>" in rows:
        return rows
    lines = [(re.search(r"[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]", line), line) for line in rows.splitlines()]
    lines.sort(key=lambda each: each[0][0].lower() if each[0] else "")
    return "".join(_document(fact, line.split(", ")) or f"{line}\n" for _, line in lines)


def _document(fact: str, cells: list[str]) -> str:
    """A document with the GPU of a row; "" for a line that is no row."""
    paths = CELLS[fact]
    if len(cells) != len(paths):
        return ""
    values = dict(zip(paths, (cell.strip("[]") for cell in cells), strict=True))
    inside = "".join(_element(path, value) for path, value in values.items() if path not in ("index", _BUS))
    return f'<nvidia_smi_log>\n<gpu id="{values[_BUS]}">\n{inside}</gpu>\n</nvidia_smi_log>\n'


def _element(path: str, value: str) -> str:
    unit = " W" if path.startswith(_POWER) else " MHz" if path.endswith("_clock") else ""
    group, _, name = path.rpartition("/")
    element = f"<{name}>{escape(value)}{unit if value[:1].isdecimal() else ''}</{name}>"
    return f"<{group}>{element}</{group}>\n" if group else f"{element}\n"
