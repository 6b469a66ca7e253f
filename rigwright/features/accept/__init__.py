"""The acceptance sheet of second-hand hardware."""

COMMANDS = {"accept": "options:AcceptOptions"}
