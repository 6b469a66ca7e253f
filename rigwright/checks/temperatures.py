"""The temperatures, and the differences between temperatures, from which a GPU is judged to be hot; degrees Celsius."""

HOT_C = 90
"""A core at this temperature is hot if its own threshold is not known: most GPUs slow down between 87 and 97 C
(assumed)."""
NEAR_SLOWDOWN_C = 5
"""Up to this many degrees below its slowdown temperature, an unexplained slowdown of a GPU is attributed to heat
(assumed)."""
NEAR_MEMORY_LIMIT_C = 5
"""From this many degrees below the limit of its memory on, the driver begins to lower the clock of a GPU (assumed)."""
COOL_CORE_C = 15
"""A core this many degrees below its slowdown temperature is not why the driver lowers the clock (assumed)."""
HOTTER_C = 12
"""A GPU under load is hotter than its peers, or than in its last good run, from this difference on (assumed)."""
HOTTER_IN_STRESS_C = 8
"""The same between two stresses of one GPU with the same settings: rooms differ by less (assumed)."""
WARMER_IN_TRIAL_C = 5
"""From this difference on, a difference in speed between two rounds of `try` may have another cause than the change
(assumed)."""
