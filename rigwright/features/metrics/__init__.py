"""Metrics of the GPUs for Prometheus: what the guard reads, by node_exporter."""
