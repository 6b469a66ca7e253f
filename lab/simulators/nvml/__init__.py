"""The simulated libnvidia-ml.so.1 (C) and the real nvidia-smi that runs over it."""
