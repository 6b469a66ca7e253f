"""The power plan: the power of a machine's GPUs, whether its supplies are sufficient, and limits that fit. Connects to no host.

Pure functions over the catalogue. The model and its factors are explained in docs/power.md.
"""

from __future__ import annotations

from rigwright.catalogue.power.budget import BASE_W, Budget, Circuit, Load, Reason, budget, circuits, models_of
from rigwright.catalogue.power.draw import EFFICIENCY_PERCENT, Setting, Wanted, checked, setting_of
from rigwright.catalogue.power.missing import Missing, missing, positions_without_power
from rigwright.catalogue.power.plan import Option, Plan, plan
