"""Modules that all parts of the lab use: paths, running programs, the lab's lock, the distributions."""
