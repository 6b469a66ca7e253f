"""The simulated CUDA libraries (C): libcuda, libcudart, libcublas and libnccl over the state that libnvidia-ml reads."""
