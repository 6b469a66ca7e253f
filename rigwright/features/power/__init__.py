"""The power plan of a machine, and its power while it works."""

COMMANDS = {"power.watch": "options:PowerWatchOptions", "power.plan": "options:PowerPlanOptions"}

VARIABLES = ("circuit",)
