"""What differs in a fleet: each machine from its own past and from its peers, and where every GPU is. Pure, over recorded facts."""

from __future__ import annotations

from rigwright.drift.gpus import Place, placed
from rigwright.drift.machine import Machine
from rigwright.drift.past import past
from rigwright.drift.peers import peers

__all__ = ["Machine", "Place", "past", "peers", "placed"]
