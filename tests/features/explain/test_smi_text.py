"""The text of nvidia-smi for people: rows and processes of tables, and cards of `nvidia-smi -q`."""

from __future__ import annotations

from rigwright.features.explain.smi_text import QueryGpu, QueryReader, Row, Table, TableReader

HEAD = "| NVIDIA-SMI 535.183.01             Driver Version: 535.183.01   CUDA Version: 12.2     |"
FIRST = "|   0  NVIDIA GeForce RTX 2080 ...    Off |   00000000:0C:00.0  On |                  N/A |"
SECOND = "| 38%   45C    P2             98W /  250W |     819MiB /   8192MiB |      8%      Default |"
THIRD = "|                                         |                        |             Disabled |"
PROCESSES = "| Processes:                                                                            |"
PROCESS = "|    0   N/A  N/A      1696      G   /usr/bin/gnome-shell                        176MiB |"


def _tables(*lines: str) -> list[Table]:
    reader = TableReader()
    ended = [reader.feed(number, line)[1] for number, line in enumerate(lines, 1)]
    return [table for table in (*ended, reader.end()) if table]


def test_a_row_has_every_cell() -> None:
    (table,) = _tables(HEAD, FIRST, SECOND, THIRD)
    assert (table.line, table.driver, table.cuda, table.processes) == (1, "535.183.01", "12.2", None)
    assert table.rows == [
        Row("0", 2, "NVIDIA GeForce RTX 2080 ...", "Off", "N/A", "38%", "45C", "P2", "98W", "250W", 819, "8%",
            "Disabled")
    ]  # fmt: skip


def test_the_versions_of_610() -> None:
    (table,) = _tables("| NVIDIA-SMI 610.57.04              KMD Version: 610.57.04     CUDA UMD Version: 13.3     |")
    assert (table.driver, table.cuda) == ("610.57.04", "13.3")


def test_a_laptop_has_no_power_limit_and_windows_no_persistence() -> None:
    (table,) = _tables(FIRST.replace("  Off |", " WDDM |", 1), SECOND.replace(" 250W", "  N/A"))
    assert (table.rows[0].persistence, table.rows[0].power_limit) == ("WDDM", "N/A")


def test_processes_are_counted_by_gpu() -> None:
    (table,) = _tables(HEAD, FIRST, SECOND, PROCESSES, PROCESS, PROCESS, PROCESS.replace("|    0", "|    1"))
    assert (table.processes, len(table.rows)) == ({"0": 2, "1": 1}, 1)
    (table,) = _tables(HEAD, FIRST, PROCESSES, "|  No running processes found                       |")
    assert table.processes == {}


def test_a_table_ends_at_the_next_head_and_at_other_text() -> None:
    assert len(_tables(HEAD, FIRST, SECOND, "", HEAD, FIRST)) == 2
    assert len(_tables(HEAD, FIRST, "user@host:~$ ls", "| a table of another program |")) == 1
    assert _tables("| a | b |", "+---+---+") == []


def test_cells_of_the_second_line_are_not_taken_from_elsewhere() -> None:
    (table,) = _tables(HEAD, FIRST, "+------+", SECOND)
    assert table.rows[0].temperature == ""


QUERY = """\
==============NVSMI LOG==============

Driver Version                            : 610.57.04 [Deprecated; use KMD Version]
KMD Version                               : 610.57.04
CUDA UMD Version                          : 13.3

GPU 00000000:0C:00.0
    Product Name                          : NVIDIA L40S
    MIG Mode
        Current                           : Enabled
    GPU Recovery Action                   : Drain P2P
    PCI
        Device Id                         : 0x26B910DE
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : 1
                Device Max                : 4
                Host Max                  : 5
            Link Width
                Max                       : 16x
                Current                   : 8x
        Replays Since Reset               : 3
    Performance State                     : P8
    FB Memory Usage
        Total                             : 46068 MiB
        Used                              : 512 MiB
    Utilization
        GPU                               : 7 %
    ECC Errors
        Aggregate
            DRAM Uncorrectable            : 6
        Channel Repair Pending            : Yes
    Temperature
        GPU Current Temp                  : 51 C
        GPU T.Limit Temp                  : 40 C
        GPU Slowdown T.Limit Temp         : -2 C
    GPU Power Readings
        Instantaneous Power Draw          : 97.75 W
        GPU Ceiling Power Limit
            Current Power Limit           : 300.00 W
            Default Power Limit           : 350.00 W
        Min Power Limit                   : 100.00 W
    Clocks
        Graphics                          : 1410 MHz
        SM                                : 1410 MHz
        Memory                            : 9001 MHz
    Max Clocks
        Graphics                          : 2520 MHz
        Memory                            : 9001 MHz
    Processes
        Process ID                        : 1720
            Name                          : python3
"""


def _gpus(text: str) -> tuple[QueryReader, list[QueryGpu]]:
    reader = QueryReader()
    ended = [reader.feed(number, line) for number, line in enumerate(text.splitlines(), 1)]
    return reader, [gpu for gpu in (*ended, reader.end()) if gpu]


def test_a_card_is_read_as_from_the_xml() -> None:
    reader, (gpu,) = _gpus(QUERY)
    card = gpu.card
    assert (reader.driver, reader.cuda, gpu.line) == ("610.57.04", "13.3", 7)
    assert (card.bus_id, card.name, card.device_id, card.mig) == ("0000:0c:00.0", "NVIDIA L40S", "26b9", True)
    assert (card.generation, card.generation_max, card.generation_host, card.width, card.width_max) == (1, 4, 5, 8, 16)
    assert (card.memory_mib, card.memory_used_mib, card.utilization_percent, card.replays) == (46068, 512, 7, 3)
    assert (card.temperature_c, card.tlimit_c, card.slowdown_tlimit_c, card.slowdown_margin_c) == (51, 40, -2, 42)
    assert (card.power_w, card.power_limit_w, card.power_default_w, card.power_min_w) == (97.75, 300, 350, 100)
    assert (card.recovery_action, card.channel_repair_pending, card.ecc_ever.uncorrected) == ("Drain P2P", True, 6)
    assert gpu.values["pci/gpu_link_info/pcie_generation/max"] == "4"
    assert (card.graphics_mhz, card.memory_mhz, card.graphics_max_mhz, card.memory_max_mhz) == (1410, 9001, 2520, 9001)


def test_an_indented_copy_and_a_part_of_it_are_read_too() -> None:
    indented = "".join(f"      {line}\n" for line in QUERY.splitlines())
    assert _gpus(indented)[1][0].card == _gpus(QUERY)[1][0].card
    part = QUERY[QUERY.index("GPU 0000") :]
    assert _gpus(part)[1][0].card == _gpus(QUERY)[1][0].card


def test_several_gpus_and_text_behind_them() -> None:
    second = QUERY[QUERY.index("GPU 0000") :].replace("0C:00.0", "0D:00.0")
    _, gpus = _gpus(f"{QUERY}{second}user@host:~$ date\n    Sun Nov 22\n        GPU Current Temp : 99 C\n")
    assert [(gpu.card.bus_id, gpu.card.temperature_c) for gpu in gpus] == [("0000:0c:00.0", 51), ("0000:0d:00.0", 51)]


def test_a_value_that_cannot_be_read_leaves_the_others() -> None:
    _, (gpu,) = _gpus(QUERY.replace(": 51 C", ": warm"))
    assert (gpu.card.name, gpu.card.temperature_c, gpu.values["mig_mode/current"]) == ("NVIDIA L40S", None, "Enabled")
    _, (gpu,) = _gpus(QUERY.replace(": 51 C", ": Unknown Error").replace(": P8", ": GPU is lost"))
    assert gpu.card.lost == "GPU is lost"
    assert "gpu_temp: Unknown Error" in gpu.card.unread


def test_a_section_without_its_gpu_is_read() -> None:
    part = QUERY[QUERY.index("    Temperature") :]
    _, (gpu,) = _gpus(f"some text\n{part}the end\n")
    assert (gpu.line, gpu.card.bus_id, gpu.card.temperature_c, gpu.card.power_limit_w) == (2, "", 51, 300)
