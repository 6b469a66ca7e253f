"""`invoke limits.find`: the limits with which the GPUs do the most for the power that they take."""

RESULT_KEYS = ("sweep",)

COMMANDS = {"limits.find": "options:LimitsFindOptions"}
