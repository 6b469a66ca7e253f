"""Faults that the lab can inject into a running simulated host. Each fault is a module of catalogue/."""
