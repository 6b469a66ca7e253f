"""Features: a folder for each, with its command, options, operations, checks, facts, table and page (core/features.py).

NAMES: rigwright's own, in the order of their keys in JSON documents.
"""

NAMES = (
    "guard",
    "foreign_settings",
    "containers",
    "metrics",
    "dcgm",
    "fleet_run",
    "rollback",
    "try_",
    "recorder",
    "stress",
    "training",
    "training_smoke",
    "nodes",
    "power",
    "limits_find",
    "gpus_choose",
    "accept",
    "explain",
    "fleet_report",
)
