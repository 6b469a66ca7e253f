"""Reads what nvidia-smi prints for people, line by line: its table, and the text of `nvidia-smi -q`."""

from __future__ import annotations

import re

from msgspec import Struct, field
from msgspec.structs import replace

from rigwright.core import lazy_re
from rigwright.core.schema import bus_id
from rigwright.facts.gpu.health import Card, card

MOST_GPUS = 256
"""The number of GPUs of one table or query that are kept; the rest is ignored."""


class Row(Struct, frozen=True):
    """One GPU of the table, in the words of the table; "" for a word that cannot be read. `line`: the number of its
    first line."""

    index: str
    line: int
    name: str
    persistence: str
    ecc: str
    fan: str = ""
    temperature: str = ""
    state: str = ""
    power: str = ""
    power_limit: str = ""
    used_mib: int | None = None
    utilization: str = ""
    mig: str = ""

    @property
    def readings(self) -> dict[str, str]:
        """The cells with a reading, by its name in messages."""
        names = ("fan", "temperature", "state", "power", "power limit", "ECC errors", "utilization")
        cells = (self.fan, self.temperature, self.state, self.power, self.power_limit, self.ecc, self.utilization)
        return dict(zip(names, cells, strict=True))


class Table(Struct):
    """A table of nvidia-smi. `processes`: the number of processes by GPU; None: the table has no list of processes."""

    line: int
    driver: str = ""
    cuda: str = ""
    rows: list[Row] = field(default_factory=list)
    processes: dict[str, int] | None = None


_HEAD = lazy_re.compile(
    r"NVIDIA-SMI {1,40}\S{1,40} {1,40}(?:Driver|KMD) Version: {0,40}([\d.]{1,40}|N/A|ERR!)"
    r"(?: {1,40}CUDA (?:UMD )?Version: {0,40}(\S{1,40}))?"
)
_FIRST = lazy_re.compile(
    r"\| {0,40}(\d{1,4}) {1,40}(\S.{0,60}?) {1,40}(On|Off|N/A|WDDM|TCC|MCDM|ERR!) {0,40}\|"
    r" {0,40}[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7] {1,40}\S{1,20} {0,40}\| {0,40}(\S.{0,60}?) {0,40}\|"
)
_WORD = r"(N/A|ERR!|Unknown Error|\[[^\]|]{0,40}\]|\d{1,6} ?(?:%|C|W)|P\d{1,4})"
_SECOND = lazy_re.compile(
    rf"\| {{0,40}}{_WORD} {{0,40}}{_WORD} {{0,40}}{_WORD} {{0,40}}{_WORD} {{0,40}}/ {{0,40}}{_WORD} {{0,40}}"
    r"\| {0,40}(?:(\d{1,12})MiB|\S{1,40}) {0,40}/ {0,40}(?:\d{1,12}MiB|\S{1,40}) {0,40}"
    rf"\| {{0,40}}{_WORD} {{1,40}}\S.{{0,60}}? {{0,40}}\|"
)
_THIRD = lazy_re.compile(r"\| {20,80}\| {10,80}\| {0,40}(Enabled|Disabled|N/A|ERR!)\*? {0,40}\|")
_PROCESS = lazy_re.compile(
    r"\| {1,40}(\d{1,6}) {1,40}(?:(?:N/A|\d{1,6}) {1,40}(?:N/A|\d{1,6}) {1,40})?\d{1,12} {1,40}"
    r"(?:C|G|C\+G|M|M\+C|O) {1,40}\S"
)
"""Every repetition is bounded (a cell has at most 40 columns), so a line that only looks like a row takes little
time."""


class TableReader:
    """Reads tables of nvidia-smi from all lines of a text. A table ends at the next one, and at other text."""

    def __init__(self) -> None:
        self.table: Table | None = None

    def feed(self, number: int, line: str) -> tuple[bool, Table | None]:
        """Whether the line is part of a table, and the table that ended before it."""
        body = line.lstrip(" >\t")
        if not body.startswith(("|", "+-", "+=")):
            return False, self.end() if body.strip() else None
        ended = None
        head = _HEAD.search(body) if "NVIDIA-SMI" in body else None
        first = _FIRST.match(body)
        if head:
            ended, self.table = self.end(), Table(number, head[1], head[2] or "")
        elif self.table is None:
            if not first:
                return False, None
            self.table = Table(number)
        self._row(self.table, number, body, first)
        return True, ended

    def end(self) -> Table | None:
        """Ends and returns the table; None if no table is open."""
        table, self.table = self.table, None
        return table

    def _row(self, table: Table, number: int, body: str, first: re.Match[str] | None) -> None:
        if first and table.processes is None:
            if len(table.rows) < MOST_GPUS:
                index, name, persistence, ecc = first.groups()
                table.rows.append(Row(index, number, name, persistence, ecc))
        elif "Processes:" in body:
            table.processes = table.processes or {}
        elif table.processes is not None:
            process = _PROCESS.match(body)
            if process and (process[1] in table.processes or len(table.processes) < MOST_GPUS):
                table.processes[process[1]] = table.processes.get(process[1], 0) + 1
        elif table.rows and number == table.rows[-1].line + 1:
            if second := _SECOND.match(body):
                fan, temperature, state, power, power_limit, used, utilization = second.groups()
                table.rows[-1] = replace(
                    table.rows[-1], fan=fan, temperature=temperature, state=state, power=power, power_limit=power_limit,
                    used_mib=int(used) if used else None, utilization=utilization,
                )  # fmt: skip
        elif table.rows and number == table.rows[-1].line + 2 and (third := _THIRD.match(body)):
            table.rows[-1] = replace(table.rows[-1], mig=third[1])


class QueryGpu(Struct, frozen=True):
    """One GPU of `nvidia-smi -q`: its card, and all values by path in lower case (`mig_mode/current`)."""

    line: int
    card: Card
    values: dict[str, str]


_TAGS = {
    "product_brand": "product_brand",
    "gpu_uuid": "uuid",
    "serial_number": "serial",
    "mig_mode/current": "mig_mode/current_mig",
    "ecc_mode/current": "ecc_mode/current_ecc",
    "ecc_mode/pending": "ecc_mode/pending_ecc",
    "pci/device_id": "pci/pci_device_id",
    "pci/sub_system_id": "pci/pci_sub_system_id",
    "pci/replays_since_reset": "pci/replay_counter",
    "pci/gpu_link_info/pcie_generation/max": "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
    "pci/gpu_link_info/pcie_generation/current": "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
    "pci/gpu_link_info/pcie_generation/device_max": "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen",
    "pci/gpu_link_info/pcie_generation/host_max": "pci/pci_gpu_link_info/pcie_gen/max_host_link_gen",
    "pci/gpu_link_info/link_width/max": "pci/pci_gpu_link_info/link_widths/max_link_width",
    "pci/gpu_link_info/link_width/current": "pci/pci_gpu_link_info/link_widths/current_link_width",
    "utilization/gpu": "utilization/gpu_util",
    "temperature/gpu_current_temp": "temperature/gpu_temp",
    "temperature/gpu_slowdown_temp": "temperature/gpu_temp_slow_threshold",
    "temperature/gpu_t_limit_temp": "temperature/gpu_temp_tlimit",
    "temperature/gpu_current_t_limit_temp": "temperature/gpu_temp_tlimit",
    "temperature/gpu_slowdown_t_limit_temp": "temperature/gpu_temp_slow_tlimit_threshold",
    "temperature/memory_current_temp": "temperature/memory_temp",
    "temperature/memory_max_operating_temp": "temperature/gpu_temp_max_mem_threshold",
    "clocks/graphics": "clocks/graphics_clock",
    "clocks/memory": "clocks/mem_clock",
    "max_clocks/graphics": "max_clocks/graphics_clock",
    "max_clocks/memory": "max_clocks/mem_clock",
    "retired_pages/single_bit_ecc": "retired_pages/multiple_single_bit_retirement/retired_count",
    "retired_pages/double_bit_ecc": "retired_pages/double_bit_retirement/retired_count",
    "retired_pages/pending": "retired_pages/pending_retirement",
    "retired_pages/pending_page_blacklist": "retired_pages/pending_blacklist",
    "remapped_rows/correctable_error": "remapped_rows/remapped_row_corr",
    "remapped_rows/uncorrectable_error": "remapped_rows/remapped_row_unc",
    "remapped_rows/pending": "remapped_rows/remapped_row_pending",
    "remapped_rows/remapping_failure_occurred": "remapped_rows/remapped_row_failure",
    "gpu_power_readings/gpu_ceiling_power_limit/current_power_limit": "gpu_power_readings/current_power_limit",
    "gpu_power_readings/gpu_ceiling_power_limit/default_power_limit": "gpu_power_readings/default_power_limit",
    "gpu_power_readings/instantaneous_power_draw": "gpu_power_readings/instant_power_draw",
}
"""By path in the text of nvidia-smi the path in its XML, if that has other words."""
_GPU = lazy_re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_VERSION = lazy_re.compile(r"(Driver Version|KMD Version|CUDA Version|CUDA UMD Version) *: *([\d.]+)")
_SECTION = lazy_re.compile(
    r"\s+(?:ECC Errors|Remapped Rows|Retired Pages|Temperature|GPU Link Info|Clocks (?:Event|Throttle) Reasons)\s*$"
)
_MOST_VALUES = 2000


class QueryReader:
    """Reads the text of `nvidia-smi -q` from all lines of a text. A GPU ends at the next one, and at other text.

    A part of such a text that begins with a section is a GPU without a bus id.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.driver = self.cuda = ""
        self._line = 0
        self._is_gpu = False
        self._at = ""
        self._indent = 0
        self._values: dict[str, str] = {}
        self._above: list[tuple[int, str]] = []

    def feed(self, number: int, line: str) -> QueryGpu | None:
        """Reads a line, and returns the GPU that ended before it."""
        body = line.strip()
        if "NVSMI LOG" in body:
            ended, self.is_open = self.end(), True
            return ended
        gpu = _GPU.match(body)
        if gpu and (self.is_open or line[:1] == "G"):
            ended = self.end()
            self._begin(number, gpu[1], len(line) - len(line.lstrip()))
            return ended
        if not self.is_open and _SECTION.match(line):
            self._begin(number, "", len(line) - len(line.lstrip()) - 1)
        if not self.is_open or not body:
            return None
        indent = len(line) - len(line.lstrip())
        if self._is_gpu and indent <= self._indent:
            return self.end()
        if self._is_gpu:
            self._value(indent, body)
        elif version := _VERSION.match(body):
            if version[1].startswith("CUDA"):
                self.cuda = version[2]
            else:
                self.driver = version[2]
        elif ":" not in body:
            self.is_open = False
        return None

    def _begin(self, number: int, at: str, indent: int) -> None:
        self.is_open, self._is_gpu, self._line, self._at, self._indent = True, True, number, at, indent

    def _value(self, indent: int, body: str) -> None:
        key, separator, value = body.partition(": ")
        while self._above and self._above[-1][0] >= indent:
            self._above.pop()
        name = re.sub(r"[^a-z0-9]+", "_", key.strip().lower()).strip("_")
        if not separator:
            self._above.append((indent, name))
        elif len(self._values) < _MOST_VALUES:
            self._values.setdefault("/".join((*(above for _, above in self._above), name)), value.strip()[:200])

    def end(self) -> QueryGpu | None:
        """Ends and returns the GPU; None if no GPU is open, or if it has no values."""
        at, values, is_gpu = self._at, self._values, self._is_gpu
        self.is_open, self._is_gpu, self._values, self._above = False, False, {}, []
        if not is_gpu or not values:
            return None
        try:
            return QueryGpu(self._line, card(at, {_in_xml(path): value for path, value in values.items()}), values)
        except ValueError:
            return QueryGpu(self._line, Card(bus_id(at[-12:]), "", values.get("product_name", "")), values)


def _in_xml(path: str) -> str:
    """The path of a value in the XML of nvidia-smi, so that one parser reads both."""
    group, _, name = path.partition("/")
    if group in ("clocks_event_reasons", "clocks_throttle_reasons") and name:
        return f"{group}/{group.removesuffix('s')}_{name}"
    return _TAGS.get(path, path)
