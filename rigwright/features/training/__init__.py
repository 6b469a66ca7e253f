"""A Python environment with torch for training."""

VARIABLES = ("training",)
