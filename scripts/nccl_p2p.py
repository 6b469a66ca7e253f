#!/usr/bin/env python3
"""Tests peer-to-peer transfers between the GPUs of this machine: access, copies, NCCL. Prints JSON to stdout.

    scripts/nccl_p2p.py --quick
    scripts/nccl_p2p.py --alone
    scripts/nccl_p2p.py --libraries DIR --pairs 0-1,2-3 --no-collective --journal FILE --timeout-s 900

Runs onhost/nccl_p2p.py, which needs no other part of rigwright. See docs/reference/nccl_p2p.md.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    program = Path(__file__).resolve().parent.parent / "onhost" / "nccl_p2p.py"
    sys.argv[0] = str(program)
    runpy.run_path(str(program), run_name="__main__")
