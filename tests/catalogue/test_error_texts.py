"""Error texts that people pasted in public threads: the proven cause is explained first, and nothing harmful is
advised."""

from __future__ import annotations

import re

import pytest

from rigwright.catalogue.symptoms import all_symptoms
from tests.catalogue.error_texts import ErrorText, error_texts, wrong

TEXTS = error_texts()


@pytest.mark.parametrize("row", [pytest.param(row, id=row.source.split(";")[0]) for row in TEXTS])
def test_the_proven_cause_comes_first(row: ErrorText) -> None:
    assert wrong(row) == []


def test_there_are_forty_texts_of_different_symptoms() -> None:
    assert len(TEXTS) >= 40
    assert len({row.first for row in TEXTS}) >= 36


def test_each_cause_that_a_text_can_show_has_such_a_text() -> None:
    texts = [row.text for row in TEXTS] + [text for known in all_symptoms().values() for text in known.texts] + SHOWN
    unseen = [
        f"{known.key}: {pattern}"
        for known in all_symptoms().values()
        for cause in known.causes
        for pattern in cause.shown_by
        if not any(re.search(pattern, text, re.IGNORECASE | re.MULTILINE) for text in texts)
    ]
    assert unseen == []


SHOWN = [
    "-> Kernel module load error: Required key not available",
    "-> Kernel module load error: No such device",
    "-> Kernel module load error: Exec format error",
    "-> Kernel module load error: Unknown symbol in module",
    "-> Kernel module load error: File exists",
    "NVRM: osInitNvMapping: *** Cannot attach gpu",
    "pcieport 0000:00:01.1: pciehp: Slot(1): Link Down",
    "pcieport 0000:00:01.1: pciehp: Slot(1): Card not present",
    "libcuda.so.1 (libc6,x86-64) => /usr/local/cuda-13.0/compat/libcuda.so.1",
    "    GPU Recovery Action                   : Reset",
    "    Compute Mode                          : Exclusive_Process",
    "nvidia-fabricmanager-start.sh[4753]: Detected Pre-NVL5 system",
    "GPU 0: NVIDIA B200 (UUID: GPU-00000000-1111-2222-3333-444444444444)",
    "NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0",
    "mlx5_core 0000:a1:00.0 ens1np0: Link down",
    "Memory cgroup out of memory: Killed process 6291 (python3) total-vm:14119556kB",
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null)",
    "Indexing.cu:1290: block: [7,0,0], thread: [3,0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
    "connect to host7 failed: No route to host",
    "E: The repository 'https://archive.example/debian trixie InRelease' is not signed.",
]
