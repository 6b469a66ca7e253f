"""`invoke fleet.run`: one command on many hosts."""

RESULT_KEYS = ("ran",)

COMMANDS = {"fleet.run": "options:FleetRunOptions"}
