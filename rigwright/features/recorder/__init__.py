"""The recorder: what the GPUs do each second, while something loads them."""

PREFIX = "recording"
"""The prefix of its checks in playbooks."""
