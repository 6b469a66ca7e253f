"""The simulated CUDA libraries (C): libcuda, libcudart, libcublas and libnccl. They use the state of libnvidia-ml."""
