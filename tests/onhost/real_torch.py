"""The real torch for the tests marked `network`, which train with it on the processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def real_torch(folder: Path) -> str:
    """Returns an interpreter with torch: that of RIGWRIGHT_CPU_TORCH_PYTHON, else one of an environment in `folder`.

    Downloads 200 MB where the index of this machine has a torch for processors (2.13.0+cpu), else 3 GB.
    """
    if given := os.environ.get("RIGWRIGHT_CPU_TORCH_PYTHON"):
        return given
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = str(folder / "venv/bin/python")
    install = [python, "-m", "pip", "install", "-q", "--no-cache-dir", "torch==2.13.0+cpu"]
    if subprocess.run(install, capture_output=True, check=False).returncode:
        subprocess.run([*install[:-1], "torch"], check=True)
    return python
