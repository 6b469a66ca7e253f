"""Features: a folder for each, with its command, options, operations, checks, facts, table and page."""

RESULT_KEYS = ("ran", "try", "stress", "smoke", "nodes", "sweep")
