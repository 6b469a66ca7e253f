"""`invoke explain`: what the catalogue knows of a name, an error or a pasted text."""

COMMANDS = {"explain": "options:ExplainOptions"}
