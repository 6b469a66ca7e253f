"""A boot of a simulated host: the power switch, the supervisor, and the preparation of the rig's hardware."""
