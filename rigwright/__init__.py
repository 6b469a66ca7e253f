"""rigwright: a fresh Ubuntu or Debian box with NVIDIA GPUs becomes a proven deep-learning server, over plain SSH."""

__version__ = "0.1.0"
