"""The lab: simulated GPU servers made of real parts. What stands in for hardware says so."""
