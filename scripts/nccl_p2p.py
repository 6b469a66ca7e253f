#!/usr/bin/env python3
"""Tests peer-to-peer between the GPUs of this machine: grant, bytes, NCCL. One JSON document on stdout.

    scripts/nccl_p2p.py --quick
    scripts/nccl_p2p.py --libraries DIR --pairs 0-1,2-3 --no-collective --journal FILE --timeout-s 900 --step-timeout-s 30

The program is rigwright/onhost/nccl_p2p.py, which runs on a host by itself; --help is its own. docs/nccl_p2p.md.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    program = Path(__file__).resolve().parent.parent / "rigwright" / "onhost" / "nccl_p2p.py"
    sys.argv[0] = str(program)
    runpy.run_path(str(program), run_name="__main__")
