"""Settings of others: units, cron jobs and scripts on a host that set limits, clocks or fans of its GPUs."""

VARIABLES = ("take_over",)
