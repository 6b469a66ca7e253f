"""The inventory variable `dcgm`: whether NVIDIA's DCGM is installed and runs."""

from __future__ import annotations

TYPES = {"dcgm": bool}
