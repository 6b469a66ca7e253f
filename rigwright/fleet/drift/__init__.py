"""Differences in a fleet: of each machine from its past and its peers, and of the place of every GPU. Works on recorded facts."""

from __future__ import annotations

from rigwright.fleet.drift._machine import Machine
from rigwright.fleet.drift.gpus import Place, placed
from rigwright.fleet.drift.past import past
from rigwright.fleet.drift.peers import peers

__all__ = ["Machine", "Place", "past", "peers", "placed"]
