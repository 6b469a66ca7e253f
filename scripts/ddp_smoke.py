#!/usr/bin/env python3
"""Trains a small model on the GPUs of this machine, one process for each. Checks that the loss falls and
is equal on all, and prints samples a second.

    torchrun --nproc_per_node=4 scripts/ddp_smoke.py --seconds 60
    torchrun --nproc_per_node=2 scripts/ddp_smoke.py --seconds 5 --cpu

Runs rigwright/features/training_smoke/host/ddp_smoke.py, which needs torch and no other part of rigwright. See docs/guide/training.md.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    program = Path(__file__).resolve().parent.parent / "rigwright/features/training_smoke/host/ddp_smoke.py"
    sys.argv[0] = str(program)
    runpy.run_path(str(program), run_name="__main__")
