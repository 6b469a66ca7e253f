"""What the options that several commands share are said to do."""

from __future__ import annotations

HELP = {
    "host": "a host, a group or a pattern of the inventory (gpu:!old, v100*); `all` is every host",
    "playbook": "the playbook (default: the command's own in playbooks/)",
    "inventory": "the inventory (default: $RIGWRIGHT_INVENTORY, then ./inventory)",
    "yes": "make the changes without asking",
    "json": "write one JSON document to FILE, or to stdout with -",
    "tags": "only the steps with one of these tags (a,b)",
}
SOME = "a host, a group or a pattern of the inventory (default: all)"
EXECUTOR = {
    "executor": "who connects to the hosts: a Dask scheduler's workers, tcp://SCHEDULER:8786 (default: this machine)"
}
HTML = {"html": "write the report page to FILE: one HTML file that needs nothing else"}
WHEELS = (
    "libraries of the peer-to-peer test for a host that has none: fetch (pip), a directory with the wheels, or none"
)
TEST = {
    "quick": "only what can be read: no peer-to-peer test",
    "busy": "test also while processes use the GPUs",
    "wheels": WHEELS,
}
PROGRAMS = {
    "nccl-tests": "with --tags p2p: NVIDIA's all_reduce_perf and sendrecv_perf too, of the host (=FOLDER: of that folder)",
    "python": "with --tags p2p: a collective through the torch of that interpreter on the host too, one process per GPU",
}
