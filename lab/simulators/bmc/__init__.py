"""The simulated management controller (C): sensors for ipmitool, and the watch over the 12 V rails."""
