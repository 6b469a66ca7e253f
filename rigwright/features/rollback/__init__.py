"""`invoke rollback`: a host goes back to what it was before a run."""

COMMANDS = {"rollback": "options:RollbackOptions"}
