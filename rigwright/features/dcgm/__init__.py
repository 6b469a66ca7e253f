"""NVIDIA's DCGM: its service and its diagnosis."""

VARIABLES = ("dcgm",)
