#!/usr/bin/env python3
"""Runs onhost/gpu_limits.py of this checkout on the GPU machine itself, with the checkout's pynvml."""

import os
import sys

checkout = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
program = os.path.join(checkout, "onhost/gpu_limits.py")
python = os.path.join(checkout, ".venv/bin/python")
if not os.path.exists(python):
    python = sys.executable
os.execv(python, [python, program, *sys.argv[1:]])
