"""Training over several nodes: their links, and a training over all of them."""

RESULT_KEYS = ("nodes",)
VARIABLES = ("nodes",)
