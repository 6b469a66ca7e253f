"""`invoke try`: a change is measured before and after, and kept or taken back."""

RESULT_KEYS = ("try",)

COMMANDS = {"try": "options:TryOptions"}
