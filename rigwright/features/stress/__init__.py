"""`invoke stress`: all GPUs under full load, measured and judged."""

PREFIX = "load"
"""The prefix of its operations and checks in playbooks."""

RESULT_KEYS = ("stress",)

COMMANDS = {"stress": "options:StressOptions"}
