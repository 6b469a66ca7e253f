"""Attacks that worked once, and are refused now: one file for each, by its number in the audit."""
