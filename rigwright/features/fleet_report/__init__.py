"""`invoke fleet.report`: a page about all machines, with their past."""

COMMANDS = {"fleet.report": "options:FleetReportOptions"}
