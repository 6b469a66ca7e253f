"""A feature of another distribution: a folder for scratch data on each host."""

PREFIX = "scratch"
COMMANDS = {"scratch.room": "options:RoomOptions"}
VARIABLES = ("scratch",)
