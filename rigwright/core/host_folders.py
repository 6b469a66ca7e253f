"""The folders of a host that are rigwright's own. Scripts that are no f-strings have the same paths as text."""

from __future__ import annotations

STATE = "/var/lib/rigwright"
"""What rigwright remembers on a host: its lease, what it put there, its runs."""

RUNS = f"{STATE}/runs"
"""A folder for each run that changed the host; only root can read it."""

UNTIL_BOOT = "/run/rigwright"
"""What counts until the next boot."""
