"""The guard: a service on the host that watches the GPUs and acts before they are damaged."""

VARIABLES = ("guard", "metrics")
