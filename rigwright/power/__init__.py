"""The power plan: what a machine's GPUs draw, whether its supplies carry it, and the limits that would fit. Asks no host.

Pure functions over the catalogue. The model and its factors are explained in docs/power.md.
"""

from __future__ import annotations

from rigwright.power.asked import price, supplied, whole
from rigwright.power.budget import Budget, Circuit, Load, Reason, budget, circuits
from rigwright.power.draw import EFFICIENCY_PERCENT, Setting, Wanted, checked, setting_of
from rigwright.power.fitting import Option, Plan, plan

__all__ = [
    "EFFICIENCY_PERCENT",
    "Budget",
    "Circuit",
    "Load",
    "Option",
    "Plan",
    "Reason",
    "Setting",
    "Wanted",
    "budget",
    "checked",
    "circuits",
    "plan",
    "price",
    "setting_of",
    "supplied",
    "whole",
]
