"""The driver's own sentences about a GPU that it could not start, from lines of the kernel log."""

from __future__ import annotations

import time

import pytest

from rigwright.driver.load_failure import LONGEST, complaints
from rigwright.driver.start_failure import StartFailures
from tests.machine_speed import within

ONE, OTHER = "0000:01:00.0", "0000:02:00.0"


def test_each_gpu_has_its_own_sentences_and_those_without_a_bus_id_before_its_failure() -> None:
    log = """
    2026-11-22T03:20:10+00:00 vm1 kernel: NVRM: GPU 0000:01:00.0: Failed to enable MSI; \
falling back to PCIe virtual-wire interrupts.
    2026-11-22T03:20:11+00:00 vm1 kernel: NVRM: GPU0 kgspParseFwsecUcode: did not find valid ROM signature
    2026-11-22T03:20:11+00:00 vm1 kernel: NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x25:2110)
    2026-11-22T03:20:11+00:00 vm1 kernel: NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0
    2026-11-22T03:20:12+00:00 vm1 kernel: NVRM: GPU 0000:02:00.0: RmInitAdapter failed! (0x24:0x72:1603)
    2026-11-22T03:20:12+00:00 vm1 kernel: NVRM: GPU 0000:02:00.0: rm_init_adapter failed, device minor number 1
    """.splitlines()
    failures = StartFailures(log)
    one, other = failures.of(ONE), failures.of(OTHER)
    assert one
    assert other
    assert one.said == (
        "GPU0 kgspParseFwsecUcode: did not find valid ROM signature; RmInitAdapter failed! (0x62:0x25:2110)"
    )
    assert (one.symptom, one.fix) == ("gpu.init_vbios", "a cold boot first; invoke explain gpu.init_vbios")
    assert (other.said, other.symptom) == ("RmInitAdapter failed! (0x24:0x72:1603)", "gpu.init_memory")
    assert failures.of("0000:03:00.0") is None


@pytest.mark.parametrize("line", ["a", "NVRM: word fail " + "x" * 40, "NVRM: " + "a b " * 500])
def test_a_sentence_without_an_end_needs_no_minute(line: str) -> None:
    """Hostile: a sentence that is put together from all lines of the log is copied once for each of them."""
    began = time.thread_time()
    found = complaints([line] * (4_000_000 // len(line) if len(line) > 1 else 100_000))
    assert all(len(text) <= LONGEST for text in found)
    assert within(time.thread_time() - began, 5)


def test_the_first_failure_of_many_tries_is_the_fault() -> None:
    """The status 0x40 of the later tries is a consequence; every nvidia-smi tries again."""
    log = [f"NVRM: GPU {ONE}: RmInitAdapter failed! (0x62:0x1a:2631)"]
    log += [f"NVRM: GPU {ONE}: RmInitAdapter failed! (0x62:0x40:2168)"] * 500
    failure = StartFailures(log).of(ONE)
    assert failure
    assert failure.symptom == "gpu.init_failed"
    assert failure.said == "RmInitAdapter failed! (0x62:0x1a:2631); RmInitAdapter failed! (0x62:0x40:2168)"
    long = StartFailures([f"NVRM: GPU {ONE}: RmInitAdapter failed! {'x' * 2000}"] * 9).of(ONE)
    assert long
    assert len(long.said) <= LONGEST


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.261.03",
        f"NVRM: GPU at PCI:{ONE}: GPU-5a1c0000-0001-4000-8000-0000000000a0",
        f"NVRM: GPU {ONE}: RmInitAdapter succeeded",
        "nvidia: loading out-of-tree module taints kernel.",
        "NVRM: Xid (PCI:0000:01:00): 31, pid=1, name=python3, MMU Fault",
    ],
)
def test_what_is_no_failure(line: str) -> None:
    assert StartFailures([line]).of(ONE) is None
