"""The container toolkit: GPUs in docker, podman and containerd."""

VARIABLES = ("containers", "container_repository")
